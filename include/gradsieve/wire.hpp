// SPDX-License-Identifier: Apache-2.0
// Bytes on the wire: the 64-byte header and the views of payloads. docs/wire_format.md is the law.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian and is not swapped");

/// First 64 bytes of every payload.
struct PayloadHeader {
  static constexpr std::uint32_t kMagic = 0x31565347;  // "GSV1"
  static constexpr std::uint8_t kVersion = 1;

  std::uint32_t magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t codec = 0;    ///< payload id of the compressor
  std::uint16_t flags = 0;   ///< PayloadFlag bits
  std::uint32_t status = 0;  ///< Code of the sender; body is empty unless ok
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  std::uint64_t plan_hash = 0;  ///< of the parcel, with the group's epoch; 0 in files
  std::uint64_t num_elements = 0;
  std::uint64_t body_bytes = 0;
  std::uint64_t checksum = 0;  ///< XXH64 of the body with seed 0, or 0: not computed
  std::uint16_t round = 0;
  std::uint16_t num_pieces = 1;
  std::uint32_t sequence = 0;  ///< number of the exchange within the step
};
static_assert(sizeof(PayloadHeader) == 64);

enum PayloadFlag : std::uint16_t {
  kFlagNonFinite = 1,  ///< a gradient element of the sender was NaN or infinite
  kFlagOverflow = 2,   ///< elements qualified beyond max_density and stayed in the residual
};

/// A piece's body while it is written. The length lives where the data lives: `num_bytes` is a word
/// beside the data (in the header or the piece table).
class Body {
 public:
  Body() noexcept = default;
  Body(Bytes storage, std::uint64_t* num_bytes) noexcept
      : storage_(storage), num_bytes_(num_bytes) {}

  [[nodiscard]] std::size_t capacity_bytes() const noexcept { return storage_.size(); }
  [[nodiscard]] std::byte* data() const noexcept { return storage_.data(); }

  /// Declares the length and returns the bytes to fill; empty if the capacity is too small, which
  /// the caller answers with Code::capacity_exceeded.
  [[nodiscard]] Bytes resize(std::size_t num_bytes) const noexcept {
    if (num_bytes > storage_.size()) return {};
    *num_bytes_ = num_bytes;
    return storage_.first(num_bytes);
  }
  [[nodiscard]] std::uint64_t num_bytes() const noexcept { return *num_bytes_; }
  [[nodiscard]] ConstBytes written() const noexcept {
    return storage_.first(static_cast<std::size_t>(*num_bytes_));
  }

 private:
  Bytes storage_;
  std::uint64_t* num_bytes_ = nullptr;
};

namespace wire {

inline constexpr std::size_t kHeaderBytes = sizeof(PayloadHeader);
inline constexpr std::size_t kBodyAlignment = 16;  ///< of the first body and of each section in it

[[nodiscard]] constexpr std::size_t aligned(std::size_t num_bytes) noexcept {
  return (num_bytes + kBodyAlignment - 1) / kBodyAlignment * kBodyAlignment;
}
[[nodiscard]] constexpr std::size_t bytes_for_bits(std::uint64_t num_bits) noexcept {
  return static_cast<std::size_t>((num_bits + 7) / 8);
}

/// Unaligned little-endian access.
template <typename T>
[[nodiscard]] T load(std::byte const* bytes) noexcept {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}
template <typename T>
void store(std::byte* bytes, T value) noexcept {
  std::memcpy(bytes, &value, sizeof(T));
}

/// Reads and checks the header of a received payload: length, magic, version, flags, status, number
/// of pieces, body length. Does not look at the body. Code::corrupt_payload otherwise.
[[nodiscard]] Status read_header(ConstBytes payload, PayloadHeader& header) noexcept;
void write_header(PayloadHeader const& header, Bytes payload) noexcept;

/// XXH64 of the body, never 0.
[[nodiscard]] std::uint64_t checksum(ConstBytes body) noexcept;

/// Capacity of a payload whose pieces have these body capacities.
[[nodiscard]] std::size_t payload_capacity(std::span<std::size_t const> body_capacities) noexcept;

/// Where the bodies of a payload start. A payload of one piece has its body right behind the
/// header; otherwise a table of num_pieces 64-bit body lengths comes first. Each body starts at a
/// multiple of 16 bytes.
class PieceWriter {
 public:
  PieceWriter(Bytes payload, std::size_t num_pieces) noexcept;
  /// The place of the next piece, with at most `capacity_bytes`.
  [[nodiscard]] Body next(std::size_t capacity_bytes) noexcept;
  /// Ends the piece last returned; its length is known by now.
  void close() noexcept;
  /// Bytes behind the header.
  [[nodiscard]] std::uint64_t body_bytes() const noexcept { return position_ - kHeaderBytes; }

 private:
  Bytes payload_;
  std::size_t num_pieces_;
  std::size_t index_ = 0;
  std::size_t position_;
  std::uint64_t length_ = 0;
};

class PieceReader {
 public:
  PieceReader(ConstBytes payload, PayloadHeader const& header) noexcept;
  /// Body of the next piece; Code::corrupt_payload when the table or a length does not fit.
  [[nodiscard]] Status next(ConstBytes& body) noexcept;
  /// Code::corrupt_payload unless the pieces filled the payload exactly.
  [[nodiscard]] Status finish() const noexcept;

 private:
  ConstBytes payload_;
  std::size_t num_pieces_;
  std::uint64_t body_bytes_;
  std::size_t index_ = 0;
  std::size_t position_;
};

}  // namespace wire
}  // namespace gradsieve
