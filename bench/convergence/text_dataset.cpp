// SPDX-License-Identifier: Apache-2.0
// The King James text as characters, for a language model.
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "gradsieve/vocabulary.hpp"

#include "bench/convergence/datasets.hpp"
#include "bench/convergence/shuffle.hpp"

namespace gradsieve::study {
namespace {

constexpr char const* kBibleCommand = "bible -f -l 100000 'Gen1:1-Rev22:21' 2>/dev/null";
constexpr std::uint64_t kNumStretches = 64;
constexpr std::uint64_t kHeldOutShare = 16;          // one part in sixteen of each stretch
constexpr std::uint64_t kValidationPerStretch = 16;  // windows

std::string read_text(std::filesystem::path const& file) {
  std::string text;
  if (!file.empty()) {
    std::ifstream stream(file, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(stream), {});
    if (!stream || text.empty()) {
      throw Error(Code::io_error,
                  "'" + file.string() + "' cannot be read or is empty; expected a text for --text");
    }
    return text;
  }
  std::FILE* const pipe = popen(kBibleCommand, "r");
  if (pipe != nullptr) {
    std::array<char, 1 << 16> chunk{};
    while (std::size_t const count = std::fread(chunk.data(), 1, chunk.size(), pipe))
      text.append(chunk.data(), count);
  }
  if (pipe == nullptr || pclose(pipe) != 0 || text.empty()) {
    throw Error(Code::io_error,
                "the program 'bible' gave no text; expected the Debian package bible-kjv "
                "(apt-get install bible-kjv), or a text file given by --text");
  }
  return text;
}

class TextDataset final : public Dataset {
 public:
  explicit TextDataset(std::string const& text) {
    std::array<bool, 256> used{};
    for (char const c : text) used[static_cast<unsigned char>(c)] = true;
    std::array<std::uint8_t, 256> code{};
    for (std::size_t c = 0; c < used.size(); ++c) {
      if (used[c]) code[c] = static_cast<std::uint8_t>(num_classes_++);
    }
    codes_.reserve(text.size());
    for (char const c : text) codes_.push_back(code[static_cast<unsigned char>(c)]);
    stretch_ = codes_.size() / kNumStretches;
    held_out_ = stretch_ / kHeldOutShare;
    if (held_out_ < kValidationPerStretch + kContextTokens + 1) {
      throw Error(Code::invalid_argument, "the text has " + std::to_string(text.size()) +
                                              " characters; expected at least 100000");
    }
  }

  std::uint64_t num_training_examples() const noexcept override {
    return kNumStretches * (stretch_ - held_out_) / kContextTokens;
  }
  std::uint64_t num_validation_examples() const noexcept override {
    return kNumStretches * kValidationPerStretch;
  }
  std::uint64_t num_classes() const noexcept override { return num_classes_; }

  void training_batch(std::uint64_t seed, std::uint64_t step, int rank, int world_size,
                      std::uint64_t num_examples, Batch& batch) const override {
    clear(batch, num_examples);
    // Ranks own neighbouring stretches: their texts differ, as the data of real ranks does.
    auto const ranks = static_cast<std::uint64_t>(world_size);
    auto const first = static_cast<std::uint64_t>(rank) * kNumStretches / ranks;
    std::uint64_t const count = std::max<std::uint64_t>(
        1, (static_cast<std::uint64_t>(rank) + 1) * kNumStretches / ranks - first);
    std::uint64_t const num_starts = stretch_ - held_out_ - kContextTokens - 1;
    for (std::uint64_t i = 0; i < num_examples; ++i) {
      std::uint64_t const draw = mix_bits(
          seed ^ mix_bits(step ^ mix_bits(static_cast<std::uint64_t>(rank) * num_examples + i)));
      append((first + draw % count) * stretch_ + (draw >> 16) % num_starts, batch);
    }
  }

  void validation_batch(std::uint64_t first, std::uint64_t num_examples,
                        Batch& batch) const override {
    clear(batch, num_examples);
    std::uint64_t const stride = (held_out_ - kContextTokens - 1) / kValidationPerStretch;
    for (std::uint64_t i = first; i < first + num_examples; ++i) {
      // Neighbouring examples lie in different stretches, so that any first part of them is a fair
      // sample.
      std::uint64_t const stretch = i % kNumStretches;
      append((stretch + 1) * stretch_ - held_out_ + (i / kNumStretches) * stride, batch);
    }
  }

 private:
  static void clear(Batch& batch, std::uint64_t num_examples) {
    batch.num_examples = num_examples;
    batch.tokens.clear();
    batch.targets.clear();
  }

  // A window of characters and, as targets, the same window one character later.
  void append(std::uint64_t start, Batch& batch) const {
    std::span const window = std::span(codes_).subspan(start, kContextTokens + 1);
    batch.tokens.insert(batch.tokens.end(), window.begin(), window.end() - 1);
    batch.targets.insert(batch.targets.end(), window.begin() + 1, window.end());
  }

  std::vector<std::uint8_t> codes_;
  std::uint64_t num_classes_ = 0;
  std::uint64_t stretch_ = 0;
  std::uint64_t held_out_ = 0;
};

}  // namespace

std::unique_ptr<Dataset> load_text(std::filesystem::path const& file) {
  return std::make_unique<TextDataset>(read_text(file));
}

}  // namespace gradsieve::study
