// SPDX-License-Identifier: Apache-2.0
// A vote that not everybody hears, with gradients on devices: recover() tells the device what the
// survivors know, and the steps behind it are those of a hook that never was in doubt.
#include <algorithm>
#include <array>
#include <barrier>

#include <gtest/gtest.h>

#include "tests/support/cuda_hook_rank.hpp"
#include "tests/support/rank_runner.hpp"
#include "tests/support/test_transports.hpp"

namespace gradsieve::testing {
namespace {

constexpr int kWorldSize = 3;
constexpr std::uint64_t kDoubtfulStep = 2;
constexpr std::uint64_t kLastStep = 4;

struct DoubtCase {
  char const* name;
  Rollback rollback;
  bool (*lost)(int from, int to);         ///< votes that do not arrive
  std::array<bool, kWorldSize> in_doubt;  ///< per rank
  [[nodiscard]] bool counts() const { return std::ranges::count(in_doubt, false) != 0; }
};

bool one_to_two(int from, int to) { return from == 1 && to == 2; }
bool everybody(int, int) { return true; }

HookOptions options_of(DoubtCase const& doubt) {
  HookOptions options = options_for("topk(density=0.05) ; feedback=residual");
  options.rollback = doubt.rollback;
  options.exchange_deadline = std::chrono::milliseconds(1500);
  options.vote_deadline = std::chrono::milliseconds(2000);
  return options;
}

/// Results and residuals of the steps on the host, where no vote is lost. A step that does not
/// count is a gradient that waits (merge), or one that never was (exact).
class Expected {
 public:
  Expected(Transport& transport, DoubtCase const& doubt, Layout const& layout)
      : rank_(transport, options_of(doubt), layout), doubt_(doubt) {}

  void step(std::uint64_t step) {
    rank_.step(step);
    if (step != kDoubtfulStep || doubt_.counts()) return;
    Status const refused = rank_.hook().refuse();
    if (!refused.ok()) fail(rank_.hook(), "refuse", refused);
  }
  void compare(CudaHookRank& cuda, bool with_results) {
    if (with_results) {
      EXPECT_EQ(bits_of(cuda.all_results()), bits_of(rank_.all_results()));
    }
    for (TensorDesc const& tensor : rank_.layout().tensors) {
      EXPECT_EQ(bits_of(cuda.hook().residual(tensor.name)),
                bits_of(rank_.hook().residual(tensor.name)))
          << tensor.name;
    }
  }

 private:
  HookRank rank_;
  DoubtCase const& doubt_;
};

void run_case(DoubtCase const& doubt) {
  LocalGroup rebuilt(kWorldSize);
  LocalGroup host(kWorldSize);
  std::barrier all(kWorldSize);
  Layout const layout = one_bucket_each({900, 50});
  test::run_ranks(kWorldSize, [&](Transport& inner) {
    int const me = inner.rank();
    auto const me_in_doubt = doubt.in_doubt[static_cast<std::size_t>(me)];
    LossyTransport transport(inner, Channel::control, [&](int to) { return doubt.lost(me, to); });
    Expected expected(host.transport(me), doubt, layout);
    CudaHookRank rank(transport, options_of(doubt), layout);
    for (std::uint64_t step = 0; step < kDoubtfulStep; ++step) {
      expected.step(step);
      EXPECT_TRUE(rank.attempt(step, heavy_tailed_of).result.committed);
    }

    rank.make_gradients(kDoubtfulStep, heavy_tailed_of, 1.0F);
    ASSERT_TRUE(rank.hook().begin(kDoubtfulStep).ok());
    rank.copy_gradients_in();
    ASSERT_TRUE(rank.reduce_all().ok());
    all.arrive_and_wait();
    transport.arm(true);
    StepResult const result = rank.hook().finish();
    all.arrive_and_wait();
    transport.arm(false);

    expected.step(kDoubtfulStep);
    EXPECT_EQ(result.status.code(), me_in_doubt ? Code::in_doubt : Code::ok);
    EXPECT_EQ(result.committed, !me_in_doubt);
    if (me_in_doubt) {
      EXPECT_EQ(rank.hook().begin(kDoubtfulStep + 1).code(), Code::in_doubt);
    }
    all.arrive_and_wait();
    Status const recovered = rank.hook().recover(rebuilt.transport(me));
    ASSERT_TRUE(recovered.ok()) << recovered.message();

    EXPECT_EQ(rank.hook().committed(), doubt.counts());
    expected.compare(rank, doubt.counts());
    rank.plan(layout);  // payloads go another way now
    expected.compare(rank, false);
    for (std::uint64_t step = kDoubtfulStep + 1; step <= kLastStep; ++step) {
      expected.step(step);
      EXPECT_TRUE(rank.attempt(step, heavy_tailed_of).result.committed);
      expected.compare(rank, true);
    }
  });
}

TEST(HookDoubt, ADeviceLearnsWhatTheSurvivorsKnow) {
  for (DoubtCase const& doubt : std::array<DoubtCase, 2>{
           {{"one vote, merge", Rollback::merge, one_to_two, {false, false, true}},
            {"all votes, exact", Rollback::exact, everybody, {true, true, true}}}}) {
    SCOPED_TRACE(doubt.name);
    run_case(doubt);
    if (is_quick_subset()) break;
  }
}

}  // namespace
}  // namespace gradsieve::testing
