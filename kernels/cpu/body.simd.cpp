// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/body.simd.hpp"

#include "kernels/cpu/lanes.hpp"

namespace gradsieve::kernels::cpu {
namespace {

/// The words of a row of bytes, the last one filled up with zeros.
std::uint64_t word_of(unsigned char const* bytes, std::uint64_t begin, std::uint64_t count) {
  std::uint64_t word = 0;
  __builtin_memcpy(&word, bytes + begin, count - begin < sizeof word ? count - begin : sizeof word);
  return word;
}

}  // namespace

namespace GRADSIEVE_TARGET {

std::uint32_t largest_word(void const* words, std::uint64_t count) {
  auto const* const bytes = static_cast<unsigned char const*>(words);
  std::uint32_t largest = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto const word = load<std::uint32_t>(bytes + 4 * i);
    largest = word > largest ? word : largest;
  }
  return largest;
}

bool any_bit(unsigned char const* bytes, unsigned char const* mask, std::uint64_t count) {
  std::uint64_t found = 0;
  std::uint64_t i = 0;
  if (mask == nullptr) {
    for (; i + 8 <= count; i += 8) found |= load<std::uint64_t>(bytes + i);
    return (found | word_of(bytes, i, count)) != 0;
  }
  for (; i + 8 <= count; i += 8) {
    found |= load<std::uint64_t>(bytes + i) & load<std::uint64_t>(mask + i);
  }
  return (found | (word_of(bytes, i, count) & word_of(mask, i, count))) != 0;
}

}  // namespace GRADSIEVE_TARGET
}  // namespace gradsieve::kernels::cpu
