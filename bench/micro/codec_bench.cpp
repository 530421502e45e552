// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/codec_bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "core/philox.hpp"

namespace gradsieve::bench {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

float uniform(std::uint32_t bits) { return (static_cast<float>(bits >> 8) + 0.5F) * 0x1p-24F; }

/// Box-Muller on two words of a Philox block.
float normal(std::uint32_t a, std::uint32_t b) {
  return std::sqrt(-2.0F * std::log(uniform(a))) * std::cos(6.2831853F * uniform(b));
}

}  // namespace

char const* distribution_name(Distribution distribution) {
  switch (distribution) {
    case Distribution::gauss:
      return "gauss";
    case Distribution::heavy:
      return "heavy";
    case Distribution::ties:
      return "ties";
    case Distribution::sorted:
      return "sorted";
    case Distribution::zeros:
      return "zeros";
    case Distribution::rows:
      return "rows";
  }
  return "";
}

std::vector<float> make_distribution(Distribution distribution, std::uint64_t num_elements) {
  std::vector<float> values(num_elements);
  PhiloxKey const key = philox_key(7, 7, Purpose::select, 0);
  for (std::uint64_t i = 0; i < num_elements; ++i) {
    auto const w = philox(key, i, 0);
    float const z = normal(w[0], w[1]);
    auto const row = philox(key, i / 4096, 1);
    switch (distribution) {
      case Distribution::gauss:
        values[i] = z;
        break;
      // A mixture of scaled normals, as layers of a network give it: a percent holds half the
      // energy.
      case Distribution::heavy:
        values[i] = z * std::exp(2.0F * normal(w[2], w[3]));
        break;
      case Distribution::ties:
        values[i] = std::round(2.0F * z) * 0.5F;
        break;
      case Distribution::sorted:
        values[i] = static_cast<float>(i) / static_cast<float>(num_elements);
        break;
      case Distribution::zeros:
        values[i] = w[2] % 2000 == 0 ? z : 0.0F;
        break;
      case Distribution::rows:
        values[i] = z * std::exp(1.5F * normal(row[0], row[1]));
        break;
    }
  }
  return values;
}

CodecBench::CodecBench(CodecCase const& which)
    : chain_(make_chain(which.spec)),
      info_{1, 0, which.num_elements, 1, DType::f32},
      threads_(which.num_threads),
      source_(make_distribution(which.distribution, which.num_elements)),
      gradient_(source_.size() * sizeof(float), host_memory()),
      residual_(source_.size() * sizeof(float), host_memory()),
      accumulator_(source_.size() * sizeof(float), host_memory()),
      round_(chain_.compressor->num_rounds() - 1) {
  std::memcpy(gradient_.data(), source_.data(), gradient_.num_bytes());
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
}

ExecContext CodecBench::context() {
  workspace_.reset();
  ExecContext ctx;
  ctx.workspace = &workspace_;
  ctx.threads = &threads_;
  ctx.words = &words_;
  return ctx;
}

double CodecBench::update() {
  float* const r = residual_.as<float>().data();
  float const* const g = gradient_.as<float>().data();
  std::uint64_t const count = info_.num_elements;
  auto const start = std::chrono::steady_clock::now();
  threads_.parallel_for(count, 1 << 16, [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) r[i] += g[i];
  });
  return seconds_since(start);
}

double CodecBench::encode() {
  std::span<float> const e = residual_.as<float>().first(info_.num_elements);
  Body const body(body_.bytes(), &body_bytes_);
  auto const start = std::chrono::steady_clock::now();
  for (int round = 0; round <= round_; ++round) {
    Status const status = chain_.compressor->encode_with_residual(
        context(), round, info_, ConstTensorView(gradient_.as<float>().first(info_.num_elements)),
        {e, e, 1.0F}, {slots_}, body);
    if (!status.ok()) throw Error(status.code(), status.message());
    if (round < round_) {  // world size 1: this rank is its own leader
      ConstBytes const own[] = {body.written()};
      Status const agreed = chain_.compressor->absorb(context(), round, info_, own, {slots_});
      if (!agreed.ok()) throw Error(agreed.code(), agreed.message());
    }
  }
  double const seconds = seconds_since(start);
  ++words_.step;
  return seconds;
}

double CodecBench::decode() {
  --words_.step;
  auto const start = std::chrono::steady_clock::now();
  Status const status = chain_.compressor->decode_add(
      context(), round_, info_, ConstBytes(body_.data(), body_bytes_), 0.25, {slots_},
      TensorView(accumulator_.as<float>().first(info_.num_elements)));
  double const seconds = seconds_since(start);
  ++words_.step;
  if (!status.ok()) throw Error(status.code(), status.message());
  return seconds;
}

double CodecBench::bits_per_element() const {
  return 8.0 * static_cast<double>(body_bytes_) / static_cast<double>(info_.num_elements);
}

}  // namespace gradsieve::bench
