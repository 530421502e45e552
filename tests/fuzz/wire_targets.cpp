// SPDX-License-Identifier: Apache-2.0
// The frame around bodies, the messages of given indices, and specs as text.
#include <cstring>

#include "gradsieve/registry.hpp"
#include "gradsieve/wire.hpp"

#include "comm/exchange/sparse_message.hpp"
#include "tests/fuzz/bounded_allocator.hpp"
#include "tests/fuzz/fuzz_target.hpp"

namespace gradsieve::testing {
namespace {

/// Magic, version, known flags, no failure and the right length: past the header's own checks.
void repair_header(Bytes payload) {
  if (payload.size() < wire::kHeaderBytes) return;
  PayloadHeader header;
  std::memcpy(&header, payload.data(), sizeof header);
  header.magic = PayloadHeader::kMagic;
  header.version = PayloadHeader::kVersion;
  header.flags &= kFlagNonFinite | kFlagOverflow;
  header.status = 0;
  header.body_bytes = payload.size() - wire::kHeaderBytes;
  wire::write_header(header, payload);
}

/// Input: odd: repaired (1), a payload.
void run_wire(ConstBytes input) {
  InputReader reader(input);
  bool const repaired = reader.number(1) % 2 == 1;
  ExactCopy payload(reader.rest());
  if (repaired) repair_header(payload.writable());
  std::vector<std::byte> again(payload.bytes().begin(), payload.bytes().end());
  AllocationBound const nothing(0);
  PayloadHeader header;
  Status const status = wire::read_header(payload.bytes(), header);
  require(status.ok() || status.code() == Code::corrupt_payload, "bad bytes are another code");
  if (!status.ok()) return;

  // Pieces that fill the payload are the same bytes when they are written once more.
  wire::PieceReader pieces(payload.bytes(), header);
  wire::PieceWriter writer(again, header.num_pieces);
  std::byte const* end = payload.bytes().data() + wire::kHeaderBytes;
  for (std::uint32_t i = 0; i < header.num_pieces; ++i) {
    ConstBytes body;
    if (!pieces.next(body).ok()) return;
    require(body.data() >= end, "pieces overlap");
    require((body.data() - payload.bytes().data()) % 16 == 0, "a piece is not aligned");
    end = body.data() + body.size();
    require(end <= payload.bytes().data() + payload.bytes().size(), "a piece leaves the payload");
    Bytes const place = writer.next(body.size()).resize(body.size());
    require(place.size() == body.size(), "a piece does not fit where it was");
    writer.close();
  }
  if (!pieces.finish().ok()) return;
  require(writer.body_bytes() == header.body_bytes, "written again the payload is longer");
  require(std::ranges::equal(again, payload.bytes()), "written again the payload differs");
}

std::vector<FuzzInput> wire_seeds() {
  std::vector<FuzzInput> all;
  for (std::size_t const num_pieces : {1u, 2u, 5u}) {
    std::vector<std::size_t> capacities;
    for (std::size_t i = 0; i < num_pieces; ++i) capacities.push_back(7 * i + 3);
    FuzzInput payload(wire::payload_capacity(capacities));
    wire::PieceWriter writer(payload, num_pieces);
    for (std::size_t const capacity : capacities) {
      for (std::byte& byte : writer.next(capacity).resize(capacity)) byte = std::byte{0xA5};
      writer.close();
    }
    PayloadHeader header;
    header.body_bytes = writer.body_bytes();
    header.num_pieces = static_cast<std::uint16_t>(num_pieces);
    wire::write_header(header, payload);
    payload.resize(wire::kHeaderBytes + static_cast<std::size_t>(writer.body_bytes()));
    all.push_back(join({number_bytes(num_pieces, 1), payload}));
  }
  return all;
}

/// Input: elements (8), expected pairs (2), a message. Its header is repaired.
void run_given_indices(ConstBytes input) {
  InputReader reader(input);
  std::uint64_t const num_elements = reader.number(8);
  std::uint64_t const num_pairs = reader.number(2);
  ExactCopy message(reader.rest());
  if (message.bytes().size() >= wire::kHeaderBytes) {
    PayloadHeader const header =
        exchange::sparse_header(exchange::SparseRound::pairs, 1, 9, num_elements,
                                message.bytes().size() - wire::kHeaderBytes);
    wire::write_header(header, message.writable());
  }
  AllocationBound const nothing(0);
  exchange::Pairs pairs;
  Status const status = exchange::read_pairs(message.bytes(), 1, 9, num_elements, num_pairs, pairs);
  if (!status.ok()) {
    require(status.code() == Code::corrupt_payload, "bad bytes are another code");
    require(pairs.num_pairs() == 0, "pairs of a message that was refused");
    return;
  }
  for (std::uint64_t i = 0; i < pairs.num_pairs(); ++i) {
    require(pairs.index(i) < num_elements, "an index outside");
    require(i == 0 || pairs.index(i - 1) < pairs.index(i), "indices that do not ascend");
    static_cast<void>(pairs.value(i));
  }
}

std::vector<FuzzInput> given_indices_seeds() {
  std::vector<FuzzInput> all;
  for (std::uint64_t const num_elements : {std::uint64_t{20}, std::uint64_t{1} << 40}) {
    std::vector<std::uint64_t> const indices = {19, 3, 3, 7};
    std::vector<float> const values = {1.0F, 2.0F, 3.0F, -4.0F};
    FuzzInput message;
    std::uint64_t num_pairs = 0;
    Status const status =
        exchange::write_pairs({num_elements, indices, values}, 1, 9, message, num_pairs);
    require(status.ok(), "a seed does not encode");
    all.push_back(join({number_bytes(num_elements, 8), number_bytes(num_pairs, 2), message}));
  }
  return all;
}

/// Input: the text. Valid specs are equal to what they print.
void run_spec(ConstBytes input) {
  std::string const text(reinterpret_cast<char const*>(input.data()), input.size());
  std::string canonical;
  try {
    AllocationBound const few(std::size_t{256} * 1024 + 256 * text.size());
    canonical = make_chain(text).text;
  } catch (Error const& error) {
    require(error.what()[0] != '\0', "an error without a sentence");
    return;
  }
  try {
    require(make_chain(canonical).text == canonical, "a canonical spec prints as another");
  } catch (Error const&) {
    broken("a canonical spec is refused");
  }
}

std::vector<FuzzInput> spec_seeds() {
  std::vector<FuzzInput> all;
  for (std::string_view const text :
       {"topk(density=0.01) | int8(block=256) | index(auto) ; feedback=residual ; exchange=auto",
        "int4(rounding=stochastic) | zstd(level=3) ; exchange=two_shot",
        "cltk(density=0.02, hold_steps=5) ; feedback=residual(decay=0.9, dtype=bf16)",
        "blocktopk(block=64) | sign ; scope=bucket ; dense_below=1000", "randomk(density=1e-3)",
        "threshold(value=0.5) | fp16", "none", "topK(densty=2)", ";=|(),"}) {
    ConstBytes const bytes = std::as_bytes(std::span(text));
    all.emplace_back(bytes.begin(), bytes.end());
  }
  return all;
}

}  // namespace

void add_wire_targets(std::vector<FuzzTarget>& targets) {
  targets.push_back({"wire", run_wire, wire_seeds});
  targets.push_back({"given_indices", run_given_indices, given_indices_seeds});
  targets.push_back({"spec", run_spec, spec_seeds, 512});
}

}  // namespace gradsieve::testing
