// SPDX-License-Identifier: Apache-2.0
#include "sparsifiers/cltk.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/index_forms.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {
namespace {

// Agreement body: u8 kind, 7 zero bytes; a new set adds u64 count, u32 form, u32 0, index bytes.
constexpr std::size_t kFlagBytes = 8;
constexpr std::size_t kSetHeaderBytes = 24;
constexpr std::uint64_t kKept = 0;
constexpr std::uint64_t kNew = 1;

// Slot: u64 window + 1 (0: no set yet), u64 count, the indices.
constexpr std::size_t kSlotHeaderBytes = 16;

constexpr Status kNoSlot{Code::invalid_argument, "cltk: the state has no slot for the set"};
constexpr Status kTooSmall{Code::internal, "the workspace is smaller than planned"};
constexpr Status kBadAgreement{Code::corrupt_payload, "cltk: the leader's word is not as agreed"};

SlotView const* slot_of(StateView state, std::size_t num_bytes) noexcept {
  if (state.slots.size() != 1 || state.slots[0].next.size() < num_bytes ||
      state.slots[0].committed.size() < num_bytes) {
    return nullptr;
  }
  return state.slots.data();
}

std::size_t slot_bytes(std::uint64_t capacity) noexcept {
  return kSlotHeaderBytes + static_cast<std::size_t>(capacity) * sizeof(std::uint32_t);
}

}  // namespace

CltkSparsifier::CltkSparsifier(Params const& params)
    : density_(params), hold_steps_(static_cast<std::uint64_t>(params.integer("hold"))) {}

std::uint64_t CltkSparsifier::capacity_indices(TensorInfo const& piece) const noexcept {
  return density_.max_count(piece.num_elements);
}

std::uint64_t CltkSparsifier::settled_indices(TensorInfo const& piece) const noexcept {
  return density_.settled_count(piece.num_elements);
}

std::vector<SlotInfo> CltkSparsifier::slots(TensorInfo const& piece) const {
  return {{.name = "cltk_set",
           .kind = SlotKind::replicated,
           .num_bytes = slot_bytes(capacity_indices(piece))}};
}

std::size_t CltkSparsifier::workspace_bytes(TensorInfo const& piece) const noexcept {
  std::uint64_t const capacity = capacity_indices(piece);
  std::size_t const selection = 2 * Workspace::padded(static_cast<std::size_t>(capacity) * 4);
  return Workspace::padded(static_cast<std::size_t>(piece.num_elements) * sizeof(float)) +
         selection + kernels::topk_workspace_bytes(piece.num_elements, capacity);
}

std::size_t CltkSparsifier::agreement_bytes(TensorInfo const& piece) const noexcept {
  std::uint64_t const n = piece.num_elements;
  if (n == 0) return 0;
  std::uint64_t const capacity = capacity_indices(piece);
  using kernels::IndexForm;
  return kSetHeaderBytes + std::min(kernels::index_bound(IndexForm::bitmap, n, capacity),
                                    kernels::index_bound(IndexForm::elias_fano, n, capacity));
}

// All steps of a window have the density of its first, so that a set that is agreed on late, after
// a step that was rolled back, has the size that the sum of this window has on every rank.
std::uint64_t CltkSparsifier::num_shared(TensorInfo const& piece,
                                         std::uint64_t step) const noexcept {
  return density_.count(piece.num_elements, step - step % hold_steps_);
}

int CltkSparsifier::leader(ExecContext const& ctx) const noexcept {
  std::uint64_t const window = ctx.words->step / hold_steps_;
  return static_cast<int>(window % static_cast<std::uint64_t>(ctx.world_size));
}

bool CltkSparsifier::holds_set(ExecContext const& ctx, SlotView const& slot) const noexcept {
  std::uint64_t const window = ctx.words->step / hold_steps_;
  return wire::load<std::uint64_t>(slot.committed.data()) == window + 1;
}

Status CltkSparsifier::propose(ExecContext const& ctx, TensorInfo const& piece,
                               std::span<float const> corrected, StateView state,
                               Body body) const noexcept {
  SlotView const* const slot = slot_of(state, slot_bytes(capacity_indices(piece)));
  if (slot == nullptr) return kNoSlot;
  static_cast<void>(body.resize(0));
  if (ctx.rank != leader(ctx)) return {};
  if (!holds_set(ctx, *slot)) return write_new_set(ctx, piece, corrected, body);
  Bytes const flag = body.resize(kFlagBytes);
  if (flag.empty()) return {Code::capacity_exceeded, "the body's place is smaller than planned"};
  wire::store<std::uint64_t>(flag.data(), kKept);
  return {};
}

Status CltkSparsifier::write_new_set(ExecContext const& ctx, TensorInfo const& piece,
                                     std::span<float const> corrected, Body body) const noexcept {
  std::uint64_t const n = piece.num_elements;
  std::uint64_t const k = num_shared(piece, ctx.words->step);
  WorkspaceScope const scope(*ctx.workspace);
  std::span<float> const rest = ctx.workspace->take<float>(n);
  SparseView selection;
  selection.indices = ctx.workspace->take<std::uint32_t>(k);
  selection.values = ctx.workspace->take<float>(k);
  if (rest.empty() || selection.indices.empty() || selection.values.empty()) return kTooSmall;
  raise_flags(ctx,
              kernels::topk(ctx, corrected, {.in = {}, .out = rest, .carry = 1.0F}, k, selection));

  kernels::IndexForm const form = kernels::smallest_index_form(n, k);
  Bytes const out = body.resize(kSetHeaderBytes + kernels::index_bytes(form, n, k));
  if (out.empty()) return {Code::capacity_exceeded, "the body's place is smaller than planned"};
  wire::store<std::uint64_t>(out.data(), kNew);
  wire::store<std::uint64_t>(out.data() + 8, k);
  wire::store<std::uint32_t>(out.data() + 16, static_cast<std::uint32_t>(form));
  wire::store<std::uint32_t>(out.data() + 20, 0);
  kernels::encode_indices(ctx, form, selection.indices, n, out.subspan(kSetHeaderBytes));
  return {};
}

Status CltkSparsifier::agree(ExecContext const& ctx, TensorInfo const& piece,
                             std::span<ConstBytes const> received, StateView state) const noexcept {
  SlotView const* const slot = slot_of(state, slot_bytes(capacity_indices(piece)));
  if (slot == nullptr) return kNoSlot;
  auto const leading = static_cast<std::size_t>(leader(ctx));
  for (std::size_t rank = 0; rank < received.size(); ++rank) {
    if (rank != leading && !received[rank].empty()) {
      return {Code::corrupt_payload, "cltk: a rank that does not lead has sent a set"};
    }
  }
  ConstBytes const body = received[leading];
  if (body.size() < kFlagBytes) return kBadAgreement;
  // Whether a new set is due follows from agreed state, so a leader that thinks otherwise is wrong.
  bool const holds = holds_set(ctx, *slot);
  if (wire::load<std::uint64_t>(body.data()) != (holds ? kKept : kNew)) return kBadAgreement;
  if (!holds) return read_new_set(ctx, piece, body, *slot);
  return body.size() == kFlagBytes ? Status{} : kBadAgreement;
}

Status CltkSparsifier::read_new_set(ExecContext const& ctx, TensorInfo const& piece,
                                    ConstBytes body, SlotView const& slot) const noexcept {
  std::uint64_t const k = num_shared(piece, ctx.words->step);
  if (body.size() < kSetHeaderBytes || wire::load<std::uint64_t>(body.data() + 8) != k ||
      wire::load<std::uint32_t>(body.data() + 20) != 0) {
    return kBadAgreement;
  }
  WorkspaceScope const scope(*ctx.workspace);
  std::span<std::uint32_t> const indices = ctx.workspace->take<std::uint32_t>(k);
  if (indices.empty()) return kTooSmall;
  if (!kernels::decode_indices(ctx, wire::load<std::uint32_t>(body.data() + 16),
                               body.subspan(kSetHeaderBytes), piece.num_elements, indices)) {
    return {Code::corrupt_payload, "cltk: the leader's indices do not decode"};
  }
  std::byte* const out = slot.next.data();
  wire::store<std::uint64_t>(out, ctx.words->step / hold_steps_ + 1);
  wire::store<std::uint64_t>(out + 8, k);
  std::memcpy(out + kSlotHeaderBytes, indices.data(), indices.size_bytes());
  std::fill(slot.next.begin() + static_cast<std::ptrdiff_t>(slot_bytes(k)), slot.next.end(),
            std::byte{0});
  *slot.written = true;
  return {};
}

Status CltkSparsifier::shared_set(ExecContext const& ctx, TensorInfo const& piece, StateView state,
                                  std::span<std::uint32_t> indices,
                                  std::uint64_t& num_indices) const noexcept {
  SlotView const* const slot = slot_of(state, slot_bytes(capacity_indices(piece)));
  if (slot == nullptr) return kNoSlot;
  ConstBytes const set = slot->latest();
  num_indices = wire::load<std::uint64_t>(set.data() + 8);
  std::uint64_t const k = num_shared(piece, ctx.words->step);
  if (num_indices != k || indices.size() < k) {
    return {Code::invalid_usage, "cltk: no set was agreed on for this step"};
  }
  auto const chosen = indices.first(k);
  std::memcpy(chosen.data(), set.data() + kSlotHeaderBytes, chosen.size_bytes());
  // The slot may come from a file.
  if (!kernels::check_indices(ctx, chosen, piece.num_elements)) {
    return {Code::corrupt_payload, "cltk: the stored set is damaged"};
  }
  return {};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_SPARSIFIER(
    cltk, CltkSparsifier,
    PluginInfo{.name = "cltk",
               .kind = PluginKind::sparsifier,
               .summary = "Chooses what a leader would send; every rank leads in turn.",
               .paper = "Chen et al., NeurIPS 2020, arXiv:2104.11125",
               .params = with_hold(DensityRamp::params()),
               .positional = "density"});
