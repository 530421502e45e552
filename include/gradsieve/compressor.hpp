// SPDX-License-Identifier: Apache-2.0
// A compressor turns gradients into bytes and back. It never communicates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gradsieve/context.hpp"
#include "gradsieve/memory.hpp"
#include "gradsieve/selection.hpp"
#include "gradsieve/state.hpp"
#include "gradsieve/vocabulary.hpp"
#include "gradsieve/wire.hpp"

namespace gradsieve {

enum class ExchangeKind : std::uint8_t {
  gather,     ///< own bytes of each rank to all ranks
  sum,        ///< bodies are arrays that are added before decoding
  shard_sum,  ///< two-shot: the owner of a shard adds, encodes once more, sends to all
};

enum class SumType : std::uint8_t { none, f32, f64 };

/// One round of a compressor: what is exchanged, and how much at most.
struct RoundInfo {
  ExchangeKind exchange = ExchangeKind::gather;
  SumType sum_type = SumType::none;
  std::size_t capacity_bytes = 0;  ///< of a piece's body, known at plan time
};

/// From what the residual follows. It decides whether retain may overlap the exchange.
enum class ResidualRule : std::uint8_t { own_payload, aggregate };

/// Promises of a compressor. They are data: the conformance suite tests each, and the hook picks
/// the exchange from them.
struct Claims {
  bool deterministic = true;    ///< same gradient, state, seed, step, tensor id: same bytes
  bool lossless = false;        ///< decode(encode(g)) = g, bit for bit
  bool fixed_rate = false;      ///< payload bytes follow from TensorInfo (and the step) alone
  bool unbiased = false;        ///< E[decode(encode(g))] = g
  bool shared_indices = false;  ///< all ranks choose the same elements
  bool elementwise = false;     ///< may be cut at block borders and encoded in shards
  bool f64 = false;             ///< takes 64-bit gradients
  bool cuda = false;            ///< runs where data is on a device: bodies are laid out by capacity
  double contraction =
      0.0;  ///< δ in ‖g − ĝ‖² ≤ (1 − δ)‖g‖² (expected, if random); 0 promises nothing
  ResidualRule residual = ResidualRule::own_payload;
};

/// Takes the mass that an exchange could not deliver: the owner's second rounding, dropped pairs.
class MassSink {
 public:
  virtual ~MassSink() = default;

  /// Room for the undelivered part of `piece`, in units of the sum, to be overwritten by the
  /// caller. It waits in a log: enters the residual at commit, is dropped at rollback.
  [[nodiscard]] virtual std::span<float> undelivered(TensorInfo const& piece) noexcept = 0;
};

/// One of several pieces that are coded together: where it lies in the arrays of a call.
struct BatchPiece {
  TensorInfo info;
  std::uint64_t in_gradient = 0;  ///< elements in front of it
  std::uint64_t in_residual = 0;  ///< elements in front of it
  std::size_t body_offset = 0;    ///< bytes
  std::uint32_t word = 0;         ///< of its step word, in ctx.piece_word of a call
};

/// Pieces of one payload, coded by one launch each way, whatever their number. What it looks up was
/// put on the device when it was made, and holds places, not addresses: the arrays may be others
/// in each call.
class Batch {
 public:
  virtual ~Batch() = default;

  /// encode_with_residual of each piece; `bodies` was zeros when it was new.
  virtual Status encode(ExecContext const&, ConstTensorView gradient, ResidualView residual,
                        Bytes bodies) const noexcept = 0;

  /// encode of each piece, for a chain that has chosen `corrected`; rest ← what it loses of that.
  virtual Status encode_corrected(ExecContext const&, std::span<float const> corrected,
                                  std::span<float> rest, Bytes bodies) const noexcept {
    static_cast<void>(corrected);
    static_cast<void>(rest);
    static_cast<void>(bodies);
    return {Code::internal, "this batch is not of a value codec"};
  }

  /// Where the sums of the pieces lie: as in the gradient, or as in the residual.
  enum class Sums : std::uint8_t { as_gradient, as_residual };
  /// decode_add of each piece. `is_first`: to zeros, whatever the accumulator holds; not if the
  /// batch needs_zeros(), which are then there.
  virtual Status decode_add(ExecContext const&, ConstBytes bodies, double weight,
                            std::span<float> accumulator, Sums, bool is_first) const noexcept = 0;
  /// True if it leaves alone what no piece sends.
  [[nodiscard]] virtual bool needs_zeros() const noexcept { return false; }
};

/// The interface everything turns on. Objects are immutable and serve all tensors and threads.
/// Non-virtual outside, virtual inside: bounds and lengths are checked in one place.
class Compressor {
 public:
  virtual ~Compressor() = default;

  [[nodiscard]] virtual Claims claims() const noexcept = 0;
  [[nodiscard]] virtual int num_rounds() const noexcept { return 1; }
  [[nodiscard]] virtual RoundInfo round(int index, TensorInfo const& piece) const noexcept = 0;
  [[nodiscard]] virtual std::vector<SlotInfo> slots(TensorInfo const&) const { return {}; }
  /// Workspace that any one call takes at most. The default is what the three-pass form of
  /// encode_with_residual takes; who overrides this and keeps that form adds its own to it.
  [[nodiscard]] virtual std::size_t workspace_bytes(TensorInfo const& piece) const noexcept {
    return Workspace::padded(static_cast<std::size_t>(piece.num_elements) * sizeof(float));
  }
  /// Pieces of a shard_sum are cut at multiples of this.
  [[nodiscard]] virtual std::uint64_t block_elements() const noexcept { return 1; }
  /// Bytes of a body at most once density ramps are over: what exchange=auto compares with dense.
  [[nodiscard]] virtual std::size_t settled_bytes(int index,
                                                  TensorInfo const& piece) const noexcept {
    return round(index, piece).capacity_bytes;
  }
  /// Claim `cuda`: bytes of every body of this round where data is on a device, which are laid out
  /// by capacity. At most capacity_bytes.
  [[nodiscard]] virtual std::size_t fixed_bytes(int index, TensorInfo const& piece) const noexcept {
    return round(index, piece).capacity_bytes;
  }
  /// What an encode of this piece has to know of the step besides its words, in one number: how
  /// many elements it chooses, a threshold. Computed on the host; on cuda read from ctx.piece_word.
  [[nodiscard]] virtual std::uint64_t step_word(TensorInfo const& piece,
                                                StepWords const& words) const noexcept {
    static_cast<void>(piece);
    static_cast<void>(words);
    return 0;
  }
  /// Backend cuda, at plan time: these pieces of a one-round compressor as a batch, with what it
  /// needs from `memory`; null: it codes them one by one.
  [[nodiscard]] virtual std::shared_ptr<Batch const> make_batch(ExecContext const&,
                                                                std::span<BatchPiece const>,
                                                                MemoryResource& memory) const {
    static_cast<void>(memory);
    return nullptr;
  }
  /// Whether this piece may be one of make_batch(); what is large is coded by itself.
  [[nodiscard]] virtual bool is_batched(TensorInfo const& piece) const noexcept {
    static_cast<void>(piece);
    return true;
  }
  /// Bytes of the body of a `sum` round in this step (a density ramp changes it from step to step).
  [[nodiscard]] virtual std::size_t sum_bytes(int index, TensorInfo const& piece,
                                              std::uint64_t step) const noexcept {
    static_cast<void>(step);
    return round(index, piece).capacity_bytes;
  }

  /// Encodes what was compensated before: body ← encode(c). No feedback.
  Status encode(ExecContext const& ctx, int round, TensorInfo const& piece,
                ConstTensorView corrected, StateView state, Body body) const noexcept;

  /// Gradient and residual in, body and new residual out. It leaves c in residual.out in round 0 of
  /// several and where it fails, else c − ĉ. The default is compensate, encode, retain; an override
  /// must give the same bits. Non-finite elements raise kStepNonFinite in ctx.words->flags.
  /// f64 gradients have no residual: both views are then empty.
  Status encode_with_residual(ExecContext const& ctx, int round, TensorInfo const& piece,
                              ConstTensorView gradient, ResidualView residual, StateView state,
                              Body body) const noexcept;

  /// The owner's half of a shard_sum: its shard's sum in, what goes to all ranks out, the rest to
  /// the sink.
  Status encode_owned(ExecContext const& ctx, int round, TensorInfo const& piece,
                      std::span<float const> sum, StateView state, Body body,
                      MassSink& sink) const noexcept;

  /// What other ranks sent in a round that agrees on something (a leader's indices). `received`
  /// holds one body per rank, in rank order, or the one sum.
  Status absorb(ExecContext const& ctx, int round, TensorInfo const& piece,
                std::span<ConstBytes const> received, StateView state) const noexcept;

  /// accumulator += weight · decode(body), f32 or f64. Checks the body before the first store.
  Status decode_add(ExecContext const& ctx, int round, TensorInfo const& piece, ConstBytes body,
                    double weight, StateView state, TensorView accumulator) const noexcept;

 protected:  // an override may fall back on the default
  virtual Status do_encode(ExecContext const&, int round, TensorInfo const&,
                           std::span<float const> corrected, StateView, Body) const noexcept = 0;
  virtual Status do_encode_f64(ExecContext const&, TensorInfo const&,
                               std::span<double const> gradient, Body) const noexcept;
  virtual Status do_encode_with_residual(ExecContext const&, int round, TensorInfo const&,
                                         ConstTensorView gradient, ResidualView, StateView,
                                         Body) const noexcept;
  virtual Status do_encode_owned(ExecContext const&, int round, TensorInfo const&,
                                 std::span<float const> sum, StateView, Body,
                                 MassSink&) const noexcept;
  virtual Status do_absorb(ExecContext const&, int, TensorInfo const&, std::span<ConstBytes const>,
                           StateView) const noexcept {
    return {};
  }
  virtual Status do_decode_add(ExecContext const&, int round, TensorInfo const&, ConstBytes body,
                               float weight, StateView,
                               std::span<float> accumulator) const noexcept = 0;
  virtual Status do_decode_add_f64(ExecContext const&, TensorInfo const&, ConstBytes body,
                                   double weight, std::span<double> accumulator) const noexcept;
};

}  // namespace gradsieve
