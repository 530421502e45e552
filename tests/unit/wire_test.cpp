// SPDX-License-Identifier: Apache-2.0
#include "gradsieve/wire.hpp"

#include <array>
#include <cstddef>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace gradsieve {
namespace {

using Payload = std::vector<std::byte>;

std::vector<std::byte> bytes_of(std::string const& text) {
  auto const* const data = reinterpret_cast<std::byte const*>(text.data());
  return {data, data + text.size()};
}

// A payload as an encoder would make it: header, table, the texts as bodies.
Payload payload_of(std::vector<std::string> const& texts, PayloadHeader header = {}) {
  std::vector<std::size_t> capacities;
  for (std::string const& text : texts) capacities.push_back(text.size());
  Payload payload(wire::payload_capacity(capacities), std::byte{0xEE});
  wire::PieceWriter writer(payload, texts.size());
  for (std::string const& text : texts) {
    Body const body = writer.next(text.size());
    std::memcpy(body.resize(text.size()).data(), text.data(), text.size());
    writer.close();
  }
  header.num_pieces = static_cast<std::uint16_t>(texts.size());
  header.body_bytes = writer.body_bytes();
  payload.resize(wire::kHeaderBytes + writer.body_bytes());
  header.checksum = wire::checksum(ConstBytes(payload).subspan(wire::kHeaderBytes));
  wire::write_header(header, payload);
  return payload;
}

// Reads the payload to its end as a decoder would; the texts of its pieces.
Status read_all(ConstBytes payload, std::vector<std::string>& texts) {
  PayloadHeader header;
  GRADSIEVE_RETURN_IF_ERROR(wire::read_header(payload, header));
  wire::PieceReader reader(payload, header);
  for (int i = 0; i < header.num_pieces; ++i) {
    ConstBytes body;
    GRADSIEVE_RETURN_IF_ERROR(reader.next(body));
    texts.emplace_back(reinterpret_cast<char const*>(body.data()), body.size());
  }
  return reader.finish();
}

Code code_of(ConstBytes payload) {
  std::vector<std::string> texts;
  return read_all(payload, texts).code();
}

TEST(Wire, TheHeaderLiesAsItIsDrawn) {
  PayloadHeader header;
  header.codec = 4;
  header.flags = kFlagOverflow;
  header.rank = 0x01020304;
  header.step = 0x1122334455667788U;
  header.round = 7;
  header.sequence = 9;
  std::array<std::byte, 64> payload{};

  wire::write_header(header, payload);

  EXPECT_EQ(std::string(reinterpret_cast<char const*>(payload.data()), 4), "GSV1");
  EXPECT_EQ(payload[4], std::byte{1});
  EXPECT_EQ(payload[5], std::byte{4});
  EXPECT_EQ(payload[6], std::byte{2});
  EXPECT_EQ(payload[12], std::byte{0x04});
  EXPECT_EQ(payload[16], std::byte{0x88});
  EXPECT_EQ(payload[23], std::byte{0x11});
  EXPECT_EQ(payload[56], std::byte{7});
  EXPECT_EQ(payload[58], std::byte{1});
  EXPECT_EQ(payload[60], std::byte{9});
}

TEST(Wire, ReadsBackTheHeaderThatWasWritten) {
  PayloadHeader header;
  header.status = static_cast<std::uint32_t>(Code::non_finite);
  header.plan_hash = 42;
  header.num_elements = std::uint64_t{1} << 40;
  Payload payload(wire::kHeaderBytes);
  wire::write_header(header, payload);

  PayloadHeader read;
  ASSERT_TRUE(wire::read_header(payload, read).ok());

  EXPECT_EQ(std::memcmp(&read, &header, sizeof(header)), 0);
}

TEST(Wire, RejectsEveryTruncationAndEveryExtension) {
  Payload payload = payload_of({"some body"});
  for (std::size_t length = 0; length < payload.size(); ++length) {
    EXPECT_EQ(code_of(ConstBytes(payload).first(length)), Code::corrupt_payload) << length;
  }
  payload.push_back(std::byte{0});

  EXPECT_EQ(code_of(payload), Code::corrupt_payload);
}

// What read_header lets through is what only the caller can judge: codec, rank, step, plan hash,
// number of elements, checksum, round, number of pieces, sequence, and the two flags.
TEST(Wire, EveryFlippedHeaderBitIsRejectedOrBelongsToTheCaller) {
  struct Field {
    std::size_t begin;
    std::size_t end;
  };
  constexpr Field kCallers[] = {{5, 6},   {12, 16}, {16, 24}, {24, 32}, {32, 40},
                                {48, 56}, {56, 58}, {58, 60}, {60, 64}};
  auto const is_callers = [&](std::size_t bit) {
    for (Field const& field : kCallers) {
      if (bit / 8 >= field.begin && bit / 8 < field.end) return true;
    }
    return bit == 6 * 8 || bit == 6 * 8 + 1;
  };
  Payload const good = payload_of({"some body"});
  for (std::size_t bit = 0; bit < 8 * wire::kHeaderBytes; ++bit) {
    Payload payload = good;
    payload[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    PayloadHeader header;
    bool const accepted = wire::read_header(payload, header).ok();

    // Flipping bit 0 of the number of pieces makes it 0, which read_header does see.
    bool const expected = is_callers(bit) && bit != 58 * 8;
    EXPECT_EQ(accepted, expected) << "byte " << bit / 8 << ", bit " << bit % 8;
  }
}

TEST(Wire, AFlippedNumberOfPiecesDoesNotFitTheTable) {
  Payload const good = payload_of({"some body"});
  for (std::size_t bit = 58 * 8; bit < 60 * 8; ++bit) {
    Payload payload = good;
    payload[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));

    EXPECT_EQ(code_of(payload), Code::corrupt_payload) << bit;
  }
}

TEST(Wire, AFailedSenderHasNoBody) {
  PayloadHeader header;
  header.status = static_cast<std::uint32_t>(Code::internal);

  EXPECT_EQ(code_of(payload_of({"body"}, header)), Code::corrupt_payload);
  EXPECT_EQ(code_of(payload_of({""}, header)), Code::ok);
}

TEST(Wire, LeavesTheHeaderAloneWhenItRejects) {
  PayloadHeader header;
  header.step = 77;

  EXPECT_FALSE(wire::read_header({}, header).ok());

  EXPECT_EQ(header.step, 77U);
}

TEST(Wire, TheChecksumIsXxh64AndNeverZero) {
  // Published values of XXH64 with seed 0.
  EXPECT_EQ(wire::checksum({}), 0xef46db3751d8e999U);
  EXPECT_EQ(wire::checksum(bytes_of("a")), 0xd24ec4f1a98c6e5bU);
}

TEST(Pieces, OneBodyBeginsBehindTheHeader) {
  Payload const payload = payload_of({"alone"});
  std::vector<std::string> texts;

  EXPECT_EQ(payload.size(), 64U + 5U);
  ASSERT_TRUE(read_all(payload, texts).ok());
  EXPECT_EQ(texts, std::vector<std::string>{"alone"});
}

TEST(Pieces, SeveralBodiesBeginAtMultiplesOfSixteenWithZerosBetween) {
  Payload const payload = payload_of({"first", "", "third one is a little longer"});
  std::vector<std::string> texts;

  // 64 header, 24 table, 8 zeros; 5 bytes at 96; nothing at 112; 28 bytes at 112.
  ASSERT_EQ(payload.size(), 112U + 28U);
  EXPECT_EQ(wire::load<std::uint64_t>(payload.data() + 64), 5U);
  EXPECT_EQ(wire::load<std::uint64_t>(payload.data() + 72), 0U);
  EXPECT_EQ(wire::load<std::uint64_t>(payload.data() + 80), 28U);
  for (std::size_t i : {88U, 95U, 101U, 111U}) EXPECT_EQ(payload[i], std::byte{0}) << i;
  ASSERT_TRUE(read_all(payload, texts).ok());
  EXPECT_EQ(texts, (std::vector<std::string>{"first", "", "third one is a little longer"}));
}

TEST(Pieces, ShorterBodiesThanTheirCapacityCloseTheGap) {
  Payload payload(wire::payload_capacity(std::array<std::size_t, 2>{100, 100}));
  wire::PieceWriter writer(payload, 2);
  std::byte* const first = writer.next(100).resize(3).data();
  writer.close();
  std::byte* const second = writer.next(100).resize(4).data();
  writer.close();

  EXPECT_EQ(first - payload.data(), 80);
  EXPECT_EQ(second - payload.data(), 96);
  EXPECT_EQ(writer.body_bytes(), 96U + 4U - 64U);
}

TEST(Pieces, ABodyRefusesMoreThanItsCapacity) {
  Payload payload(wire::payload_capacity(std::array<std::size_t, 1>{8}));
  wire::PieceWriter writer(payload, 1);
  Body const body = writer.next(8);

  EXPECT_EQ(body.capacity_bytes(), 8U);
  EXPECT_TRUE(body.resize(9).empty());
  EXPECT_EQ(body.resize(8).size(), 8U);
}

TEST(Pieces, AWriterNeverLeavesATooSmallPayload) {
  for (std::size_t size = 64; size < 112; ++size) {
    Payload payload(size);
    wire::PieceWriter writer(payload, 3);
    for (int i = 0; i < 3; ++i) {
      Body const body = writer.next(16);
      EXPECT_LE(body.data() + body.capacity_bytes(), payload.data() + size);
      writer.close();
    }
  }
}

TEST(Pieces, CapacitiesAddUpWithoutOverflow) {
  std::size_t const most = std::numeric_limits<std::size_t>::max();

  EXPECT_EQ(wire::payload_capacity(std::array<std::size_t, 1>{most}), most);
  EXPECT_EQ(wire::payload_capacity(std::array<std::size_t, 3>{most / 2, most / 2, most / 2}), most);
  EXPECT_EQ(wire::payload_capacity(std::array<std::size_t, 1>{100}), 164U);
  EXPECT_EQ(wire::payload_capacity(std::array<std::size_t, 2>{1, 1}), 64U + 16U + 16U + 1U);
}

TEST(Pieces, EveryDamagedTableIsRejected) {
  Payload const good =
      payload_of({std::string(16, 'a'), std::string(32, 'b'), std::string(16, 'c')});
  std::size_t const table_end = 64 + 3 * 8;
  for (std::size_t bit = 64 * 8; bit < table_end * 8; ++bit) {
    Payload payload = good;
    payload[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));

    EXPECT_EQ(code_of(payload), Code::corrupt_payload) << "byte " << bit / 8 << ", bit " << bit % 8;
  }
}

// The zeros behind a body cannot be told from zeros in it: whether a length is right to the byte is
// known to the codec and to the checksum.
TEST(Pieces, ALengthThatEndsInTheGapIsLeftToTheCodec) {
  Payload payload = payload_of({"first", "second"});
  wire::store(payload.data() + 64, std::uint64_t{7});
  std::vector<std::string> texts;

  ASSERT_TRUE(read_all(payload, texts).ok());
  EXPECT_EQ(texts.front(), std::string("first\0\0", 7));
  wire::store(payload.data() + 64, std::uint64_t{4});
  EXPECT_EQ(code_of(payload), Code::corrupt_payload);
}

TEST(Pieces, EveryDamagedGapIsRejected) {
  Payload const good = payload_of({"first", "second", "third"});
  std::set<std::size_t> bodies;
  for (std::size_t const begin : {96U, 112U, 128U}) {
    for (std::size_t i = begin; i < begin + (begin == 112 ? 6 : 5); ++i) bodies.insert(i);
  }
  for (std::size_t i = 88; i < good.size(); ++i) {
    Payload payload = good;
    payload[i] ^= std::byte{0x10};

    EXPECT_EQ(code_of(payload), bodies.contains(i) ? Code::ok : Code::corrupt_payload) << i;
  }
}

TEST(Pieces, HugeLengthsDoNotWrapAround) {
  Payload payload = payload_of({"first", "second"});
  for (std::uint64_t const length :
       {std::numeric_limits<std::uint64_t>::max(), std::uint64_t{1} << 63,
        std::numeric_limits<std::uint64_t>::max() - 79}) {
    wire::store(payload.data() + 64, length);

    EXPECT_EQ(code_of(payload), Code::corrupt_payload) << length;
  }
}

TEST(Pieces, ATableLongerThanThePayloadIsRejected) {
  PayloadHeader header;
  header.num_pieces = 65535;
  header.body_bytes = 16;
  Payload payload(80);
  wire::write_header(header, payload);

  EXPECT_EQ(code_of(payload), Code::corrupt_payload);
}

TEST(Pieces, ReadingAnotherNumberOfPiecesIsAnError) {
  Payload const payload = payload_of({"first", "second"});
  PayloadHeader header;
  ASSERT_TRUE(wire::read_header(payload, header).ok());
  wire::PieceReader reader(payload, header);
  ConstBytes body;
  ASSERT_TRUE(reader.next(body).ok());

  EXPECT_EQ(reader.finish().code(), Code::corrupt_payload);
  ASSERT_TRUE(reader.next(body).ok());
  EXPECT_TRUE(reader.finish().ok());
  EXPECT_EQ(reader.next(body).code(), Code::corrupt_payload);
}

TEST(Pieces, AReaderDoesNotTrustAHeaderThatNobodyChecked) {
  Payload const payload = payload_of({"first", "second"});
  PayloadHeader header;
  ASSERT_TRUE(wire::read_header(payload, header).ok());
  ConstBytes body;

  wire::PieceReader shorter(ConstBytes(payload).first(70), header);
  EXPECT_EQ(shorter.next(body).code(), Code::corrupt_payload);
  wire::PieceReader tiny(ConstBytes(payload).first(3), header);
  EXPECT_EQ(tiny.next(body).code(), Code::corrupt_payload);
  header.num_pieces = 0;
  wire::PieceReader none(payload, header);
  EXPECT_EQ(none.next(body).code(), Code::corrupt_payload);
  EXPECT_EQ(none.finish().code(), Code::corrupt_payload);
}

}  // namespace
}  // namespace gradsieve
