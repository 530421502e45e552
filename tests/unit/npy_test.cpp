// SPDX-License-Identifier: Apache-2.0
#include "core/npy.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

namespace gradsieve {
namespace {

class Npy : public testing::Test {
 protected:
  Npy()
      : folder_(std::filesystem::temp_directory_path() /
                ("gsv_npy_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~Npy() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path file(std::string const& name = "a.npy") const { return folder_ / name; }

  std::filesystem::path file_with(std::string const& content) const {
    std::ofstream(file(), std::ios::binary) << content;
    return file();
  }

  // A version 1 file with this dictionary and these element bytes.
  std::filesystem::path file_with(std::string const& dictionary,
                                  std::string const& elements) const {
    std::string content("\x93NUMPY\x01\x00", 8);
    content += static_cast<char>(dictionary.size());
    content += '\0';
    return file_with(content + dictionary + elements);
  }

  Code code_of_reading(std::filesystem::path const& path) const {
    try {
      static_cast<void>(read_npy(path));
    } catch (Error const& error) {
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
      return error.code();
    }
    return Code::ok;
  }

  std::filesystem::path folder_;
};

template <typename T>
std::vector<T> values_of(NpyArray const& array) {
  auto const elements = array.view().as<T>();
  return {elements.begin(), elements.end()};
}

TEST_F(Npy, GivesBackWhatWasWritten) {
  std::vector<float> const values = {1.5f, -2.0f, 0.0f, 1e-40f, 3.0f, 4.0f};
  std::uint64_t const shape[] = {2, 3};

  write_npy(file(), std::span(values), shape);
  NpyArray const array = read_npy(file());

  EXPECT_EQ(array.dtype, DType::f32);
  EXPECT_EQ(array.shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(values_of<float>(array), values);
}

TEST_F(Npy, KeepsEveryElementType) {
  std::vector<Float16> const halves = {{0x3c00}, {0x7e00}};
  std::vector<BFloat16> const brains = {{0x3f80}, {0x7fc0}, {1}};
  std::vector<double> const doubles = {1e300};

  write_npy(file("h"), std::span(halves));
  write_npy(file("b"), std::span(brains));
  write_npy(file("d"), std::span(doubles));

  EXPECT_EQ(values_of<Float16>(read_npy(file("h"))), halves);
  EXPECT_EQ(read_npy(file("b")).dtype, DType::bf16);
  EXPECT_EQ(values_of<BFloat16>(read_npy(file("b"))), brains);
  EXPECT_EQ(values_of<double>(read_npy(file("d"))), doubles);
}

TEST_F(Npy, WritesTheBytesThatNumPyWrites) {
  std::vector<float> const values = {1.0f, 2.0f};
  std::string expected(
      "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 67);
  expected += std::string(127 - 67, ' ') + "\n";
  expected += std::string("\0\0\x80\x3f\0\0\0\x40", 8);

  write_npy(file(), std::span(values));
  std::ifstream stream(file(), std::ios::binary);
  std::string const written((std::istreambuf_iterator<char>(stream)), {});

  EXPECT_EQ(written, expected);
}

TEST_F(Npy, TakesNoElementsAndScalars) {
  write_npy(file(), std::span<float const>());
  EXPECT_EQ(read_npy(file()).shape, (std::vector<std::uint64_t>{0}));

  NpyArray const scalar = read_npy(
      file_with("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", "\x01\x02\x03\x04"));
  EXPECT_EQ(scalar.num_elements(), 1u);
}

TEST_F(Npy, TakesFortranOrderOfOneDimension) {
  auto const path = file_with("{'descr': '<u2', 'fortran_order': True, 'shape': (1,), }", "ab");
  EXPECT_EQ(code_of_reading(path), Code::ok);
}

TEST_F(Npy, RejectsWhatItDoesNotRead) {
  EXPECT_EQ(code_of_reading(file("missing.npy")), Code::io_error);
  EXPECT_EQ(code_of_reading(folder_), Code::io_error);
  EXPECT_EQ(code_of_reading(file_with("")), Code::corrupt_payload);
  EXPECT_EQ(code_of_reading(file_with("PK\x03\x04 an archive")), Code::corrupt_payload);
  EXPECT_EQ(code_of_reading(file_with(std::string("\x93NUMPY\x09\0\x01\0 ", 11))),
            Code::unsupported);
  EXPECT_EQ(
      code_of_reading(file_with("{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", "abcd")),
      Code::unsupported);
  EXPECT_EQ(
      code_of_reading(file_with("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "abcd")),
      Code::unsupported);
  EXPECT_EQ(code_of_reading(
                file_with("{'descr': '<u2', 'fortran_order': True, 'shape': (1, 2)}", "abcd")),
            Code::unsupported);
}

TEST_F(Npy, RejectsEveryTruncation) {
  std::vector<float> const values = {1.0f, 2.0f, 3.0f};
  write_npy(file("whole"), std::span(values));
  std::ifstream stream(file("whole"), std::ios::binary);
  std::string const whole((std::istreambuf_iterator<char>(stream)), {});

  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(code_of_reading(file_with(whole.substr(0, length))), Code::corrupt_payload) << length;
  }
  EXPECT_EQ(code_of_reading(file_with(whole + "x")), Code::corrupt_payload);
}

TEST_F(Npy, RejectsHeadersThatLie) {
  std::string const element(4, 'x');
  for (char const* dictionary : {
           "{'descr': '<f4', 'fortran_order': False}",
           "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 1)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387905,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
           "{'descr': '<f4', 'fortran_order': maybe, 'shape': (1,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)",
           "{'descr: '<f4', 'fortran_order': False, 'shape': (1,)}",
       }) {
    EXPECT_EQ(code_of_reading(file_with(dictionary, element)), Code::corrupt_payload) << dictionary;
  }
}

TEST_F(Npy, LeavesNothingHalfWritten) {
  std::vector<float> const values = {1.0f};
  std::uint64_t const wrong_shape[] = {2};

  EXPECT_THROW(write_npy(file(), std::span(values), wrong_shape), Error);
  EXPECT_THROW(write_npy(folder_ / "no_such_folder" / "a.npy", std::span(values)), Error);

  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

}  // namespace
}  // namespace gradsieve
