// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/index_forms.hpp"
#include "kernels/many_sparse_ops.hpp"
#include "tests/equivalence/cuda/cuda_cases.hpp"

namespace gradsieve::testing {
namespace {

using kernels::HeldRule;
using kernels::IndexForm;
using kernels::SparseSegment;

struct SparseManyCase {
  HeldRule rule = HeldRule::topk;
  DType dtype = DType::f32;
  std::uint64_t granularity = 1;
  IndexForm form = IndexForm::bitmap;
  bool has_header = true;
  bool is_plain = true;   ///< the values lie in the bodies
  bool is_full = true;    ///< every selection fills its room, as long as it can
  bool in_place = false;  ///< the residual
  bool has_residual = true;

  [[nodiscard]] std::string text() const {
    return "rule " + std::to_string(static_cast<int>(rule)) + ", " +
           std::string(dtype_name(dtype)) + ", granularity " + std::to_string(granularity) +
           ", form " + std::to_string(static_cast<int>(form)) +
           (is_plain ? ", values in bodies" : "") + (is_full ? ", full" : "") +
           (in_place ? ", in place" : "") + (has_residual ? "" : ", no residual");
  }
};

/// A model of small tensors in arrays with gaps, twice: in host memory for ref and, at the same
/// places, in device memory for cuda.
class SparseTensors {
 public:
  static constexpr std::size_t kCounts[] = {1,    2,    5,    33,   128,   1000, 2047,
                                            2048, 2049, 4097, 9001, 16383, 16384};

  SparseTensors(CudaStep& step, SparseManyCase const& problem)
      : step_(&step),
        case_(problem),
        segments_(lay()),
        gradient_(make_gradients()),
        in_(make_gradient(Shape::heavy_tailed, num_residuals_, 7)),
        out_(in_),
        indices_(num_indices_, 7),
        values_(problem.is_plain ? 0 : num_values_, 7.0F),
        sums_(make_gradient(Shape::gaussian, std::max(num_residuals_, num_gradients_), 8)),
        bodies_(num_body_bytes_, std::byte{0}),
        device_segments_(step, segments_),
        device_words_(step, words_),
        device_gradient_(step, gradient_),
        device_in_(step, in_),
        device_out_(step, out_),
        device_indices_(step, indices_),
        device_values_(step, values_),
        device_sums_(step, sums_),
        device_bodies_(step, bodies_),
        memory_(std::size_t{1} << 20),
        workspace_(std::span(memory_)) {}

  /// On both.
  void select() {
    ExecContext const ref = host_context();
    ExecContext const ctx = device_context();
    step_->set_words({.kept_elements = 5, .overflowed_elements = 3});
    host_words_ = {.kept_elements = 5, .overflowed_elements = 3};
    auto const arrays = [&](auto const& gradient, float* in, float* out, std::byte* bodies) {
      return kernels::EncodedArrays{.gradient = {gradient, num_gradients_, case_.dtype},
                                    .residual_in = !case_.has_residual ? nullptr
                                                   : case_.in_place    ? out
                                                                       : in,
                                    .residual_out = out,
                                    .carry = 0.7F,
                                    .bodies = bodies};
    };
    auto const flags =
        kernels::ref::select_many(ref, segments_, case_.rule,
                                  arrays(gradient_.data(), in_.data(), out_.data(), bodies_.data()),
                                  {indices_.data(), values_in(bodies_.data(), values_.data())});
    raise_flags(ref, flags);
    ASSERT_EQ(kernels::cuda::select_many(ctx, device_segments_.span(), case_.rule,
                                         arrays(device_gradient_.data(), device_in_.data(),
                                                device_out_.data(), device_bodies_.data()),
                                         {device_indices_.data(),
                                          values_in(device_bodies_.data(), device_values_.data())}),
              0U);
  }
  /// On both, of what select() made.
  void add(bool as_residual, std::uint32_t const* only_if = nullptr) {
    ExecContext const ref = host_context();
    ExecContext ctx = device_context();
    ctx.only_if = only_if;
    ASSERT_TRUE(kernels::ref::sparse_add_many(ref, segments_,
                                              {bodies_.data(), sums_.data(), as_residual, 0.3F},
                                              values_in(bodies_.data(), values_.data())));
    ASSERT_TRUE(kernels::cuda::sparse_add_many(
        ctx, device_segments_.span(),
        {device_bodies_.data(), device_sums_.data(), as_residual, 0.3F},
        values_in(device_bodies_.data(), device_values_.data())));
  }
  void put_back() {
    std::vector<float> const lost =
        make_gradient(Shape::gaussian, std::max(num_values_, num_body_bytes_ / 4), 9);
    OnDevice<float> const device_lost(*step_, lost);
    kernels::ref::put_back_many({}, segments_, indices_.data(), lost.data(), out_.data());
    kernels::cuda::put_back_many(step_->context(), device_segments_.span(), device_indices_.data(),
                                 device_lost.data(), device_out_.data());
    step_->wait();
  }
  /// What ref and cuda say of these bodies.
  [[nodiscard]] bool refuses(std::vector<std::byte> const& bodies) {
    OnDevice<std::byte> const damaged(*step_, bodies);
    step_->set_words({});
    std::vector<float> sums = sums_;
    bool const is_well = kernels::ref::sparse_add_many(host_context(), segments_,
                                                       {bodies.data(), sums.data(), false, 0.3F},
                                                       values_in(bodies.data(), values_.data()));
    kernels::cuda::sparse_add_many(device_context(), device_segments_.span(),
                                   {damaged.data(), device_sums_.data(), false, 0.3F},
                                   values_in(damaged.data(), device_values_.data()));
    EXPECT_EQ(step_->read_words().flags, is_well ? 0U : kStepCorrupt);
    EXPECT_TRUE(device_sums_.intact());
    return !is_well;
  }

  /// Gaps included.
  void expect_same() const {
    ASSERT_TRUE(same_bytes(out_, device_out_.read()));
    ASSERT_TRUE(same_bytes(indices_, device_indices_.read()));
    ASSERT_TRUE(same_bytes(values_, device_values_.read()));
    ASSERT_TRUE(same_bytes(bodies_, device_bodies_.read()));
    ASSERT_TRUE(same_bytes(sums_, device_sums_.read()));
    ASSERT_TRUE(device_out_.intact() && device_indices_.intact() && device_values_.intact() &&
                device_bodies_.intact() && device_sums_.intact());
    StepWords const words = step_->read_words();
    ASSERT_EQ(words.flags, host_words_.flags);
    ASSERT_EQ(words.kept_elements, host_words_.kept_elements);
    ASSERT_EQ(words.overflowed_elements, host_words_.overflowed_elements);
  }
  [[nodiscard]] std::vector<SparseSegment> const& segments() const { return segments_; }
  [[nodiscard]] std::vector<std::byte> const& bodies() const { return bodies_; }
  [[nodiscard]] StepWords const& words() const { return host_words_; }

 private:
  [[nodiscard]] ExecContext host_context() {
    ExecContext ctx;
    ctx.words = &host_words_;
    ctx.workspace = &workspace_;
    ctx.piece_word = words_.data();
    return ctx;
  }
  [[nodiscard]] ExecContext device_context() {
    ExecContext ctx = step_->context();
    ctx.piece_word = device_words_.data();
    return ctx;
  }
  [[nodiscard]] float* values_in(std::byte* bodies, float* apart) const {
    return case_.is_plain ? reinterpret_cast<float*>(bodies) : apart;
  }
  [[nodiscard]] float const* values_in(std::byte const* bodies, float const* apart) const {
    return case_.is_plain ? reinterpret_cast<float const*>(bodies) : apart;
  }
  [[nodiscard]] bool goes_by_blocks() const {
    return case_.rule == HeldRule::block_l2 || case_.rule == HeldRule::block_linf;
  }
  std::vector<SparseSegment> lay() {
    std::vector<SparseSegment> segments;
    for (std::size_t const n : kCounts) {
      std::uint64_t const granularity = case_.granularity;
      std::uint64_t const units = (n + granularity - 1) / granularity;
      if (goes_by_blocks() && units > kernels::kMostHeldBlocks) continue;
      std::uint64_t const draw = mix64(n);
      std::uint64_t const percent = draw % 5 == 0 ? 100 : draw % 9;
      std::uint64_t const k = std::clamp<std::uint64_t>(units * percent / 100, 1, units);
      // Of a density ramp the room is larger than what is chosen.
      std::uint64_t const capacity =
          case_.is_full ? k : std::min<std::uint64_t>(units, k + k / 2 + 3);
      std::uint64_t const num_values = std::min<std::uint64_t>(capacity * granularity, n);
      bool const fills_room = case_.is_full && case_.rule != HeldRule::threshold;
      std::uint64_t const universe = fills_room ? units : units + capacity;
      std::size_t const index_bytes = kernels::index_bytes(case_.form, universe, capacity);
      // Every third lies where quads do.
      bool const is_odd = draw % 3 != 0;
      num_gradients_ = (num_gradients_ + 3) / 4 * 4 + (is_odd ? draw >> 8 & 7 : 0);
      num_residuals_ = (num_residuals_ + 3) / 4 * 4 + (is_odd ? draw >> 16 & 7 : 0);
      std::size_t const values_bytes = case_.is_plain ? num_values * 4 : num_values * 2 + 1;
      std::size_t const header_bytes = case_.has_header ? 32 : 0;
      std::size_t const values_end = num_body_bytes_ + header_bytes + values_bytes;
      std::size_t const index_begin = index_bytes == 0 ? values_end : wire::aligned(values_end);
      segments.push_back(
          {.in_gradient = num_gradients_,
           .in_residual = num_residuals_,
           .num_elements = n,
           .granularity = granularity,
           .in_indices = num_indices_,
           .in_values = case_.is_plain ? (num_body_bytes_ + header_bytes) / 4 : num_values_,
           .num_values = num_values,
           .body_begin = num_body_bytes_,
           .header_bytes = header_bytes,
           .values_end = values_end,
           .index_begin = index_begin,
           .universe = universe,
           .word = words_.size() + 1,
           .key = {static_cast<std::uint32_t>(draw), 11},
           .header = {capacity, values_bytes, index_bytes,
                      static_cast<std::uint64_t>(case_.form)}});
      words_.push_back(0);  // of nobody
      words_.push_back(case_.rule == HeldRule::threshold ? std::bit_cast<std::uint32_t>(1.5F)
                       : case_.rule == HeldRule::randomk ? 77
                                                         : k);
      num_gradients_ += n;
      num_residuals_ += n;
      num_indices_ += static_cast<std::size_t>(capacity) + draw % 3;
      num_values_ += static_cast<std::size_t>(num_values) + draw % 5;
      num_body_bytes_ = wire::aligned(index_begin + index_bytes);
    }
    return segments;
  }
  [[nodiscard]] std::vector<std::byte> make_gradients() const {
    std::vector<float> all(num_gradients_, 9.0F);
    std::size_t const turn = static_cast<std::size_t>(case_.dtype) * 5 + (case_.is_full ? 0 : 2) +
                             (case_.form == IndexForm::bitmap ? 0 : 7) + (case_.is_plain ? 0 : 3);
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      Shape const shape = kAllShapes[(i + turn) % kAllShapes.size()];
      std::ranges::copy(
          make_gradient(shape, static_cast<std::size_t>(segments_[i].num_elements), i),
          all.begin() + static_cast<std::ptrdiff_t>(segments_[i].in_gradient));
    }
    return stored_as(case_.dtype, all);
  }

  CudaStep* step_;
  SparseManyCase case_;
  std::size_t num_gradients_ = 0;
  std::size_t num_residuals_ = 0;
  std::size_t num_indices_ = 0;
  std::size_t num_values_ = 0;
  std::size_t num_body_bytes_ = 0;
  std::vector<std::uint64_t> words_;
  std::vector<SparseSegment> segments_;
  std::vector<std::byte> gradient_;
  std::vector<float> in_;
  std::vector<float> out_;
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;
  std::vector<float> sums_;
  std::vector<std::byte> bodies_;
  OnDevice<SparseSegment> device_segments_;
  OnDevice<std::uint64_t> device_words_;
  OnDevice<std::byte> device_gradient_;
  OnDevice<float> device_in_;
  OnDevice<float> device_out_;
  OnDevice<std::uint32_t> device_indices_;
  OnDevice<float> device_values_;
  OnDevice<float> device_sums_;
  OnDevice<std::byte> device_bodies_;
  StepWords host_words_;
  std::vector<std::byte> memory_;
  Workspace workspace_;
};

/// The quick subset has two of them.
void expect_equivalence(SparseManyCase problem) {
  std::size_t number = static_cast<std::size_t>(problem.rule) + problem.granularity;
  bool const is_drawn = problem.rule == HeldRule::randomk;
  bool any_overflow = false;
  for (DType const dtype : kGradientTypes) {
    for (IndexForm const form : {IndexForm::bitmap, IndexForm::elias_fano}) {
      for (bool const is_full : {true, false}) {
        if (is_drawn && is_full != (form == IndexForm::bitmap)) continue;
        if (is_quick_subset() && (dtype != DType::f32 || (form == IndexForm::bitmap) != is_full))
          continue;
        ++number;
        problem.dtype = dtype;
        problem.form = is_drawn ? IndexForm::shared : form;
        problem.is_full = is_full || is_drawn;
        problem.is_plain = number % 2 == 0;
        problem.has_header = !is_drawn || !problem.is_plain;
        problem.in_place = number % 3 == 0;
        problem.has_residual = number % 4 != 3;
        SCOPED_TRACE(problem.text());
        CudaStep step;
        SparseTensors tensors(step, problem);

        tensors.select();

        ASSERT_TRUE(went_well(step));
        tensors.expect_same();
        if (::testing::Test::HasFatalFailure()) return;
        any_overflow = any_overflow || tensors.words().overflowed_elements > 3;
        for (bool const as_residual : {false, true}) {
          tensors.add(as_residual);
          ASSERT_TRUE(went_well(step));
          tensors.expect_same();
          if (::testing::Test::HasFatalFailure()) return;
        }
        tensors.put_back();
        ASSERT_TRUE(went_well(step));
        tensors.expect_same();
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
  EXPECT_EQ(any_overflow, problem.rule == HeldRule::threshold)
      << "what there is no room for is not met";
}

TEST(CudaSelectMany, TopkIsEquivalentToRef) { expect_equivalence({.rule = HeldRule::topk}); }
TEST(CudaSelectMany, ThresholdIsEquivalentToRef) {
  expect_equivalence({.rule = HeldRule::threshold});
}
TEST(CudaSelectMany, RandomkIsEquivalentToRef) { expect_equivalence({.rule = HeldRule::randomk}); }
TEST(CudaSelectMany, BlockTopkIsEquivalentToRef) {
  for (std::uint64_t const granularity : {1U, 8U, 100U, 256U, 4096U}) {
    HeldRule const rule = granularity == 100 ? HeldRule::block_linf : HeldRule::block_l2;
    if (is_quick_subset() && granularity != 100) continue;
    expect_equivalence({.rule = rule, .granularity = granularity});
    if (HasFatalFailure()) return;
  }
}

TEST(CudaSparseAddMany, MayBeLeftOut) {
  CudaStep step;
  SparseTensors tensors(step, {.form = IndexForm::elias_fano});
  tensors.select();
  OnDevice<std::uint32_t> const only_if(step, std::vector<std::uint32_t>{1});
  tensors.add(false, only_if.data());
  ASSERT_TRUE(went_well(step));
  tensors.expect_same();
  OnDevice<std::uint32_t> const not_at_all(step, std::vector<std::uint32_t>{0});
  ExecContext ctx = step.context();
  ctx.only_if = not_at_all.data();

  // Neither segments nor bodies are looked at.
  std::vector<SparseSegment> const none(3);
  OnDevice<SparseSegment> const segments(step, none);
  EXPECT_TRUE(kernels::cuda::sparse_add_many(ctx, segments.span(), {}, nullptr));
  ASSERT_TRUE(went_well(step));
}

// A word of the header, a byte of padding, a bit of the indices that is one too many, one too few,
// beyond the universe, below the one before it, or of no index.
TEST(CudaSparseAddMany, FindsWhatRefRefuses) {
  for (IndexForm const form : {IndexForm::bitmap, IndexForm::elias_fano}) {
    CudaStep step;
    bool const is_bitmap = form == IndexForm::bitmap;
    SparseTensors tensors(step, {.rule = is_bitmap ? HeldRule::topk : HeldRule::block_l2,
                                 .granularity = is_bitmap ? 1U : 16U,
                                 .form = form,
                                 .is_plain = false,
                                 .is_full = false});
    tensors.select();
    ASSERT_TRUE(went_well(step));
    std::vector<std::byte> const sound = tensors.bodies();
    EXPECT_FALSE(tensors.refuses(sound));
    for (std::size_t const number :
         {std::size_t{0}, std::size_t{4}, std::size(tensors.kCounts) - 1}) {
      SparseSegment const& segment = tensors.segments()[number];
      for (std::size_t word = 0; word < 4; ++word) {
        std::vector<std::byte> bodies = sound;
        bodies[segment.body_begin + 8 * word + 1] ^= std::byte{4};
        EXPECT_TRUE(tensors.refuses(bodies)) << number << ", header word " << word;
      }
      std::vector<std::byte> bodies = sound;
      bodies[segment.index_begin - 1] = std::byte{0x80};
      EXPECT_EQ(tensors.refuses(bodies), segment.values_end != segment.index_begin) << number;
      // Any one bit of the index section: ref says which of them matter.
      std::size_t num_refused = 0;
      std::size_t const num_bits = static_cast<std::size_t>(segment.index_bytes()) * 8;
      std::size_t const stride = is_quick_subset() ? num_bits / 5 + 1 : num_bits / 23 + 1;
      for (std::size_t bit = 0; bit < num_bits; bit += stride) {
        bodies = sound;
        bodies[segment.index_begin + bit / 8] ^= std::byte{1} << bit % 8;
        num_refused += tensors.refuses(bodies) ? 1 : 0;
      }
      bodies = sound;
      bodies[segment.index_begin + num_bits / 8 - 1] ^= std::byte{0x80};
      num_refused += tensors.refuses(bodies) ? 1 : 0;
      EXPECT_GT(num_refused, 0U) << number;
    }
  }
}

TEST(CudaManySparse, TakesNoTensors) {
  CudaStep step;
  EXPECT_EQ(kernels::cuda::select_many(step.context(), {}, HeldRule::topk, {}, {}), 0U);
  kernels::cuda::put_back_many(step.context(), {}, nullptr, nullptr, nullptr);
  EXPECT_TRUE(kernels::cuda::sparse_add_many(step.context(), {}, {}, nullptr));
  EXPECT_TRUE(went_well(step));
}

}  // namespace
}  // namespace gradsieve::testing
