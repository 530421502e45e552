// SPDX-License-Identifier: Apache-2.0
// One program for all targets: gsv_fuzz --target=NAME [libFuzzer's flags and folders],
// gsv_fuzz --list, gsv_fuzz --target=NAME --seeds=FOLDER.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/fuzz/fuzz_target.hpp"

namespace {

using namespace gradsieve;
using namespace gradsieve::testing;

FuzzTarget const* target = nullptr;

void list_targets() {
  for (FuzzTarget const& each : fuzz_targets())
    std::printf("%s %zu\n", each.name.c_str(), each.max_input_bytes);
}

void write_seeds(FuzzTarget const& of, std::string const& folder) {
  int number = 0;
  for (FuzzInput const& seed : of.seeds()) {
    std::ofstream file(folder + "/seed" + std::to_string(number++), std::ios::binary);
    file.write(reinterpret_cast<char const*>(seed.data()),
               static_cast<std::streamsize>(seed.size()));
  }
}

}  // namespace

// libFuzzer's names. It ignores what begins with two dashes.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t num_bytes);

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  std::string seeds;
  for (int i = 1; i < *argc; ++i) {
    std::string_view const argument = (*argv)[i];
    if (argument == "--list") {
      list_targets();
      std::exit(0);
    }
    if (argument.starts_with("--target=")) target = find_fuzz_target(argument.substr(9));
    if (argument.starts_with("--seeds=")) seeds = argument.substr(8);
  }
  if (target == nullptr) {
    std::fprintf(stderr, "gsv_fuzz: expected --target=NAME with a name of gsv_fuzz --list\n");
    std::exit(2);
  }
  if (!seeds.empty()) {
    write_seeds(*target, seeds);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t num_bytes) {
  target->run({reinterpret_cast<std::byte const*>(data), num_bytes});
  return 0;
}
