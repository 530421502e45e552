// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_target.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace gradsieve::testing {

std::vector<FuzzTarget> const& fuzz_targets() {
  static std::vector<FuzzTarget> const targets = [] {
    std::vector<FuzzTarget> all;
    add_decoder_targets(all);
    add_index_targets(all);
    add_wire_targets(all);
    add_hook_targets(all);
    add_file_targets(all);
    return all;
  }();
  return targets;
}

FuzzTarget const* find_fuzz_target(std::string_view name) {
  auto const found = std::ranges::find(fuzz_targets(), name, &FuzzTarget::name);
  return found == fuzz_targets().end() ? nullptr : &*found;
}

void broken(std::string_view sentence) {
  std::fprintf(stderr, "broken promise: %.*s\n", static_cast<int>(sentence.size()),
               sentence.data());
  std::abort();
}

std::uint64_t InputReader::number(std::size_t num_bytes) {
  std::uint64_t value = 0;
  ConstBytes const bytes = take(num_bytes);
  std::memcpy(&value, bytes.data(), bytes.size());
  return value;
}

ConstBytes InputReader::take(std::size_t num_bytes) {
  ConstBytes const taken = bytes_.first(std::min(num_bytes, bytes_.size()));
  bytes_ = bytes_.subspan(taken.size());
  return taken;
}

FuzzInput join(std::initializer_list<ConstBytes> parts) {
  FuzzInput all;
  for (ConstBytes const part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

FuzzInput number_bytes(std::uint64_t value, std::size_t num_bytes) {
  FuzzInput bytes(num_bytes);
  std::memcpy(bytes.data(), &value, num_bytes);
  return bytes;
}

ExactCopy::ExactCopy(ConstBytes bytes)
    : memory_(static_cast<std::byte*>(std::malloc(std::max<std::size_t>(bytes.size(), 1)))),
      num_bytes_(bytes.size()) {
  require(memory_ != nullptr, "no memory for an input");
  if (!bytes.empty()) std::memcpy(memory_.get(), bytes.data(), bytes.size());
}

}  // namespace gradsieve::testing
