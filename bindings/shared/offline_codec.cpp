// SPDX-License-Identifier: Apache-2.0
#include "bindings/shared/offline_codec.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "gradsieve/wire.hpp"

#include "kernels/ops.hpp"

namespace gradsieve::bindings {
namespace {

// The array of a file has no name. The id only addresses random numbers.
constexpr TensorId kTensor = 0;

std::vector<TensorInfo> cut(std::uint64_t num_elements, DType dtype) {
  std::vector<TensorInfo> pieces;
  std::uint64_t offset = 0;
  do {
    std::uint64_t const count = std::min(kMaxPieceElements, num_elements - offset);
    pieces.push_back({kTensor, offset, count, 1, dtype});
    offset += count;
  } while (offset < num_elements);
  return pieces;
}

}  // namespace

void throw_if_failed(Status const& status) {
  if (!status.ok()) throw Error(status.code(), status.message());
}

Chain chain_for_size(std::string_view spec, std::uint64_t num_elements, Registry const& registry) {
  Chain chain = make_chain(spec, registry);
  return num_elements < chain.dense_below_elements ? make_chain("none", registry) : chain;
}

OfflineCodec::OfflineCodec(Chain chain, std::uint64_t num_elements, DType dtype, Draws draws,
                           int num_threads)
    : chain_(std::move(chain)),
      num_elements_(num_elements),
      dtype_(dtype),
      draws_(draws),
      num_rounds_(chain_.compressor->num_rounds()),
      threads_(num_threads) {
  if (dtype == DType::f64 && !chain_.compressor->claims().f64) {
    throw Error(Code::unsupported,
                "'" + chain_.text + "' does not take f64 arrays; expected f32, f16 or bf16");
  }
  std::size_t workspace_bytes = 0;
  for (TensorInfo const& info : cut(num_elements, dtype)) {
    workspace_bytes = std::max(workspace_bytes, chain_.compressor->workspace_bytes(info));
    pieces_.push_back({info, {}});
  }
  if (pieces_.size() * static_cast<std::size_t>(num_rounds_) > UINT16_MAX) {
    throw Error(Code::unsupported, "an array of " + std::to_string(num_elements) +
                                       " elements has too many pieces for one payload");
  }
  workspace_memory_ = Buffer(workspace_bytes, host_memory());
  workspace_ = Workspace(workspace_memory_.bytes());
}

ExecContext OfflineCodec::context(int round) noexcept {
  workspace_.reset();
  ExecContext ctx;
  ctx.workspace = &workspace_;
  ctx.threads = &threads_;
  ctx.words = &words_;
  ctx.seed = draws_.seed;
  // In a round of agreement somebody leads, and with one rank that is rank 0; the number given
  // addresses the random numbers of the last round.
  ctx.rank = round < num_rounds_ - 1 ? 0 : static_cast<int>(draws_.rank);
  return ctx;
}

void OfflineCodec::start_step() {
  words_ = {.step = draws_.step};
  for (Piece& piece : pieces_) {
    piece.state = {};
    std::vector<SlotInfo> const slots = chain_.compressor->slots(piece.info);
    piece.state.written = std::make_unique<bool[]>(slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      std::size_t const num_bytes = static_cast<std::size_t>(slots[i].num_bytes);
      piece.state.memory.emplace_back(num_bytes, host_memory());
      Bytes const committed = piece.state.memory.back().bytes();
      piece.state.memory.emplace_back(num_bytes, host_memory());
      piece.state.views.push_back(
          {slots[i], committed, piece.state.memory.back().bytes(), &piece.state.written[i]});
    }
  }
}

void OfflineCodec::absorb(int round, Piece const& piece, ConstBytes body) {
  ConstBytes const received[] = {body};
  throw_if_failed(
      chain_.compressor->absorb(context(round), round, piece.info, received, piece.view()));
}

std::vector<std::size_t> OfflineCodec::body_capacities() const {
  std::vector<std::size_t> capacities;
  for (Piece const& piece : pieces_) {
    for (int round = 0; round < num_rounds_; ++round) {
      capacities.push_back(chain_.compressor->round(round, piece.info).capacity_bytes);
    }
  }
  return capacities;
}

std::size_t OfflineCodec::capacity_bytes() const {
  return wire::payload_capacity(body_capacities());
}

OfflineCodec::Encoded OfflineCodec::encode(ConstTensorView gradient, std::span<float> residual) {
  Encoded encoded{Buffer(capacity_bytes(), host_memory()), 0};
  encoded.num_bytes = encode(gradient, residual, encoded.storage.bytes());
  return encoded;
}

std::size_t OfflineCodec::encode(ConstTensorView gradient, std::span<float> residual,
                                 Bytes payload) {
  Compressor const& compressor = *chain_.compressor;
  std::size_t const num_bodies = pieces_.size() * static_cast<std::size_t>(num_rounds_);
  // Without feedback the rest has to go somewhere all the same; f64 has no rest.
  bool const has_rest = residual.empty() && dtype_ != DType::f64;
  Buffer const rest(has_rest ? static_cast<std::size_t>(num_elements_) * sizeof(float) : 0,
                    host_memory());

  start_step();
  wire::PieceWriter writer(payload, num_bodies);
  for (Piece const& piece : pieces_) {
    auto const offset = static_cast<std::size_t>(piece.info.offset_elements);
    auto const count = static_cast<std::size_t>(piece.info.num_elements);
    ResidualView view;
    if (has_rest) view = {{}, rest.as<float>().subspan(offset, count), 1.0F};
    if (!residual.empty()) {
      std::span<float> const part = residual.subspan(offset, count);
      view = {part, part, static_cast<float>(chain_.feedback.decay)};
    }
    for (int round = 0; round < num_rounds_; ++round) {
      Body const body = writer.next(compressor.round(round, piece.info).capacity_bytes);
      throw_if_failed(compressor.encode_with_residual(context(round), round, piece.info,
                                                      gradient.slice(offset, count), view,
                                                      piece.view(), body));
      writer.close();
      if (round < num_rounds_ - 1) absorb(round, piece, body.written());
    }
  }
  if ((words_.flags & kStepNonFinite) != 0) {
    throw Error(
        Code::non_finite,
        "the array has elements that are NaN or infinite; a hook would roll this step back");
  }

  PayloadHeader header;
  header.codec = chain_.payload_id;
  header.flags = (words_.flags & kStepOverflow) != 0 ? kFlagOverflow : 0;
  header.rank = draws_.rank;
  header.step = draws_.step;
  header.num_elements = num_elements_;
  header.body_bytes = writer.body_bytes();
  header.num_pieces = static_cast<std::uint16_t>(num_bodies);
  std::size_t const body_bytes = static_cast<std::size_t>(writer.body_bytes());
  header.checksum = wire::checksum(payload.subspan(wire::kHeaderBytes, body_bytes));
  wire::write_header(header, payload);
  return wire::kHeaderBytes + body_bytes;
}

void OfflineCodec::decode(ConstBytes payload, TensorView result) {
  PayloadHeader header;
  throw_if_failed(wire::read_header(payload, header));
  if (header.codec != chain_.payload_id || header.num_elements != num_elements_ ||
      header.status != 0 ||
      header.num_pieces != pieces_.size() * static_cast<std::size_t>(num_rounds_)) {
    throw Error(Code::corrupt_payload,
                "the payload does not belong to the spec and the shape in front of it");
  }
  if (header.checksum != wire::checksum(payload.subspan(wire::kHeaderBytes))) {
    throw Error(Code::corrupt_payload, "the checksum of the payload does not match");
  }
  // f32 and f64 are decoded in place, which is zero so far; the others by way of f32.
  bool const is_narrow = size_of(dtype_) == 2;
  Buffer const wide(is_narrow ? static_cast<std::size_t>(num_elements_) * sizeof(float) : 0,
                    host_memory());
  TensorView const sum = is_narrow ? TensorView(wide.as<float>()) : result;

  start_step();
  wire::PieceReader reader(payload, header);
  for (Piece const& piece : pieces_) {
    for (int round = 0; round < num_rounds_; ++round) {
      ConstBytes body;
      throw_if_failed(reader.next(body));
      if (round < num_rounds_ - 1) {
        absorb(round, piece, body);
        continue;
      }
      throw_if_failed(chain_.compressor->decode_add(
          context(round), round, piece.info, body, 1.0, piece.view(),
          sum.slice(piece.info.offset_elements, piece.info.num_elements)));
    }
  }
  throw_if_failed(reader.finish());
  if (is_narrow) kernels::narrow(context(0), wide.as<float>(), false, result);
}

}  // namespace gradsieve::bindings
