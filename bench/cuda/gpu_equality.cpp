// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/gpu_equality.hpp"

#include <algorithm>
#include <optional>
#include <vector>

namespace gradsieve::bench {
namespace {

bool is_written(ArrayPlan const& plan) {
  return plan.role == ArrayRole::in_out || plan.role == ArrayRole::output;
}

/// The arrays of a call in host memory, and ref's result in them.
class HostTwin {
 public:
  HostTwin(GpuMemory& memory, GpuCase const& gpu_case, std::size_t i) {
    Arrays const& device = memory.arrays(i);
    for (std::size_t j = 0; j < device.size(); ++j) memory_.push_back(memory.read(device.bytes(j)));
    std::vector<std::span<std::byte>> spans(memory_.begin(), memory_.end());
    arrays_ = Arrays(std::move(spans));
    words_ = memory.read_words();
    ExecContext ctx;
    ctx.backend = Backend::ref;
    ctx.words = &words_;
    Buffer const work(gpu_case.workspace_bytes, host_memory());
    Workspace workspace(work.bytes());
    ctx.workspace = &workspace;
    if (gpu_case.prepare) gpu_case.prepare(ctx, arrays_);
    gpu_case.run(ctx, arrays_);
  }

  [[nodiscard]] std::span<std::byte const> bytes(std::size_t j) const { return arrays_.bytes(j); }
  [[nodiscard]] StepWords const& words() const { return words_; }

 private:
  std::vector<std::vector<std::byte>> memory_;
  Arrays arrays_;
  StepWords words_;
};

std::string words_difference(StepWords const& actual, StepWords const& expected) {
  auto const told = [](StepWords const& words) {
    return "flags " + std::to_string(words.flags) + ", kept " +
           std::to_string(words.kept_elements) + ", overflowed " +
           std::to_string(words.overflowed_elements);
  };
  return told(actual) == told(expected) ? "" : told(actual) + "; expected " + told(expected);
}

std::string difference(GpuMemory& memory, GpuCase const& gpu_case, std::size_t i,
                       HostTwin const& expected) {
  for (std::size_t j = 0; j < gpu_case.arrays.size(); ++j) {
    if (!is_written(gpu_case.arrays[j])) continue;
    std::vector<std::byte> const actual = memory.read(memory.arrays(i).bytes(j));
    auto const [at, _] = std::ranges::mismatch(actual, expected.bytes(j));
    if (at == actual.end()) continue;
    return "array " + std::to_string(j) + ", byte " + std::to_string(at - actual.begin()) + " of " +
           std::to_string(actual.size());
  }
  return words_difference(memory.read_words(), expected.words());
}

/// What a call left, kept on the device to compare later calls with.
class Kept {
 public:
  Kept(GpuMemory& memory, GpuCase const& gpu_case, std::size_t i) {
    differences_ = Buffer(sizeof(unsigned long long), device_memory(), {memory.stream()});
    for (std::size_t j = 0; j < gpu_case.arrays.size(); ++j) {
      if (!is_written(gpu_case.arrays[j]) || gpu_case.arrays[j].num_bytes == 0) continue;
      std::span<std::byte const> const now = memory.arrays(i).bytes(j);
      arrays_.push_back({j, Buffer(now.size(), device_memory(), {memory.stream()})});
      require_cuda(cudaMemcpyAsync(arrays_.back().copy.data(), now.data(), now.size(),
                                   cudaMemcpyDeviceToDevice, memory.stream()),
                   "keeping a result");
    }
  }

  void compare(GpuMemory& memory, std::size_t i) const {
    for (Array const& kept : arrays_) {
      count_differences(memory.stream(), kept.copy.bytes(), memory.arrays(i).bytes(kept.array),
                        differences_.as<unsigned long long>().data());
    }
  }
  [[nodiscard]] std::uint64_t differences(GpuMemory& memory) const {
    std::uint64_t count = 0;
    std::vector<std::byte> const bytes = memory.read(differences_.bytes());
    std::ranges::copy(bytes, std::as_writable_bytes(std::span(&count, 1)).begin());
    return count;
  }

 private:
  struct Array {
    std::size_t array;
    Buffer copy;
  };
  std::vector<Array> arrays_;
  Buffer differences_;
};

}  // namespace

Equality check_equality(GpuMemory& memory, GpuCase const& gpu_case, std::size_t i,
                        std::uint64_t repeats, bool with_ref) {
  Equality result;
  memory.reset_words();
  memory.restore(i);
  memory.poison(i);
  std::optional<HostTwin> expected;
  if (with_ref) expected.emplace(memory, gpu_case, i);
  memory.run(i);
  memory.require_no_error(i);
  if (expected) result.first_difference = difference(memory, gpu_case, i, *expected);
  result.equals_ref = result.first_difference.empty();
  Kept const kept(memory, gpu_case, i);
  for (result.repeats = 1; result.repeats < repeats; ++result.repeats) {
    memory.restore(i);
    memory.poison(i);
    memory.run(i);
    kept.compare(memory, i);
  }
  memory.require_no_error(i);
  result.differing_words = kept.differences(memory);
  return result;
}

}  // namespace gradsieve::bench
