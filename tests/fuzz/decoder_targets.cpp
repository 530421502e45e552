// SPDX-License-Identifier: Apache-2.0
// Bodies of the registry's chains. Both backends decode them: an error of both, or the same bits of
// both; no store before everything was checked; no allocation at all.
#include <array>
#include <cstring>
#include <map>

#include "tests/fuzz/bounded_allocator.hpp"
#include "tests/fuzz/fuzz_target.hpp"
#include "tests/support/gradient_shapes.hpp"
#include "tests/support/plugin_specs.hpp"
#include "tests/support/simulated_ranks.hpp"

namespace gradsieve::testing {
namespace {

constexpr std::array<std::size_t, 8> kCounts = {0, 1, 7, 33, 64, 255, 300, 1025};
constexpr std::array<double, 4> kWeights = {1.0, 0.25, -3.0, 1e30};

/// Memory for decoding one number of elements; made once, used for every input.
class DecodeBench {
 public:
  DecodeBench(Chain const& chain, std::size_t num_elements, DType dtype)
      : compressor_(*chain.compressor),
        piece_(whole_tensor("w", num_elements, dtype)),
        scratch_(compressor_.workspace_bytes(piece_)),
        slots_(compressor_, piece_),
        before_(num_elements * size_of(dtype)) {
    std::vector<float> const values = make_gradient(Shape::gaussian, num_elements, 7);
    for (std::size_t i = 0; i < num_elements; ++i) {
      if (dtype == DType::f64) {
        double const value = values[i];
        std::memcpy(before_.data() + 8 * i, &value, 8);
      } else {
        std::memcpy(before_.data() + 4 * i, &values[i], 4);
      }
    }
    for (auto& result : results_) result = std::make_unique<Guarded<std::byte>>(before_);
  }

  void run(std::uint64_t step, double weight, ConstBytes agreed, ConstBytes body) {
    Status status[2];
    for (std::size_t b = 0; b < 2; ++b) {
      std::ranges::copy(before_, results_[b]->span().begin());
      slots_.roll_back();
      AllocationBound const nothing(0);
      status[b] =
          decode(b == 0 ? Backend::ref : Backend::cpu, step, weight, agreed, body, *results_[b]);
    }
    require(status[0].code() == status[1].code(), "the backends disagree on the code");
    require(scratch_.intact(), "a store outside the workspace");
    for (auto const& result : results_)
      require(result->intact(), "a store outside the accumulator");
    std::span<std::byte> const by_ref = results_[0]->span();
    std::span<std::byte> const by_cpu = results_[1]->span();
    if (status[0].ok()) {
      require(std::ranges::equal(by_ref, by_cpu), "the backends disagree on a result");
    } else {
      require(status[0].code() == Code::corrupt_payload, "bad bytes are another code");
      require(std::ranges::equal(by_ref, before_), "ref stored before it had checked");
      require(std::ranges::equal(by_cpu, before_), "cpu stored before it had checked");
    }
  }

 private:
  Status decode(Backend backend, std::uint64_t step, double weight, ConstBytes agreed,
                ConstBytes body, Guarded<std::byte>& result) {
    int const last = compressor_.num_rounds() - 1;
    StepWords words{.step = step};
    Workspace workspace(scratch_.span());
    ExecContext ctx{.backend = backend, .workspace = &workspace, .words = &words, .seed = 42};
    if (last > 0) {
      GRADSIEVE_RETURN_IF_ERROR(
          compressor_.absorb(ctx, 0, piece_, std::span(&agreed, 1), slots_.view()));
      workspace.reset();
    }
    TensorView const accumulator(result.span().data(), piece_.num_elements, piece_.dtype);
    return compressor_.decode_add(ctx, last, piece_, body, weight, slots_.view(), accumulator);
  }

  Compressor const& compressor_;
  TensorInfo piece_;
  Guarded<std::byte> scratch_;
  TestSlots slots_;
  std::vector<std::byte> before_;
  std::array<std::unique_ptr<Guarded<std::byte>>, 2> results_;
};

/// Input: count and dtype (1), step (1), weight (1), for chains of two rounds the length of what
/// was agreed on (2) and that body; the rest is the body of the last round.
class DecoderTarget {
 public:
  explicit DecoderTarget(SpecCase spec_case) : spec_case_(std::move(spec_case)) {}

  void run(ConstBytes input) {
    InputReader reader(input);
    std::uint64_t const what = reader.number(1);
    std::uint64_t const step = reader.number(1);
    double const weight = kWeights[reader.number(1) % kWeights.size()];
    bool const wide = what >= 0x80 && spec_case_.chain.compressor->claims().f64;
    std::unique_ptr<DecodeBench>& bench = benches_[what & 7][wide ? 1 : 0];
    if (bench == nullptr) {
      bench = std::make_unique<DecodeBench>(spec_case_.chain, kCounts[what & 7],
                                            wide ? DType::f64 : DType::f32);
    }
    ConstBytes agreed;
    if (has_agreement()) agreed = reader.take(static_cast<std::size_t>(reader.number(2)));
    ExactCopy const agreed_copy(agreed);
    ExactCopy const body(reader.rest());
    bench->run(step, weight, agreed_copy.bytes(), body.bytes());
  }

  [[nodiscard]] std::vector<FuzzInput> seeds() const {
    std::vector<FuzzInput> all;
    for (std::size_t which = 0; which < kCounts.size(); ++which) {
      for (Shape const shape : {Shape::heavy_tailed, Shape::all_zero}) {
        std::uint64_t const step = which % 3;
        SimulatedRanks ranks(spec_case_.chain, whole_tensor("w", kCounts[which]), {});
        Outcome const outcome = ranks.step(step, {make_gradient(shape, kCounts[which], 6)});
        require(outcome.status.ok(), "a seed does not encode");
        FuzzInput agreed;
        if (has_agreement()) {
          FuzzInput const& body = outcome.bodies[0][0];
          agreed = join({number_bytes(body.size(), 2), body});
        }
        all.push_back(join({number_bytes(which, 1), number_bytes(step, 1),
                            number_bytes(which % 4, 1), agreed, outcome.bodies.back()[0]}));
      }
    }
    if (spec_case_.chain.compressor->claims().f64)
      all.push_back(join({number_bytes(0x82, 1), number_bytes(0, 2), FuzzInput(7 * 8)}));
    return all;
  }

 private:
  [[nodiscard]] bool has_agreement() const { return spec_case_.chain.compressor->num_rounds() > 1; }

  SpecCase spec_case_;
  std::array<std::array<std::unique_ptr<DecodeBench>, 2>, kCounts.size()> benches_;
};

}  // namespace

void add_decoder_targets(std::vector<FuzzTarget>& targets) {
  std::vector<SpecCase> cases = default_specs();
  for (SpecCase const& spec_case : all_specs()) {
    bool const names_a_form = spec_case.spec.starts_with("topk") &&
                              spec_case.spec.find("| none | index") != std::string::npos;
    bool const has_rows = spec_case.spec.find("granularity=") != std::string::npos;
    bool const has_blocks = spec_case.spec.find("block=") != std::string::npos;
    if (names_a_form || has_rows || has_blocks) cases.push_back(spec_case);
  }
  for (SpecCase const& spec_case : cases) {
    auto const target = std::make_shared<DecoderTarget>(spec_case);
    targets.push_back({"decode_" + spec_case.name,
                       [target](ConstBytes input) { target->run(input); },
                       [target] { return target->seeds(); }});
  }
}

}  // namespace gradsieve::testing
