// SPDX-License-Identifier: Apache-2.0
// A whole step against a peer that sends anything: no crash, no state poisoned, and under exact a
// step that failed leaves no trace.
#include <bit>
#include <cmath>

#include "gradsieve/hook.hpp"

#include "tests/fuzz/fuzz_target.hpp"
#include "tests/fuzz/scripted_peer.hpp"
#include "tests/support/hook_rank.hpp"

namespace gradsieve::testing {
namespace {

struct HookCase {
  char const* name;
  char const* spec;
  Rollback rollback;
};
constexpr HookCase kCases[] = {
    {"hook_topk_int8", "topk(density=0.1) | int8 ; feedback=residual", Rollback::exact},
    {"hook_topk_zstd", "topk(density=0.1) | none | zstd ; feedback=residual", Rollback::merge},
    {"hook_int8_two_shot", "int8 ; feedback=residual ; exchange=two_shot", Rollback::exact},
    {"hook_sign_two_shot", "sign(block=64) ; feedback=residual ; exchange=two_shot",
     Rollback::merge},
    {"hook_cltk", "cltk(density=0.1) ; feedback=residual", Rollback::exact},
    {"hook_randomk", "randomk(density=0.2) ; feedback=residual", Rollback::merge},
};

using Residuals = std::vector<std::vector<float>>;

Residuals finite_residuals(HookRank const& rank) {
  Residuals all = rank.all_residuals();
  for (auto const& residual : all) {
    for (float const x : residual) require(std::isfinite(x), "a residual that is not finite");
  }
  return all;
}

void run_hook(HookCase const& hook_case, ConstBytes script) {
  ScriptedPeer peer;
  HookOptions options = options_for(hook_case.spec);
  options.rollback = hook_case.rollback;
  options.progress_thread = false;
  HookRank rank(peer, options, all_in_one(one_bucket_each({300, 33})));
  GradientOf const gradient_of = [](int, std::uint64_t step, std::string const& tensor,
                                    std::uint64_t count) {
    std::vector<float> gradient(count);
    for (std::size_t i = 0; i < count; ++i) {
      gradient[i] = static_cast<float>((i * 37 + step * 11 + tensor.size()) % 101) - 50.0F;
    }
    return gradient;
  };
  peer.play(script);
  Residuals before = finite_residuals(rank);
  for (std::uint64_t step = 0; step < 4; ++step) {
    HookRank::Attempt const attempt = rank.attempt(step, gradient_of);
    require(attempt.begun.ok(), "begin refuses a step after one that ended");
    require(attempt.result.committed == (attempt.reduced.ok() && attempt.result.status.ok() &&
                                         !attempt.result.found_nonfinite),
            "a step that failed is committed, or one that did not is not");
    Residuals const after = finite_residuals(rank);
    if (hook_case.rollback == Rollback::exact && !attempt.result.committed) {
      for (std::size_t t = 0; t < after.size(); ++t)
        require(bits_of(after[t]) == bits_of(before[t]), "a failed step left a trace");
    }
    before = after;
  }
}

std::vector<FuzzInput> hook_seeds() {
  std::vector<FuzzInput> all = {FuzzInput(8)};
  for (std::uint64_t how = 1; how < 6; ++how) {
    for (std::size_t const skip : {0u, 1u, 3u}) {
      all.push_back(join({FuzzInput(skip), number_bytes(how, 1), number_bytes(64, 2),
                          FuzzInput(64, std::byte{3})}));
    }
  }
  return all;
}

}  // namespace

void add_hook_targets(std::vector<FuzzTarget>& targets) {
  for (HookCase const& hook_case : kCases) {
    targets.push_back({hook_case.name,
                       [&hook_case](ConstBytes input) { run_hook(hook_case, input); }, hook_seeds,
                       2048});
  }
}

}  // namespace gradsieve::testing
