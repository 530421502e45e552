// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy files: one array each, with its type and shape. Used by programs, never in a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <span>
#include <vector>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve {

/// An array as it lies in a .npy file: little-endian elements in C order.
struct NpyArray {
  DType dtype = DType::f32;
  std::vector<std::uint64_t> shape;  ///< empty for a scalar, which has one element
  std::vector<std::byte> data;

  [[nodiscard]] std::uint64_t num_elements() const noexcept { return data.size() / size_of(dtype); }
  [[nodiscard]] ConstTensorView view() const noexcept {
    return {data.data(), num_elements(), dtype};
  }
  [[nodiscard]] TensorView view() noexcept { return {data.data(), num_elements(), dtype}; }
};

/// Reads one array of `<f4`, `<f2`, `<f8` or `<u2`. NumPy has no bf16, so bf16 elements are stored
/// as their 16-bit patterns, and `<u2` is read as bf16.
///
/// Errors:     io_error if the file cannot be read
///             corrupt_payload if it is no .npy file, or shorter or longer than its shape says
///             unsupported for other element types, big-endian data and Fortran order
[[nodiscard]] NpyArray read_npy(std::filesystem::path const& path);

/// The same from a stream of `num_bytes` bytes; the path is for the sentence of an error.
[[nodiscard]] NpyArray read_npy(std::istream& file, std::uint64_t num_bytes,
                                std::filesystem::path const& path);

/// Writes the elements under the shape given, or as one dimension. The file appears complete or not
/// at all: the bytes go to a temporary name beside it first.
///
/// Errors:     invalid_argument if the shape does not hold exactly these elements
///             io_error if the file cannot be written
void write_npy(std::filesystem::path const& path, ConstTensorView elements,
               std::span<std::uint64_t const> shape = {});

}  // namespace gradsieve
