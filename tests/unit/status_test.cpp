// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve {
namespace {

constexpr Code kCodes[] = {
    Code::ok,         Code::invalid_argument, Code::invalid_usage,     Code::unknown_name,
    Code::not_built,  Code::not_implemented,  Code::unsupported,       Code::corrupt_payload,
    Code::io_error,   Code::mismatch,         Code::capacity_exceeded, Code::peer_failed,
    Code::timeout,    Code::aborted,          Code::in_doubt,          Code::forked_child,
    Code::non_finite, Code::out_of_memory,    Code::transport_error,   Code::device_error,
    Code::internal};

TEST(Status, IsOkUnlessItSaysOtherwise) {
  Status const status;

  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::ok);
  EXPECT_STREQ(status.message(), "ok");
}

TEST(Status, KeepsCodeAndSentence) {
  Status const status(Code::peer_failed, "rank 3 went away");

  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::peer_failed);
  EXPECT_STREQ(status.message(), "rank 3 went away");
}

TEST(Status, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (Code const code : kCodes) names.insert(code_name(code));

  EXPECT_EQ(names.size(), std::size(kCodes));
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_EQ(code_name(Code::corrupt_payload), "corrupt_payload");
}

TEST(Status, ACodeOfALaterVersionIsUnknown) {
  EXPECT_EQ(code_name(static_cast<Code>(999)), "unknown");
}

TEST(Error, CarriesCodeAndText) {
  Error const error(Code::mismatch, "ranks disagree");

  EXPECT_EQ(error.code(), Code::mismatch);
  EXPECT_STREQ(error.what(), "ranks disagree");
}

TEST(DType, NamesAndSizesAreThoseOnTheWire) {
  EXPECT_EQ(dtype_name(DType::f32), "f32");
  EXPECT_EQ(dtype_name(DType::f16), "f16");
  EXPECT_EQ(dtype_name(DType::bf16), "bf16");
  EXPECT_EQ(dtype_name(DType::f64), "f64");
  EXPECT_EQ(size_of(DType::f64), 8U);
  EXPECT_EQ(size_of(DType::bf16), 2U);
  EXPECT_EQ(static_cast<int>(DType::f64), 3);
}

TEST(TensorId, IsFnv1aOfTheName) {
  EXPECT_EQ(tensor_id(""), 0xcbf29ce484222325U);
  EXPECT_EQ(tensor_id("a"), 0xaf63dc4c8601ec8cU);
}

}  // namespace
}  // namespace gradsieve
