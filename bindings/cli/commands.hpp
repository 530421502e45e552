// SPDX-License-Identifier: Apache-2.0
// The subcommands of `gradsieve`. Each prints to standard output and throws Error.
#pragma once

#include <cstdint>
#include <string>

namespace gradsieve::cli {

struct InfoOptions {
  std::string spec;  ///< empty: about the build
  std::uint64_t num_elements = 1'000'000;
};
void run_info(InfoOptions const& options);

struct ListOptions {
  bool json = false;
};
void run_list(ListOptions const& options);

struct EncodeOptions {
  std::string spec;
  std::string input;   ///< .npy
  std::string output;  ///< .gsv
  std::string residual_input;
  std::string residual_output;
  std::uint64_t step = 0;
  std::uint64_t seed = 0;
  std::uint32_t rank = 0;
  int num_threads = 1;
};
void run_encode(EncodeOptions const& options);

struct DecodeOptions {
  std::string input;   ///< .gsv
  std::string output;  ///< .npy
  int num_threads = 1;
};
void run_decode(DecodeOptions const& options);

struct ConformOptions {
  std::string plugin;  ///< path of a shared library
};
/// Becomes the conformance suite, whose exit code is the answer: 0 if the plug-in passes.
void run_conform(ConformOptions const& options);

}  // namespace gradsieve::cli
