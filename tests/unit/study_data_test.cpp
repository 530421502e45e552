// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include "gradsieve/vocabulary.hpp"

#include "bench/convergence/datasets.hpp"
#include "bench/convergence/shuffle.hpp"

namespace gradsieve::study {
namespace {

class StudyData : public testing::Test {
 protected:
  StudyData()
      : folder_(std::filesystem::temp_directory_path() /
                ("gsv_study_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~StudyData() override { std::filesystem::remove_all(folder_); }

  void write_gzip(std::string const& name, std::string const& content) const {
    gzFile const file = gzopen((folder_ / name).c_str(), "wb");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
  }

  // Image i is filled with the pixel i, and its label is i modulo 10.
  void write_images(std::string const& prefix, int count) const {
    std::string images("\0\0\x08\x03\0\0\0", 7);
    std::string labels("\0\0\x08\x01\0\0\0", 7);
    images += static_cast<char>(count);
    labels += static_cast<char>(count);
    images += std::string("\0\0\0\x1c\0\0\0\x1c", 8);
    for (int i = 0; i < count; ++i) {
      images += std::string(kImagePixels, static_cast<char>(i));
      labels += static_cast<char>(i % 10);
    }
    write_gzip(prefix + "-images-idx3-ubyte.gz", images);
    write_gzip(prefix + "-labels-idx1-ubyte.gz", labels);
  }

  std::string error_of_loading_images() const {
    try {
      static_cast<void>(load_images(folder_));
    } catch (Error const& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path folder_;
};

TEST(StudyShuffle, IsAPermutation) {
  for (std::uint64_t const count : {1u, 2u, 3u, 16u, 17u, 1000u}) {
    Shuffle const order(count, 7, 3);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < count; ++i) seen.insert(order(i));

    EXPECT_EQ(seen.size(), count);
    EXPECT_LT(*seen.rbegin(), count);
  }
}

TEST(StudyShuffle, DependsOnSeedAndEpoch) {
  auto const sum_of_matches = [](Shuffle const& a, Shuffle const& b) {
    int matches = 0;
    for (std::uint64_t i = 0; i < 1000; ++i) matches += a(i) == b(i) ? 1 : 0;
    return matches;
  };
  // Two independent orders of 1000 agree in about one place.
  EXPECT_LT(sum_of_matches(Shuffle(1000, 1, 0), Shuffle(1000, 2, 0)), 15);
  EXPECT_LT(sum_of_matches(Shuffle(1000, 1, 0), Shuffle(1000, 1, 1)), 15);
  EXPECT_EQ(sum_of_matches(Shuffle(1000, 1, 1), Shuffle(1000, 1, 1)), 1000);
}

TEST_F(StudyData, DealsEveryImageOncePerEpoch) {
  write_images("train", 24);
  write_images("t10k", 10);
  auto const dataset = load_images(folder_);
  std::multiset<float> seen;
  Batch batch;

  for (std::uint64_t step = 0; step < 4; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      dataset->training_batch(1, step, rank, 3, 2, batch);
      ASSERT_EQ(batch.images.size(), 2 * kImagePixels);
      seen.insert(batch.images.front());
      seen.insert(batch.images.back());
    }
  }

  EXPECT_EQ(std::set<float>(seen.begin(), seen.end()).size(), 24u);
  EXPECT_EQ(dataset->num_validation_examples(), 10u);
}

TEST_F(StudyData, NamesThePackageOfMissingImages) {
  EXPECT_NE(error_of_loading_images().find("dataset-fashion-mnist"), std::string::npos);
}

TEST_F(StudyData, RejectsDamagedImages) {
  write_images("train", 20);
  write_images("t10k", 10);
  write_gzip("t10k-labels-idx1-ubyte.gz",
             std::string("\0\0\x08\x01\0\0\0\x09", 8) + std::string(9, 1));
  EXPECT_NE(error_of_loading_images().find("different counts"), std::string::npos);

  write_gzip("t10k-labels-idx1-ubyte.gz",
             std::string("\0\0\x08\x01\0\0\0\x0a", 8) + std::string(9, 1));
  EXPECT_NE(error_of_loading_images().find("ends early"), std::string::npos);

  write_gzip("t10k-labels-idx1-ubyte.gz",
             std::string("\0\0\x08\x01\0\0\0\x0a", 8) + std::string(10, 11));
  EXPECT_NE(error_of_loading_images().find("label above 9"), std::string::npos);

  write_gzip("t10k-labels-idx1-ubyte.gz", "no IDX file at all");
  EXPECT_NE(error_of_loading_images().find("not the IDX file"), std::string::npos);
}

TEST_F(StudyData, CutsTextIntoWindowsAndTheirSuccessors) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += static_cast<char>('a' + i % 26);
  std::ofstream(folder_ / "text") << text;
  auto const dataset = load_text(folder_ / "text");
  Batch batch;

  dataset->training_batch(3, 5, 1, 4, 8, batch);

  EXPECT_EQ(dataset->num_classes(), 26u);
  ASSERT_EQ(batch.tokens.size(), 8 * kContextTokens);
  for (std::size_t i = 0; i < batch.tokens.size(); ++i)
    EXPECT_EQ(batch.targets[i], (batch.tokens[i] + 1) % 26);
  dataset->validation_batch(0, dataset->num_validation_examples(), batch);
  EXPECT_EQ(batch.targets.size(), dataset->num_validation_examples() * kContextTokens);
}

TEST_F(StudyData, RejectsATextThatIsMissingOrTooShort) {
  std::ofstream(folder_ / "short") << "In the beginning";

  EXPECT_THROW(static_cast<void>(load_text(folder_ / "none")), Error);
  EXPECT_THROW(static_cast<void>(load_text(folder_ / "short")), Error);
}

}  // namespace
}  // namespace gradsieve::study
