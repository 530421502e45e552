// SPDX-License-Identifier: Apache-2.0
// Selection from the same number of elements, as the small tensors of a model.
#include <bit>

#include "kernels/index_forms.hpp"
#include "kernels/many_sparse_ops.hpp"
#include "tests/traffic/traffic_calls.hpp"

namespace gradsieve::testing {
namespace {

using kernels::HeldRule;
using kernels::SparseSegment;

constexpr std::size_t kCount = kTrafficElements;
constexpr float kThreshold = 40.0F;  // about 1 % reach it

/// Tensors of other sizes in a row, each at a quad, bodies with values and Elias-Fano indices.
class SparseModel {
 public:
  SparseModel(CudaStep& step, Shape shape, HeldRule rule)
      : segments_(lay(rule)),
        gradient_(make_gradient(shape, kCount, 1)),
        residual_(make_gradient(shape, kCount, 2)),
        indices_(kCount),
        bodies_(num_body_bytes_),
        device_segments_(step, segments_),
        device_words_(step, words_),
        device_gradient_(step, gradient_),
        device_residual_(step, residual_),
        device_indices_(step, indices_) {}

  [[nodiscard]] static std::size_t num_tensors() { return sizes().size(); }

  void select(CudaStep& step, HeldRule rule) {
    OnDevice<std::byte> const bodies(step, bodies_);
    ExecContext ctx = step.context();
    ctx.piece_word = device_words_.data();
    step.set_words({});
    kernels::cuda::select_many(
        ctx, device_segments_.span(), rule,
        {.gradient = {device_gradient_.data(), kCount, DType::f32, Device::cuda},
         .residual_in = device_residual_.data(),
         .residual_out = device_residual_.data(),
         .bodies = bodies.data()},
        {device_indices_.data(), reinterpret_cast<float*>(bodies.data())});
    step.wait();
  }
  void add(CudaStep& step) {
    select_on_host();
    OnDevice<std::byte> const bodies(step, bodies_);
    kernels::cuda::sparse_add_many(step.context(), device_segments_.span(),
                                   {bodies.data(), device_residual_.data(), true, 0.5F},
                                   reinterpret_cast<float const*>(bodies.data()));
    step.wait();
  }
  void put_back(CudaStep& step) {
    select_on_host();
    OnDevice<std::byte> const bodies(step, bodies_);
    OnDevice<std::uint32_t> const indices(step, indices_);
    kernels::cuda::put_back_many(step.context(), device_segments_.span(), indices.data(),
                                 reinterpret_cast<float const*>(bodies.data()),
                                 device_residual_.data());
    step.wait();
  }

 private:
  static std::vector<std::size_t> sizes() {
    std::vector<std::size_t> all;
    for (std::size_t i = 0, left = kCount; left != 0; ++i) {
      all.push_back(std::min<std::size_t>(256 * (1 + i * 37 % 64), left));
      left -= all.back();
    }
    return all;
  }
  std::vector<SparseSegment> lay(HeldRule rule) {
    std::vector<SparseSegment> segments;
    std::size_t first = 0;
    std::size_t in_indices = 0;
    bool const is_block = rule == HeldRule::block_l2;
    bool const is_drawn = rule == HeldRule::randomk;
    auto const form = is_drawn ? kernels::IndexForm::shared : kernels::IndexForm::elias_fano;
    for (std::size_t const n : sizes()) {
      std::size_t const granularity = is_block ? 64 : 1;
      std::size_t const units = n / granularity;
      std::size_t const k = std::max<std::size_t>(1, units / 100);
      std::size_t const universe = rule == HeldRule::threshold ? units + k : units;
      std::size_t const index_bytes = kernels::index_bytes(form, universe, k);
      std::size_t const header_bytes = is_drawn ? 0 : 32;
      std::size_t const num_values = k * granularity;
      std::size_t const values_end = num_body_bytes_ + header_bytes + 4 * num_values;
      std::size_t const index_begin = wire::aligned(values_end);
      segments.push_back(
          {.in_gradient = first,
           .in_residual = first,
           .num_elements = n,
           .granularity = granularity,
           .in_indices = in_indices,
           .in_values = (num_body_bytes_ + header_bytes) / 4,
           .num_values = num_values,
           .body_begin = num_body_bytes_,
           .header_bytes = header_bytes,
           .values_end = values_end,
           .index_begin = index_begin,
           .universe = universe,
           .word = words_.size(),
           .key = {static_cast<std::uint32_t>(first), 3},
           .header = {k, 4 * num_values, index_bytes, static_cast<std::uint64_t>(form)}});
      words_.push_back(rule == HeldRule::threshold ? std::bit_cast<std::uint32_t>(kThreshold) : k);
      first += n;
      in_indices += (k + 3) / 4 * 4;
      num_body_bytes_ = wire::aligned(index_begin + index_bytes);
    }
    return segments;
  }
  void select_on_host() {
    StepWords words;
    ExecContext ref;
    ref.words = &words;
    ref.piece_word = words_.data();
    std::vector<float> residual = residual_;
    kernels::ref::select_many(ref, segments_, HeldRule::topk,
                              {.gradient = ConstTensorView(std::span<float const>(gradient_)),
                               .residual_in = residual.data(),
                               .residual_out = residual.data(),
                               .bodies = bodies_.data()},
                              {indices_.data(), reinterpret_cast<float*>(bodies_.data())});
  }

  std::size_t num_body_bytes_ = 0;
  std::vector<std::uint64_t> words_;
  std::vector<SparseSegment> segments_;
  std::vector<float> gradient_;
  std::vector<float> residual_;
  std::vector<std::uint32_t> indices_;
  std::vector<std::byte> bodies_;
  OnDevice<SparseSegment> device_segments_;
  OnDevice<std::uint64_t> device_words_;
  OnDevice<float> device_gradient_;
  OnDevice<float> device_residual_;
  OnDevice<std::uint32_t> device_indices_;
};

void add(std::vector<TrafficCall>& calls, std::string const& name, std::string kind,
         std::vector<std::string> shapes, HeldRule rule,
         std::function<void(CudaStep&, SparseModel&)> run) {
  calls.push_back(
      {.name = name + " 1 %, " + std::to_string(SparseModel::num_tensors()) + " tensors",
       .kind = std::move(kind),
       .shapes = std::move(shapes),
       .run = [=](CudaStep& step, Shape shape) {
         SparseModel model(step, shape, rule);
         run(step, model);
       }});
}

}  // namespace

void add_many_sparse_calls(std::vector<TrafficCall>& calls) {
  auto const add_select = [&](std::string const& name, std::string const& kind,
                              std::vector<std::string> shapes, HeldRule rule) {
    add(calls, "select_many " + name, kind, std::move(shapes), rule,
        [=](CudaStep& step, SparseModel& model) { model.select(step, rule); });
  };
  add_select("topk", "topk", {"heavy_tailed"}, HeldRule::topk);
  add_select("topk, ties", "topk_ties", {"ties", "all_zero"}, HeldRule::topk);
  add_select("threshold", "topk", {"heavy_tailed"}, HeldRule::threshold);
  add_select("block_topk, block 64", "topk", {"heavy_tailed"}, HeldRule::block_l2);
  add_select("randomk", "topk", {"heavy_tailed"}, HeldRule::randomk);
  add(calls, "put_back_many", "indexed", {"heavy_tailed"}, HeldRule::topk,
      [](CudaStep& step, SparseModel& model) { model.put_back(step); });
  add(calls, "sparse_add_many", "indexed", {"heavy_tailed"}, HeldRule::topk,
      [](CudaStep& step, SparseModel& model) { model.add(step); });
}

}  // namespace gradsieve::testing
