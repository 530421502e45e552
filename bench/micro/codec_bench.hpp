// SPDX-License-Identifier: Apache-2.0
// Encoding (feedback included) and decoding of one spec on one kind of data, beside `update`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gradsieve/gradsieve.hpp"

#include "bench/micro/bench_data.hpp"
#include "bench/micro/paired.hpp"

namespace gradsieve::bench {

/// What is timed: encode with the residual in place (rollback=merge), from one residual to another
/// (rollback=exact), or decode.
/// `select` is the kernel of exact top-k alone, without index coding or payload.
enum class Operation { encode, encode_exact, decode, select };
[[nodiscard]] char const* operation_name(Operation operation);

struct CodecCase {
  std::string spec;
  Distribution distribution = Distribution::heavy;
  std::uint64_t num_elements = 0;
  int num_threads = 1;
};

/// One chain with its buffers. Before each piece of work the residual is put back, so that all see
/// the same sum of gradient and residual, however many rounds there are.
class CodecBench {
 public:
  CodecBench(CodecCase const& which, std::string const& trace_folder);

  /// r += g on the same buffers: 12 bytes of traffic per element.
  [[nodiscard]] PairedRounds::Work update();
  [[nodiscard]] PairedRounds::Work work(Operation operation);
  /// What `select` selects.
  void plan_select(double density);
  [[nodiscard]] double bits_per_element() const;

 private:
  [[nodiscard]] ExecContext context();
  void restore();
  void encode(std::span<float> residual_out);
  void decode();
  void select();

  Chain chain_;
  TensorInfo info_;
  ThreadPool threads_;
  std::vector<float> saved_residual_;
  Buffer gradient_, residual_, other_residual_, accumulator_, body_, work_;
  Buffer indices_, values_;  ///< of `select`
  std::uint64_t num_selected_ = 0;
  std::vector<SlotInfo> slot_infos_;
  std::vector<Buffer> slot_memory_;
  std::vector<SlotView> slots_;
  bool written_ = false;
  Workspace workspace_;
  StepWords words_;
  std::uint64_t body_bytes_ = 0;
  int round_ = 0;
};

}  // namespace gradsieve::bench
