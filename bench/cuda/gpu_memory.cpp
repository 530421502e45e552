// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/gpu_memory.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace gradsieve::bench {
namespace {

bool is_scratch(ArrayPlan const& plan) {
  return plan.role == ArrayRole::in_out || plan.role == ArrayRole::output;
}

/// Bits are set by words of 32, those at the end of an array too.
std::uint64_t whole_words(std::uint64_t num_bytes) { return (num_bytes + 3) / 4 * 4; }

}  // namespace

void require_cuda(cudaError_t error, char const* doing) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw Error(Code::device_error, std::string(doing) + ": " + cudaGetErrorString(error));
}

std::string GpuCase::name() const {
  return kernel + (variant.empty() ? "" : " " + variant) + ", " + std::string(dtype_name(dtype));
}

void Arrays::copy_in(ExecContext const& ctx, std::size_t array,
                     std::span<std::byte const> from) const {
  if (ctx.backend != Backend::cuda) {
    std::memcpy(data(array), from.data(), from.size());
    return;
  }
  auto* const stream = static_cast<cudaStream_t>(ctx.stream.handle);
  require_cuda(
      cudaMemcpyAsync(data(array), from.data(), from.size(), cudaMemcpyHostToDevice, stream),
      "copying to the device");
  require_cuda(cudaStreamSynchronize(stream), "copying to the device");
}

void Arrays::copy_out(ExecContext const& ctx, std::size_t array, std::span<std::byte> to) const {
  if (ctx.backend != Backend::cuda) {
    std::memcpy(to.data(), data(array), to.size());
    return;
  }
  auto* const stream = static_cast<cudaStream_t>(ctx.stream.handle);
  require_cuda(cudaMemcpyAsync(to.data(), data(array), to.size(), cudaMemcpyDeviceToHost, stream),
               "copying from the device");
  require_cuda(cudaStreamSynchronize(stream), "copying from the device");
}

GpuMemory::GpuMemory(std::span<GpuCase const> cases, GpuData data) : cases_(cases), data_(data) {
  require_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  std::size_t work_bytes = 0;
  for (GpuCase const& c : cases) work_bytes = std::max(work_bytes, c.workspace_bytes);
  words_ = Buffer(sizeof(StepWords), device_memory(), {stream_});
  work_ = Buffer(work_bytes, device_memory(), {stream_});
  workspace_ = Workspace(work_.bytes());
  allocate_scratch();
  for (GpuCase const& c : cases) bound_.emplace_back(bind(c));
  for (std::size_t i = 0; i < cases_.size(); ++i) {
    if (!cases_[i].prepare) continue;
    restore(i);
    cases_[i].prepare(context(), bound_[i]);
    require_no_error(i);
  }
}

GpuMemory::~GpuMemory() {
  pristine_.clear();
  scratch_.clear();
  own_.clear();
  words_ = {};
  work_ = {};
  static_cast<void>(cudaStreamDestroy(stream_));
}

ExecContext GpuMemory::context() noexcept {
  ExecContext ctx;
  ctx.backend = Backend::cuda;
  ctx.stream = {stream_};
  ctx.words = words_.as<StepWords>().data();
  ctx.workspace = &workspace_;
  ctx.device_error = &error_;
  return ctx;
}

std::span<std::byte> GpuMemory::pristine(ArrayPlan const& plan) {
  auto const [at, is_new] = pristine_.try_emplace(Key(plan.fill, plan.num_bytes));
  if (is_new) {
    at->second = Buffer(plan.num_bytes, device_memory(), {stream_});
    fill_array(stream_, plan.fill, data_, at->second.bytes());
    require_cuda(cudaGetLastError(), "filling an array");
  }
  return at->second.bytes();
}

void GpuMemory::allocate_scratch() {
  std::vector<std::uint64_t> most;
  for (GpuCase const& c : cases_) {
    std::size_t j = 0;
    for (ArrayPlan const& plan : c.arrays) {
      if (!is_scratch(plan)) continue;
      if (j == most.size()) most.push_back(0);
      most[j] = std::max(most[j], plan.num_bytes);
      ++j;
    }
  }
  for (std::uint64_t const num_bytes : most) {
    scratch_.emplace_back(whole_words(num_bytes), device_memory(), Stream{stream_});
  }
}

std::vector<std::span<std::byte>> GpuMemory::bind(GpuCase const& gpu_case) {
  std::vector<std::span<std::byte>> arrays;
  std::size_t j = 0;
  for (ArrayPlan const& plan : gpu_case.arrays) {
    if (is_scratch(plan)) {
      if (plan.role == ArrayRole::in_out) static_cast<void>(pristine(plan));
      arrays.push_back(scratch_[j++].bytes().first(plan.num_bytes));
    } else if (plan.role == ArrayRole::prepared) {
      Buffer const& own =
          own_.emplace_back(whole_words(plan.num_bytes), device_memory(), Stream{stream_});
      arrays.push_back(own.bytes().first(plan.num_bytes));
    } else {
      arrays.push_back(pristine(plan));
    }
  }
  return arrays;
}

void GpuMemory::restore(std::size_t i) {
  for (std::size_t j = 0; j < bound_[i].size(); ++j) {
    ArrayPlan const& plan = cases_[i].arrays[j];
    if (plan.role != ArrayRole::in_out) continue;
    require_cuda(cudaMemcpyAsync(bound_[i].data(j), pristine(plan).data(), plan.num_bytes,
                                 cudaMemcpyDeviceToDevice, stream_),
                 "putting an array back");
  }
}

void GpuMemory::poison(std::size_t i) {
  for (std::size_t j = 0; j < bound_[i].size(); ++j) {
    ArrayPlan const& plan = cases_[i].arrays[j];
    if (plan.role != ArrayRole::output || plan.num_bytes == 0) continue;
    require_cuda(cudaMemsetAsync(bound_[i].data(j), kPoison, plan.num_bytes, stream_),
                 "setting an array");
  }
}

void GpuMemory::run(std::size_t i) { cases_[i].run(context(), bound_[i]); }

void GpuMemory::wait() { require_cuda(cudaStreamSynchronize(stream_), "waiting for the device"); }

void GpuMemory::require_no_error(std::size_t i) {
  wait();
  require_cuda(cudaGetLastError(), cases_[i].name().c_str());
  if (!error_.ok()) throw Error(error_.code(), cases_[i].name() + ": " + error_.message());
}

void GpuMemory::reset_words() {
  require_cuda(cudaMemsetAsync(words_.data(), 0, words_.num_bytes(), stream_), "setting words");
}

StepWords GpuMemory::read_words() {
  StepWords words;
  std::vector<std::byte> const bytes = read(words_.bytes());
  std::memcpy(&words, bytes.data(), sizeof words);
  return words;
}

std::vector<std::byte> GpuMemory::read(std::span<std::byte const> device_bytes) {
  std::vector<std::byte> bytes(device_bytes.size());
  require_cuda(cudaMemcpyAsync(bytes.data(), device_bytes.data(), bytes.size(),
                               cudaMemcpyDeviceToHost, stream_),
               "copying from the device");
  wait();
  return bytes;
}

}  // namespace gradsieve::bench
