// SPDX-License-Identifier: Apache-2.0
// The cases that CUDA kernels are held to ref on: sizes around the borders of quads, warps, tiles
// and grids, every gradient shape and dtype, misaligned starts. The emulator interprets each
// thread, so sizes are small.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradsieve/vocabulary.hpp"

#include "core/philox.hpp"
#include "kernels/ops.hpp"
#include "tests/support/gradient_shapes.hpp"
#include "tests/support/on_device.hpp"

namespace gradsieve::testing {

inline constexpr std::array<DType, 3> kGradientTypes = {DType::f32, DType::f16, DType::bf16};

/// A tile of a streaming kernel is 4096 elements, of an unaligned one 1024.
inline constexpr std::array<std::size_t, 11> kCudaCounts = {0,   1,    3,    4,    31,  33,
                                                            257, 1025, 4095, 4099, 9001};

struct CudaCase {
  Shape shape = Shape::gaussian;
  DType dtype = DType::f32;
  std::size_t num_elements = 0;
  std::size_t offset_elements = 0;  ///< of the gradient from an aligned address
  std::size_t residual_offset = 0;  ///< of everything else
  bool in_place = false;
  bool has_residual = true;
  std::uint64_t draw = 0;  ///< for whatever else a test varies

  [[nodiscard]] std::string text() const {
    return std::string(shape_name(shape)) + ", " + std::string(dtype_name(dtype)) + ", " +
           std::to_string(num_elements) + " elements, offsets " + std::to_string(offset_elements) +
           " and " + std::to_string(residual_offset) + (in_place ? ", in place" : "") +
           (has_residual ? "" : ", no residual");
  }
};

/// Every shape with every size and every dtype; alignments are drawn. The quick subset has one
/// dtype for each shape, at three sizes.
[[nodiscard]] inline std::vector<CudaCase> cuda_cases() {
  std::vector<CudaCase> cases;
  bool const quick = is_quick_subset();
  for (Shape const shape : kAllShapes) {
    for (std::size_t const num_elements : kCudaCounts) {
      std::uint64_t const draw = mix64(num_elements * 64 + static_cast<std::uint64_t>(shape));
      if (quick && num_elements != 33 && num_elements != 1025 && num_elements != 4099) continue;
      for (DType const dtype : kGradientTypes) {
        std::uint64_t const bits = mix64(draw + static_cast<std::uint64_t>(dtype));
        if (quick && dtype != kGradientTypes[draw % 3]) continue;
        bool const is_aligned = bits >> 8 & 1;
        std::size_t const offset = is_aligned ? 0 : bits >> 16 & 7;
        bool const is_congruent = bits >> 24 & 1;
        cases.push_back({.shape = shape,
                         .dtype = dtype,
                         .num_elements = num_elements,
                         .offset_elements = offset,
                         .residual_offset = is_congruent ? offset : bits >> 32 & 7,
                         .in_place = (bits >> 40 & 1) != 0,
                         .has_residual = (bits >> 41 & 3) != 0,
                         .draw = mix64(bits)});
      }
    }
  }
  return cases;
}

/// The bytes of a gradient of this type, rounded from f32.
[[nodiscard]] inline std::vector<std::byte> stored_as(DType dtype,
                                                      std::vector<float> const& values) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  if (dtype == DType::f32) {  // as it is, with its NaN
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    kernels::ref::narrow({}, values, false, {bytes.data(), values.size(), dtype});
  }
  return bytes;
}

/// Numbers of the same shape where that is finite: a residual, or what compensate leaves.
[[nodiscard]] inline std::vector<float> finite_values(CudaCase const& c, std::uint64_t seed) {
  return make_gradient(is_finite_shape(c.shape) ? c.shape : Shape::heavy_tailed, c.num_elements,
                       seed);
}

}  // namespace gradsieve::testing
