// SPDX-License-Identifier: Apache-2.0
// What the fuzzers run: one target for each thing that reads bytes somebody else wrote. The same
// targets serve libFuzzer (fuzz_main.cpp) and the replay of the corpus (fuzz_replay_test.cpp).
#pragma once

#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve::testing {

using FuzzInput = std::vector<std::byte>;

struct FuzzTarget {
  std::string name;
  /// Aborts, with a sentence, where a promise is broken.
  std::function<void(ConstBytes)> run;
  /// What a search begins with: inputs made by our own encoders.
  std::function<std::vector<FuzzInput>()> seeds;
  std::size_t max_input_bytes = 4096;
};

/// All of them: those of the registry's plug-ins, the wire, files and text.
[[nodiscard]] std::vector<FuzzTarget> const& fuzz_targets();
/// Null if there is none of that name.
[[nodiscard]] FuzzTarget const* find_fuzz_target(std::string_view name);

void add_decoder_targets(std::vector<FuzzTarget>& targets);
void add_index_targets(std::vector<FuzzTarget>& targets);
void add_wire_targets(std::vector<FuzzTarget>& targets);
void add_hook_targets(std::vector<FuzzTarget>& targets);
void add_file_targets(std::vector<FuzzTarget>& targets);

/// Prints the sentence and aborts, so that libFuzzer keeps the input.
[[noreturn]] void broken(std::string_view sentence);
inline void require(bool holds, std::string_view sentence) {
  if (!holds) broken(sentence);
}

/// Takes an input apart, from its first byte on; what is not there is 0.
class InputReader {
 public:
  explicit InputReader(ConstBytes bytes) : bytes_(bytes) {}
  [[nodiscard]] std::uint64_t number(std::size_t num_bytes);
  [[nodiscard]] ConstBytes take(std::size_t num_bytes);
  [[nodiscard]] ConstBytes rest() const noexcept { return bytes_; }

 private:
  ConstBytes bytes_;
};

/// The opposite, for seeds.
[[nodiscard]] FuzzInput join(std::initializer_list<ConstBytes> parts);
[[nodiscard]] FuzzInput number_bytes(std::uint64_t value, std::size_t num_bytes);

/// Exactly as long as it has to be, so that a read behind it is seen; aligned as payloads are.
class ExactCopy {
 public:
  explicit ExactCopy(ConstBytes bytes);
  [[nodiscard]] ConstBytes bytes() const noexcept { return {memory_.get(), num_bytes_}; }
  [[nodiscard]] Bytes writable() noexcept { return {memory_.get(), num_bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* pointer) const noexcept { std::free(pointer); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t num_bytes_;
};

}  // namespace gradsieve::testing
