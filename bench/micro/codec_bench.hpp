// SPDX-License-Identifier: Apache-2.0
// Encoding (feedback included) and decoding of one spec on one distribution, in units of `update`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gradsieve/gradsieve.hpp"

namespace gradsieve::bench {

enum class Distribution { gauss, heavy, ties, sorted, zeros, rows };
[[nodiscard]] char const* distribution_name(Distribution distribution);
[[nodiscard]] std::vector<float> make_distribution(Distribution distribution,
                                                   std::uint64_t num_elements);

struct CodecCase {
  std::string spec;
  Distribution distribution = Distribution::heavy;
  std::uint64_t num_elements = 0;
  int num_threads = 1;
};

/// One chain with its buffers; every call of a method does one step's work and returns its seconds.
class CodecBench {
 public:
  explicit CodecBench(CodecCase const& which);

  double update();  ///< r += g on the same buffers: 12 bytes of traffic per element
  double encode();  ///< gradient and residual in, body and residual out
  double decode();  ///< accumulator += weight · decode(body)
  [[nodiscard]] double bits_per_element() const;

 private:
  Chain chain_;
  TensorInfo info_;
  ThreadPool threads_;
  std::vector<float> source_;
  Buffer gradient_, residual_, accumulator_, body_, work_;
  std::vector<SlotInfo> slot_infos_;
  std::vector<Buffer> slot_memory_;
  std::vector<SlotView> slots_;
  bool written_ = false;
  Workspace workspace_;
  StepWords words_;
  std::uint64_t body_bytes_ = 0;
  int round_ = 0;

  [[nodiscard]] ExecContext context();
};

}  // namespace gradsieve::bench
