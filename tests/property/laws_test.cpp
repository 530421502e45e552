// SPDX-License-Identifier: Apache-2.0
// Laws that hold for every gradient: permutation, scale, sign, optimality, feedback that
// telescopes.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "core/philox.hpp"
#include "tests/support/simulated_ranks.hpp"

namespace gradsieve::testing {
namespace {

/// Finite numbers of all magnitudes, of which many are equal, zero, or denormal.
rc::Gen<float> any_finite() {
  auto const from_bits = rc::gen::map(rc::gen::arbitrary<std::uint32_t>(), [](std::uint32_t bits) {
    auto const x = std::bit_cast<float>(bits);
    return std::isfinite(x) ? x : 0.5F;
  });
  return rc::gen::weightedOneOf<float>(
      {{4, rc::gen::map(rc::gen::inRange(-64, 64),
                        [](int i) { return 0.25F * static_cast<float>(i); })},
       {4, from_bits},
       {1, rc::gen::element(0.0F, -0.0F, std::numeric_limits<float>::denorm_min(),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::lowest())}});
}

/// Numbers whose multiples by 2^±40 are normal.
rc::Gen<float> any_moderate() {
  return rc::gen::map(
      rc::gen::pair(rc::gen::inRange(-1'000'000, 1'000'000), rc::gen::inRange(-10, 10)),
      [](std::pair<int, int> p) { return std::ldexp(static_cast<float>(p.first), p.second - 10); });
}

Floats decode(std::string const& spec, Floats const& gradient, std::uint64_t step = 0) {
  SimulatedRanks ranks(make_chain(spec), whole_tensor("w", gradient.size()), {});
  Outcome const outcome = ranks.step(step, {gradient});
  RC_ASSERT(outcome.status.ok());
  RC_ASSERT(outcome.intact);
  return outcome.mean;
}

/// The nearest whole number to density·n in exact arithmetic: a long double holds the product.
std::size_t count_of(double density, std::size_t n) {
  auto const product = static_cast<long double>(density) * static_cast<long double>(n);
  return std::clamp<std::size_t>(static_cast<std::size_t>(std::floor(product + 0.5L)), 1, n);
}

char const* const kDeterministic[] = {"none",
                                      "fp16",
                                      "int8(block=16)",
                                      "int4(block=16)",
                                      "sign(block=8)",
                                      "topk(density=0.2)",
                                      "topk(density=0.3) | int8(block=8)",
                                      "blocktopk(density=0.3, block=4)"};

RC_GTEST_PROP(Law, AFiniteGradientHasAFiniteDecode, ()) {
  auto const gradient = *rc::gen::container<Floats>(any_finite());
  auto const spec = *rc::gen::element<std::string>(
      "none", "bf16", "fp16", "int8(block=16)", "int4(block=16)", "sign(block=8)",
      "topk(density=0.2) | sign", "int8(block=16, rounding=stochastic)",
      "bf16(rounding=stochastic)");
  for (float const x : decode(spec, gradient)) RC_ASSERT(std::isfinite(x));
}

RC_GTEST_PROP(Law, APowerOfTwoGoesThrough, ()) {
  auto const gradient = *rc::gen::container<Floats>(any_moderate());
  auto const spec = *rc::gen::elementOf(std::vector<std::string>{
      "none", "int8(block=16)", "int4(block=16)", "sign(block=8)", "bf16",
      "topk(density=0.2) | int8(block=8)", "blocktopk(density=0.3, block=4)"});
  float const factor = std::ldexp(1.0F, *rc::gen::inRange(-40, 40));
  Floats scaled = gradient;
  for (float& x : scaled) x *= factor;

  Floats const plain = decode(spec, gradient);
  Floats const result = decode(spec, scaled);

  for (std::size_t i = 0; i < plain.size(); ++i) RC_ASSERT(result[i] == plain[i] * factor);
}

RC_GTEST_PROP(Law, NegationGoesThrough, ()) {
  auto const gradient = *rc::gen::container<Floats>(any_finite());
  std::string const spec = *rc::gen::elementOf(
      std::vector<std::string>(std::begin(kDeterministic), std::end(kDeterministic)));
  Floats negated = gradient;
  for (float& x : negated) x = -x;

  Floats const plain = decode(spec, gradient);
  Floats const result = decode(spec, negated);

  for (std::size_t i = 0; i < plain.size(); ++i) RC_ASSERT(result[i] == -plain[i]);
}

// With distinct magnitudes a permutation of the gradient permutes what is chosen.
RC_GTEST_PROP(Law, TopkFollowsAPermutation, ()) {
  auto const n = *rc::gen::inRange<std::size_t>(1, 300);
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  auto const seed = *rc::gen::arbitrary<std::uint32_t>();
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[mix64(seed + i) % i]);
  Floats gradient(n);
  Floats permuted(n);
  for (std::size_t i = 0; i < n; ++i)
    gradient[i] = (i % 2 == 0 ? 1.0F : -1.0F) * (1.0F + static_cast<float>(i));
  for (std::size_t i = 0; i < n; ++i) permuted[i] = gradient[order[i]];

  Floats const plain = decode("topk(density=0.25)", gradient);
  Floats const result = decode("topk(density=0.25)", permuted);

  for (std::size_t i = 0; i < n; ++i) RC_ASSERT(result[i] == plain[order[i]]);
}

// Exactly k, and no element left out is larger than one that was taken; of equal ones the first.
RC_GTEST_PROP(Law, TopkIsTheBestChoiceAndPrefersLowIndices, ()) {
  auto const gradient = *rc::gen::nonEmpty(rc::gen::container<Floats>(any_finite()));
  double const density = *rc::gen::element(0.01, 0.1, 0.34, 0.8, 1.0);
  std::size_t const n = gradient.size();
  std::size_t const k = count_of(density, n);
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return std::abs(gradient[a]) > std::abs(gradient[b]);
  });
  Floats expected(n, 0.0F);
  for (std::size_t i = 0; i < k; ++i) expected[order[i]] = gradient[order[i]];

  RC_ASSERT(decode("topk(density=" + std::to_string(density) + ")", gradient) == expected);
}

RC_GTEST_PROP(Law, RandomkTakesOneOfEveryStratum, ()) {
  auto const n = *rc::gen::inRange<std::size_t>(1, 2000);
  auto const step = *rc::gen::arbitrary<std::uint64_t>();
  double const density = *rc::gen::element(0.01, 0.1, 0.37, 0.9);
  Chain const chain =
      make_chain("randomk(density=" + std::to_string(density) + ") ; feedback=residual");
  SimulatedRanks ranks(chain, whole_tensor("w", n), {});

  Outcome const outcome = ranks.step(step, {Floats(n, 1.0F)});

  RC_ASSERT(outcome.status.ok());
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < n; ++i) {
    if (outcome.mean[i] != 0.0F) chosen.push_back(i);
  }
  std::size_t const k = chosen.size();
  RC_ASSERT(k == count_of(density, n));
  for (std::size_t j = 0; j < k; ++j) {
    RC_ASSERT(chosen[j] >= j * n / k);
    RC_ASSERT(chosen[j] < (j + 1) * n / k);
  }
}

// The error of a block quantizer is at most half a level (a whole one if it is drawn), and the
// largest element of a block is met.
RC_GTEST_PROP(Law, QuantizersStayWithinALevel, ()) {
  auto const gradient = *rc::gen::nonEmpty(rc::gen::container<Floats>(any_moderate()));
  int const bits = *rc::gen::element(4, 8);
  bool const stochastic = *rc::gen::arbitrary<bool>();
  constexpr std::size_t kBlock = 16;
  std::string const spec = "int" + std::to_string(bits) +
                           "(block=16, rounding=" + (stochastic ? "stochastic)" : "nearest)");

  Floats const decoded = decode(spec, gradient, 9);

  for (std::size_t begin = 0; begin < gradient.size(); begin += kBlock) {
    std::size_t const end = std::min(gradient.size(), begin + kBlock);
    float largest = 0.0F;
    for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(gradient[i]));
    double const level = double{largest} / ((1 << (bits - 1)) - 1);
    for (std::size_t i = begin; i < end; ++i) {
      double const error = std::abs(double{decoded[i]} - double{gradient[i]});
      // The scale is rounded once, which moves the largest element by at most one part in 2^23.
      RC_ASSERT(error <= (stochastic ? 1.0 : 0.5) * level + 0x1p-22 * double{largest});
    }
  }
}

// Whatever was given in whatever order: what was sent and what is kept add up.
RC_GTEST_PROP(Law, FeedbackTelescopes, ()) {
  std::string const spec = *rc::gen::elementOf(std::vector<std::string>{
      "topk(density=0.1)", "topk(density=0.1) | int8(block=8)", "int4(block=16)", "sign(block=8)",
      "randomk(density=0.2)", "blocktopk(density=0.2, block=4)",
      "threshold(value=3, max_density=0.5)", "cltk(density=0.1)", "bf16"});
  auto const n = *rc::gen::inRange<std::size_t>(1, 80);
  auto const num_steps = *rc::gen::inRange<std::uint64_t>(1, 30);
  auto const seed = *rc::gen::arbitrary<std::uint32_t>();
  SimulatedRanks ranks(make_chain(spec + " ; feedback=residual"), whole_tensor("w", n),
                       {.world_size = 2});
  std::vector<double> balance(n, 0.0);
  double largest = 0.0;

  for (std::uint64_t step = 0; step < num_steps; ++step) {
    std::vector<Floats> gradients(2, Floats(n));
    for (std::size_t r = 0; r < 2; ++r) {
      for (std::size_t i = 0; i < n; ++i) {
        std::uint64_t const random = mix64(mix64(seed + step) ^ (2 * i + r));
        gradients[r][i] = std::ldexp(static_cast<float>(static_cast<int>(random % 2001) - 1000),
                                     static_cast<int>(random >> 60) - 16);
        balance[i] += double{gradients[r][i]};
        largest = std::max(largest, std::abs(double{gradients[r][i]}));
      }
    }
    Outcome const outcome = ranks.step(step, gradients);
    RC_ASSERT(outcome.status.ok());
    for (std::size_t i = 0; i < n; ++i) balance[i] -= 2.0 * double{outcome.mean[i]};
  }

  for (std::size_t i = 0; i < n; ++i) {
    double const rest = balance[i] - double{ranks.residual(0)[i]} - double{ranks.residual(1)[i]};
    // Six roundings a step, of sums that can reach all that was ever given.
    double const steps = static_cast<double>(num_steps);
    RC_ASSERT(std::abs(rest) <= 6 * steps * 0x1p-24 * 2.0 * steps * largest);
  }
}

}  // namespace
}  // namespace gradsieve::testing
