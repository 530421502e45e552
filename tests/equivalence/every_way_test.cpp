// SPDX-License-Identifier: Apache-2.0
// Where the other tests of this folder draw some ways to run a kernel, here are all of them: every
// thread count, instruction set and misalignment, at one size. A body begins anywhere in a payload.
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "core/hash.hpp"
#include "tests/equivalence/kernel_ways.hpp"
#include "tests/support/guarded.hpp"

namespace gradsieve::testing {
namespace {

/// One chunk of work as threads divide it (kGrainElements), and a short one behind it.
constexpr std::size_t kCount = 32768 + 4097;
/// More than threads take at once of a selection (kGrainIndices).
constexpr std::size_t kChosen = 4097;
constexpr std::size_t kCacheLine = 64;
constexpr float kWeight = -1.0F / 3;

/// All that a call reads and writes. Bytes begin `misalignment` bytes behind a cache line, elements
/// that many elements, so that they are aligned as elements have to be and no further.
class Memory {
 public:
  explicit Memory(std::size_t misalignment) : misalignment_(misalignment) {}

  template <typename T>
  std::span<T> room(std::size_t count) {
    Guarded<std::byte>& part = parts_.emplace_back(count * sizeof(T), misalignment_ * sizeof(T));
    return {reinterpret_cast<T*>(part.span().data()), count};
  }
  template <typename T>
  std::span<T> with(std::vector<T> const& values) {
    std::span<T> const span = room<T>(values.size());
    std::copy(values.begin(), values.end(), span.begin());
    return span;
  }
  TensorView with_gradient(DType dtype) {
    static std::map<DType, std::vector<std::byte>> kept;
    std::vector<std::byte>& bytes = kept[dtype];
    if (bytes.empty()) bytes = stored_as(dtype, kept_gradient(Shape::heavy_tailed, kCount));
    Guarded<std::byte>& part = parts_.emplace_back(bytes, misalignment_ * size_of(dtype));
    return {part.span().data(), kCount, dtype};
  }
  /// What a call leaves in it is its own affair.
  Workspace& workspace(std::size_t num_bytes) {
    scratch_.emplace_back(num_bytes);
    return workspaces_.emplace_back(scratch_.back().span());
  }

  /// Empty if both hold the same bytes and nothing was stored outside.
  [[nodiscard]] std::string compare(Memory& expected) {
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      std::span<std::byte const> const own = parts_[p].span();
      std::span<std::byte const> const other = expected.parts_[p].span();
      if (!own.empty() && std::memcmp(own.data(), other.data(), own.size()) != 0) {
        auto const at = std::ranges::mismatch(own, other).in1;
        return "buffer " + std::to_string(p) + ", byte " + std::to_string(at - own.begin()) +
               " of " + std::to_string(own.size());
      }
      if (!parts_[p].intact()) return "a store outside buffer " + std::to_string(p);
    }
    for (Guarded<std::byte> const& scratch : scratch_)
      if (!scratch.intact()) return "a store outside the workspace";
    return "";
  }

 private:
  std::size_t misalignment_;
  std::deque<Guarded<std::byte>> parts_;
  std::deque<Guarded<std::byte>> scratch_;
  std::deque<Workspace> workspaces_;
};

/// One call; returns what it tells beside what it writes.
using Call = std::function<std::uint64_t(ExecContext&, Memory&)>;

void expect_ref_in_every_way(Call const& call) {
  Memory expected(0);
  ExecContext ref;
  ref.backend = Backend::ref;
  std::uint64_t const told = call(ref, expected);
  for (SimdTarget const target : supported_simd_targets()) {
    ForcedTarget const forced(target);
    for (int const num_threads : kThreadCounts) {
      for (std::size_t misalignment = 0; misalignment < kCacheLine; ++misalignment) {
        Memory actual(misalignment);
        ExecContext ctx;
        ctx.threads = &pool_of(num_threads);

        std::uint64_t const also_told = call(ctx, actual);

        std::string const difference = actual.compare(expected);
        ASSERT_TRUE(difference.empty() && told == also_told)
            << simd_target_name(target) << ", " << num_threads << " threads, misaligned by "
            << misalignment << ": " << difference << ", told " << also_told << ", expected "
            << told;
      }
    }
  }
}

std::vector<float> const& gradient() { return kept_gradient(Shape::heavy_tailed, kCount); }
std::vector<float> const& residual() { return kept_gradient(Shape::heavy_tailed, kCount, 2); }
/// Both zeros and repeated magnitudes among them.
std::vector<float> const& tied() { return kept_gradient(Shape::ties, kCount, 3); }

std::vector<std::uint32_t> const& chosen_indices() {
  static std::vector<std::uint32_t> const kept = [] {
    std::vector<std::uint32_t> indices(kChosen);
    for (std::size_t i = 0; i < kChosen; ++i)
      indices[i] = static_cast<std::uint32_t>(i * (kCount - 1) / (kChosen - 1));
    return indices;
  }();
  return kept;
}

std::vector<std::byte> any_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = std::byte(mix64(i) >> 56);
  return bytes;
}

/// One for each block, as bytes in a payload.
std::vector<std::byte> some_scales(std::size_t block_elements) {
  std::vector<std::byte> bytes((kCount + block_elements - 1) / block_elements * sizeof(float));
  for (std::size_t b = 0; b < bytes.size() / sizeof(float); ++b) {
    float const scale = 0.01F * static_cast<float>(b % 7);
    std::memcpy(bytes.data() + b * sizeof scale, &scale, sizeof scale);
  }
  return bytes;
}

struct SelectionCase {
  DType dtype;
  bool in_place;
  std::size_t num_indices;
  std::size_t num_values;
  std::size_t workspace_bytes;
};

/// A selection of `select`(ctx, gradient, residual, selection).
template <typename Select>
Call selection_call(SelectionCase const& c, Select const& select) {
  return [=](ExecContext& ctx, Memory& memory) {
    ctx.workspace = &memory.workspace(c.workspace_bytes);
    TensorView const g = memory.with_gradient(c.dtype);
    std::span<float> const in = memory.with(residual());
    std::span<float> const out = c.in_place ? in : memory.room<float>(kCount);
    SparseView selection;
    selection.indices = memory.room<std::uint32_t>(c.num_indices);
    selection.values = memory.room<float>(c.num_values);
    std::uint64_t const flags = select(ctx, g, ResidualView{in, out, 0.5F}, selection);
    // Behind the last one chosen anything may stand.
    std::ranges::fill(selection.indices.subspan(selection.num_indices), 0U);
    std::ranges::fill(selection.values.subspan(selection.num_values), 0.0F);
    return PlanHash()
        .add(flags)
        .add(selection.num_indices)
        .add(selection.num_values)
        .add(selection.num_overflowed)
        .value();
  };
}

TEST(EveryWay, OfTopkIsEquivalentToRef) {
  std::size_t const workspace = kernels::topk_workspace_bytes(kCount, kChosen);
  for (bool const in_place : {false, true}) {
    expect_ref_in_every_way(
        selection_call({in_place ? DType::bf16 : DType::f32, in_place, kChosen, kChosen, workspace},
                       [](auto const& ctx, auto g, auto r, auto& selection) {
                         return kernels::topk(ctx, g, r, kChosen, selection);
                       }));
  }
}

TEST(EveryWay, OfThresholdIsEquivalentToRef) {
  for (std::size_t const room : {kCount, kChosen}) {  // all find place; some do not
    expect_ref_in_every_way(selection_call({DType::f16, room == kCount, room, room, 0},
                                           [](auto const& ctx, auto g, auto r, auto& selection) {
                                             return kernels::threshold(ctx, g, r, 0.25F, selection);
                                           }));
  }
}

TEST(EveryWay, OfBlockTopkIsEquivalentToRef) {
  constexpr std::size_t kBlock = 100;
  constexpr std::size_t kBlocks = 90;
  for (auto const norm : {kernels::BlockNorm::l2, kernels::BlockNorm::linf}) {
    expect_ref_in_every_way(
        selection_call({DType::f32, norm == kernels::BlockNorm::l2, kBlocks, kBlocks * kBlock,
                        kernels::block_topk_workspace_bytes(kCount, kBlock, kBlocks)},
                       [=](auto const& ctx, auto g, auto r, auto& selection) {
                         return kernels::block_topk(ctx, g, r, kBlock, norm, kBlocks, selection);
                       }));
  }
}

TEST(EveryWay, OfRandomkIsEquivalentToRef) {
  expect_ref_in_every_way([](ExecContext& ctx, Memory& memory) {
    kernels::randomk(ctx, {11, 13}, 17, kCount, memory.room<std::uint32_t>(kChosen));
    return std::uint64_t{0};
  });
}

TEST(EveryWay, OfTakeAndScatterAddIsEquivalentToRef) {
  expect_ref_in_every_way([](ExecContext& ctx, Memory& memory) {
    std::span<std::uint32_t> const indices = memory.with(chosen_indices());
    std::span<float> const values = memory.room<float>(kChosen);
    kernels::take(ctx, indices, 1, memory.with(gradient()), values);
    kernels::scatter_add(ctx, indices, 1, values, kWeight, memory.with(residual()));
    return std::uint64_t{kernels::check_indices(ctx, indices, kCount)};
  });
}

TEST(EveryWay, OfCompensateTakeIsEquivalentToRef) {
  for (DType const dtype : {DType::f32, DType::f16}) {
    expect_ref_in_every_way([dtype](ExecContext& ctx, Memory& memory) {
      TensorView const g = memory.with_gradient(dtype);
      std::span<float> const in = memory.with(residual());
      ResidualView const r{in, dtype == DType::f32 ? in : memory.room<float>(kCount), 0.5F};
      std::span<std::uint32_t> const indices = memory.with(chosen_indices());
      return std::uint64_t{
          kernels::compensate_take(ctx, g, r, indices, 1, memory.room<float>(kChosen))};
    });
  }
}

struct QuantizerCase {
  int bits;
  kernels::Rounding rounding;
  std::size_t block_elements;

  [[nodiscard]] std::size_t code_bytes() const { return bits == 8 ? kCount : (kCount + 1) / 2; }
  [[nodiscard]] std::size_t num_blocks() const {
    return (kCount + block_elements - 1) / block_elements;
  }
};
constexpr QuantizerCase kQuantizers[] = {{8, kernels::Rounding::nearest, 256},
                                         {8, kernels::Rounding::stochastic, 100},
                                         {4, kernels::Rounding::nearest, 100},
                                         {4, kernels::Rounding::stochastic, 256}};
constexpr RoundingKey kKey = {{0x12345678, 0x9abcdef0}, 77, 5};

TEST(EveryWay, OfQuantizeIsEquivalentToRef) {
  for (QuantizerCase const& c : kQuantizers) {
    expect_ref_in_every_way([&c](ExecContext& ctx, Memory& memory) {
      std::span<float> const corrected = memory.with(gradient());
      std::span<std::byte> const codes = memory.room<std::byte>(c.code_bytes());
      kernels::quantize(ctx, corrected, c.bits, c.block_elements, c.rounding, kKey, codes,
                        memory.room<float>(c.num_blocks()), memory.room<float>(kCount));
      return std::uint64_t{0};
    });
  }
}

TEST(EveryWay, OfQuantizeFusedIsEquivalentToRef) {
  for (QuantizerCase const& c : kQuantizers) {
    expect_ref_in_every_way([&c](ExecContext& ctx, Memory& memory) {
      TensorView const g = memory.with_gradient(c.bits == 8 ? DType::f32 : DType::bf16);
      std::span<float> const in = memory.with(residual());
      std::span<std::byte> const codes = memory.room<std::byte>(c.code_bytes());
      return std::uint64_t{kernels::quantize_fused(ctx, g, {in, in, 0.5F}, c.bits, c.block_elements,
                                                   c.rounding, kKey, codes,
                                                   memory.room<float>(c.num_blocks()))};
    });
  }
}

TEST(EveryWay, OfDequantizeAddIsEquivalentToRef) {
  for (QuantizerCase const& c : kQuantizers) {
    std::vector<std::byte> const any_codes = any_bytes(c.code_bytes());
    std::vector<std::byte> const any_scales = some_scales(c.block_elements);
    expect_ref_in_every_way([&](ExecContext& ctx, Memory& memory) {
      std::span<std::byte> const codes = memory.with(any_codes);
      std::span<std::byte> const scales = memory.with(any_scales);
      kernels::dequantize_add(ctx, codes, scales.data(), c.bits, c.block_elements, kWeight,
                              memory.with(gradient()));
      return std::uint64_t{kernels::check_scales(ctx, scales)};
    });
  }
}

TEST(EveryWay, OfSignIsEquivalentToRef) {
  constexpr std::size_t kPlaneBytes = (kCount + 7) / 8;
  for (std::size_t const block_elements : {100U, 256U}) {
    expect_ref_in_every_way([=](ExecContext& ctx, Memory& memory) {
      std::span<float> const corrected = memory.with(tied());
      std::span<std::byte> const signs = memory.room<std::byte>(kPlaneBytes);
      std::span<std::byte> const zeros = memory.room<std::byte>(kPlaneBytes);
      std::uint32_t any_zero = 0;
      kernels::sign(ctx, corrected, block_elements, signs, zeros,
                    memory.room<float>((kCount + block_elements - 1) / block_elements),
                    memory.room<float>(kCount), &any_zero);
      return std::uint64_t{any_zero};
    });
  }
}

TEST(EveryWay, OfSignFusedIsEquivalentToRef) {
  constexpr std::size_t kPlaneBytes = (kCount + 7) / 8;
  for (DType const dtype : {DType::f32, DType::f16}) {
    std::size_t const block_elements = dtype == DType::f32 ? 256 : 100;
    expect_ref_in_every_way([=](ExecContext& ctx, Memory& memory) {
      TensorView const g = memory.with_gradient(dtype);
      std::span<float> const in = memory.with(residual());
      ResidualView const r{in, dtype == DType::f32 ? in : memory.room<float>(kCount), 0.5F};
      std::span<std::byte> const signs = memory.room<std::byte>(kPlaneBytes);
      std::span<std::byte> const zeros = memory.room<std::byte>(kPlaneBytes);
      std::uint32_t any_zero = 0;
      std::uint64_t const flags = kernels::sign_fused(
          ctx, g, r, block_elements, signs, zeros,
          memory.room<float>((kCount + block_elements - 1) / block_elements), &any_zero);
      return 2 * flags + any_zero;
    });
  }
}

TEST(EveryWay, OfSignAddIsEquivalentToRef) {
  constexpr std::size_t kPlaneBytes = (kCount + 7) / 8;
  std::vector<std::byte> const any_planes = any_bytes(2 * kPlaneBytes);
  std::vector<std::byte> const any_scales = some_scales(256);
  for (bool const has_zeros : {false, true}) {
    expect_ref_in_every_way([&](ExecContext& ctx, Memory& memory) {
      std::span<std::byte> const planes = memory.with(any_planes);
      std::span<std::byte> const scales = memory.with(any_scales);
      kernels::sign_add(ctx, planes.data(), has_zeros ? planes.data() + kPlaneBytes : nullptr,
                        scales.data(), 256, kWeight, memory.with(gradient()));
      return std::uint64_t{0};
    });
  }
}

TEST(EveryWay, OfIndexCodesIsEquivalentToRef) {
  expect_ref_in_every_way([](ExecContext& ctx, Memory& memory) {
    std::span<std::uint32_t> const indices = memory.with(chosen_indices());
    std::span<std::byte> const bitmap = memory.room<std::byte>((kCount + 7) / 8);
    kernels::bitmap_encode(ctx, indices, kCount, bitmap);
    return std::uint64_t{
        kernels::bitmap_decode(ctx, bitmap, kCount, memory.room<std::uint32_t>(kChosen))};
  });
  expect_ref_in_every_way([](ExecContext& ctx, Memory& memory) {
    std::span<std::uint32_t> const indices = memory.with(chosen_indices());
    std::span<std::byte> const code =
        memory.room<std::byte>(kernels::elias_fano_bytes(kCount, kChosen));
    kernels::elias_fano_encode(ctx, indices, kCount, code);
    return std::uint64_t{
        kernels::elias_fano_decode(ctx, code, kCount, memory.room<std::uint32_t>(kChosen))};
  });
}

}  // namespace
}  // namespace gradsieve::testing
