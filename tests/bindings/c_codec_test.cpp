// SPDX-License-Identifier: Apache-2.0
// Specs, what they cost, and one tensor without ranks, through C.
#include <cstring>
#include <numeric>
#include <string>
#include <tuple>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "gradsieve/registry.hpp"

#include "tests/bindings/c_ranks.hpp"
#include "tests/support/gradient_shapes.hpp"
#include "tests/support/plugin_specs.hpp"

namespace gradsieve::testing {
namespace {

std::string canonical(char const* spec, gsvContext_t context) {
  std::uint64_t length = 0;
  EXPECT_GSV(gsvSpecCanonical(spec, nullptr, 0, &length, context));
  std::string text(length, '?');
  EXPECT_GSV(gsvSpecCanonical(spec, text.data(), length + 1, &length, context));
  return text;
}

TEST(CSpecTest, SpellsOutEveryDefault) {
  ContextPtr const context = make_context();
  char const* const spec = "topk(density=0.05)|int8;feedback=residual";

  EXPECT_EQ(canonical(spec, context.get()), make_chain(spec).text);
}

TEST(CSpecTest, NamesTheNearestSpelling) {
  ContextPtr const context = make_context();
  std::uint64_t length = 0;

  EXPECT_EQ(gsvSpecCanonical("tpok(density=0.05)", nullptr, 0, &length, context.get()),
            gsvUnknownName);
  EXPECT_NE(std::string(gsvGetLastError()).find("did you mean 'topk'"), std::string::npos)
      << gsvGetLastError();
}

TEST(CSpecTest, WritesNoTextThatDoesNotFit) {
  ContextPtr const context = make_context();
  std::uint64_t length = 0;
  char text[5] = "past";

  EXPECT_EQ(gsvSpecCanonical("none", text, 4, &length, context.get()), gsvCapacityExceeded);

  EXPECT_STREQ(text, "past");
  EXPECT_GT(length, 3U);
}

TEST(CSpecTest, CountsTheMemoryOfBothRollbacks) {
  ContextPtr const context = make_context();
  gsvSpecInfo_t info = GSV_INIT(gsvSpecInfo_t);

  ASSERT_GSV(gsvGetSpecInfo("int8 ; feedback=residual", 1000, gsvFloat32, &info, context.get()));

  EXPECT_EQ(info.state_bytes_merge, 4000U);
  EXPECT_EQ(info.state_bytes_exact, 8000U);
  EXPECT_EQ(info.feedback, 1U);
  EXPECT_EQ(info.num_rounds, 1U);
  EXPECT_NE(info.claims & gsvClaimFixedRate, 0U);
  EXPECT_EQ(info.claims & gsvClaimLossless, 0U);
  EXPECT_GT(info.payload_bytes, 1000U);
  EXPECT_LT(info.payload_bytes, 1300U);
}

TEST(CSpecTest, ListsEveryPlugIn) {
  ContextPtr const context = make_context();
  std::uint64_t length = 0;
  ASSERT_GSV(gsvListPlugins(nullptr, 0, &length, context.get()));
  std::string text(length, '?');
  ASSERT_GSV(gsvListPlugins(text.data(), length + 1, &length, context.get()));

  auto const json = nlohmann::json::parse(text);

  ASSERT_EQ(json["plugins"].size(), builtin_registry().plugins().size());
  EXPECT_EQ(json["version"], gsvGetVersionText());
  for (PluginInfo const* const plugin : builtin_registry().plugins())
    EXPECT_NE(text.find('"' + plugin->name + '"'), std::string::npos) << plugin->name;
}

// --- encode and decode ---------------------------------------------------------------------------

class CCodecTest : public ::testing::TestWithParam<std::tuple<char const*, std::uint64_t>> {
 protected:
  char const* spec_ = std::get<0>(GetParam());
  std::uint64_t count_ = std::get<1>(GetParam());
  ContextPtr context_ = make_context();
  std::vector<float> gradient_ = make_gradient(Shape::heavy_tailed, count_, 5);

  gsvResult_t encode(std::vector<std::byte>& payload, std::uint64_t capacity, float* residual,
                     std::uint64_t& num_bytes) {
    return gsvEncode(gradient_.data(), payload.data(), capacity, &num_bytes, count_, gsvFloat32,
                     spec_, residual, nullptr, context_.get(), nullptr);
  }
};

TEST_P(CCodecTest, WhatIsSentAndTheResidualAreTheGradient) {
  std::string const with_feedback = std::string(spec_) + " ; feedback=residual";
  spec_ = with_feedback.c_str();
  std::uint64_t bound = 0;
  ASSERT_GSV(gsvEncodeBound(count_, gsvFloat32, spec_, &bound, context_.get()));
  std::vector<std::byte> payload(bound);
  std::vector<float> residual(count_, 0.25F);
  std::uint64_t num_bytes = 0;
  ASSERT_GSV(encode(payload, bound, residual.data(), num_bytes));

  std::vector<float> decoded(count_, 99.0F);
  ASSERT_GSV(gsvDecode(payload.data(), num_bytes, decoded.data(), count_, gsvFloat32, spec_,
                       context_.get(), nullptr));

  // Every codec keeps c − ĉ, rounded once; ĉ is at most 2|c| for the codecs of this list.
  for (std::size_t i = 0; i < count_; ++i) {
    double const corrected = static_cast<double>(gradient_[i] + 0.25F);
    double const sum = static_cast<double>(decoded[i]) + static_cast<double>(residual[i]);
    ASSERT_NEAR(sum, corrected, 4e-7 * (std::abs(corrected) + std::abs(decoded[i]))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, CCodecTest,
                         ::testing::Combine(::testing::Values("none", "topk(density=1)",
                                                              "topk(density=0.1) | int8", "int4",
                                                              "cltk(density=0.1)"),
                                            ::testing::Values(0, 1, 31, 257, 1000, 4097)));

// C-80: for every compressor the bound holds, and a byte too few leaves everything beyond alone.
class CBoundTest : public ::testing::TestWithParam<SpecCase> {};

TEST_P(CBoundTest, C80BoundHoldsAndOneByteLessIsRefused) {
  constexpr std::byte kCanary{0x5a};
  ContextPtr const context = make_context();
  char const* const spec = GetParam().spec.c_str();
  std::vector<std::uint64_t> counts(71);
  std::iota(counts.begin(), counts.end(), std::uint64_t{0});
  counts.insert(counts.end(), {4095, 4096, 4097});
  for (std::uint64_t const count : counts) {
    SCOPED_TRACE(count);
    std::vector<float> const gradient = make_gradient(Shape::heavy_tailed, count, 5);
    auto const encode = [&](std::vector<std::byte>& payload, std::uint64_t capacity,
                            std::uint64_t& num_bytes) {
      return gsvEncode(gradient.data(), payload.data(), capacity, &num_bytes, count, gsvFloat32,
                       spec, nullptr, nullptr, context.get(), nullptr);
    };
    std::uint64_t bound = 0;
    ASSERT_GSV(gsvEncodeBound(count, gsvFloat32, spec, &bound, context.get()));
    std::vector<std::byte> payload(bound + 64, kCanary);
    std::uint64_t num_bytes = 0;
    ASSERT_GSV(encode(payload, bound, num_bytes));
    ASSERT_LE(num_bytes, bound);
    for (std::size_t i = bound; i < payload.size(); ++i) ASSERT_EQ(payload[i], kCanary);

    std::vector<std::byte> exact(num_bytes + 64, kCanary);
    std::uint64_t again = 0;
    ASSERT_GSV(encode(exact, num_bytes, again));
    ASSERT_EQ(again, num_bytes);
    ASSERT_EQ(std::memcmp(exact.data(), payload.data(), num_bytes), 0);
    for (std::size_t i = num_bytes; i < exact.size(); ++i) ASSERT_EQ(exact[i], kCanary);

    std::vector<std::byte> small(num_bytes + 64, kCanary);
    ASSERT_EQ(encode(small, num_bytes - 1, again), gsvCapacityExceeded);
    for (std::byte const byte : small) ASSERT_EQ(byte, kCanary);
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, CBoundTest, ::testing::ValuesIn(default_specs()),
                         [](auto const& c) { return c.param.name; });

TEST(CCodecErrorTest, RefusesAForeignOrDamagedPayload) {
  ContextPtr const context = make_context();
  std::vector<float> gradient = make_gradient(Shape::gaussian, 100, 3);
  std::vector<std::byte> payload(4096);
  std::uint64_t num_bytes = 0;
  ASSERT_GSV(gsvEncode(gradient.data(), payload.data(), payload.size(), &num_bytes, 100, gsvFloat32,
                       "int8", nullptr, nullptr, context.get(), nullptr));
  std::vector<float> decoded(101);
  auto const decode = [&](std::uint64_t bytes, std::uint64_t count, char const* spec) {
    return gsvDecode(payload.data(), bytes, decoded.data(), count, gsvFloat32, spec, context.get(),
                     nullptr);
  };

  EXPECT_EQ(decode(num_bytes, 100, "int8"), gsvSuccess);
  EXPECT_EQ(decode(num_bytes - 1, 100, "int8"), gsvCorruptPayload);
  EXPECT_EQ(decode(num_bytes, 101, "int8"), gsvCorruptPayload);
  EXPECT_EQ(decode(num_bytes, 100, "int4"), gsvCorruptPayload);
  payload[num_bytes - 1] ^= std::byte{1};
  EXPECT_EQ(decode(num_bytes, 100, "int8"), gsvCorruptPayload);
}

TEST(CCodecErrorTest, RefusesNonFiniteElementsAndAResidualWithoutFeedback) {
  ContextPtr const context = make_context();
  float gradient[3] = {1.0F, std::numeric_limits<float>::infinity(), 2.0F};
  float residual[3] = {};
  std::byte payload[1024];
  std::uint64_t num_bytes = 0;

  EXPECT_EQ(gsvEncode(gradient, payload, sizeof payload, &num_bytes, 3, gsvFloat32, "int8", nullptr,
                      nullptr, context.get(), nullptr),
            gsvNonFinite);
  EXPECT_EQ(gsvEncode(gradient, payload, sizeof payload, &num_bytes, 1, gsvFloat32, "int8",
                      residual, nullptr, context.get(), nullptr),
            gsvInvalidUsage);
  EXPECT_EQ(gsvEncode(gradient, payload, sizeof payload, &num_bytes, 1, any_number<gsvDtype_t>(9),
                      "int8", nullptr, nullptr, context.get(), nullptr),
            gsvInvalidArgument);
}

TEST(CCodecTest16, RoundTripsHalvesWithoutLoss) {
  ContextPtr const context = make_context();
  std::vector<std::uint16_t> const values = {0x3f80, 0x0001, 0x8000, 0xc2f7, 0x7f7f};
  for (gsvDtype_t const dtype : {gsvFloat16, gsvBfloat16}) {
    std::vector<std::uint16_t> const gradient(values.begin(), values.end() - 1);
    std::byte payload[1024];
    std::uint64_t num_bytes = 0;
    ASSERT_GSV(gsvEncode(gradient.data(), payload, sizeof payload, &num_bytes, 4, dtype, "none",
                         nullptr, nullptr, context.get(), nullptr));
    std::vector<std::uint16_t> decoded(4, 7);

    ASSERT_GSV(
        gsvDecode(payload, num_bytes, decoded.data(), 4, dtype, "none", context.get(), nullptr));

    // It adds to +0, so −0 comes back as +0.
    EXPECT_EQ(decoded, (std::vector<std::uint16_t>{0x3f80, 0x0001, 0x0000, 0xc2f7})) << dtype;
  }
}

}  // namespace
}  // namespace gradsieve::testing
