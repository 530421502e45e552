// SPDX-License-Identifier: Apache-2.0
// Rounds, sizes and the calls that come in from outside. What happens to the chosen elements is in
// pipeline_encode.cpp and pipeline_decode.cpp.
#include "compressors/pipeline.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "compressors/body_fields.hpp"
#include "compressors/pipeline_parts.hpp"
#include "compressors/sparse_batch.hpp"
#include "core/philox.hpp"
#include "kernels/index_forms.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {
namespace {

kernels::HeldRule held_rule(SelectRule rule) noexcept {
  switch (rule) {
    case SelectRule::reached:
      return kernels::HeldRule::threshold;
    case SelectRule::blocks_l2:
      return kernels::HeldRule::block_l2;
    case SelectRule::blocks_linf:
      return kernels::HeldRule::block_linf;
    case SelectRule::drawn:
      return kernels::HeldRule::randomk;
    case SelectRule::largest:
    case SelectRule::other:
      break;
  }
  return kernels::HeldRule::topk;
}

}  // namespace

Pipeline::Pipeline(PipelineStages stages)
    : sparsifier_(std::move(stages.sparsifier)),
      values_(std::move(stages.values)),
      index_(std::move(stages.index)),
      bytes_(std::move(stages.bytes)) {
  if (values_ == nullptr || values_->num_rounds() != 1) {
    throw Error(Code::invalid_argument, "a chain needs one value codec of a single round");
  }
  // The body of a sum is the array of its values and nothing else.
  plain_ = values_->round(0, TensorInfo{}).exchange == ExchangeKind::sum;
  if (sparsifier_ == nullptr) return;
  shared_ = sparsifier_->claims().shared_indices;
  agrees_ = shared_ && sparsifier_->needs_agreement();
  sums_values_ = shared_ && plain_ && bytes_ == nullptr;
  if (!shared_ && index_ == nullptr) {
    throw Error(Code::invalid_argument, "indices that each rank chooses need an index codec");
  }
}

Claims Pipeline::claims() const noexcept {
  Claims const values = values_->claims();
  Claims claims;
  claims.deterministic = values.deterministic;
  claims.lossless = values.lossless && sparsifier_ == nullptr;
  claims.fixed_rate = values.fixed_rate && bytes_ == nullptr;
  claims.unbiased = values.unbiased;
  claims.f64 = values.f64 && sparsifier_ == nullptr;
  claims.cuda = values.cuda && bytes_ == nullptr;
  claims.contraction = values.contraction;
  if (sparsifier_ == nullptr) return claims;
  Claims const chosen = sparsifier_->claims();
  claims.deterministic = claims.deterministic && chosen.deterministic;
  claims.fixed_rate = claims.fixed_rate && chosen.fixed_rate;
  claims.unbiased = claims.unbiased && chosen.unbiased;
  claims.shared_indices = chosen.shared_indices;
  claims.cuda = claims.cuda && chosen.cuda && (index_ == nullptr || index_->fixed_form(1, 1));
  claims.contraction *= chosen.contraction;
  return claims;
}

int Pipeline::num_rounds() const noexcept { return agrees_ ? 2 : 1; }

RoundInfo Pipeline::round(int index, TensorInfo const& piece) const noexcept {
  if (index < values_round()) return {.capacity_bytes = sparsifier_->agreement_bytes(piece)};
  if (sums_values_) {
    return {.exchange = ExchangeKind::sum,
            .sum_type = SumType::f32,
            .capacity_bytes = raw_capacity(piece)};
  }
  std::size_t const raw = raw_capacity(piece);
  return {.capacity_bytes = bytes_ != nullptr && raw > 0 ? bytes_->bound(raw) : raw};
}

std::size_t Pipeline::settled_bytes(int index, TensorInfo const& piece) const noexcept {
  if (sparsifier_ == nullptr || index < values_round()) return round(index, piece).capacity_bytes;
  return raw_bytes(piece, sparsifier_->settled_indices(piece));
}

std::vector<SlotInfo> Pipeline::slots(TensorInfo const& piece) const {
  return sparsifier_ == nullptr ? std::vector<SlotInfo>{} : sparsifier_->slots(piece);
}

std::size_t Pipeline::sum_bytes(int index, TensorInfo const& piece,
                                std::uint64_t step) const noexcept {
  if (!sums_values_ || index != values_round()) return round(index, piece).capacity_bytes;
  return value_bytes(piece, sparsifier_->num_shared(piece, step) * granularity());
}

std::size_t Pipeline::fixed_bytes(int index, TensorInfo const& piece) const noexcept {
  if (sparsifier_ == nullptr || sums_values_ || piece.num_elements == 0)
    return round(index, piece).capacity_bytes;
  SparseBody::Fields const fields = fixed_fields(piece);
  return SparseBody::bytes(static_cast<std::size_t>(fields.value_bytes),
                           static_cast<std::size_t>(fields.index_bytes));
}

std::uint64_t Pipeline::step_word(TensorInfo const& piece, StepWords const& words) const noexcept {
  return sparsifier_ == nullptr ? 0 : sparsifier_->step_word(piece, words);
}

// What encoding takes and what decoding takes are close, so the sum of both is not worth splitting.
std::size_t Pipeline::workspace_bytes(TensorInfo const& piece) const noexcept {
  auto const floats = [](std::uint64_t count) {
    return Workspace::padded(static_cast<std::size_t>(count) * sizeof(float));
  };
  std::size_t total = 0;
  if (bytes_ != nullptr) {
    std::size_t const raw = raw_capacity(piece);
    total += Workspace::padded(raw) + bytes_->workspace_bytes(raw);
  }
  if (sparsifier_ == nullptr) return total + values_->workspace_bytes(piece);
  std::uint64_t const most = capacity_values(piece);
  total += Workspace::padded(sizeof(SparseCounts));
  total += floats(piece.num_elements);                    // c of a plain encode
  total += floats(sparsifier_->capacity_indices(piece));  // indices
  total += 3 * floats(most);                              // values, what is left, decoded
  total += sparsifier_->workspace_bytes(piece);
  return total + values_->workspace_bytes(values_of(piece, most));
}

std::uint64_t Pipeline::universe(TensorInfo const& piece) const noexcept {
  return num_blocks(piece.num_elements, granularity());
}

/// Of a set that is always as large as its room: those that it lacks are beyond the universe.
std::uint64_t Pipeline::padded_universe(TensorInfo const& piece) const noexcept {
  std::uint64_t const padding =
      sparsifier_->fills_capacity(piece) ? 0 : sparsifier_->capacity_indices(piece);
  return universe(piece) + padding;
}

std::uint64_t Pipeline::coded_universe(ExecContext const& ctx,
                                       TensorInfo const& piece) const noexcept {
  return ctx.backend == Backend::cuda ? padded_universe(piece) : universe(piece);
}

/// Of a body that is laid out by capacity.
SparseBody::Fields Pipeline::fixed_fields(TensorInfo const& piece) const noexcept {
  SparseBody::Fields fields;
  fields.num_indices = sparsifier_->capacity_indices(piece);
  fields.value_bytes = value_bytes(piece, capacity_values(piece));
  if (shared_) return fields;
  fields.index_form = index_->fixed_form(padded_universe(piece), fields.num_indices).value_or(0);
  fields.index_bytes = kernels::index_bytes(static_cast<kernels::IndexForm>(fields.index_form),
                                            padded_universe(piece), fields.num_indices);
  return fields;
}

std::uint64_t Pipeline::capacity_values(TensorInfo const& piece) const noexcept {
  return std::min(piece.num_elements, sparsifier_->capacity_indices(piece) * granularity());
}

std::size_t Pipeline::value_bytes(TensorInfo const& piece, std::uint64_t count) const noexcept {
  return values_->round(0, values_of(piece, count)).capacity_bytes;
}

/// Of the body in front of the byte stage.
std::size_t Pipeline::raw_capacity(TensorInfo const& piece) const noexcept {
  if (sparsifier_ != nullptr) return raw_bytes(piece, sparsifier_->capacity_indices(piece));
  return piece.num_elements == 0 ? 0 : values_->round(0, piece).capacity_bytes;
}

std::size_t Pipeline::raw_bytes(TensorInfo const& piece, std::uint64_t num_indices) const noexcept {
  if (piece.num_elements == 0) return 0;
  std::size_t const values =
      value_bytes(piece, std::min(piece.num_elements, num_indices * granularity()));
  if (sums_values_) return values;
  if (shared_) return SparseBody::bytes(values, 0);
  // The larger of what hosts and devices lay out; they differ where a set need not fill its room.
  return SparseBody::bytes(values, std::max(index_->bound(universe(piece), num_indices),
                                            index_->bound(padded_universe(piece), num_indices)));
}

// --- many small pieces ---------------------------------------------------------------------------

bool Pipeline::is_batched(TensorInfo const& piece) const noexcept {
  std::uint64_t const n = piece.num_elements;
  if (sparsifier_ == nullptr || bytes_ != nullptr || n == 0 || n > kernels::kMostHeldElements)
    return false;
  SelectRule const rule = sparsifier_->rule();
  bool const goes_by_blocks = rule == SelectRule::blocks_l2 || rule == SelectRule::blocks_linf;
  return rule != SelectRule::other &&
         (!goes_by_blocks || universe(piece) <= kernels::kMostHeldBlocks);
}

std::shared_ptr<Batch const> Pipeline::make_batch(ExecContext const& ctx,
                                                  std::span<BatchPiece const> pieces,
                                                  MemoryResource& memory) const {
  SparseBatchPlan plan;
  plan.rule = held_rule(sparsifier_->rule());
  auto const with_quads = [](std::uint64_t count) { return (count + 3) / 4 * 4; };
  std::vector<BatchPiece> values;
  for (BatchPiece const& piece : pieces) {
    SparseBody::Fields const fields = fixed_fields(piece.info);
    std::uint64_t const num_values = capacity_values(piece.info);
    std::size_t const header_bytes = sums_values_ ? 0 : SparseBody::kHeaderBytes;
    std::size_t const values_begin = piece.body_offset + header_bytes;
    std::size_t const values_end = values_begin + static_cast<std::size_t>(fields.value_bytes);
    plan.segments.push_back(
        {.in_gradient = piece.in_gradient,
         .in_residual = piece.in_residual,
         .num_elements = piece.info.num_elements,
         .granularity = granularity(),
         .in_indices = plan.num_indices,
         .in_values = plain_ ? values_begin / sizeof(float) : plan.num_values,
         .num_values = num_values,
         .body_begin = piece.body_offset,
         .header_bytes = header_bytes,
         .values_end = values_end,
         .index_begin = fields.index_bytes == 0 ? values_end : wire::aligned(values_end),
         .universe = padded_universe(piece.info),
         .word = piece.word,
         .key = shared_draw_key(ctx.seed, piece.info),
         .header = std::bit_cast<std::array<std::uint64_t, 4>>(fields)});
    values.push_back({.info = values_of(piece.info, num_values),
                      .in_gradient = plan.num_values,
                      .in_residual = plan.num_values,
                      .body_offset = values_begin});
    plan.num_indices += with_quads(fields.num_indices);
    plan.num_values += with_quads(num_values);
  }
  if (!plain_) plan.values = values_->make_batch(ctx, values, memory);
  if (!plain_ && plan.values == nullptr) return nullptr;
  return make_sparse_batch(ctx, std::move(plan), memory);
}

// --- calls from outside --------------------------------------------------------------------------

Status Pipeline::do_encode(ExecContext const& ctx, int round, TensorInfo const& piece,
                           std::span<float const> corrected, StateView state,
                           Body body) const noexcept {
  if (round < values_round()) return sparsifier_->propose(ctx, piece, corrected, state, body);
  WorkspaceScope const scope(*ctx.workspace);
  if (sparsifier_ == nullptr) {
    return through_bytes(ctx, bytes_.get(), raw_capacity(piece), body, [&](Body raw) noexcept {
      return values_->encode(ctx, 0, piece, corrected, state, raw);
    });
  }
  // Taking the chosen elements leaves zeros, and this c is the caller's.
  std::span<float> const copy = ctx.workspace->take<float>(corrected.size());
  if (copy.empty()) return kWorkspaceTooSmall;
  if (!shared_) {
    return encode_own(ctx, piece, corrected, {.in = {}, .out = copy, .carry = 1.0F}, state, body);
  }
  kernels::copy(ctx, std::as_bytes(corrected), std::as_writable_bytes(copy));
  return encode_shared(
      ctx, piece, copy,
      [&](std::span<std::uint32_t const> indices, std::span<float> values) {
        kernels::take(ctx, indices, granularity(), copy, values);
      },
      state, body);
}

Status Pipeline::do_encode_f64(ExecContext const& ctx, TensorInfo const& piece,
                               std::span<double const> gradient, Body body) const noexcept {
  WorkspaceScope const scope(*ctx.workspace);
  return through_bytes(ctx, bytes_.get(), raw_capacity(piece), body, [&](Body raw) noexcept {
    return values_->encode(ctx, 0, piece, gradient, {}, raw);
  });
}

Status Pipeline::do_encode_with_residual(ExecContext const& ctx, int round, TensorInfo const& piece,
                                         ConstTensorView gradient, ResidualView residual,
                                         StateView state, Body body) const noexcept {
  WorkspaceScope const scope(*ctx.workspace);
  if (sparsifier_ == nullptr) {
    ConstBytes sent;
    Status const status =
        through_bytes(ctx, bytes_.get(), raw_capacity(piece), body, [&](Body raw) noexcept {
          GRADSIEVE_RETURN_IF_ERROR(
              values_->encode_with_residual(ctx, 0, piece, gradient, residual, state, raw));
          sent = raw.written();
          return Status{};
        });
    if (status.ok() || sent.empty()) return status;
    // The byte stage failed: c again, out of what it should have carried.
    static_cast<void>(
        values_->decode_add(ctx, 0, piece, sent, 1.0, state, TensorView(residual.out)));
    return status;
  }
  if (!shared_) return encode_own(ctx, piece, gradient, residual, state, body);
  if (round < values_round()) {
    if (round == 0) raise_flags(ctx, kernels::compensate(ctx, gradient, residual));
    return sparsifier_->propose(ctx, piece, residual.out, state, body);
  }
  bool corrected = round > 0;
  Status const status = encode_shared(
      ctx, piece, residual.out,
      [&](std::span<std::uint32_t const> indices, std::span<float> values) {
        if (corrected) return kernels::take(ctx, indices, granularity(), residual.out, values);
        raise_flags(
            ctx, kernels::compensate_take(ctx, gradient, residual, indices, granularity(), values));
        corrected = true;
      },
      state, body);
  // An encode that failed leaves c.
  if (!corrected) raise_flags(ctx, kernels::compensate(ctx, gradient, residual));
  return status;
}

Status Pipeline::do_absorb(ExecContext const& ctx, int round, TensorInfo const& piece,
                           std::span<ConstBytes const> received, StateView state) const noexcept {
  if (round == values_round()) return {};
  return sparsifier_->agree(ctx, piece, received, state);
}

}  // namespace gradsieve
