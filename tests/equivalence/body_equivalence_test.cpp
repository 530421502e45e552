// SPDX-License-Identifier: Apache-2.0
// What a decoder asks of a body before it stores anything: one odd byte anywhere is found.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/ops.hpp"
#include "tests/support/cpu_variants.hpp"

namespace gradsieve::kernels {
namespace {

using gradsieve::testing::for_each_cpu_variant;

TEST(CheckScales, AnswersAsRef) {
  float const infinity = std::numeric_limits<float>::infinity();
  for (float const odd : {1.0F, 0.0F, -0.0F, -1.0F, infinity, -infinity, std::nanf(""),
                          std::numeric_limits<float>::max(), 1e-45F}) {
    for (std::size_t const count : {1, 2, 7, 8, 17, 64, 65, 300}) {
      for (std::size_t at = 0; at < count; ++at) {
        std::vector<float> scales(count, 0.25F);
        scales[at] = odd;
        std::vector<std::byte> bytes(count * sizeof(float) + 3);
        std::span<std::byte> const body = std::span(bytes).subspan(at % 4, count * sizeof(float));
        std::memcpy(body.data(), scales.data(), body.size());
        bool const expected = ref::check_scales({}, body);
        EXPECT_EQ(expected, odd >= 0.0F && odd < infinity && !std::signbit(odd));
        for_each_cpu_variant(
            [&](ExecContext const& ctx) { ASSERT_EQ(cpu::check_scales(ctx, body), expected); });
      }
    }
  }
  for_each_cpu_variant([](ExecContext const& ctx) { EXPECT_TRUE(cpu::check_scales(ctx, {})); });
}

TEST(CheckClear, AnswersAsRef) {
  for (std::size_t const count : {1, 2, 8, 9, 10, 16, 17, 31, 32, 33, 65, 130}) {
    std::vector<std::byte> const mask(count, std::byte{0x12});
    for (std::size_t at = 0; at < count; ++at) {
      for (unsigned bit = 0; bit < 8; ++bit) {
        std::vector<std::byte> bytes(count + 1);
        std::span<std::byte> const body = std::span(bytes).last(count);
        body[at] = static_cast<std::byte>(1U << bit);
        for (unsigned const skipped : {0U, 3U, 7U}) {
          bool const alone = ref::check_clear({}, body, {}, skipped);
          bool const masked = ref::check_clear({}, body, mask, skipped);
          EXPECT_EQ(alone, at == 0 && bit < skipped);
          for_each_cpu_variant([&](ExecContext const& ctx) {
            ASSERT_EQ(cpu::check_clear(ctx, body, {}, skipped), alone);
            ASSERT_EQ(cpu::check_clear(ctx, body, mask, skipped), masked);
          });
        }
      }
    }
  }
  for_each_cpu_variant([](ExecContext const& ctx) {
    EXPECT_TRUE(cpu::check_clear(ctx, {}, {}, 0));
    std::vector<std::byte> const zeros(77);
    EXPECT_TRUE(cpu::check_clear(ctx, zeros, {}, 0));
  });
}

}  // namespace
}  // namespace gradsieve::kernels
