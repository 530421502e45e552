// SPDX-License-Identifier: Apache-2.0
// Real data from Debian packages: Fashion-MNIST images and the King James text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

namespace gradsieve::study {

/// What one rank works on in one step. Images fill `images`, text fills `tokens`.
struct Batch {
  std::uint64_t num_examples = 0;
  std::vector<float> images;          // [num_examples, 784], normalised
  std::vector<std::int64_t> tokens;   // [num_examples, context_tokens]
  std::vector<std::int64_t> targets;  // [num_examples] or [num_examples, context_tokens]
};

/// Training and validation examples; immutable, shared by all rank threads.
class Dataset {
 public:
  virtual ~Dataset() = default;

  [[nodiscard]] virtual std::uint64_t num_training_examples() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t num_validation_examples() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t num_classes() const noexcept = 0;

  /// The examples of one rank in one step: a function of the seed and the arguments alone. In an
  /// epoch no two ranks see the same example.
  virtual void training_batch(std::uint64_t seed, std::uint64_t step, int rank, int world_size,
                              std::uint64_t num_examples, Batch& batch) const = 0;
  virtual void validation_batch(std::uint64_t first, std::uint64_t num_examples,
                                Batch& batch) const = 0;
};

inline constexpr std::uint64_t kImagePixels = 28 * 28;
inline constexpr std::uint64_t kContextTokens = 64;

/// Where Debian's dataset-fashion-mnist puts its files.
[[nodiscard]] std::filesystem::path default_image_folder();

/// The four IDX files of Fashion-MNIST. Errors: io_error that names the Debian package where a file
/// is missing; corrupt_payload where it is not what it says.
[[nodiscard]] std::unique_ptr<Dataset> load_images(std::filesystem::path const& folder);

/// The King James text, from a file or from the `bible` program of Debian's bible-kjv, cut into
/// stretches whose tails are held out for validation. Each rank trains on its own stretches.
[[nodiscard]] std::unique_ptr<Dataset> load_text(std::filesystem::path const& file);

}  // namespace gradsieve::study
