// SPDX-License-Identifier: Apache-2.0
// Fashion-MNIST from its four gzip-compressed IDX files.
#include <array>
#include <limits>
#include <numeric>
#include <span>
#include <string>

#include <zlib.h>

#include "gradsieve/vocabulary.hpp"

#include "bench/convergence/datasets.hpp"
#include "bench/convergence/shuffle.hpp"

namespace gradsieve::study {
namespace {

// The mean and the standard deviation of the training pixels, scaled to [0, 1].
constexpr float kPixelMean = 0.2860f;
constexpr float kPixelDeviation = 0.3530f;

class GzipFile {
 public:
  explicit GzipFile(std::filesystem::path const& path)
      : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (file_ == nullptr) {
      throw Error(Code::io_error,
                  "'" + path.string() +
                      "' cannot be read; expected the Fashion-MNIST images of the Debian package "
                      "dataset-fashion-mnist (apt-get install dataset-fashion-mnist), or their "
                      "folder given by --data");
    }
  }
  ~GzipFile() { gzclose(file_); }
  GzipFile(GzipFile const&) = delete;
  GzipFile& operator=(GzipFile const&) = delete;

  void read(std::span<std::uint8_t> bytes) {
    if (gzread(file_, bytes.data(), static_cast<unsigned>(bytes.size())) !=
        static_cast<int>(bytes.size())) {
      throw Error(Code::corrupt_payload,
                  "'" + path_.string() + "' ends early or is damaged; expected an IDX file");
    }
  }
  void expect_end() {
    std::uint8_t extra = 0;
    if (gzread(file_, &extra, 1) != 0) {
      throw Error(Code::corrupt_payload,
                  "'" + path_.string() + "' is longer than its IDX header says");
    }
  }

 private:
  std::filesystem::path path_;
  gzFile file_;
};

// Reads an IDX file of bytes whose dimensions after the first must be the ones given.
std::vector<std::uint8_t> read_idx(std::filesystem::path const& path,
                                   std::span<std::uint32_t const> inner_shape) {
  GzipFile file(path);
  auto const word = [&file] {
    std::array<std::uint8_t, 4> b{};
    file.read(b);
    return (std::uint32_t{b[0]} << 24) | (std::uint32_t{b[1]} << 16) | (std::uint32_t{b[2]} << 8) |
           b[3];
  };
  // 0x08 is the type of unsigned bytes, the last byte the number of dimensions.
  auto const magic = static_cast<std::uint32_t>(0x0800 + 1 + inner_shape.size());
  bool fits = word() == magic;
  std::uint64_t num_bytes = fits ? word() : 0;
  constexpr std::uint64_t kMaxExamples = 1'000'000;
  fits = fits && num_bytes <= kMaxExamples;
  for (std::uint32_t const dimension : inner_shape) {
    fits = fits && word() == dimension;
    num_bytes *= dimension;
  }
  if (!fits) {
    throw Error(Code::corrupt_payload,
                "'" + path.string() + "' is not the IDX file of bytes that Fashion-MNIST has");
  }
  std::vector<std::uint8_t> bytes(num_bytes);
  file.read(bytes);
  file.expect_end();
  return bytes;
}

struct Images {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
};

Images read_images(std::filesystem::path const& folder, std::string const& prefix) {
  std::uint32_t const image_shape[] = {28, 28};
  Images images;
  images.pixels = read_idx(folder / (prefix + "-images-idx3-ubyte.gz"), image_shape);
  images.labels = read_idx(folder / (prefix + "-labels-idx1-ubyte.gz"), {});
  if (images.pixels.size() != images.labels.size() * kImagePixels || images.labels.empty()) {
    throw Error(Code::corrupt_payload, "'" + folder.string() + "' has " + prefix +
                                           " images and labels of different counts");
  }
  for (std::uint8_t const label : images.labels) {
    if (label > 9)
      throw Error(Code::corrupt_payload, "'" + folder.string() + "' has a label above 9");
  }
  return images;
}

class ImageDataset final : public Dataset {
 public:
  ImageDataset(Images training, Images validation)
      : training_(std::move(training)), validation_(std::move(validation)) {}

  std::uint64_t num_training_examples() const noexcept override { return training_.labels.size(); }
  std::uint64_t num_validation_examples() const noexcept override {
    return validation_.labels.size();
  }
  std::uint64_t num_classes() const noexcept override { return 10; }

  void training_batch(std::uint64_t seed, std::uint64_t step, int rank, int world_size,
                      std::uint64_t num_examples, Batch& batch) const override {
    std::uint64_t const per_step = num_examples * static_cast<std::uint64_t>(world_size);
    std::uint64_t const steps_per_epoch =
        std::max<std::uint64_t>(1, training_.labels.size() / per_step);
    Shuffle const order(training_.labels.size(), seed, step / steps_per_epoch);
    std::uint64_t const first =
        (step % steps_per_epoch) * per_step + static_cast<std::uint64_t>(rank) * num_examples;
    clear(batch, num_examples);
    for (std::uint64_t i = 0; i < num_examples; ++i) {
      append(training_, order((first + i) % training_.labels.size()), batch);
    }
  }

  void validation_batch(std::uint64_t first, std::uint64_t num_examples,
                        Batch& batch) const override {
    clear(batch, num_examples);
    for (std::uint64_t i = 0; i < num_examples; ++i) append(validation_, first + i, batch);
  }

 private:
  static void clear(Batch& batch, std::uint64_t num_examples) {
    batch.num_examples = num_examples;
    batch.images.clear();
    batch.targets.clear();
  }

  static void append(Images const& images, std::uint64_t index, Batch& batch) {
    std::span const pixels = std::span(images.pixels).subspan(index * kImagePixels, kImagePixels);
    for (std::uint8_t const pixel : pixels) {
      batch.images.push_back((static_cast<float>(pixel) / 255.0f - kPixelMean) / kPixelDeviation);
    }
    batch.targets.push_back(images.labels[index]);
  }

  Images training_;
  Images validation_;
};

}  // namespace

std::filesystem::path default_image_folder() { return "/usr/share/datasets/fashion-mnist"; }

std::unique_ptr<Dataset> load_images(std::filesystem::path const& folder) {
  return std::make_unique<ImageDataset>(read_images(folder, "train"), read_images(folder, "t10k"));
}

}  // namespace gradsieve::study
