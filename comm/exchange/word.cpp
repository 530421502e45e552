// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "comm/exchange/swap.hpp"

namespace gradsieve::exchange {

Status all_gather_word(ExchangeContext& context, std::uint64_t own, std::span<std::uint64_t> words,
                       std::span<bool> heard) noexcept {
  if (context.transport == nullptr)
    return {Code::invalid_argument, "an exchange needs a transport"};
  std::size_t const ranks = static_cast<std::size_t>(context.transport->world_size());
  if (words.size() != ranks || heard.size() != ranks)
    return {Code::invalid_argument, "an all_gather_word needs room for one word per rank"};
  std::fill(words.begin(), words.end(), 0);
  std::fill(heard.begin(), heard.end(), false);
  words[static_cast<std::size_t>(context.transport->rank())] = own;

  // A word that came short is no reason to leave the words of others unheard.
  bool all_whole = true;
  Status const status = swap(
      context, std::as_bytes(std::span(&own, 1)),
      [&](int) { return std::as_bytes(std::span(&own, 1)); },
      [&](int peer, int) {
        return std::as_writable_bytes(words.subspan(static_cast<std::size_t>(peer), 1));
      },
      [&](int rank, ConstBytes bytes) -> Status {
        bool const whole = bytes.size() == sizeof(std::uint64_t);
        heard[static_cast<std::size_t>(rank)] = whole;
        all_whole = all_whole && whole;
        return {};
      });
  if (status.ok() && !all_whole)
    return {Code::corrupt_payload, "a word came with the wrong length"};
  return status;
}

}  // namespace gradsieve::exchange
