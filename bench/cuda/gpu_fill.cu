// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "bench/cuda/gpu_fill.hpp"
#include "core/philox.hpp"

namespace gradsieve::bench {
namespace {

struct FillPolicy {
  static constexpr unsigned threads = 256, max_blocks = 4096;
};

__device__ std::uint64_t first_item() {
  return std::uint64_t{blockIdx.x} * FillPolicy::threads + threadIdx.x;
}
__device__ std::uint64_t item_stride() { return std::uint64_t{gridDim.x} * FillPolicy::threads; }

unsigned blocks_for(std::uint64_t num_items) {
  std::uint64_t const blocks = (num_items + FillPolicy::threads - 1) / FillPolicy::threads;
  return static_cast<unsigned>(blocks < FillPolicy::max_blocks ? (blocks == 0 ? 1 : blocks)
                                                               : FillPolicy::max_blocks);
}

__device__ float uniform(std::uint32_t bits) {
  return (static_cast<float>(bits >> 8) + 0.5F) * 0x1p-24F;
}

/// Box-Muller; cospif, unlike cosf, needs no table in local memory.
__device__ float normal(std::uint32_t a, std::uint32_t b) {
  return sqrtf(-2.0F * logf(uniform(a))) * cospif(2.0F * uniform(b));
}

/// The mixtures of bench/micro/bench_data.cpp.
__device__ float drawn(GpuData data, PhiloxKey key, std::uint64_t i) {
  auto const w = philox(key, i, 0);
  float const z = normal(w[0], w[1]);
  switch (data) {
    case GpuData::normal:
      return z;
    case GpuData::heavy:
      return z * expf(2.0F * normal(w[2], w[3]));
    case GpuData::ties:
      return rintf(2.0F * z) * 0.5F;
    case GpuData::zeros:
      return w[2] % 2000 == 0 ? z : 0.0F;
  }
  return 0.0F;
}

__device__ void store(float* out, float x) { *out = x; }
__device__ void store(__half* out, float x) { *out = __float2half_rn(x); }
__device__ void store(__nv_bfloat16* out, float x) { *out = __float2bfloat16_rn(x); }

template <typename T>
__global__ void values_kernel(T* out, std::uint64_t count, GpuData data, PhiloxKey key) {
  for (std::uint64_t i = first_item(); i < count; i += item_stride()) {
    store(out + i, drawn(data, key, i));
  }
}

__global__ void magnitudes_kernel(float* out, std::uint64_t count, GpuData data, PhiloxKey g,
                                  PhiloxKey e) {
  for (std::uint64_t i = first_item(); i < count; i += item_stride()) {
    out[i] = fabsf(drawn(data, g, i) + drawn(data, e, i));
  }
}

__global__ void positions_kernel(std::uint32_t* out, std::uint64_t count) {
  for (std::uint64_t i = first_item(); i < count; i += item_stride()) {
    out[i] = static_cast<std::uint32_t>(i);
  }
}

__global__ void codes_kernel(std::uint8_t* out, std::uint64_t count, PhiloxKey key) {
  for (std::uint64_t i = first_item(); i < count; i += item_stride()) {
    out[i] = static_cast<std::uint8_t>(philox(key, i / 16, 0)[i / 4 % 4] >> (8 * (i % 4)));
  }
}

__global__ void scales_kernel(float* out, std::uint64_t count, PhiloxKey key) {
  for (std::uint64_t i = first_item(); i < count; i += item_stride()) {
    out[i] = 0.5F + 0.5F * uniform(philox(key, i, 0)[0]);
  }
}

__global__ void read_kernel(uint4 const* memory, std::uint64_t count, std::uint32_t* sink) {
  std::uint32_t all = 0;
  for (std::uint64_t i = first_item(); i < count; i += item_stride()) {
    uint4 const v = memory[i];
    all |= v.x | v.y | v.z | v.w;
  }
  if (all == 0xffffffffU) *sink = all;  // never: the memory is zero, which the compiler cannot know
}

__global__ void differences_kernel(std::uint32_t const* a, std::uint32_t const* b,
                                   std::uint64_t num_bytes, unsigned long long* differences) {
  unsigned long long own = 0;
  std::uint64_t const num_words = num_bytes / 4;
  for (std::uint64_t i = first_item(); i < num_words; i += item_stride()) {
    own += a[i] != b[i] ? 1 : 0;
  }
  std::uint64_t const last = num_words * 4 + first_item();
  if (last < num_bytes) {
    own += reinterpret_cast<std::uint8_t const*>(a)[last] !=
                   reinterpret_cast<std::uint8_t const*>(b)[last]
               ? 1
               : 0;
  }
  if (own != 0) atomicAdd(differences, own);
}

PhiloxKey key_of(std::uint64_t seed) { return philox_key(seed, 7, Purpose::select, 0); }

template <typename T>
void fill_values(cudaStream_t stream, Fill const& fill, GpuData data, std::span<std::byte> array) {
  std::uint64_t const count = array.size() / sizeof(T);
  values_kernel<<<blocks_for(count), FillPolicy::threads, 0, stream>>>(
      reinterpret_cast<T*>(array.data()), count, data, key_of(fill.seed));
}

}  // namespace

char const* gpu_data_name(GpuData data) noexcept {
  constexpr char const* kNames[] = {"normal", "heavy", "ties", "zeros"};
  return kNames[static_cast<int>(data)];
}

void fill_array(cudaStream_t stream, Fill const& fill, GpuData data, std::span<std::byte> array) {
  if (array.empty()) return;
  std::uint64_t const words = array.size() / 4;
  unsigned const blocks = blocks_for(words);
  constexpr unsigned kThreads = FillPolicy::threads;
  auto* const floats = reinterpret_cast<float*>(array.data());
  switch (fill.content) {
    case Content::nothing:
      break;
    case Content::values:
      if (fill.dtype == DType::f16) fill_values<__half>(stream, fill, data, array);
      if (fill.dtype == DType::bf16) fill_values<__nv_bfloat16>(stream, fill, data, array);
      if (fill.dtype == DType::f32) fill_values<float>(stream, fill, data, array);
      break;
    case Content::magnitudes:
      magnitudes_kernel<<<blocks, kThreads, 0, stream>>>(floats, words, data, key_of(1), key_of(2));
      break;
    case Content::positions:
      positions_kernel<<<blocks, kThreads, 0, stream>>>(
          reinterpret_cast<std::uint32_t*>(array.data()), words);
      break;
    case Content::codes:
      codes_kernel<<<blocks, kThreads, 0, stream>>>(reinterpret_cast<std::uint8_t*>(array.data()),
                                                    array.size(), key_of(fill.seed));
      break;
    case Content::scales:
      scales_kernel<<<blocks, kThreads, 0, stream>>>(floats, words, key_of(fill.seed));
      break;
  }
}

void read_through(cudaStream_t stream, std::span<std::byte const> memory, std::uint32_t* sink) {
  std::uint64_t const count = memory.size() / sizeof(uint4);
  read_kernel<<<blocks_for(count), FillPolicy::threads, 0, stream>>>(
      reinterpret_cast<uint4 const*>(memory.data()), count, sink);
}

void count_differences(cudaStream_t stream, std::span<std::byte const> a,
                       std::span<std::byte const> b, unsigned long long* count) {
  if (a.empty()) return;
  differences_kernel<<<blocks_for(a.size() / 4), FillPolicy::threads, 0, stream>>>(
      reinterpret_cast<std::uint32_t const*>(a.data()),
      reinterpret_cast<std::uint32_t const*>(b.data()), a.size(), count);
}

}  // namespace gradsieve::bench
