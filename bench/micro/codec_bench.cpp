// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/codec_bench.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/ops.hpp"

namespace gradsieve::bench {
namespace {

Buffer floats(std::uint64_t count) { return Buffer(count * sizeof(float), host_memory()); }

/// The yardstick, as wide as the machine: 12 bytes of traffic per element and nothing else.
/// Compiled with -O3, or g++ would leave it scalar.
[[gnu::target_clones("avx512f", "avx2", "default")]] void add_floats(float const* __restrict g,
                                                                     float* __restrict r,
                                                                     std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) r[i] += g[i];
}

void check(Status status) {
  if (!status.ok()) throw Error(status.code(), status.message());
}

}  // namespace

char const* operation_name(Operation operation) {
  constexpr char const* kNames[] = {"encode", "encode_exact", "decode", "select"};
  return kNames[static_cast<int>(operation)];
}

CodecBench::CodecBench(CodecCase const& which, std::string const& trace_folder)
    : chain_(make_chain(which.spec)),
      info_{1, 0, which.num_elements, 1, DType::f32},
      threads_(which.num_threads),
      saved_residual_(make_distribution(which.distribution, which.num_elements, 2, trace_folder)),
      gradient_(floats(which.num_elements)),
      residual_(floats(which.num_elements)),
      other_residual_(floats(which.num_elements)),
      accumulator_(floats(which.num_elements)),
      round_(chain_.compressor->num_rounds() - 1) {
  std::vector<float> const drawn =
      make_distribution(which.distribution, which.num_elements, 1, trace_folder);
  std::memcpy(gradient_.data(), drawn.data(), gradient_.num_bytes());
  body_ = Buffer(chain_.compressor->round(round_, info_).capacity_bytes + 64, host_memory());
  work_ = Buffer(chain_.compressor->workspace_bytes(info_) + 4096, host_memory());
  workspace_ = Workspace(work_.bytes());
  slot_infos_ = chain_.compressor->slots(info_);
  for (SlotInfo const& slot : slot_infos_) {
    slot_memory_.emplace_back(slot.num_bytes, host_memory());
    slot_memory_.emplace_back(slot.num_bytes, host_memory());
    slots_.push_back({slot, slot_memory_[slot_memory_.size() - 2].bytes(),
                      slot_memory_.back().bytes(), &written_});
  }
  restore();
  encode(residual_.as<float>());
  decode();
}

ExecContext CodecBench::context() {
  workspace_.reset();
  ExecContext ctx;
  ctx.workspace = &workspace_;
  ctx.threads = &threads_;
  ctx.words = &words_;
  return ctx;
}

void CodecBench::restore() {
  std::memcpy(residual_.data(), saved_residual_.data(), residual_.num_bytes());
}

PairedRounds::Work CodecBench::update() {
  auto const run = [this] {
    float* const r = residual_.as<float>().data();
    float const* const g = gradient_.as<float>().data();
    threads_.parallel_for(info_.num_elements, 1 << 16, [&](std::uint64_t begin, std::uint64_t end) {
      add_floats(g + begin, r + begin, end - begin);
    });
  };
  return {[this] { restore(); }, run};
}

PairedRounds::Work CodecBench::work(Operation operation) {
  auto const prepare = [this] { restore(); };
  switch (operation) {
    case Operation::encode:
      return {prepare, [this] { encode(residual_.as<float>()); }};
    case Operation::encode_exact:
      return {prepare, [this] { encode(other_residual_.as<float>()); }};
    case Operation::decode:
      return {prepare, [this] { decode(); }};
    case Operation::select:
      return {prepare, [this] { select(); }};
  }
  return {};
}

void CodecBench::plan_select(double density) {
  std::uint64_t const n = info_.num_elements;
  num_selected_ =
      std::max<std::uint64_t>(static_cast<std::uint64_t>(static_cast<double>(n) * density), 1);
  indices_ = floats(num_selected_);
  values_ = floats(num_selected_);
  work_ = Buffer(kernels::topk_workspace_bytes(n, num_selected_), host_memory());
  workspace_ = Workspace(work_.bytes());
}

void CodecBench::select() {
  SparseView view{.indices = indices_.as<std::uint32_t>(), .values = values_.as<float>()};
  std::span<float> const e = residual_.as<float>();
  static_cast<void>(kernels::topk(context(), ConstTensorView(gradient_.as<float>()), {e, e, 1.0F},
                                  num_selected_, view));
}

void CodecBench::encode(std::span<float> residual_out) {
  ++words_.step;
  Body const body(body_.bytes(), &body_bytes_);
  for (int round = 0; round <= round_; ++round) {
    check(chain_.compressor->encode_with_residual(
        context(), round, info_, ConstTensorView(gradient_.as<float>()),
        {residual_.as<float>(), residual_out, 1.0F}, {slots_}, body));
    if (round < round_) {  // world size 1: this rank is its own leader
      ConstBytes const own[] = {body.written()};
      check(chain_.compressor->absorb(context(), round, info_, own, {slots_}));
    }
  }
}

void CodecBench::decode() {
  check(chain_.compressor->decode_add(context(), round_, info_,
                                      ConstBytes(body_.data(), body_bytes_), 0.25, {slots_},
                                      TensorView(accumulator_.as<float>())));
}

double CodecBench::bits_per_element() const {
  return 8.0 * static_cast<double>(body_bytes_) / static_cast<double>(info_.num_elements);
}

}  // namespace gradsieve::bench
