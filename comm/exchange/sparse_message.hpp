// SPDX-License-Identifier: Apache-2.0
// The messages of sparse exchanges: docs/wire_format.md, section "Given indices".
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradsieve/exchange.hpp"
#include "gradsieve/wire.hpp"

namespace gradsieve::exchange {

inline constexpr std::uint8_t kGivenIndicesCodec = 17;

/// What a message is for: the header's `round`.
enum class SparseRound : std::uint16_t { announce = 0, confirm = 1, pairs = 2 };

/// Bytes of one index: 4 while that is enough for all of them, else 8.
[[nodiscard]] constexpr std::uint64_t index_bytes(std::uint64_t num_elements) noexcept {
  return num_elements <= std::uint64_t{1} << 32 ? 4 : 8;
}
/// Bytes of one index and its f32 value.
[[nodiscard]] constexpr std::uint64_t pair_bytes(std::uint64_t num_elements) noexcept {
  return index_bytes(num_elements) + 4;
}
/// Header, number of pairs, indices, values.
[[nodiscard]] constexpr std::uint64_t pairs_message_bytes(std::uint64_t num_elements,
                                                          std::uint64_t num_pairs) noexcept {
  return wire::kHeaderBytes + 8 + num_pairs * pair_bytes(num_elements);
}

/// The header of our messages; `tag` tells calls apart.
[[nodiscard]] PayloadHeader sparse_header(SparseRound round, int rank, std::uint32_t tag,
                                          std::uint64_t num_elements, std::uint64_t body_bytes,
                                          Status const& status = {}) noexcept;
/// Reads and checks it: Code::corrupt_payload unless it is the message expected from that rank. The
/// number of elements and the sender's status are the caller's to judge.
[[nodiscard]] Status read_sparse_header(ConstBytes message, SparseRound round, int rank,
                                        std::uint32_t tag, PayloadHeader& header) noexcept;

/// Unique ascending pairs within a message.
class Pairs {
 public:
  Pairs() noexcept = default;
  Pairs(ConstBytes message, std::uint64_t num_elements, std::uint64_t num_pairs) noexcept
      : indices_(message.data() + wire::kHeaderBytes + 8),
        values_(indices_ + num_pairs * index_bytes(num_elements)),
        num_pairs_(num_pairs),
        wide_(index_bytes(num_elements) == 8) {}

  [[nodiscard]] std::uint64_t num_pairs() const noexcept { return num_pairs_; }
  [[nodiscard]] std::uint64_t index(std::uint64_t i) const noexcept {
    return wide_ ? wire::load<std::uint64_t>(indices_ + 8 * i)
                 : wire::load<std::uint32_t>(indices_ + 4 * i);
  }
  [[nodiscard]] float value(std::uint64_t i) const noexcept {
    return wire::load<float>(values_ + 4 * i);
  }

 private:
  std::byte const* indices_ = nullptr;
  std::byte const* values_ = nullptr;
  std::uint64_t num_pairs_ = 0;
  bool wide_ = false;
};

/// message ← the message of the input's pairs, sorted; pairs of one index become one, its values
/// added in the order of the input. Needs no memory beside the message.
[[nodiscard]] Status write_pairs(SparseInput const& input, int rank, std::uint32_t tag,
                                 std::vector<std::byte>& message, std::uint64_t& num_pairs);

/// Checks a message of `num_pairs` pairs from its first byte to its last; Code::corrupt_payload.
[[nodiscard]] Status read_pairs(ConstBytes message, int rank, std::uint32_t tag,
                                std::uint64_t num_elements, std::uint64_t num_pairs,
                                Pairs& pairs) noexcept;

}  // namespace gradsieve::exchange
