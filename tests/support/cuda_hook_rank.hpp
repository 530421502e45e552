// SPDX-License-Identifier: Apache-2.0
// HookRank with its buckets on a device: gradients are copied there in the order of the rank's
// stream, as if a backward pass had made them, and results back in that order.
#pragma once

#include <cuda_runtime_api.h>

#include "gradsieve/memory.hpp"

#include "kernels/ops.hpp"
#include "tests/support/hook_rank.hpp"
#include "tests/support/on_device.hpp"

namespace gradsieve::testing {

/// Elements of buckets of any dtype.
inline void store_element(Buffer const& buffer, DType dtype, std::size_t i, float x) {
  kernels::ref::narrow({}, {&x, 1}, true, {buffer.data() + i * size_of(dtype), 1, dtype});
}
[[nodiscard]] inline float load_element(Buffer const& buffer, DType dtype, std::size_t i) {
  float x = 0.0F;
  kernels::ref::widen({}, {buffer.data() + i * size_of(dtype), 1, dtype}, {&x, 1});
  return x;
}

class OwnCudaStream {
 public:
  OwnCudaStream() { require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~OwnCudaStream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  OwnCudaStream(OwnCudaStream const&) = delete;
  OwnCudaStream& operator=(OwnCudaStream const&) = delete;

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaHookRank {
 public:
  CudaHookRank(Transport& transport, HookOptions options, Layout layout)
      : transport_(&transport), hook_(transport, on_cuda(std::move(options))) {
    plan(std::move(layout));
  }
  ~CudaHookRank() { static_cast<void>(cudaStreamSynchronize(stream_.get())); }

  void plan(Layout layout) {
    hook_.plan(layout.tensors, layout.buckets);
    layout_ = std::move(layout);
    buckets_.clear();
    for (std::size_t b = 0; b < layout_.buckets.size(); ++b) {
      std::uint64_t const count = layout_.bucket_elements(b);
      buckets_.push_back({Buffer(count * size_of(dtype()), device_memory(), {stream_.get()}),
                          Buffer(count * size_of(dtype()), pinned_memory())});
    }
  }

  [[nodiscard]] Hook& hook() noexcept { return hook_; }
  [[nodiscard]] Layout const& layout() const noexcept { return layout_; }
  [[nodiscard]] cudaStream_t stream() const noexcept { return stream_.get(); }
  [[nodiscard]] int rank() const noexcept { return transport_->rank(); }
  [[nodiscard]] DType dtype() const noexcept {
    return layout_.tensors.empty() ? DType::f32 : layout_.tensors[0].dtype;
  }

  /// The rank's gradients, in host memory that a copy may read in stream order.
  void make_gradients(std::uint64_t step, GradientOf const& gradient_of, float loss_scale) {
    require(cudaStreamSynchronize(stream_.get()));  // the last copy has read them
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      std::size_t at = 0;
      for (std::string const& tensor : layout_.buckets[b].tensors) {
        for (float const x : gradient_of(rank(), step, tensor, layout_.num_elements(tensor)))
          store_element(buckets_[b].host, dtype(), at++, x * loss_scale);
      }
    }
  }
  void copy_gradients_in() {
    for (Bucket const& bucket : buckets_) copy(bucket.host, bucket.device);
  }

  std::function<void()> before_reduce = [] {};  ///< of each bucket

  Status reduce_all() {
    std::vector<Event> events(buckets_.size());
    Status first;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      before_reduce();
      TensorView const view(buckets_[b].device.data(), layout_.bucket_elements(b), dtype(),
                            Device::cuda);
      Status const status = hook_.reduce(static_cast<std::uint32_t>(b), view, events[b]);
      if (first.ok()) first = status;
    }
    for (Event const& event : events) {
      Status const status = hook_.wait(event);
      if (first.ok()) first = status;
    }
    return first;
  }

  /// begin, copy, reduce, finish: all that may be captured in a graph.
  HookRank::Attempt enqueue_step(std::uint64_t step, float loss_scale) {
    HookRank::Attempt attempt;
    attempt.begun = hook_.begin(step, loss_scale);
    copy_gradients_in();
    attempt.reduced = reduce_all();
    attempt.result = hook_.finish();
    return attempt;
  }
  HookRank::Attempt attempt(std::uint64_t step, GradientOf const& gradient_of,
                            float loss_scale = 1.0F) {
    make_gradients(step, gradient_of, loss_scale);
    HookRank::Attempt attempt = enqueue_step(step, loss_scale);
    attempt.result = hook_.synchronize();
    return attempt;
  }

  /// As the device has them, widened.
  [[nodiscard]] std::vector<float> all_results() {
    for (Bucket const& bucket : buckets_) copy(bucket.device, bucket.host);
    require(cudaStreamSynchronize(stream_.get()));
    std::vector<float> all;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      for (std::size_t i = 0; i < layout_.bucket_elements(b); ++i)
        all.push_back(load_element(buckets_[b].host, dtype(), i));
    }
    return all;
  }

 private:
  struct Bucket {
    Buffer device;
    Buffer host;
  };

  [[nodiscard]] HookOptions on_cuda(HookOptions options) const {
    options.backend = Backend::cuda;
    options.stream = {stream_.get()};
    return options;
  }
  void copy(Buffer const& from, Buffer const& to) const {
    require(cudaMemcpyAsync(to.data(), from.data(), from.num_bytes(), cudaMemcpyDefault,
                            stream_.get()));
  }
  OwnCudaStream stream_;
  Transport* transport_;
  Hook hook_;
  Layout layout_;
  std::vector<Bucket> buckets_;
};

}  // namespace gradsieve::testing
