// SPDX-License-Identifier: Apache-2.0
// One rank of a training run, as a trainer has it: tensors, buckets, a hook, and gradients that
// differ by rank, step, tensor and index.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gradsieve/hook.hpp"

#include "tests/support/gradient_shapes.hpp"

namespace gradsieve::testing {

/// Tensors and the buckets they travel in; every tensor is in one bucket.
struct Layout {
  std::vector<TensorDesc> tensors;
  std::vector<BucketDesc> buckets;

  [[nodiscard]] std::uint64_t num_elements(std::string const& tensor) const {
    auto const found = std::ranges::find(tensors, tensor, &TensorDesc::name);
    if (found == tensors.end()) throw std::runtime_error("no tensor " + tensor);
    return found->num_elements;
  }
  [[nodiscard]] std::uint64_t bucket_elements(std::size_t bucket) const {
    std::uint64_t total = 0;
    for (std::string const& tensor : buckets[bucket].tensors) total += num_elements(tensor);
    return total;
  }
};

/// `sizes` tensors named t0, t1, …, one bucket each.
[[nodiscard]] inline Layout one_bucket_each(std::vector<std::uint64_t> const& sizes,
                                            DType dtype = DType::f32) {
  Layout layout;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::string const name = "t" + std::to_string(i);
    layout.tensors.push_back({.name = name, .num_elements = sizes[i], .dtype = dtype});
    layout.buckets.push_back({{name}});
  }
  return layout;
}

/// The same tensors in one bucket.
[[nodiscard]] inline Layout all_in_one(Layout layout) {
  BucketDesc bucket;
  for (TensorDesc const& tensor : layout.tensors) bucket.tensors.push_back(tensor.name);
  layout.buckets = {bucket};
  return layout;
}

[[nodiscard]] inline HookOptions options_for(std::string const& spec) {
  HookOptions options;
  options.rules = {{.match = "*", .spec = spec}};
  options.seed = 17;
  return options;
}

/// The gradient of one tensor on one rank in one step.
using GradientOf = std::function<std::vector<float>(
    int rank, std::uint64_t step, std::string const& tensor, std::uint64_t num_elements)>;

/// Heavy-tailed, and different in everything.
[[nodiscard]] inline std::vector<float> heavy_tailed_of(int rank, std::uint64_t step,
                                                        std::string const& tensor,
                                                        std::uint64_t num_elements) {
  std::uint64_t const seed =
      mix64(tensor_id(tensor) ^ mix64(1000 * step + static_cast<std::uint64_t>(rank)));
  return make_gradient(Shape::heavy_tailed, num_elements, seed);
}

[[noreturn]] inline void fail(Hook const& hook, std::string const& what, Status status) {
  Failure const failure = hook.failure();
  throw std::runtime_error(what + ": " + std::string(code_name(status.code())) + ", " +
                           status.message() + " (rank " + std::to_string(failure.rank) +
                           ", tensor " + failure.tensor + ", field " + failure.field + ": " +
                           failure.message + ")");
}

class HookRank {
 public:
  HookRank(Transport& transport, HookOptions const& options, Layout layout)
      : transport_(&transport), hook_(transport, options) {
    plan(std::move(layout));
  }

  /// A bucket rebuild, or another model.
  void plan(Layout layout) {
    hook_.plan(layout.tensors, layout.buckets);
    layout_ = std::move(layout);
    buckets_.clear();
    for (std::size_t b = 0; b < layout_.buckets.size(); ++b) {
      buckets_.emplace_back(layout_.bucket_elements(b));
    }
  }

  [[nodiscard]] Hook& hook() noexcept { return hook_; }
  [[nodiscard]] Layout const& layout() const noexcept { return layout_; }
  [[nodiscard]] int rank() const noexcept { return transport_->rank(); }
  [[nodiscard]] std::vector<float>& bucket(std::size_t index) { return buckets_[index]; }

  /// Runs once, behind the next begin: where the outcome of the step before has been applied.
  std::function<void()> after_begin;

  /// Fills every bucket with this rank's gradients.
  void fill(std::uint64_t step, GradientOf const& gradient_of, float loss_scale = 1.0F) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      auto at = buckets_[b].begin();
      for (std::string const& tensor : layout_.buckets[b].tensors) {
        for (float const x : gradient_of(rank(), step, tensor, layout_.num_elements(tensor)))
          *at++ = x * loss_scale;
      }
    }
  }

  /// Starts all buckets and waits for them; the first Status that is not ok.
  Status reduce_all() {
    std::vector<Event> events(buckets_.size());
    Status first;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      Status const status = hook_.reduce(static_cast<std::uint32_t>(b),
                                         TensorView(std::span<float>(buckets_[b])), events[b]);
      if (first.ok()) first = status;
    }
    for (Event const& event : events) {
      Status const status = hook_.wait(event);
      if (first.ok()) first = status;
    }
    return first;
  }

  /// begin, fill, reduce, finish; throws unless the step committed.
  void step(std::uint64_t step, GradientOf const& gradient_of = heavy_tailed_of,
            float loss_scale = 1.0F) {
    if (Status const status = begin(step, loss_scale); !status.ok()) fail(hook_, "begin", status);
    fill(step, gradient_of, loss_scale);
    if (Status const status = reduce_all(); !status.ok()) fail(hook_, "reduce", status);
    StepResult const result = hook_.finish();
    if (!result.status.ok() || !result.committed) fail(hook_, "finish", result.status);
  }

  /// The same, whatever comes of it.
  struct Attempt {
    Status begun;
    Status reduced;
    StepResult result;
  };
  Attempt attempt(std::uint64_t step, GradientOf const& gradient_of, float loss_scale = 1.0F) {
    Attempt attempt;
    attempt.begun = begin(step, loss_scale);
    fill(step, gradient_of, loss_scale);
    attempt.reduced = reduce_all();
    attempt.result = hook_.finish();
    return attempt;
  }

  /// The part of its bucket that belongs to a tensor.
  [[nodiscard]] std::vector<float> result_of(std::string const& tensor) const {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      auto at = buckets_[b].begin();
      for (std::string const& name : layout_.buckets[b].tensors) {
        auto const count = static_cast<std::ptrdiff_t>(layout_.num_elements(name));
        if (name == tensor) return {at, at + count};
        at += count;
      }
    }
    throw std::runtime_error("no tensor " + tensor);
  }

  /// All results, one behind another.
  [[nodiscard]] std::vector<float> all_results() const {
    std::vector<float> all;
    for (auto const& bucket : buckets_) all.insert(all.end(), bucket.begin(), bucket.end());
    return all;
  }
  [[nodiscard]] std::vector<std::vector<float>> all_residuals() const {
    std::vector<std::vector<float>> all;
    for (TensorDesc const& tensor : layout_.tensors) all.push_back(hook_.residual(tensor.name));
    return all;
  }

 private:
  Status begin(std::uint64_t step, float loss_scale) {
    Status const status = hook_.begin(step, loss_scale);
    if (auto const run = std::exchange(after_begin, nullptr); run != nullptr) run();
    return status;
  }

  Transport* transport_;
  Hook hook_;
  Layout layout_;
  std::vector<std::vector<float>> buckets_;
};

/// Bits, so that NaN equals itself and +0 is not −0.
[[nodiscard]] inline std::vector<std::uint32_t> bits_of(std::vector<float> const& values) {
  std::vector<std::uint32_t> bits;
  for (float const x : values) bits.push_back(std::bit_cast<std::uint32_t>(x));
  return bits;
}

}  // namespace gradsieve::testing
