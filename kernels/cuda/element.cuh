// SPDX-License-Identifier: Apache-2.0
// Elements of f32, f16 and bf16 in registers: one, or four that stand together, in one access.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve::kernels::cuda {

inline constexpr std::uint32_t kCanonicalNanBits = 0x7fc00000U;

/// A stored NaN is the canonical one.
__device__ inline float canonical(float x) {
  return x == x ? x : __uint_as_float(kCanonicalNanBits);
}

__device__ inline bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7f800000U) != 0x7f800000U;
}

/// x as the format of T, exactly; a NaN becomes the canonical one.
__device__ inline float widened(float x) { return canonical(x); }
__device__ inline float widened(Float16 x) {
  return canonical(__half2float(__ushort_as_half(x.bits)));
}
__device__ inline float widened(BFloat16 x) {
  return canonical(__uint_as_float(static_cast<std::uint32_t>(x.bits) << 16));
}

/// x rounded to T, to nearest, ties to even. With `saturate` no finite x becomes infinite.
template <typename T>
__device__ T narrowed(float x, bool saturate) {
  if constexpr (std::is_same_v<T, float>) {
    static_cast<void>(saturate);
    return canonical(x);
  } else {
    constexpr bool kIsFloat16 = std::is_same_v<T, Float16>;
    constexpr std::uint32_t kInfinity = kIsFloat16 ? 0x7c00U : 0x7f80U;
    constexpr std::uint32_t kNan = kIsFloat16 ? 0x7e00U : 0x7fc0U;
    std::uint32_t bits;
    if constexpr (kIsFloat16) {
      bits = __half_as_ushort(__float2half_rn(x));
    } else {
      bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    }
    if (saturate && is_finite(x) && (bits & 0x7fffU) == kInfinity) bits -= 1;
    if (x != x) bits = kNan;
    return T{static_cast<std::uint16_t>(bits)};
  }
}

/// `kWidth` elements: 1, or 4 at an address that is a multiple of their size.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  static_assert(kWidth == 1 || kWidth == 4);
  T at[kWidth];
};

namespace detail {
template <int kBytes>
struct Word;
template <>
struct Word<2> {
  using Type = std::uint16_t;
};
template <>
struct Word<4> {
  using Type = std::uint32_t;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<16> {
  using Type = uint4;
};
}  // namespace detail

/// One access of all the pack's bytes, in global memory.
template <int kWidth, typename T>
__device__ Pack<T, kWidth> load(T const* from) {
  using Word = typename detail::Word<sizeof(T) * kWidth>::Type;
  Word const word = *reinterpret_cast<Word const*>(from);
  Pack<T, kWidth> result;
  static_assert(sizeof word == sizeof result);
  __builtin_memcpy(&result, &word, sizeof result);
  return result;
}
template <int kWidth, typename T>
__device__ void store(T* to, Pack<T, kWidth> const& pack) {
  using Word = typename detail::Word<sizeof(T) * kWidth>::Type;
  Word word;
  __builtin_memcpy(&word, &pack, sizeof word);
  __stwb(reinterpret_cast<Word*>(to), word);  // an assignment may be cut into its members
}

/// Calls `body` with a pointer of the view's element type.
template <typename Body>
void with_elements(ConstTensorView view, Body const& body) {
  if (view.dtype == DType::f16) {
    body(static_cast<Float16 const*>(view.data));
  } else if (view.dtype == DType::bf16) {
    body(static_cast<BFloat16 const*>(view.data));
  } else {
    body(static_cast<float const*>(view.data));
  }
}
template <typename Body>
void with_elements(TensorView view, Body const& body) {
  if (view.dtype == DType::f16) {
    body(static_cast<Float16*>(view.data));
  } else if (view.dtype == DType::bf16) {
    body(static_cast<BFloat16*>(view.data));
  } else {
    body(static_cast<float*>(view.data));
  }
}

}  // namespace gradsieve::kernels::cuda
