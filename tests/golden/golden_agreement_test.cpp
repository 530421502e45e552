// SPDX-License-Identifier: Apache-2.0
// The two rounds of a cyclic leader against golden bytes: the leader's indices, then values to be
// added.
#include <gtest/gtest.h>

#include "gradsieve/registry.hpp"

#include "tests/golden/golden_index.hpp"
#include "tests/support/guarded.hpp"
#include "tests/support/test_slots.hpp"

namespace gradsieve::testing {
namespace {

using ByteVector = std::vector<std::byte>;

class GoldenAgreementTest : public ::testing::TestWithParam<Backend> {
 protected:
  GoldenAgreementTest()
      : entry_(golden_index()["cltk"]),
        chain_(make_chain(entry_["spec"].get<std::string>())),
        input_(numbers_from_hex<float>(entry_["input"].get<std::string>())),
        agreement_(read_golden(entry_["agreement"].get<std::string>())) {
    piece_.id = tensor_id(entry_["tensor"].get<std::string>());
    piece_.num_elements = input_.size();
    words_.step = entry_["step"].get<std::uint64_t>();
    scratch_ = std::make_unique<Guarded<std::byte>>(chain_.compressor->workspace_bytes(piece_));
  }

  ExecContext context(int rank) {
    workspace_ = Workspace(scratch_->span());
    return {.backend = GetParam(),
            .workspace = &workspace_,
            .words = &words_,
            .seed = word_from_hex(golden_index()["seed"]),
            .rank = rank,
            .world_size = entry_["world_size"].get<int>()};
  }

  ByteVector encode(int rank, int round, TestSlots& slots) {
    ByteVector bytes(chain_.compressor->round(round, piece_).capacity_bytes);
    std::uint64_t num_bytes = 0;
    Status const status = chain_.compressor->encode(context(rank), round, piece_,
                                                    ConstTensorView(std::span<float const>(input_)),
                                                    slots.view(), Body(bytes, &num_bytes));
    EXPECT_TRUE(status.ok()) << status.message();
    bytes.resize(num_bytes);
    return bytes;
  }

  Status absorb(int rank, ByteVector const& from_leader, TestSlots& slots) {
    std::vector<ConstBytes> received(entry_["world_size"].get<std::size_t>());
    received[entry_["leader"].get<std::size_t>()] = from_leader;
    return chain_.compressor->absorb(context(rank), 0, piece_, received, slots.view());
  }

  Json const& entry_;
  Chain chain_;
  TensorInfo piece_;
  std::vector<float> input_;
  ByteVector agreement_;
  std::unique_ptr<Guarded<std::byte>> scratch_;
  Workspace workspace_;
  StepWords words_;
};

TEST_P(GoldenAgreementTest, OnlyTheLeaderWritesItsIndices) {
  ASSERT_EQ(chain_.compressor->num_rounds(), 2);
  EXPECT_EQ(chain_.compressor->round(0, piece_).exchange, ExchangeKind::gather);
  EXPECT_EQ(chain_.compressor->round(1, piece_).exchange, ExchangeKind::sum);
  for (int rank = 0; rank < 4; ++rank) {
    TestSlots slots(*chain_.compressor, piece_);
    EXPECT_EQ(encode(rank, 0, slots),
              rank == entry_["leader"].get<int>() ? agreement_ : ByteVector{})
        << "rank " << rank;
  }
}

TEST_P(GoldenAgreementTest, EveryRankSendsTheValuesOfTheAgreedSet) {
  for (int rank = 0; rank < 4; ++rank) {
    TestSlots slots(*chain_.compressor, piece_);
    encode(rank, 0, slots);
    Status const status = absorb(rank, agreement_, slots);
    ASSERT_TRUE(status.ok()) << status.message();

    EXPECT_EQ(encode(rank, 1, slots), read_golden(entry_["values"].get<std::string>()));
  }
}

TEST_P(GoldenAgreementTest, DecodesTheSumToItsPlaces) {
  TestSlots slots(*chain_.compressor, piece_);
  encode(1, 0, slots);
  ASSERT_TRUE(absorb(1, agreement_, slots).ok());
  encode(1, 1, slots);
  std::vector<float> accumulator(input_.size(), 1.0F);

  Status const status = chain_.compressor->decode_add(
      context(1), 1, piece_, read_golden(entry_["values"].get<std::string>()), 0.25, slots.view(),
      TensorView(std::span<float>(accumulator)));

  ASSERT_TRUE(status.ok()) << status.message();
  auto const decoded = numbers_from_hex<float>(entry_["decoded"].get<std::string>());
  for (std::size_t i = 0; i < decoded.size(); ++i) {
    float const product = 0.25F * decoded[i];
    EXPECT_EQ(accumulator[i], 1.0F + product) << "element " << i;
  }
}

TEST_P(GoldenAgreementTest, RefusesADamagedAgreementAndKeepsItsSlots) {
  for (Json const& damage : entry_["damaged"]) {
    SCOPED_TRACE(damage["name"].get<std::string>());
    TestSlots slots(*chain_.compressor, piece_);
    encode(0, 0, slots);

    Status const status = absorb(0, damaged_bytes(agreement_, damage), slots);

    EXPECT_EQ(code_name(status.code()), damage["code"].get<std::string>()) << status.message();
    for (SlotView const& slot : slots.view().slots) EXPECT_FALSE(*slot.written) << slot.info.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Wire, GoldenAgreementTest, ::testing::Values(Backend::ref, Backend::cpu),
                         [](auto const& c) { return c.param == Backend::ref ? "ref" : "cpu"; });

}  // namespace
}  // namespace gradsieve::testing
