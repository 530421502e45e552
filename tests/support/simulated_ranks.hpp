// SPDX-License-Identifier: Apache-2.0
// The life of one tensor's gradient on several ranks, played by one thread without any transport:
// the definition that compressors are tested against. Canaries stand around everything that a
// compressor may store to.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradsieve/registry.hpp"

#include "tests/support/guarded.hpp"
#include "tests/support/test_slots.hpp"

namespace gradsieve::testing {

using Floats = std::vector<float>;
using ByteVector = std::vector<std::byte>;

struct SimulationOptions {
  Backend backend = Backend::cpu;
  int num_threads = 1;
  int world_size = 1;
  std::uint64_t seed = 42;
  std::size_t offset_bytes = 0;  ///< of gradients and residuals, from an aligned address
};

/// What one step gave.
struct Outcome {
  Status status;
  Floats mean;  ///< decoded with weight 1 / world_size, in rank order
  std::vector<std::vector<ByteVector>> bodies;  ///< [round][rank]
  std::vector<std::uint32_t> flags;             ///< [rank] of StepWords
  bool intact = true;                           ///< no canary was touched
};

/// All that ranks remember of the tensor.
struct SavedTensor {
  std::vector<Floats> residuals;
  std::vector<SavedSlots> slots;
};

class SimulatedRanks {
 public:
  SimulatedRanks(Chain const& chain, TensorInfo const& piece, SimulationOptions const& options);
  ~SimulatedRanks();

  /// gradients[rank]; the state is committed if all ranks succeeded.
  Outcome step(std::uint64_t step, std::vector<Floats> const& gradients);

  [[nodiscard]] Floats residual(int rank) const;
  void set_residual(int rank, Floats const& values);
  [[nodiscard]] SavedTensor save() const;
  void restore(SavedTensor const& saved);

  /// accumulator += weight · decode(body) on a rank, in the last round; `intact` as above.
  Status decode_add(int rank, std::uint64_t step, ConstBytes body, double weight,
                    Floats& accumulator, bool& intact);
  /// What a rank's own part of a step decodes to with weight 1.
  Floats decode_own(int rank, std::uint64_t step, Outcome const& outcome);

 private:
  struct Rank;
  ExecContext context(Rank& rank, std::uint64_t step);
  Status run_round(int round, std::uint64_t step, std::vector<Guarded<float>>& gradients,
                   Outcome& outcome, std::vector<ConstBytes>& received, Floats& sum);

  Chain chain_;
  TensorInfo piece_;
  SimulationOptions options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

/// A piece that is the whole tensor.
[[nodiscard]] TensorInfo whole_tensor(std::string_view name, std::uint64_t num_elements,
                                      DType dtype = DType::f32);

}  // namespace gradsieve::testing
