// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/support/failed_plans.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

TEST(HookPlanFailure, AllRanksKeepThePlanThatOneHasNoMemoryToLeave) {
  for (std::string const spec :
       {"topk(density=0.05) | int8 ; feedback=residual", "int8 ; feedback=residual", "none"}) {
    SCOPED_TRACE(spec);
    LocalGroup twins(2);
    test::run_ranks(2, [&](Transport& transport) {
      Layout const before = one_bucket_each({700, 33, 5});
      FailingMemory memory(host_memory());
      HookOptions options = options_for(spec);
      HookRank twin(twins.transport(transport.rank()), options, before);
      options.memory = &memory;
      HookRank rank(transport, options, before);
      check_failed_plans(rank, memory, twin, all_in_one(before), 1);
    });
  }
}

}  // namespace
}  // namespace gradsieve::testing
