// SPDX-License-Identifier: Apache-2.0
// The frame around every body. What is read here was written by somebody else: each number is
// checked against the bytes that are there before it is used.
#include "gradsieve/wire.hpp"

#include <algorithm>
#include <limits>

#include <xxhash.h>

namespace gradsieve::wire {
namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);  // of an entry of the piece table
constexpr std::uint16_t kKnownFlags = kFlagNonFinite | kFlagOverflow;

constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();

// Capacities come from a plan and lengths from a peer: sums stop at the largest number instead of
// starting again from 0.
constexpr std::size_t add(std::size_t a, std::size_t b) noexcept {
  return a > kMost - b ? kMost : a + b;
}

constexpr std::size_t align(std::size_t position) noexcept {
  return position > kMost - kBodyAlignment ? kMost : aligned(position);
}

constexpr std::size_t table_bytes(std::size_t num_pieces) noexcept {
  return num_pieces <= 1 ? 0 : num_pieces * kLengthBytes;
}

bool all_zero(ConstBytes bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

bool is_known(std::uint32_t status) noexcept {
  return code_name(static_cast<Code>(status)) != "unknown";
}

}  // namespace

Status read_header(ConstBytes payload, PayloadHeader& header) noexcept {
  if (payload.size() < kHeaderBytes)
    return {Code::corrupt_payload, "the payload is shorter than its header"};
  auto const read = load<PayloadHeader>(payload.data());
  if (read.magic != PayloadHeader::kMagic)
    return {Code::corrupt_payload, "the payload does not begin with GSV1"};
  if (read.version != PayloadHeader::kVersion) {
    return {Code::corrupt_payload, "the payload has another version of the wire format"};
  }
  if ((read.flags & ~kKnownFlags) != 0)
    return {Code::corrupt_payload, "the header has a flag that is not known"};
  if (!is_known(read.status))
    return {Code::corrupt_payload, "the header has a status that is not known"};
  if (read.num_pieces == 0)
    return {Code::corrupt_payload, "the header says that there are no pieces"};
  if (read.body_bytes != payload.size() - kHeaderBytes) {
    return {Code::corrupt_payload, "the payload is not as long as its header says"};
  }
  if (read.status != 0 && read.body_bytes != 0) {
    return {Code::corrupt_payload, "the sender reports a failure and sent a body all the same"};
  }
  header = read;
  return {};
}

void write_header(PayloadHeader const& header, Bytes payload) noexcept {
  store(payload.data(), header);
}

std::uint64_t checksum(ConstBytes body) noexcept {
  std::uint64_t const hash = XXH64(body.data(), body.size(), 0);
  return hash == 0 ? 1 : hash;  // 0 in a header means that nothing was computed
}

std::size_t payload_capacity(std::span<std::size_t const> body_capacities) noexcept {
  std::size_t position = kHeaderBytes + table_bytes(body_capacities.size());
  for (std::size_t const capacity : body_capacities) position = add(align(position), capacity);
  return position;
}

PieceWriter::PieceWriter(Bytes payload, std::size_t num_pieces) noexcept
    : payload_(payload),
      num_pieces_(num_pieces),
      position_(kHeaderBytes + table_bytes(num_pieces)) {}

Body PieceWriter::next(std::size_t capacity_bytes) noexcept {
  std::size_t const begin = align(position_);
  length_ = 0;
  if (begin > payload_.size()) return {Bytes{}, &length_};
  std::fill(payload_.begin() + static_cast<std::ptrdiff_t>(position_),
            payload_.begin() + static_cast<std::ptrdiff_t>(begin), std::byte{0});
  position_ = begin;
  return {payload_.subspan(begin, std::min(capacity_bytes, payload_.size() - begin)), &length_};
}

void PieceWriter::close() noexcept {
  std::size_t const entry = kHeaderBytes + index_ * kLengthBytes;
  bool const fits = index_ < num_pieces_ && entry + kLengthBytes <= payload_.size();
  if (num_pieces_ > 1 && fits) store(payload_.data() + entry, length_);
  position_ += length_;
  ++index_;
}

PieceReader::PieceReader(ConstBytes payload, PayloadHeader const& header) noexcept
    : payload_(payload),
      num_pieces_(header.num_pieces),
      body_bytes_(header.body_bytes),
      position_(kHeaderBytes + table_bytes(header.num_pieces)) {}

Status PieceReader::next(ConstBytes& body) noexcept {
  if (payload_.size() < kHeaderBytes || payload_.size() - kHeaderBytes != body_bytes_) {
    return {Code::corrupt_payload, "the payload is not as long as its header says"};
  }
  if (index_ >= num_pieces_)
    return {Code::corrupt_payload, "the payload has fewer pieces than were expected"};
  std::size_t const begin = align(position_);
  if (begin > payload_.size())
    return {Code::corrupt_payload, "a piece begins behind the end of the payload"};
  if (!all_zero(payload_.subspan(position_, begin - position_))) {
    return {Code::corrupt_payload, "the bytes between two pieces are not zero"};
  }
  std::uint64_t const length =
      num_pieces_ == 1
          ? body_bytes_
          : load<std::uint64_t>(payload_.data() + kHeaderBytes + index_ * kLengthBytes);
  if (length > payload_.size() - begin)
    return {Code::corrupt_payload, "a piece ends behind the end of the payload"};
  body = payload_.subspan(begin, static_cast<std::size_t>(length));
  position_ = begin + static_cast<std::size_t>(length);
  ++index_;
  return {};
}

Status PieceReader::finish() const noexcept {
  if (index_ != num_pieces_)
    return {Code::corrupt_payload, "the payload has more pieces than were expected"};
  if (position_ != payload_.size())
    return {Code::corrupt_payload, "bytes are left behind the last piece"};
  return {};
}

}  // namespace gradsieve::wire
