// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/cuda/stream.cuh"
#include "kernels/ops.hpp"

namespace gradsieve::kernels::cuda {
namespace {

struct BodyPolicy {
  static constexpr unsigned threads = 256, items_per_thread = 4, min_blocks = 4;
};
struct FieldsPolicy {
  static constexpr unsigned threads = 64, min_blocks = 1;
};
static_assert(FieldsPolicy::threads == kMaxFields, "a thread a byte");

/// Bytes that travel as an argument of the launch.
struct Fields {
  std::byte bytes[kMaxFields];
  unsigned count;

  Fields() = default;
  explicit Fields(std::span<std::byte const> from) noexcept
      : count(static_cast<unsigned>(from.size())) {
    std::memset(bytes, 0, sizeof bytes);
    std::memcpy(bytes, from.data(), from.size());
  }
};

__global__ void __launch_bounds__(FieldsPolicy::threads, FieldsPolicy::min_blocks)
    put_fields_kernel(Fields const fields, std::byte* at) {
  __shared__ Fields shared;  // a parameter cannot be indexed by a thread's number
  if (threadIdx.x == 0) shared = fields;
  __syncthreads();
  if (threadIdx.x < fields.count) at[threadIdx.x] = shared.bytes[threadIdx.x];
}

__global__ void __launch_bounds__(FieldsPolicy::threads, FieldsPolicy::min_blocks)
    check_fields_kernel(Fields const fields, std::byte const* at, StepWords* words) {
  __shared__ Fields shared;
  if (threadIdx.x == 0) shared = fields;
  __syncthreads();
  bool const is_wrong = threadIdx.x < fields.count && at[threadIdx.x] != shared.bytes[threadIdx.x];
  raise(words, kStepCorrupt, is_wrong);
}

__global__ void __launch_bounds__(BodyPolicy::threads, BodyPolicy::min_blocks)
    count_selection_kernel(SparseCounts const* counts, std::uint32_t* indices,
                           std::uint64_t room_indices, float* values, std::uint64_t room_values,
                           std::uint64_t universe, StepWords* words) {
  std::uint64_t const first = std::uint64_t{blockIdx.x} * BodyPolicy::threads + threadIdx.x;
  std::uint64_t const stride = std::uint64_t{gridDim.x} * BodyPolicy::threads;
  std::uint64_t const num_indices = counts->num_indices;
  for (std::uint64_t j = num_indices + first; j < room_indices; j += stride) {
    indices[j] = static_cast<std::uint32_t>(universe + (j - num_indices));
  }
  for (std::uint64_t j = counts->num_values + first; j < room_values; j += stride) values[j] = 0.0F;
  if (first != 0) return;
  words->kept_elements += counts->num_values;
  words->overflowed_elements += counts->num_overflowed;
  if (counts->num_overflowed > 0) atomicOr(&words->flags, kStepOverflow);
}

/// A thread a word; the four bytes are put together where they do not lie aligned.
struct CheckScales : SeesNothing {
  std::byte const* scales;
  StepWords* words;

  template <int kWidth>
  __device__ std::uint32_t load(std::uint64_t i) const {
    std::byte const* const at = scales + i * sizeof(float);
    if (reinterpret_cast<std::uintptr_t>(at) % sizeof(float) == 0) {
      return *reinterpret_cast<std::uint32_t const*>(at);
    }
    std::uint32_t word = 0;
    for (unsigned byte = 0; byte < sizeof(float); ++byte) {
      word |= static_cast<std::uint32_t>(at[byte]) << (8 * byte);
    }
    return word;
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t, std::uint32_t const& word, bool& is_wrong) const {
    is_wrong = is_wrong || word >= 0x7f800000U;
  }
  __device__ void end(bool is_wrong) const { raise(words, kStepCorrupt, is_wrong); }
};

/// Quads of bytes where both arrays allow it.
struct CheckClear : SeesNothing {
  unsigned char const* bytes;
  unsigned char const* mask;  ///< null: all bits
  unsigned skipped_bits;
  StepWords* words;

  template <int kWidth>
  __device__ std::uint32_t load(std::uint64_t i) const {
    std::uint32_t seen = 0;
    if constexpr (kWidth == 4) {
      seen = *reinterpret_cast<std::uint32_t const*>(bytes + i);
      if (mask != nullptr) seen &= *reinterpret_cast<std::uint32_t const*>(mask + i);
    } else {
      seen = bytes[i];
      if (mask != nullptr) seen &= mask[i];
    }
    return i == 0 ? seen >> skipped_bits : seen;
  }
  template <int kWidth>
  __device__ void finish(std::uint64_t, std::uint32_t const& seen, bool& is_wrong) const {
    is_wrong = is_wrong || seen != 0;
  }
  __device__ void end(bool is_wrong) const { raise(words, kStepCorrupt, is_wrong); }
};

}  // namespace

void clear(ExecContext const& ctx, std::span<std::byte> bytes) noexcept {
  fill(ctx, bytes.data(), 0, bytes.size());
}

void copy(ExecContext const& ctx, std::span<std::byte const> from,
          std::span<std::byte> to) noexcept {
  if (from.empty() || has_failed(ctx)) return;
  StreamDevice const device(ctx);
  keep_error(ctx, cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDeviceToDevice,
                                  stream_of(ctx)));
}

void count_selection(ExecContext const& ctx, SparseView const& selection,
                     std::uint64_t universe) noexcept {
  launch(ctx, grid_of(divide_up(selection.values.size(), BodyPolicy::threads * 16)),
         BodyPolicy::threads, 0, count_selection_kernel, selection.counts, selection.indices.data(),
         std::uint64_t{selection.indices.size()}, selection.values.data(),
         std::uint64_t{selection.values.size()}, universe, ctx.words);
}

void put_fields(ExecContext const& ctx, std::span<std::byte const> fields, std::byte* at) noexcept {
  if (fields.empty()) return;
  launch(ctx, 1, FieldsPolicy::threads, 0, put_fields_kernel, Fields(fields), at);
}

bool check_fields(ExecContext const& ctx, std::span<std::byte const> fields,
                  std::byte const* at) noexcept {
  if (fields.empty()) return true;
  launch(ctx, 1, FieldsPolicy::threads, 0, check_fields_kernel, Fields(fields), at, ctx.words);
  return true;
}

bool check_scales(ExecContext const& ctx, std::span<std::byte const> scales) noexcept {
  stream_singly<BodyPolicy>(ctx, CheckScales{{}, scales.data(), ctx.words},
                            scales.size() / sizeof(float));
  return true;
}

bool check_clear(ExecContext const& ctx, std::span<std::byte const> bytes,
                 std::span<std::byte const> mask, unsigned skipped_bits) noexcept {
  auto const* const seen = reinterpret_cast<unsigned char const*>(bytes.data());
  auto const* const also =
      mask.empty() ? nullptr : reinterpret_cast<unsigned char const*>(mask.data());
  stream<BodyPolicy>(ctx, CheckClear{{}, seen, also, skipped_bits, ctx.words}, bytes.size(),
                     common_head(seen, also));
  return true;
}

}  // namespace gradsieve::kernels::cuda
