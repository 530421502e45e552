// SPDX-License-Identifier: Apache-2.0
// What a kernel or compressor is told about the step it runs in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "gradsieve/memory.hpp"
#include "gradsieve/vocabulary.hpp"

namespace gradsieve {

/// Which definition of the kernels runs: `ref` is the specification, the others equal it bit for
/// bit.
enum class Backend : std::uint8_t { ref = 0, cpu = 1, cuda = 2 };

/// Instruction sets of the CPU backend.
enum class SimdTarget : std::uint8_t { portable = 0, avx2 = 1, avx512 = 2 };

/// The widest target that this machine runs, or the one that GRADSIEVE_SIMD=portable|avx2|avx512 or
/// force_simd_target() named. Forcing one that the machine lacks throws Error(unsupported).
[[nodiscard]] SimdTarget simd_target() noexcept;
void force_simd_target(SimdTarget target);
[[nodiscard]] std::vector<SimdTarget> supported_simd_targets();
[[nodiscard]] std::string_view simd_target_name(SimdTarget target) noexcept;

/// A fixed team of threads. Work is cut at fixed borders, so results never depend on the count.
class ThreadPool {
 public:
  /// `num_threads` counts the caller: 1 starts no thread.
  explicit ThreadPool(int num_threads = 1);
  ~ThreadPool();
  ThreadPool(ThreadPool const&) = delete;
  ThreadPool& operator=(ThreadPool const&) = delete;

  [[nodiscard]] int num_threads() const noexcept;

  /// Calls body(begin, end) for the chunks [0, grain), [grain, 2 grain), ... of [0, count), on any
  /// thread, in any order; returns when all are done. Allocates nothing; body must not throw.
  template <typename Body>
  void parallel_for(std::uint64_t count, std::uint64_t grain, Body const& body) noexcept {
    run(count, grain, &body, [](void const* erased, std::uint64_t begin, std::uint64_t end) {
      (*static_cast<Body const*>(erased))(begin, end);
    });
  }

 private:
  using Invoke = void (*)(void const*, std::uint64_t, std::uint64_t);
  void run(std::uint64_t count, std::uint64_t grain, void const* body, Invoke invoke) noexcept;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What changes from step to step. Kernels get its *address*: on a device these are device words
/// that Hook::begin updates, so that a captured graph replays with a new step.
struct StepWords {
  std::uint64_t step = 0;
  float loss_scale = 1.0F;   ///< gradients of this step are multiples of it
  std::uint32_t parity = 0;  ///< which copy of a two-copy state slot is written
  std::uint32_t flags = 0;   ///< kStepNonFinite and others, set by kernels
  /// Added to by whoever selects; without a sparsifier both stay as they are.
  std::uint64_t kept_elements = 0;
  std::uint64_t overflowed_elements = 0;
};

inline constexpr std::uint32_t kStepNonFinite = 1;  ///< a gradient element was NaN or infinite
inline constexpr std::uint32_t kStepOverflow = 2;   ///< elements qualified beyond max_density

inline constexpr std::uint32_t kStepCorrupt = 4;  ///< indices or codes were not what they claim

struct ExecContext {
  Backend backend = Backend::cpu;
  Stream stream = {};
  Workspace* workspace = nullptr;
  ThreadPool* threads = nullptr;  ///< null: run on the calling thread
  StepWords* words = nullptr;     ///< backend cuda: device memory, never read by the host
  /// Backend cuda: the device word with Compressor::step_word() of the running piece and step.
  std::uint64_t const* piece_word = nullptr;
  /// Backend cuda: decode_add and store_bf16 are left out where this device word is 0; null: never.
  std::uint32_t const* only_if = nullptr;
  Status* device_error = nullptr;  ///< backend cuda: keeps the first launch that failed
  std::uint64_t seed = 0;
  int rank = 0;
  int world_size = 1;
  bool owned =
      false;  ///< the owner's second encoding of a two-shot: it rounds with numbers of its own
};

/// Adds what a kernel saw to the step's flags. On cuda kernels have done so and return 0.
inline void raise_flags(ExecContext const& ctx, std::uint32_t flags) noexcept {
  if (flags != 0) ctx.words->flags |= flags;
}

}  // namespace gradsieve
