// SPDX-License-Identifier: Apache-2.0
#include "tests/distributed/cuda/hook_cuda_checks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/many_sparse_ops.hpp"
#include "tests/support/plugin_specs.hpp"

namespace gradsieve::testing {
namespace {

constexpr std::uint64_t kNonFiniteStep = 2;
constexpr std::uint64_t kRefusedStep = 4;

/// Several tensors in a bucket, small ones around a large one, one of a single element and one of
/// none.
Layout some_layout(DType dtype, bool with_long_tensor) {
  Layout layout;
  for (auto const& [name, count] : std::vector<std::pair<std::string, std::uint64_t>>{
           {"a", 700}, {"b", 33}, {"c", 1}, {"d", 1029}, {"e", 0}, {"f", 40}, {"g", 3}}) {
    layout.tensors.push_back({.name = name, .num_elements = count, .dtype = dtype});
  }
  layout.buckets = {{{"a", "b", "c"}}, {{"f", "d", "e", "g"}}};
  if (with_long_tensor) {
    std::uint64_t const count = kernels::kMostHeldElements + 1;
    layout.tensors.push_back({.name = "long", .num_elements = count, .dtype = dtype});
    layout.buckets[0].tensors = {"a", "long", "b", "c"};
  }
  return layout;
}

GradientOf gradients_with_a_nan(bool whole_numbers) {
  return [whole_numbers](int rank, std::uint64_t step, std::string const& tensor,
                         std::uint64_t num_elements) {
    std::vector<float> values = heavy_tailed_of(rank, step, tensor, num_elements);
    if (whole_numbers) {
      for (float& x : values) x = std::rint(std::clamp(16.0F * x, -1000.0F, 1000.0F));
    }
    if (step == kNonFiniteStep && rank == 0 && tensor == "b")
      values[7] = std::numeric_limits<float>::quiet_NaN();
    return values;
  };
}

/// HookRank with buckets of the layout's type.
class HostRank {
 public:
  HostRank(Transport& transport, HookOptions const& options, Layout const& layout)
      : rank_(transport.rank()),
        dtype_(layout.tensors[0].dtype),
        layout_(layout),
        hook_(transport, options) {
    hook_.plan(layout.tensors, layout.buckets);
    for (std::size_t b = 0; b < layout.buckets.size(); ++b)
      buckets_.emplace_back(layout.bucket_elements(b) * size_of(dtype_), host_memory());
  }

  [[nodiscard]] Hook& hook() noexcept { return hook_; }
  [[nodiscard]] Hook const& hook() const noexcept { return hook_; }

  HookRank::Attempt attempt(std::uint64_t step, GradientOf const& gradient_of, float loss_scale) {
    HookRank::Attempt attempt;
    attempt.begun = hook_.begin(step, loss_scale);
    std::vector<Event> events(buckets_.size());
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      std::size_t at = 0;
      for (std::string const& tensor : layout_.buckets[b].tensors) {
        for (float const x : gradient_of(rank_, step, tensor, layout_.num_elements(tensor)))
          store_element(buckets_[b], dtype_, at++, x * loss_scale);
      }
      Status const status =
          hook_.reduce(static_cast<std::uint32_t>(b), {buckets_[b].data(), at, dtype_}, events[b]);
      if (attempt.reduced.ok()) attempt.reduced = status;
    }
    attempt.result = hook_.finish();
    return attempt;
  }
  [[nodiscard]] std::vector<float> all_results() const {
    std::vector<float> all;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      for (std::size_t i = 0; i < layout_.bucket_elements(b); ++i)
        all.push_back(load_element(buckets_[b], dtype_, i));
    }
    return all;
  }

 private:
  int rank_;
  DType dtype_;
  Layout layout_;
  Hook hook_;
  std::vector<Buffer> buckets_;
};

std::string difference(std::string const& what, std::vector<float> const& actual,
                       std::vector<float> const& expected) {
  if (actual.size() != expected.size()) return what + ": another number of elements";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    bool const same =
        std::bit_cast<std::uint32_t>(actual[i]) == std::bit_cast<std::uint32_t>(expected[i]);
    if (same) continue;
    return what + ", element " + std::to_string(i) + ": " + std::to_string(actual[i]) +
           ", expected " + std::to_string(expected[i]);
  }
  return "";
}

std::string compare_outcome(HookRank::Attempt const& cuda, HookRank::Attempt const& cpu) {
  StepResult const& a = cuda.result;
  StepResult const& b = cpu.result;
  if (a.pending) return "the outcome is still pending";
  if (a.status.code() == b.status.code() && a.committed == b.committed &&
      a.found_nonfinite == b.found_nonfinite) {
    return "";
  }
  return std::string("outcome ") + a.status.message() + (a.committed ? ", committed" : "") +
         (a.found_nonfinite ? ", non-finite" : "") + "; expected " + b.status.message() +
         (b.committed ? ", committed" : "") + (b.found_nonfinite ? ", non-finite" : "");
}

std::string compare_state(CudaHookRank& cuda, HostRank const& cpu, bool with_results) {
  std::string found;
  if (with_results) found = difference("results", cuda.all_results(), cpu.all_results());
  for (TensorDesc const& tensor : cuda.layout().tensors) {
    if (!found.empty()) break;
    found = difference("residual of " + tensor.name, cuda.hook().residual(tensor.name),
                       cpu.hook().residual(tensor.name));
  }
  return found;
}

}  // namespace

std::vector<std::string> cuda_specs() {
  std::vector<std::string> specs;
  for (SpecCase const& spec_case : default_specs()) {
    Chain const chain = with_feedback(spec_case);
    if (chain.compressor->claims().cuda) specs.push_back(chain.text);
  }
  return specs;
}

namespace {

/// A step of the device's hook, however it is run.
using RunStep =
    std::function<HookRank::Attempt(CudaHookRank&, std::uint64_t step, float loss_scale)>;

std::string check_steps(Transport& device, Transport& host, HookCase const& c,
                        RunStep const& run_step) {
  HookOptions options = options_for(c.spec);
  options.rollback = c.rollback;
  options.on_nonfinite = c.on_nonfinite;
  Layout const layout = some_layout(c.dtype, c.with_long_tensor);
  CudaHookRank cuda(device, options, layout);
  HostRank cpu(host, options, layout);
  GradientOf const gradient = gradients_with_a_nan(c.whole_numbers);
  for (std::uint64_t step = 0; step < c.steps; ++step) {
    std::string const where = "step " + std::to_string(step) + ": ";
    float const loss_scale = step < 3 ? 1.0F : 8.0F;
    HookRank::Attempt const expected = cpu.attempt(step, gradient, loss_scale);
    HookRank::Attempt const actual = run_step(cuda, step, loss_scale);
    if (!actual.begun.ok()) return where + "begin: " + actual.begun.message();
    if (std::string const found = compare_outcome(actual, expected); !found.empty())
      return where + found;
    bool const filled = c.on_nonfinite != OnNonFinite::error;
    bool const with_results = expected.result.committed || (step == kNonFiniteStep && filled);
    if (std::string const found = compare_state(cuda, cpu, with_results); !found.empty())
      return where + found;
    if (step != kRefusedStep) continue;
    if (Status const status = cpu.hook().refuse(); !status.ok()) return where + status.message();
    if (Status const status = cuda.hook().refuse(); !status.ok()) return where + status.message();
    if (std::string const found = compare_state(cuda, cpu, false); !found.empty())
      return where + "refused: " + found;
  }
  return "";
}

/// A step of a hook as a graph.
class StepGraph {
 public:
  ~StepGraph() {
    if (exec_ != nullptr) static_cast<void>(cudaGraphExecDestroy(exec_));
  }
  [[nodiscard]] bool is_made() const noexcept { return exec_ != nullptr; }

  [[nodiscard]] HookRank::Attempt capture(CudaHookRank& rank) {
    cudaGraph_t graph = nullptr;
    require(cudaStreamBeginCapture(rank.stream(), cudaStreamCaptureModeThreadLocal));
    HookRank::Attempt const attempt = rank.enqueue_step(999, 3.0F);  // of no account
    require(cudaStreamEndCapture(rank.stream(), &graph));
    require(cudaGraphGetNodes(graph, nullptr, &num_nodes_));
    require(cudaGraphInstantiate(&exec_, graph, 0));
    require(cudaGraphDestroy(graph));
    return attempt;
  }
  [[nodiscard]] std::size_t num_nodes() const noexcept { return num_nodes_; }
  void launch(CudaHookRank const& rank) { require(cudaGraphLaunch(exec_, rank.stream())); }

 private:
  cudaGraphExec_t exec_ = nullptr;
  std::size_t num_nodes_ = 0;
};

}  // namespace

std::size_t count_launches(Transport& device, std::string const& spec, std::size_t num_tensors) {
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < num_tensors; ++i) sizes.push_back(20 + 7 * (i % 11));
  CudaHookRank rank(device, options_for(spec), all_in_one(one_bucket_each(sizes)));
  if (!rank.attempt(0, heavy_tailed_of).result.committed)
    fail(rank.hook(), "the step before", rank.hook().synchronize().status);
  StepGraph graph;
  static_cast<void>(graph.capture(rank));
  return graph.num_nodes();
}

std::string check_like_cpu(Transport& device, Transport& host, HookCase const& c) {
  GradientOf const gradient = gradients_with_a_nan(c.whole_numbers);
  return check_steps(device, host, c,
                     [&](CudaHookRank& cuda, std::uint64_t step, float loss_scale) {
                       return cuda.attempt(step, gradient, loss_scale);
                     });
}

std::string check_graph_like_cpu(Transport& device, Transport& host, HookCase const& c) {
  StepGraph graph;
  GradientOf const gradient = gradients_with_a_nan(c.whole_numbers);
  return check_steps(device, host, c,
                     [&](CudaHookRank& cuda, std::uint64_t step, float loss_scale) {
                       if (step == 0) return cuda.attempt(step, gradient, loss_scale);
                       HookRank::Attempt attempt;
                       if (!graph.is_made()) attempt = graph.capture(cuda);
                       if (!attempt.begun.ok() || !attempt.reduced.ok()) return attempt;
                       cuda.make_gradients(step, gradient, loss_scale);
                       attempt.begun = cuda.hook().replay(step, loss_scale);
                       graph.launch(cuda);
                       attempt.result = cuda.hook().synchronize();
                       return attempt;
                     });
}

}  // namespace gradsieve::testing
