// SPDX-License-Identifier: Apache-2.0
// gradsieve info
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>

#include "gradsieve/registry.hpp"

#include "bindings/cli/build_info.hpp"
#include "bindings/cli/claims_text.hpp"
#include "bindings/cli/commands.hpp"
#include "bindings/shared/tensor_memory.hpp"

namespace gradsieve::cli {
namespace {

void print_build() {
  std::cout << "gradsieve " << kVersion << '\n';
  std::cout << "  compiler  " << kCompiler << '\n';
  std::cout << "  simd      " << simd_target_name(simd_target()) << "; this machine and build run:";
  for (SimdTarget const target : supported_simd_targets())
    std::cout << ' ' << simd_target_name(target);
  char const* const variable = std::getenv("GRADSIEVE_SIMD");
  std::cout << (variable != nullptr && *variable != '\0' ? "; chosen by GRADSIEVE_SIMD\n" : "\n");
  std::cout << "  threads   " << std::thread::hardware_concurrency() << " on this machine\n";
  std::cout << "  plug-ins ";
  for (PluginInfo const* const plugin : builtin_registry().plugins()) {
    if (plugin->kind != PluginKind::feedback) std::cout << ' ' << plugin->name;
  }
  std::cout << "\nfound or left out when it was built\n";
  std::istringstream lines(kBuildSummary);
  for (std::string line; std::getline(lines, line);) std::cout << "  " << line << '\n';
}

char const* exchange_of(RoundInfo const& round) {
  switch (round.exchange) {
    case ExchangeKind::gather:
      return "gather: own bytes of each rank to all";
    case ExchangeKind::sum:
      return round.sum_type == SumType::f64 ? "sum: all_reduce of f64" : "sum: all_reduce of f32";
    case ExchangeKind::shard_sum:
      return "shard_sum: two_shot, with an owner for each shard";
  }
  return "";
}

void print_bytes(char const* what, std::uint64_t num_bytes, std::uint64_t num_elements) {
  double const each =
      num_elements == 0 ? 0.0 : static_cast<double>(num_bytes) / static_cast<double>(num_elements);
  std::printf("  %-24s %14llu  %10.4f\n", what, static_cast<unsigned long long>(num_bytes), each);
}

void print_spec(InfoOptions const& options) {
  if (options.num_elements > kMaxPieceElements) {
    throw Error(Code::invalid_argument, "--elements: expected at most " +
                                            std::to_string(kMaxPieceElements) +
                                            ", the longest piece; longer tensors are cut");
  }
  Chain const chain = make_chain(options.spec);
  TensorInfo const tensor{.num_elements = options.num_elements};
  Compressor const& compressor = *chain.compressor;
  std::cout << chain.text << '\n';
  std::cout << "\nclaims\n";
  for (auto const& [name, value] : claims_text(compressor.claims())) {
    std::cout << "  " << name << std::string(16 - std::min<std::size_t>(name.size(), 15), ' ')
              << value << '\n';
  }
  std::cout << "\nrounds\n";
  for (int i = 0; i < compressor.num_rounds(); ++i) {
    RoundInfo const round = compressor.round(i, tensor);
    std::cout << "  " << i << "  " << exchange_of(round) << "; a body of at most "
              << round.capacity_bytes << " bytes\n";
  }
  if (options.num_elements < chain.dense_below_elements) {
    std::cout << "  but a tensor of fewer than " << chain.dense_below_elements
              << " elements is sent as it is (none)\n";
  }
  std::cout.flush();
  bindings::TensorMemory const memory = bindings::memory_of(chain, tensor);
  std::printf("\nmemory for %llu elements\n",
              static_cast<unsigned long long>(options.num_elements));
  std::printf("  %-24s %14s  %10s\n", "", "bytes", "/parameter");
  print_bytes("payload, at most", memory.payloads, options.num_elements);
  print_bytes("state, rollback=merge", memory.state_merge(), options.num_elements);
  print_bytes("state, rollback=exact", memory.state_exact(), options.num_elements);
  print_bytes("workspace", memory.workspace, options.num_elements);
  std::fflush(stdout);
}

}  // namespace

void run_info(InfoOptions const& options) {
  if (options.spec.empty()) {
    print_build();
  } else {
    print_spec(options);
  }
}

}  // namespace gradsieve::cli
