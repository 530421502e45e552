// SPDX-License-Identifier: Apache-2.0
#include "comm/exchange/sparse_message.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace gradsieve::exchange {

namespace {

bool ascends_strictly(std::span<std::uint64_t const> indices) noexcept {
  return std::adjacent_find(indices.begin(), indices.end(), std::greater_equal<>()) ==
         indices.end();
}

/// Fills n indices and n values in ascending order of index, and of input where indices are equal.
///
/// The sorted positions stand where the values will be: both take four bytes, and value i is
/// written when position i has been read. So sorting needs no memory of its own.
template <typename Index>
void write_sorted(SparseInput const& input, std::byte* indices, std::byte* values) {
  std::size_t const count = input.indices.size();
  std::uint32_t* const positions = reinterpret_cast<std::uint32_t*>(values);
  std::iota(positions, positions + count, std::uint32_t{0});
  if (!ascends_strictly(input.indices)) {
    std::sort(positions, positions + count, [&](std::uint32_t a, std::uint32_t b) {
      return input.indices[a] != input.indices[b] ? input.indices[a] < input.indices[b] : a < b;
    });
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t const position = positions[i];
    wire::store(indices + i * sizeof(Index), static_cast<Index>(input.indices[position]));
    wire::store(values + i * 4, input.values[position]);
  }
}

/// Merges neighbours of equal index; returns how many are left.
template <typename Index>
std::uint64_t combine(std::size_t count, std::byte* indices, std::byte* values) noexcept {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Index const index = wire::load<Index>(indices + i * sizeof(Index));
    float const value = wire::load<float>(values + i * 4);
    if (kept > 0 && wire::load<Index>(indices + (kept - 1) * sizeof(Index)) == index) {
      std::byte* const sum = values + (kept - 1) * 4;
      wire::store(sum, wire::load<float>(sum) + value);
    } else {
      wire::store(indices + kept * sizeof(Index), index);
      wire::store(values + kept * 4, value);
      ++kept;
    }
  }
  std::memmove(indices + kept * sizeof(Index), values, kept * 4);
  return kept;
}

template <typename Index>
std::uint64_t write_unique(SparseInput const& input, std::byte* indices) {
  std::byte* const values = indices + input.indices.size() * sizeof(Index);
  write_sorted<Index>(input, indices, values);
  return combine<Index>(input.indices.size(), indices, values);
}

}  // namespace

PayloadHeader sparse_header(SparseRound round, int rank, std::uint32_t tag,
                            std::uint64_t num_elements, std::uint64_t body_bytes,
                            Status const& status) noexcept {
  PayloadHeader header;
  header.codec = kGivenIndicesCodec;
  header.status = static_cast<std::uint32_t>(status.code());
  header.rank = static_cast<std::uint32_t>(rank);
  header.num_elements = num_elements;
  header.body_bytes = body_bytes;
  header.round = static_cast<std::uint16_t>(round);
  header.sequence = tag;
  return header;
}

Status read_sparse_header(ConstBytes message, SparseRound round, int rank, std::uint32_t tag,
                          PayloadHeader& header) noexcept {
  GRADSIEVE_RETURN_IF_ERROR(wire::read_header(message, header));
  if (header.codec != kGivenIndicesCodec)
    return {Code::corrupt_payload, "not a message of a sparse exchange"};
  if (header.round != static_cast<std::uint16_t>(round) || header.sequence != tag)
    return {Code::corrupt_payload, "a message of another sparse exchange"};
  if (header.rank != static_cast<std::uint32_t>(rank))
    return {Code::corrupt_payload, "a message of another rank"};
  return {};
}

Status write_pairs(SparseInput const& input, int rank, std::uint32_t tag,
                   std::vector<std::byte>& message, std::uint64_t& num_pairs) {
  num_pairs = 0;
  if (input.num_elements > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return {Code::invalid_argument, "num_elements is beyond 2^63 - 1"};
  if (input.indices.size() != input.values.size())
    return {Code::invalid_argument, "indices and values differ in number"};
  if (input.indices.size() > std::numeric_limits<std::uint32_t>::max())
    return {Code::unsupported, "one rank brings at most 2^32 - 1 pairs"};
  if (std::any_of(input.indices.begin(), input.indices.end(),
                  [&](auto index) { return index >= input.num_elements; }))
    return {Code::invalid_argument, "an index is not below num_elements"};

  message.resize(
      static_cast<std::size_t>(pairs_message_bytes(input.num_elements, input.indices.size())));
  std::byte* const indices = message.data() + wire::kHeaderBytes + 8;
  num_pairs = index_bytes(input.num_elements) == 4 ? write_unique<std::uint32_t>(input, indices)
                                                   : write_unique<std::uint64_t>(input, indices);
  message.resize(static_cast<std::size_t>(pairs_message_bytes(input.num_elements, num_pairs)));
  wire::write_header(sparse_header(SparseRound::pairs, rank, tag, input.num_elements,
                                   message.size() - wire::kHeaderBytes),
                     message);
  wire::store(message.data() + wire::kHeaderBytes, num_pairs);
  return {};
}

Status read_pairs(ConstBytes message, int rank, std::uint32_t tag, std::uint64_t num_elements,
                  std::uint64_t num_pairs, Pairs& pairs) noexcept {
  PayloadHeader header;
  GRADSIEVE_RETURN_IF_ERROR(read_sparse_header(message, SparseRound::pairs, rank, tag, header));
  if (header.num_elements != num_elements)
    return {Code::corrupt_payload, "the pairs are of another number of elements"};
  if (message.size() != pairs_message_bytes(num_elements, num_pairs))
    return {Code::corrupt_payload, "a message has another length than was announced"};
  if (wire::load<std::uint64_t>(message.data() + wire::kHeaderBytes) != num_pairs)
    return {Code::corrupt_payload, "a message has another number of pairs than was announced"};
  Pairs const unchecked(message, num_elements, num_pairs);
  for (std::uint64_t i = 0; i < num_pairs; ++i) {
    if (unchecked.index(i) >= num_elements ||
        (i > 0 && unchecked.index(i) <= unchecked.index(i - 1)))
      return {Code::corrupt_payload, "indices do not ascend below num_elements"};
  }
  pairs = unchecked;
  return {};
}

}  // namespace gradsieve::exchange
