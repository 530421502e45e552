// SPDX-License-Identifier: Apache-2.0
// A chain on one array, without ranks: world size 1, and where a leader chooses, this rank leads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "gradsieve/context.hpp"
#include "gradsieve/memory.hpp"
#include "gradsieve/registry.hpp"

namespace gradsieve::bindings {

/// What random numbers and schedules depend on.
struct Draws {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t rank = 0;
};

class OfflineCodec {
 public:
  OfflineCodec(Chain chain, std::uint64_t num_elements, DType dtype, Draws draws, int num_threads);

  struct Encoded {
    Buffer storage;
    std::size_t num_bytes = 0;
    [[nodiscard]] ConstBytes payload() const noexcept { return storage.bytes().first(num_bytes); }
  };

  /// Most bytes of a payload.
  [[nodiscard]] std::size_t capacity_bytes() const;
  /// One payload with its checksum. A file holds one piece of a tensor after the other, and of each
  /// the bodies of all rounds. `residual` is e in and e' out, or empty without feedback.
  /// Throws Error(non_finite) if an element of the gradient is NaN or infinite.
  [[nodiscard]] Encoded encode(ConstTensorView gradient, std::span<float> residual);
  /// The same into `payload` of capacity_bytes(); returns the bytes in use.
  [[nodiscard]] std::size_t encode(ConstTensorView gradient, std::span<float> residual,
                                   Bytes payload);

  /// Throws Error(corrupt_payload) unless this codec may have written the payload.
  void decode(ConstBytes payload, TensorView result);

 private:
  /// Two copies of every slot, as between the steps of a hook; the first step starts from zeros.
  struct PieceState {
    std::vector<Buffer> memory;
    std::vector<SlotView> views;
    std::unique_ptr<bool[]> written;
  };
  struct Piece {
    TensorInfo info;
    PieceState state;
    [[nodiscard]] StateView view() const noexcept { return {state.views}; }
  };

  [[nodiscard]] ExecContext context(int round) noexcept;
  void absorb(int round, Piece const& piece, ConstBytes body);
  void start_step();
  [[nodiscard]] std::vector<std::size_t> body_capacities() const;

  Chain chain_;
  std::uint64_t num_elements_;
  DType dtype_;
  Draws draws_;
  int num_rounds_;
  ThreadPool threads_;
  std::vector<Piece> pieces_;
  Buffer workspace_memory_;
  Workspace workspace_;
  StepWords words_;
};

/// What a hook makes of a tensor of this size: smaller than dense_below, it is sent as it is.
[[nodiscard]] Chain chain_for_size(std::string_view spec, std::uint64_t num_elements,
                                   Registry const& registry = builtin_registry());

/// Throws what a Status says, if it is not ok.
void throw_if_failed(Status const& status);

}  // namespace gradsieve::bindings
