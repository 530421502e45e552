// SPDX-License-Identifier: Apache-2.0
// One call of one kernel as the benchmark sees it: the arrays that it needs and how it is made. The
// same call runs on the device and, with host arrays, on ref: the context says where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gradsieve/context.hpp"

#include "bench/cuda/gpu_fill.hpp"

namespace gradsieve::bench {

enum class ArrayRole : std::uint8_t {
  input,     ///< shared between all calls that ask for the same content
  prepared,  ///< of this call alone: prepare() writes it
  in_out,    ///< put back before each call
  output,
};

struct ArrayPlan {
  ArrayRole role = ArrayRole::input;
  Fill fill;
  std::uint64_t num_bytes = 0;
};

/// The arrays of one call, in the order in which they were asked for.
class Arrays {
 public:
  Arrays() = default;
  explicit Arrays(std::vector<std::span<std::byte>> arrays) : arrays_(std::move(arrays)) {}

  [[nodiscard]] std::span<std::byte> bytes(std::size_t array) const { return arrays_[array]; }
  [[nodiscard]] std::byte* data(std::size_t array) const { return arrays_[array].data(); }
  template <typename T>
  [[nodiscard]] std::span<T> as(std::size_t array) const {
    return {reinterpret_cast<T*>(data(array)), arrays_[array].size() / sizeof(T)};
  }
  [[nodiscard]] std::size_t size() const { return arrays_.size(); }

  /// For prepare(): waits for the context's stream where that is on the device.
  template <typename T>
  void write(ExecContext const& ctx, std::size_t array, std::vector<T> const& values) const {
    copy_in(ctx, array, std::as_bytes(std::span(values)));
  }
  template <typename T>
  [[nodiscard]] std::vector<T> read(ExecContext const& ctx, std::size_t array,
                                    std::size_t count) const {
    std::vector<T> values(count);
    copy_out(ctx, array, std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  void copy_in(ExecContext const& ctx, std::size_t array, std::span<std::byte const> from) const;
  void copy_out(ExecContext const& ctx, std::size_t array, std::span<std::byte> to) const;

  std::vector<std::span<std::byte>> arrays_;
};

/// The bytes that a perfect cache could not keep from moving: each input read once, each output
/// written once.
struct Traffic {
  std::string formula;  ///< bytes per element, in words
  double bytes_per_element = 0;
};

struct GpuCase {
  using Call = std::function<void(ExecContext const&, Arrays const&)>;

  std::string kernel;  ///< as in kernels/ops.hpp
  std::string variant = {};
  DType dtype = DType::f32;
  Traffic traffic = {};
  bool depends_on_data = false;
  bool has_ref = true;
  std::size_t workspace_bytes = 0;
  std::vector<ArrayPlan> arrays = {};
  Call prepare = {};  ///< once; writes what was asked for as `prepared`
  Call run = {};

  [[nodiscard]] std::string name() const;

  std::size_t input(Fill const& fill, std::uint64_t num_bytes) {
    return add({ArrayRole::input, fill, num_bytes});
  }
  std::size_t in_out(Fill const& fill, std::uint64_t num_bytes) {
    return add({ArrayRole::in_out, fill, num_bytes});
  }
  std::size_t prepared(std::uint64_t num_bytes) {
    return add({ArrayRole::prepared, {}, num_bytes});
  }
  std::size_t output(std::uint64_t num_bytes) { return add({ArrayRole::output, {}, num_bytes}); }
  /// f32 numbers of the run's distribution; equal seeds give equal numbers.
  std::size_t floats(std::uint64_t num_elements, std::uint64_t seed) {
    return input({Content::values, DType::f32, seed}, 4 * num_elements);
  }
  /// A residual or an accumulator: read and written.
  std::size_t sums(std::uint64_t num_elements) {
    return in_out({Content::values, DType::f32, 2}, 4 * num_elements);
  }
  std::size_t gradient(std::uint64_t num_elements) {
    return input({Content::values, dtype, 1}, size_of(dtype) * num_elements);
  }

 private:
  std::size_t add(ArrayPlan plan) {
    arrays.push_back(plan);
    return arrays.size() - 1;
  }
};

/// What is timed, at one size. One function for each group of kernels adds its calls.
struct CaseList {
  std::uint64_t num_elements = 0;
  std::vector<DType> dtypes = {DType::f32};
  std::vector<GpuCase> cases = {};

  void add(GpuCase gpu_case) { cases.push_back(std::move(gpu_case)); }
};

void add_copy_cases(CaseList& list);
void add_streaming_cases(CaseList& list);
void add_selection_cases(CaseList& list);
void add_sparse_cases(CaseList& list);
void add_index_cases(CaseList& list);
void add_quantizer_cases(CaseList& list);
void add_many_cases(CaseList& list);
void add_many_sparse_cases(CaseList& list);
void add_body_cases(CaseList& list);
/// A call that is wrong, and wrong in another way each time: for the check of the check.
void add_planted_case(CaseList& list);
/// CUB's radix sort and, where this CUB has it, DeviceTopK.
void add_cub_cases(CaseList& list);

}  // namespace gradsieve::bench
