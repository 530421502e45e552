// SPDX-License-Identifier: Apache-2.0
// The bytes on the wire against payloads that a script of their own made (make_golden.py), for
// every backend: our encoders write these bytes, our decoders read these values, damage is found.
#include <gtest/gtest.h>

#include "gradsieve/registry.hpp"
#include "gradsieve/wire.hpp"

#include "tests/golden/golden_index.hpp"
#include "tests/support/guarded.hpp"
#include "tests/support/test_slots.hpp"

namespace gradsieve::testing {
namespace {

using ByteVector = std::vector<std::byte>;

struct GoldenCase {
  Json entry;
  Backend backend;
};
void PrintTo(GoldenCase const& c, std::ostream* out) { *out << c.entry["spec"].get<std::string>(); }

std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> cases;
  for (Json const& entry : golden_index()["cases"]) {
    for (Backend const backend : {Backend::ref, Backend::cpu}) cases.push_back({entry, backend});
  }
  return cases;
}

class GoldenTest : public ::testing::TestWithParam<GoldenCase> {
 protected:
  GoldenTest()
      : entry_(GetParam().entry),
        chain_(make_chain(entry_["spec"].get<std::string>())),
        dtype_(entry_["dtype"] == "f64" ? DType::f64 : DType::f32),
        round_(entry_["round"].get<int>()),
        good_(read_golden(entry_["file"].get<std::string>())) {
    words_.step = entry_["step"].get<std::uint64_t>();
    for (Json const& piece : entry_["pieces"]) {
      TensorInfo info;
      info.id = tensor_id(piece["tensor"].get<std::string>());
      info.offset_elements = piece["offset"].get<std::uint64_t>();
      info.num_elements = piece["input"].get<std::string>().size() / (2 * size_of(dtype_));
      info.dtype = dtype_;
      pieces_.push_back(info);
    }
  }

  [[nodiscard]] Compressor const& compressor() const { return *chain_.compressor; }
  [[nodiscard]] bool has_header() const { return entry_["travels"] == "payload"; }

  ExecContext context(TensorInfo const& piece) {
    scratch_ = std::make_unique<Guarded<std::byte>>(compressor().workspace_bytes(piece));
    workspace_ = Workspace(scratch_->span());
    return {.backend = GetParam().backend,
            .workspace = &workspace_,
            .words = &words_,
            .seed = word_from_hex(golden_index()["seed"]),
            .rank = golden_index()["rank"].get<int>(),
            .world_size = 4};
  }

  [[nodiscard]] std::size_t num_elements() const {
    std::size_t total = 0;
    for (TensorInfo const& piece : pieces_) total += piece.num_elements;
    return total;
  }

  /// encode into a body of a piece, from the input of the index.
  Status encode(std::size_t index, Body const& body) {
    TensorInfo const& piece = pieces_[index];
    ByteVector input = from_hex(entry_["pieces"][index]["input"].get<std::string>());
    TestSlots slots(compressor(), piece);
    return compressor().encode(context(piece), round_, piece,
                               ConstTensorView(input.data(), piece.num_elements, dtype_),
                               slots.view(), body);
  }

  ByteVector encode_payload() {
    std::vector<std::size_t> capacities;
    for (TensorInfo const& piece : pieces_) {
      capacities.push_back(compressor().round(round_, piece).capacity_bytes);
    }
    ByteVector bytes(wire::payload_capacity(capacities), std::byte{0x5A});
    wire::PieceWriter writer(bytes, pieces_.size());
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      Status const status = encode(i, writer.next(capacities[i]));
      EXPECT_TRUE(status.ok()) << status.message();
      writer.close();
    }
    PayloadHeader header;
    header.codec = entry_["codec"].get<std::uint8_t>();
    header.rank = golden_index()["rank"].get<std::uint32_t>();
    header.step = words_.step;
    header.plan_hash = word_from_hex(entry_["plan_hash"]);
    header.num_elements = num_elements();
    header.body_bytes = writer.body_bytes();
    header.round = static_cast<std::uint16_t>(round_);
    header.num_pieces = static_cast<std::uint16_t>(pieces_.size());
    header.sequence = entry_["sequence"].get<std::uint32_t>();
    bytes.resize(wire::kHeaderBytes + writer.body_bytes());
    if (entry_["checksum"].get<bool>()) {
      header.checksum = wire::checksum(ConstBytes(bytes).subspan(wire::kHeaderBytes));
    }
    wire::write_header(header, bytes);
    return bytes;
  }

  /// What any receiver does: header, checksum, piece table, bodies; adds with `weight`.
  Status decode(ByteVector const& bytes, double weight, Bytes accumulator) {
    std::vector<ConstBytes> bodies;
    if (has_header()) {
      PayloadHeader header;
      GRADSIEVE_RETURN_IF_ERROR(wire::read_header(bytes, header));
      ConstBytes const behind = ConstBytes(bytes).subspan(wire::kHeaderBytes);
      if (header.checksum != 0 && header.checksum != wire::checksum(behind)) {
        return {Code::corrupt_payload, "checksum"};
      }
      wire::PieceReader reader(bytes, header);
      for (unsigned i = 0; i < header.num_pieces; ++i) {
        ConstBytes body;
        GRADSIEVE_RETURN_IF_ERROR(reader.next(body));
        bodies.push_back(body);
      }
      GRADSIEVE_RETURN_IF_ERROR(reader.finish());
      if (bodies.size() != pieces_.size()) return {Code::corrupt_payload, "pieces"};
    } else {
      bodies.emplace_back(bytes);
    }
    std::byte* at = accumulator.data();
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      TensorInfo const& piece = pieces_[i];
      TestSlots slots(compressor(), piece);
      GRADSIEVE_RETURN_IF_ERROR(
          compressor().decode_add(context(piece), round_, piece, bodies[i], weight, slots.view(),
                                  TensorView(at, piece.num_elements, dtype_)));
      at += piece.num_elements * size_of(dtype_);
    }
    return {};
  }

  template <typename T>
  void expect_decodes_with_weight(T weight) {
    std::vector<T> decoded;
    for (Json const& piece : entry_["pieces"]) {
      auto const values = numbers_from_hex<T>(piece["decoded"].get<std::string>());
      decoded.insert(decoded.end(), values.begin(), values.end());
    }
    Guarded<T> accumulator(decoded.size());
    std::vector<T> expected(decoded.size());
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      accumulator.span()[i] = static_cast<T>(1.5) + static_cast<T>(i);
      T const product = weight * decoded[i];
      expected[i] = accumulator.span()[i] + product;
    }

    Status const status =
        decode(good_, static_cast<double>(weight), std::as_writable_bytes(accumulator.span()));

    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(accumulator.intact());
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      ASSERT_EQ(accumulator.span()[i], expected[i]) << "element " << i;
    }
  }

  Json const& entry_;
  Chain chain_;
  DType dtype_;
  int round_;
  ByteVector good_;
  std::vector<TensorInfo> pieces_;
  std::unique_ptr<Guarded<std::byte>> scratch_;
  Workspace workspace_;
  StepWords words_;
};

TEST_P(GoldenTest, EncodesToTheseBytes) {
  if (!entry_["encodes"].get<bool>()) return;  // zstd's frames are not ours to pin
  ByteVector bytes;
  if (has_header()) {
    bytes = encode_payload();
  } else {
    std::uint64_t num_bytes = 0;
    bytes.resize(compressor().round(round_, pieces_[0]).capacity_bytes);
    Status const status = encode(0, Body(bytes, &num_bytes));
    ASSERT_TRUE(status.ok()) << status.message();
    bytes.resize(num_bytes);
  }

  ASSERT_EQ(bytes.size(), good_.size());
  // From behind, so that a difference is not first seen in the checksum.
  for (std::size_t i = good_.size(); i-- > 0;) {
    ASSERT_EQ(std::to_integer<int>(bytes[i]), std::to_integer<int>(good_[i])) << "byte " << i;
  }
}

TEST_P(GoldenTest, DecodesToTheseValues) {
  for (double const weight : {1.0, 0.375, -3.0}) {
    SCOPED_TRACE(weight);
    dtype_ == DType::f64 ? expect_decodes_with_weight(weight)
                         : expect_decodes_with_weight(static_cast<float>(weight));
  }
}

TEST_P(GoldenTest, FindsEveryDamageBeforeItStores) {
  ByteVector const before = [&] {
    ByteVector bytes(num_elements() * size_of(dtype_));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 101 + 1);
    return bytes;
  }();
  for (Json const& damage : entry_["damaged"]) {
    SCOPED_TRACE(damage["name"].get<std::string>());
    Guarded<std::byte> accumulator(before);

    Status const status = decode(damaged_bytes(good_, damage), 1.0, accumulator.span());

    EXPECT_EQ(code_name(status.code()), damage["code"].get<std::string>()) << status.message();
    EXPECT_TRUE(accumulator.intact());
    EXPECT_EQ(accumulator.copy(), before) << "stored before it had checked";
  }
}

INSTANTIATE_TEST_SUITE_P(Wire, GoldenTest, ::testing::ValuesIn(golden_cases()), [](auto const& c) {
  return c.param.entry["name"].template get<std::string>() +
         (c.param.backend == Backend::ref ? "_ref" : "_cpu");
});

TEST(GoldenIndex, HoldsEveryCodecGoodAndDamaged) {
  std::map<int, std::size_t> damages;
  for (Json const& entry : golden_index()["cases"]) {
    damages[entry["codec"].get<int>()] += entry["damaged"].size();
  }
  for (int const codec : {1, 2, 3, 4, 5, 6, 16, 24}) {
    EXPECT_GE(damages[codec], 5u) << "codec " << codec;
  }
}

}  // namespace
}  // namespace gradsieve::testing
