// SPDX-License-Identifier: Apache-2.0
#include "kernels/index_forms.hpp"
#include "kernels/ops.hpp"
#include "tests/traffic/traffic_calls.hpp"

namespace gradsieve::testing {
namespace {

constexpr std::size_t kCount = kTrafficElements;
constexpr std::size_t kChosen = kCount / 100;

/// Gradient, residual and room for what is chosen of them.
struct Selecting {
  OnDevice<float> gradient;
  OnDevice<float> residual;
  OnDevice<std::uint32_t> indices;
  OnDevice<float> values;
  OnDevice<SparseCounts> counts;
  SparseView view;

  Selecting(CudaStep& step, Shape shape, std::size_t num_values)
      : gradient(step, make_gradient(shape, kCount, 1)),
        residual(step, make_gradient(shape, kCount, 2)),
        indices(step, std::vector<std::uint32_t>(num_values)),
        values(step, std::vector<float>(num_values)),
        counts(step, std::vector<SparseCounts>(1)),
        view{.indices = indices.span(), .values = values.span(), .counts = counts.data()} {}

  [[nodiscard]] ConstTensorView dense() const { return {gradient.data(), kCount, DType::f32}; }
  [[nodiscard]] ResidualView feedback() const { return {residual.span(), residual.span(), 1.0F}; }
};

void add_topk(std::vector<TrafficCall>& calls, std::string name, std::string kind,
              std::vector<std::string> shapes) {
  calls.push_back({.name = std::move(name),
                   .kind = std::move(kind),
                   .workspace_bytes = kernels::topk_workspace_bytes(kCount, kChosen),
                   .shapes = std::move(shapes),
                   .run = [](CudaStep& step, Shape shape) {
                     Selecting s(step, shape, kChosen);
                     kernels::cuda::topk(step.context(), s.dense(), s.feedback(), kChosen, s.view);
                     step.wait();
                   }});
}

/// All that a step does with a long tensor: choose, count, code the indices, write the header.
void add_encode(std::vector<TrafficCall>& calls, std::string name, std::string kind,
                std::vector<std::string> shapes) {
  calls.push_back(
      {.name = std::move(name),
       .kind = std::move(kind),
       .workspace_bytes = kernels::topk_workspace_bytes(kCount, kChosen),
       .shapes = std::move(shapes),
       .run = [](CudaStep& step, Shape shape) {
         constexpr auto kForm = kernels::IndexForm::elias_fano;
         Selecting s(step, shape, kChosen);
         OnDevice<std::byte> const code(
             step, std::vector<std::byte>(kernels::index_bytes(kForm, kCount, kChosen)));
         OnDevice<std::byte> const header(step, std::vector<std::byte>(sizeof(PayloadHeader)));
         step.set_words({});
         kernels::cuda::topk(step.context(), s.dense(), s.feedback(), kChosen, s.view);
         kernels::cuda::count_selection(step.context(), s.view, kCount);
         kernels::encode_indices(step.context(), kForm, s.indices.span(), kCount, code.span());
         kernels::cuda::write_header(step.context(), PayloadHeader{}, code.span().size(),
                                     header.span());
         step.wait();
       }});
}

/// A selection of nothing: all of its room is filled up.
void add_count(std::vector<TrafficCall>& calls) {
  calls.push_back({.name = "count_selection, room of an index an element",
                   .kind = "streaming",
                   .shapes = {"heavy_tailed"},
                   .run = [](CudaStep& step, Shape shape) {
                     Selecting const s(step, shape, kCount);
                     step.set_words({});
                     kernels::cuda::count_selection(step.context(), s.view, kCount);
                     step.wait();
                   }});
}

void add_codes(std::vector<TrafficCall>& calls, kernels::IndexForm form, std::string const& name) {
  std::size_t const num_bytes = kernels::index_bytes(form, kCount, kChosen);
  auto const chosen = [] {
    std::vector<std::uint32_t> indices(kChosen);
    kernels::ref::randomk({}, {1, 2}, 3, kCount, indices);
    return indices;
  };
  calls.push_back({.name = name + "_encode 1 %",
                   .kind = "indexed",
                   .shapes = {"heavy_tailed"},
                   .run = [=](CudaStep& step, Shape) {
                     OnDevice<std::uint32_t> const indices(step, chosen());
                     OnDevice<std::byte> const code(step, std::vector<std::byte>(num_bytes));
                     kernels::encode_indices(step.context(), form, indices.span(), kCount,
                                             code.span());
                     step.wait();
                   }});
  calls.push_back(
      {.name = name + "_decode 1 %",
       .kind = "indexed",
       .workspace_bytes = kernels::index_decode_workspace_bytes(num_bytes),
       .shapes = {"heavy_tailed"},
       .run = [=](CudaStep& step, Shape) {
         ExecContext ref;
         ref.backend = Backend::ref;
         std::vector<std::byte> bytes(num_bytes);
         kernels::encode_indices(ref, form, chosen(), kCount, bytes);
         OnDevice<std::byte> const code(step, bytes);
         OnDevice<std::uint32_t> const indices(step, std::vector<std::uint32_t>(kChosen));
         static_cast<void>(kernels::decode_indices(step.context(), static_cast<std::uint32_t>(form),
                                                   code.span(), kCount, indices.span()));
         step.wait();
       }});
}

}  // namespace

void add_selection_calls(std::vector<TrafficCall>& calls) {
  add_count(calls);
  add_topk(calls, "topk 1 %", "topk", {"heavy_tailed"});
  add_topk(calls, "topk 1 %, ties", "topk_ties", {"ties", "all_zero"});
  add_encode(calls, "encode of topk 1 %", "topk", {"heavy_tailed"});
  add_encode(calls, "encode of topk 1 %, ties", "topk_ties", {"ties", "all_zero"});
  calls.push_back({.name = "threshold 1 %",
                   .kind = "topk",
                   .workspace_bytes = kernels::threshold_workspace_bytes(kCount),
                   .shapes = {"heavy_tailed", "ties", "all_zero"},
                   .run = [](CudaStep& step, Shape shape) {
                     Selecting s(step, shape, kChosen);
                     kernels::cuda::threshold(step.context(), s.dense(), s.feedback(), 40.0F,
                                              s.view);
                     step.wait();
                   }});
  calls.push_back(
      {.name = "block_topk 1 %, block 256",
       .kind = "topk",
       .workspace_bytes = kernels::block_topk_workspace_bytes(kCount, 256, kChosen / 256),
       .shapes = {"heavy_tailed", "ties", "all_zero"},
       .run = [](CudaStep& step, Shape shape) {
         Selecting s(step, shape, kChosen);
         kernels::cuda::block_topk(step.context(), s.dense(), s.feedback(), 256,
                                   kernels::BlockNorm::l2, kChosen / 256, s.view);
         step.wait();
       }});
  calls.push_back({.name = "randomk 1 %",
                   .kind = "streaming",
                   .shapes = {"heavy_tailed"},
                   .run = [](CudaStep& step, Shape) {
                     OnDevice<std::uint32_t> const indices(step,
                                                           std::vector<std::uint32_t>(kChosen));
                     kernels::cuda::randomk(step.context(), {1, 2}, 3, kCount, indices.span());
                     step.wait();
                   }});
  add_codes(calls, kernels::IndexForm::bitmap, "bitmap");
  add_codes(calls, kernels::IndexForm::elias_fano, "elias_fano");
}

}  // namespace gradsieve::testing
