// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/ops.hpp"
#include "tests/support/cpu_variants.hpp"
#include "tests/support/gradient_shapes.hpp"
#include "tests/support/guarded.hpp"

namespace gradsieve::kernels {
namespace {

using gradsieve::testing::for_each_cpu_variant;
using gradsieve::testing::Guarded;
using gradsieve::testing::same_bits;

struct IndexSet {
  std::string name;
  std::uint64_t universe;
  std::vector<std::uint32_t> indices;
};

template <typename Wanted>
IndexSet chosen(std::string const& name, std::uint64_t universe, Wanted const& is_wanted) {
  IndexSet set{name + " of " + std::to_string(universe), universe, {}};
  for (std::uint64_t i = 0; i < universe; ++i) {
    if (is_wanted(i)) set.indices.push_back(static_cast<std::uint32_t>(i));
  }
  return set;
}

std::vector<IndexSet> all_sets(std::uint64_t largest_universe) {
  std::vector<IndexSet> sets;
  for (std::uint64_t const universe :
       {0U, 1U, 7U, 8U, 9U, 31U, 32U, 33U, 255U, 1025U, 4097U, 65537U, 600001U}) {
    if (universe > largest_universe) continue;
    for (std::uint64_t const one_in : {1U, 2U, 3U, 5U, 10U, 33U, 100U, 1000U, 20000U}) {
      sets.push_back(chosen("one in " + std::to_string(one_in), universe,
                            [&](std::uint64_t i) { return mix64(i) % one_in == 0; }));
    }
    sets.push_back(chosen("none", universe, [](std::uint64_t) { return false; }));
    sets.push_back(chosen("last", universe, [&](std::uint64_t i) { return i + 1 == universe; }));
    sets.push_back(chosen("front", universe, [&](std::uint64_t i) { return i < universe / 9; }));
    sets.push_back(chosen("ends", universe, [&](std::uint64_t i) {
      return i < 40 || i + 40 >= universe || i / 512 % 37 == 5;
    }));
  }
  return sets;
}

// Indices up to the largest there is, without a universe of that many bits.
std::vector<IndexSet> wide_sets() {
  std::uint64_t const universe = kMaxPieceElements;
  auto const last = static_cast<std::uint32_t>(universe - 1);
  std::vector<IndexSet> sets = {{"one, the last", universe, {last}},
                                {"one, the first", universe, {0}},
                                {"both ends", universe, {0, last}}};
  for (std::uint32_t const stride : {70'001U, 1'000'003U, 100'000'007U, 200'000'033U}) {
    IndexSet set{"every " + std::to_string(stride), universe, {}};
    for (std::uint64_t i = stride / 2; i < universe; i += stride) {
      set.indices.push_back(static_cast<std::uint32_t>(i));
    }
    sets.push_back(set);
  }
  return sets;
}

struct Coder {
  std::function<std::size_t(IndexSet const&)> num_bytes;
  BitmapEncodeFn* ref_encode;
  BitmapEncodeFn* cpu_encode;
  BitmapDecodeFn* ref_decode;
  BitmapDecodeFn* cpu_decode;
};

Coder const kBitmap = {[](IndexSet const& s) { return (s.universe + 7) / 8; }, ref::bitmap_encode,
                       cpu::bitmap_encode, ref::bitmap_decode, cpu::bitmap_decode};
Coder const kEliasFano = {
    [](IndexSet const& s) { return elias_fano_bytes(s.universe, s.indices.size()); },
    ref::elias_fano_encode, cpu::elias_fano_encode, ref::elias_fano_decode, cpu::elias_fano_decode};

void expect_same_encoding_and_back(Coder const& coder, IndexSet const& set) {
  SCOPED_TRACE(set.name);
  Guarded<std::byte> expected(coder.num_bytes(set));
  coder.ref_encode({}, set.indices, set.universe, expected.span());
  for_each_cpu_variant([&](ExecContext const& ctx) {
    Guarded<std::byte> code(expected.span().size(), 3);
    std::ranges::fill(code.span(), std::byte{0xff});
    Guarded<std::uint32_t> decoded(set.indices.size(), 4);

    coder.cpu_encode(ctx, set.indices, set.universe, code.span());
    // Not a byte longer: what reads past the end of a payload is seen by the address sanitizer.
    std::vector<std::byte> const payload = code.copy();
    bool const is_good = coder.cpu_decode(ctx, payload, set.universe, decoded.span());

    EXPECT_TRUE(same_bits(code.span(), expected.span()));
    EXPECT_TRUE(is_good);
    EXPECT_EQ(decoded.copy(), set.indices);
    EXPECT_TRUE(code.intact() && decoded.intact());
  });
}

TEST(BitmapCode, IsEquivalentToRef) {
  for (IndexSet const& set : all_sets(600001)) expect_same_encoding_and_back(kBitmap, set);
}

TEST(EliasFanoCode, IsEquivalentToRef) {
  for (IndexSet const& set : all_sets(600001)) expect_same_encoding_and_back(kEliasFano, set);
  for (IndexSet const& set : wide_sets()) expect_same_encoding_and_back(kEliasFano, set);
}

// Decodes `code` as `num_indices` indices with every variant: the verdict is that of ref, and so
// are the indices if it is good; nothing is stored outside.
void expect_same_verdict(Coder const& coder, std::span<std::byte const> code,
                         std::uint64_t universe, std::size_t num_indices) {
  Guarded<std::uint32_t> expected(num_indices);
  bool const is_good = coder.ref_decode({}, code, universe, expected.span());
  for_each_cpu_variant([&](ExecContext const& ctx) {
    Guarded<std::uint32_t> decoded(num_indices);
    EXPECT_EQ(coder.cpu_decode(ctx, code, universe, decoded.span()), is_good);
    if (is_good) {
      EXPECT_TRUE(same_bits(decoded.span(), expected.span()));
    }
    EXPECT_TRUE(decoded.intact());
  });
}

void expect_same_verdict_on_damage(Coder const& coder, IndexSet const& set) {
  SCOPED_TRACE(set.name);
  Guarded<std::byte> memory(coder.num_bytes(set));
  std::span<std::byte> const code = memory.span();
  std::size_t const k = set.indices.size();
  coder.ref_encode({}, set.indices, set.universe, code);

  for (std::size_t const wrong : {k + 1, k - 1, std::size_t{0}, 2 * k}) {
    if (wrong <= set.universe) expect_same_verdict(coder, code, set.universe, wrong);
  }
  for (std::uint64_t const universe : {set.universe - 1, set.universe + 1, set.universe / 2}) {
    if (universe < set.universe + 2) expect_same_verdict(coder, code, universe, k);
  }
  if (!code.empty()) expect_same_verdict(coder, code.first(code.size() - 1), set.universe, k);
  // Each bit of a short code, some of a long one, and moved bits, which leave the number right.
  std::size_t const num_bits = code.size() * 8;
  for (std::size_t bit = 0; bit < num_bits; bit += 1 + num_bits / 300) {
    std::byte const mask = std::byte{1} << (bit % 8);
    code[bit / 8] ^= mask;
    expect_same_verdict(coder, code, set.universe, k);
    std::size_t const other = mix64(bit) % num_bits;
    code[other / 8] ^= std::byte{1} << (other % 8);
    expect_same_verdict(coder, code, set.universe, k);
    code[other / 8] ^= std::byte{1} << (other % 8);
    code[bit / 8] ^= mask;
  }
}

// Two flipped bits leave the number of ones right where they move one.
void expect_same_verdict_on_any_two_flips(Coder const& coder, IndexSet const& set) {
  SCOPED_TRACE(set.name);
  Guarded<std::byte> memory(coder.num_bytes(set));
  std::span<std::byte> const code = memory.span();
  coder.ref_encode({}, set.indices, set.universe, code);
  std::size_t const num_bits = code.size() * 8;
  for (std::size_t pair = 0; pair < num_bits * num_bits; ++pair) {
    std::byte const before[] = {code[pair / num_bits / 8], code[pair % num_bits / 8]};
    code[pair / num_bits / 8] ^= std::byte{1} << (pair / num_bits % 8);
    code[pair % num_bits / 8] ^= std::byte{1} << (pair % num_bits % 8);
    expect_same_verdict(coder, code, set.universe, set.indices.size());
    code[pair % num_bits / 8] = before[1];
    code[pair / num_bits / 8] = before[0];
  }
}

// Two low parts exchanged under one high part. Chunks of the high parts are unpacked apart, so that
// the place where two of them meet is looked at by itself.
TEST(EliasFanoCodeInWrongOrder, IsEquivalentToRef) {
  constexpr std::uint64_t kChunkBits = 32768;
  std::size_t num_exchanged = 0;
  for (std::uint64_t const one_in : {2U, 3U, 5U, 6U, 7U, 9U, 12U}) {
    IndexSet set = chosen("", 600001, [&](std::uint64_t i) { return mix64(i) % one_in == 0; });
    std::uint32_t const low_bits = elias_fano_low_bits(set.universe, set.indices.size());
    Guarded<std::byte> code(kEliasFano.num_bytes(set));
    for (std::size_t i = 0; i + 1 < set.indices.size(); ++i) {
      std::uint32_t& index = set.indices[i];
      std::uint32_t& next = set.indices[i + 1];
      bool const is_last_of_chunk = ((index >> low_bits) + i + 1) % kChunkBits == 0;
      if (!is_last_of_chunk || index >> low_bits != next >> low_bits) continue;
      std::swap(index, next);
      ref::elias_fano_encode({}, set.indices, set.universe, code.span());
      expect_same_verdict(kEliasFano, code.span(), set.universe, set.indices.size());
      std::swap(index, next);
      ++num_exchanged;
    }
  }
  EXPECT_GT(num_exchanged, 3U);
}

TEST(DamagedBitmapCode, IsEquivalentToRef) {
  for (IndexSet const& set : all_sets(1025)) expect_same_verdict_on_damage(kBitmap, set);
}

TEST(DamagedEliasFanoCode, IsEquivalentToRef) {
  for (IndexSet const& set : all_sets(1025)) expect_same_verdict_on_damage(kEliasFano, set);
  for (IndexSet const& set : wide_sets()) {
    if (set.indices.size() < 3) expect_same_verdict_on_damage(kEliasFano, set);
    if (set.indices.size() == 1) expect_same_verdict_on_any_two_flips(kEliasFano, set);
  }
}

}  // namespace
}  // namespace gradsieve::kernels
