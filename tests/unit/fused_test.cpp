// SPDX-License-Identifier: Apache-2.0
// The three-pass form defines what encode_with_residual does; whoever fuses it gives the same bits.
#include <bit>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/support/gradient_shapes.hpp"
#include "tests/support/guarded.hpp"
#include "tests/support/simulated_ranks.hpp"

namespace gradsieve::testing {
namespace {

/// The plain parts of another compressor, with the inherited encode_with_residual.
class ThreePass final : public Compressor {
 public:
  explicit ThreePass(std::shared_ptr<Compressor const> plain) : plain_(std::move(plain)) {}

  [[nodiscard]] Claims claims() const noexcept override { return plain_->claims(); }
  [[nodiscard]] RoundInfo round(int index, TensorInfo const& piece) const noexcept override {
    return plain_->round(index, piece);
  }
  [[nodiscard]] std::size_t sum_bytes(int index, TensorInfo const& piece,
                                      std::uint64_t step) const noexcept override {
    return plain_->sum_bytes(index, piece, step);
  }
  [[nodiscard]] std::size_t workspace_bytes(TensorInfo const& piece) const noexcept override {
    return Compressor::workspace_bytes(piece) + plain_->workspace_bytes(piece);
  }

 private:
  Status do_encode(ExecContext const& ctx, int round, TensorInfo const& piece,
                   std::span<float const> corrected, StateView state,
                   Body body) const noexcept override {
    return plain_->encode(ctx, round, piece, corrected, state, body);
  }
  Status do_decode_add(ExecContext const& ctx, int round, TensorInfo const& piece, ConstBytes body,
                       float weight, StateView state,
                       std::span<float> accumulator) const noexcept override {
    return plain_->decode_add(ctx, round, piece, body, static_cast<double>(weight), state,
                              TensorView(accumulator));
  }

  std::shared_ptr<Compressor const> plain_;
};

struct Encoded {
  ByteVector body;
  Floats residual;
  std::uint32_t flags = 0;
};

Encoded encode(Compressor const& compressor, Backend backend, Floats const& gradient,
               Floats const& before, float carry) {
  TensorInfo const piece = whole_tensor("w", gradient.size());
  Guarded<std::byte> memory(compressor.round(0, piece).capacity_bytes);
  Guarded<std::byte> scratch(compressor.workspace_bytes(piece));
  Guarded<float> residual(gradient.size());
  Workspace workspace(scratch.span());
  StepWords words{.step = 7};
  std::uint64_t num_bytes = 0;

  Status const status = compressor.encode_with_residual(
      {.backend = backend, .workspace = &workspace, .words = &words, .seed = 3}, 0, piece,
      std::span<float const>(gradient), {.in = before, .out = residual.span(), .carry = carry}, {},
      Body(memory.span(), &num_bytes));

  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(memory.intact() && scratch.intact() && residual.intact());
  EXPECT_EQ(workspace.mark(), 0U) << "not all of the workspace was given back";
  auto const written = memory.span().first(static_cast<std::size_t>(num_bytes));
  return {{written.begin(), written.end()}, residual.copy(), words.flags};
}

class FusedTest : public ::testing::TestWithParam<char const*> {};

TEST_P(FusedTest, EqualsCompensateEncodeRetain) {
  std::shared_ptr<Compressor const> const fused = make_chain(GetParam()).compressor;
  ThreePass const three_pass(fused);
  for (std::size_t const count :
       {0U, 1U, 2U, 7U, 8U, 9U, 31U, 33U, 255U, 257U, 1025U, 4099U, 70000U}) {
    for (Shape const shape : kAllShapes) {
      for (Backend const backend : {Backend::ref, Backend::cpu}) {
        SCOPED_TRACE(std::to_string(count) + " elements, " + std::string(shape_name(shape)) +
                     (backend == Backend::ref ? ", ref" : ", cpu"));
        if (count > 5000 && backend == Backend::ref) continue;
        Floats const gradient = make_gradient(shape, count, 1);
        Floats const before = make_gradient(Shape::heavy_tailed, count, 2);

        for (bool const is_first : {false, true}) {
          Floats const residual = is_first ? Floats{} : before;
          Encoded const a = encode(*fused, backend, gradient, residual, 0.75F);
          Encoded const b = encode(three_pass, backend, gradient, residual, 0.75F);

          ASSERT_EQ(a.body, b.body);
          ASSERT_EQ(a.flags & kStepNonFinite, b.flags & kStepNonFinite);
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(std::bit_cast<std::uint32_t>(a.residual[i]),
                      std::bit_cast<std::uint32_t>(b.residual[i]))
                << "element " << i << ": " << a.residual[i] << " fused, " << b.residual[i];
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    OneRound, FusedTest,
    ::testing::Values("none", "bf16", "bf16(stochastic)", "fp16", "int8", "int8(block=7)",
                      "int8(rounding=stochastic)", "int4", "int4(block=6, rounding=stochastic)",
                      "sign", "sign(block=8)", "none | zstd", "sign | zstd", "topk(density=0.1)",
                      "topk(density=1)", "topk(density=0.1) | bf16 | index(bitmap)",
                      "topk(density=0.1) | int8(block=8)",
                      "topk(density=0.1) | int4(block=8, rounding=stochastic) | zstd",
                      "topk(density=0.3) | sign(block=16)", "threshold(value=0.5, max_density=0.2)",
                      "threshold(value=0.5) | int8", "blocktopk(density=0.2, block=16)",
                      "blocktopk(density=0.2, block=16, norm=linf) | int8(block=32)",
                      "randomk(density=0.1)", "randomk(density=0.1) | int8",
                      "randomk(density=0.1) | none | zstd",
                      "randomk(density=0.1) ; feedback=residual",
                      "randomk(density=0.1) | sign ; feedback=residual"),
    [](auto const& spec) {
      std::string name = std::to_string(spec.index) + "_";
      for (char const c : std::string(spec.param)) {
        name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      }
      return name;
    });

}  // namespace
}  // namespace gradsieve::testing
