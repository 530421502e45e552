// SPDX-License-Identifier: Apache-2.0
// Specs made real: the canonical text, and a sentence for each mistake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradsieve/registry.hpp"

namespace gradsieve {
namespace {

using ::testing::HasSubstr;

constexpr char const* kDefaultClauses =
    " ; feedback=none ; exchange=auto ; scope=tensor ; dense_below=0";

TEST(MakeChain, SpellsEveryDefaultOut) {
  EXPECT_EQ(make_chain("none").text, std::string("none") + kDefaultClauses);
  EXPECT_EQ(make_chain("topk(0.05)").text,
            std::string("topk(density=0.05, warmup_steps=0, warmup_density=1, hold=1) | none | "
                        "index(form=auto)") +
                kDefaultClauses);
  EXPECT_EQ(make_chain("randomk | int8").text,
            std::string("randomk(density=0.01, warmup_steps=0, warmup_density=1, hold=1) | "
                        "int8(block=256, rounding=nearest)") +
                kDefaultClauses);
  EXPECT_EQ(make_chain("sign ; feedback=residual(decay=0.9) ; exchange=two_shot; scope=bucket ; "
                       "dense_below=4096")
                .text,
            "sign(block=1024) ; feedback=residual(decay=0.9, dtype=f32) ; exchange=two_shot ; "
            "scope=bucket ; dense_below=4096");
}

TEST(MakeChain, TheCanonicalTextMakesTheSameChain) {
  for (char const* spec :
       {"none", "bf16(stochastic)", "topk(density=0.001) | int4 | index(bitmap) | zstd(3)",
        "cltk(hold=20) ; feedback=residual(dtype=bf16)", "threshold(1e-5)",
        "blocktopk(density=0.1, block=64, norm=linf) | sign ; dense_below=100"}) {
    std::string const text = make_chain(spec).text;
    EXPECT_EQ(make_chain(text).text, text);
  }
}

TEST(MakeChain, CarriesTheClauses) {
  Chain const chain = make_chain(
      "int8 ; feedback=residual(decay=0.5, dtype=bf16) ; exchange=gather ; scope=bucket ; "
      "dense_below=18446744073709551615");

  EXPECT_TRUE(chain.feedback.enabled);
  EXPECT_EQ(chain.feedback.decay, 0.5);
  EXPECT_EQ(chain.feedback.dtype, DType::bf16);
  EXPECT_EQ(chain.exchange, ExchangeChoice::gather);
  EXPECT_EQ(chain.scope, Scope::bucket);
  EXPECT_EQ(chain.dense_below_elements, UINT64_MAX);
}

TEST(MakeChain, NamesTheOutermostCodec) {
  EXPECT_EQ(make_chain("none").payload_id, 1);
  EXPECT_EQ(make_chain("sign").payload_id, 6);
  EXPECT_EQ(make_chain("topk | int8").payload_id, 16);
  EXPECT_EQ(make_chain("topk | int8 | zstd").payload_id, 24);
  EXPECT_EQ(make_chain("none | zstd").payload_id, 24);
}

TEST(MakeChain, ALosslessChainKeepsNoResidual) {
  Chain const chain = make_chain("none ; feedback=residual");

  EXPECT_FALSE(chain.feedback.enabled);
  EXPECT_EQ(chain.text, std::string("none") + kDefaultClauses);
}

TEST(MakeChain, RandomkRescalesOnlyWithoutFeedback) {
  EXPECT_TRUE(make_chain("randomk").compressor->claims().unbiased);
  EXPECT_FALSE(make_chain("randomk ; feedback=residual").compressor->claims().unbiased);
  EXPECT_FALSE(make_chain("randomk(hold=2)").compressor->claims().unbiased);
}

TEST(MakeChain, ComposesClaims) {
  Claims const plain = make_chain("topk(density=0.3)").compressor->claims();
  EXPECT_TRUE(plain.fixed_rate);
  EXPECT_FALSE(plain.lossless || plain.unbiased || plain.elementwise || plain.f64);
  EXPECT_DOUBLE_EQ(plain.contraction, 0.2);
  EXPECT_FALSE(make_chain("topk | zstd").compressor->claims().fixed_rate);
  EXPECT_FALSE(make_chain("topk | sign").compressor->claims().fixed_rate);
  EXPECT_TRUE(make_chain("none | zstd").compressor->claims().lossless);
  EXPECT_TRUE(make_chain("randomk | int8(rounding=stochastic)").compressor->claims().unbiased);
  EXPECT_FALSE(make_chain("randomk | int8").compressor->claims().unbiased);
}

struct Mistake {
  char const* name;
  char const* spec;
  Code code;
  std::vector<char const*> says;
};

class MistakeTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(MistakeTest, IsASentenceThatNamesWhatWouldDo) {
  try {
    Chain const chain = make_chain(GetParam().spec);
    FAIL() << "accepted as " << chain.text;
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), GetParam().code) << error.what();
    for (char const* text : GetParam().says) EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Specs, MistakeTest,
    ::testing::Values(
        Mistake{"zero_density", "topk(density=0)", Code::invalid_argument, {"density=0", "(0, 1]"}},
        Mistake{"nan", "topk(density=nan)", Code::invalid_argument, {"density=nan"}},
        Mistake{"wrong_name", "topK", Code::unknown_name, {"'topK'", "did you mean 'topk'"}},
        Mistake{"wrong_key", "topk(dnesity=0.1)", Code::unknown_name, {"did you mean 'density'"}},
        Mistake{"order",
                "int8 | topk",
                Code::invalid_argument,
                {"'topk' cannot follow 'int8'", "[sparsifier] | [value codec]"}},
        Mistake{"zstd_first", "zstd | int8", Code::invalid_argument, {"cannot follow 'zstd'"}},
        Mistake{"two_sparsifiers",
                "topk | randomk",
                Code::invalid_argument,
                {"topk | randomk", "a sparsifier once at most"}},
        Mistake{"two_codecs", "int8 | sign", Code::invalid_argument, {"once at most"}},
        Mistake{"index_alone", "int8 | index(auto)", Code::invalid_argument, {"no sparsifier"}},
        Mistake{"index_of_shared_set",
                "randomk | none | index(auto)",
                Code::invalid_argument,
                {"all ranks know the indices of 'randomk'"}},
        Mistake{"reserved_form",
                "topk | none | index(rice)",
                Code::not_implemented,
                {"rice", "auto, bitmap, elias_fano"}},
        Mistake{"feedback_name",
                "topk ; feedback=residul",
                Code::unknown_name,
                {"did you mean 'residual'"}},
        Mistake{"feedback_stage",
                "topk ; feedback=int8",
                Code::invalid_argument,
                {"'int8' is a compressor"}},
        Mistake{"decay", "topk ; feedback=residual(decay=0)", Code::invalid_argument, {"(0, 1]"}},
        Mistake{"all_reduce",
                "int8 ; exchange=all_reduce",
                Code::invalid_argument,
                {"'int8'", "goes with: none", "cltk, randomk"}},
        Mistake{"two_shot",
                "topk ; exchange=two_shot",
                Code::invalid_argument,
                {"'topk | none | index'", "bf16, fp16, int4, int8, none, sign"}},
        Mistake{"exchange_name",
                "none ; exchange=twoshot",
                Code::invalid_argument,
                {"did you mean 'two_shot'"}},
        Mistake{"model", "topk ; scope=model", Code::not_implemented, {"tensor, bucket"}},
        Mistake{"clause",
                "topk ; feedbak=none",
                Code::unknown_name,
                {"unknown clause 'feedbak'", "did you mean 'feedback'"}},
        Mistake{"clause_twice",
                "topk ; scope=tensor ; scope=bucket",
                Code::invalid_argument,
                {"given twice"}},
        Mistake{"dense_below",
                "topk ; dense_below=many",
                Code::invalid_argument,
                {"not a number of elements"}},
        Mistake{"dense_below_overflow",
                "topk ; dense_below=18446744073709551616",
                Code::invalid_argument,
                {"not a number of elements"}},
        Mistake{"odd_int4", "int4(block=33)", Code::invalid_argument, {"even"}},
        Mistake{"sign_block", "sign(block=12)", Code::invalid_argument, {"multiple of 8"}},
        Mistake{"hold", "topk(hold=4)", Code::invalid_argument, {"cltk and randomk"}},
        Mistake{"empty", "", Code::invalid_argument, {"the name of a stage"}}),
    [](auto const& mistake) { return std::string(mistake.param.name); });

}  // namespace
}  // namespace gradsieve
