// SPDX-License-Identifier: Apache-2.0
// The numbers of elements and shapes that the suite asks about, and helpers its files share.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/gradient_shapes.hpp"
#include "tests/support/plugin_specs.hpp"
#include "tests/support/simulated_ranks.hpp"

namespace gradsieve::testing {

/// Around the borders of warps, vectors and blocks.
inline constexpr std::array<std::size_t, 9> kElementCounts = {0,  1,   7,    31,   32,
                                                              33, 255, 1025, 65537};

struct CountCase {
  SpecCase spec_case;
  std::size_t num_elements = 0;
};
inline std::ostream& operator<<(std::ostream& out, CountCase const& c) {
  return out << c.spec_case << " on " << c.num_elements << " elements";
}

struct ShapeCase {
  SpecCase spec_case;
  std::size_t num_elements = 0;
  Shape shape = Shape::gaussian;
};
inline std::ostream& operator<<(std::ostream& out, ShapeCase const& c) {
  return out << c.spec_case << " on " << c.num_elements << " elements, " << shape_name(c.shape);
}

[[nodiscard]] inline std::vector<CountCase> with_counts(std::vector<SpecCase> const& specs,
                                                        std::vector<std::size_t> const& counts) {
  std::vector<CountCase> cases;
  for (SpecCase const& spec_case : specs) {
    for (std::size_t const count : counts) cases.push_back({spec_case, count});
  }
  return cases;
}

/// Defaults on everything; ends of parameters on everything but the longest tensor, which tells
/// nothing about them that the shorter ones do not.
[[nodiscard]] inline std::vector<ShapeCase> all_shape_cases() {
  std::vector<ShapeCase> cases;
  auto const add = [&](SpecCase const& spec_case, std::size_t max_elements) {
    for (std::size_t const count : kElementCounts) {
      if (count > max_elements) continue;
      for (Shape const shape : kAllShapes) cases.push_back({spec_case, count, shape});
    }
  };
  for (SpecCase const& spec_case : all_specs()) {
    bool const is_default = std::ranges::any_of(
        default_specs(), [&](auto const& d) { return d.name == spec_case.name; });
    add(spec_case, is_default ? kElementCounts.back() : 1025);
  }
  return cases;
}

inline auto const shape_case_name = [](auto const& c) {
  return c.param.spec_case.name + "_" + std::to_string(c.param.num_elements) + "_" +
         std::string(shape_name(c.param.shape));
};
inline auto const count_case_name = [](auto const& c) {
  return c.param.spec_case.name + "_" + std::to_string(c.param.num_elements);
};

/// make_gradient, which costs more than what is tested, once for all tests.
[[nodiscard]] inline Floats const& gradient_of(Shape shape, std::size_t num_elements,
                                               std::uint64_t seed = 1) {
  static std::map<std::tuple<Shape, std::size_t, std::uint64_t>, Floats> made;
  auto const [entry, is_new] = made.try_emplace({shape, num_elements, seed});
  if (is_new) entry->second = make_gradient(shape, num_elements, seed);
  return entry->second;
}

[[nodiscard]] inline bool same_bits(Floats const& a, Floats const& b) {
  return std::ranges::equal(a, b, [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

/// Compressor::encode of what was compensated before, as rank 0 of one.
struct PlainEncode {
  Status status;
  ByteVector body;
  bool intact = true;
};
[[nodiscard]] inline PlainEncode encode_plainly(Chain const& chain, TensorInfo const& piece,
                                                std::uint64_t step, Floats const& corrected) {
  PlainEncode result;
  Guarded<float> input(corrected);
  Guarded<std::byte> memory(chain.compressor->round(0, piece).capacity_bytes);
  Guarded<std::byte> workspace_memory(chain.compressor->workspace_bytes(piece));
  Workspace workspace(workspace_memory.span());
  TestSlots slots(*chain.compressor, piece);
  StepWords words{.step = step};
  std::uint64_t num_bytes = 0;
  ExecContext const ctx{
      .backend = Backend::cpu, .workspace = &workspace, .words = &words, .seed = 42};
  result.status = chain.compressor->encode(ctx, 0, piece, ConstTensorView(input.span()),
                                           slots.view(), Body(memory.span(), &num_bytes));
  auto const written = memory.span().first(static_cast<std::size_t>(num_bytes));
  result.body.assign(written.begin(), written.end());
  result.intact = memory.intact() && workspace_memory.intact() && input.intact();
  return result;
}

/// encode_with_residual with one residual for in and out, into a body of at most `room` bytes.
struct InPlaceEncode {
  Status status;
  std::size_t num_bytes = 0;
  Floats residual;
};
[[nodiscard]] inline InPlaceEncode encode_in_place(Chain const& chain, std::size_t num_elements,
                                                   Floats const& gradient, Floats const& before,
                                                   std::size_t room) {
  TensorInfo const piece = whole_tensor("conv1.weight", num_elements);
  InPlaceEncode result;
  result.residual = before;
  Buffer const memory(chain.compressor->round(0, piece).capacity_bytes, host_memory());
  Buffer const workspace_memory(chain.compressor->workspace_bytes(piece), host_memory());
  Workspace workspace(workspace_memory.bytes());
  TestSlots slots(*chain.compressor, piece);
  StepWords words{.step = 3};
  std::uint64_t num_bytes = 0;
  ExecContext const ctx{
      .backend = Backend::cpu, .workspace = &workspace, .words = &words, .seed = 42};
  result.status = chain.compressor->encode_with_residual(
      ctx, 0, piece, ConstTensorView(std::span(gradient)),
      {.in = result.residual, .out = result.residual, .carry = 1.0F}, slots.view(),
      Body(memory.bytes().first(std::min(room, memory.num_bytes())), &num_bytes));
  result.num_bytes = static_cast<std::size_t>(num_bytes);
  return result;
}

}  // namespace gradsieve::testing
