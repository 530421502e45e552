// SPDX-License-Identifier: Apache-2.0
// Other rules for a plan that stands.
#include <utility>

#include "comm/hook_impl.hpp"

namespace gradsieve {

void Hook::set_rules(std::vector<Rule> rules) {
  Impl& impl = *impl_;
  if (impl.outcome == Outcome::in_doubt)
    throw Error(Code::in_doubt,
                "set_rules: the outcome of the last step is unknown; call recover first");
  std::vector<std::shared_ptr<Chain const>> chains = impl.make_chains(rules);
  std::swap(impl.options.rules, rules);
  std::swap(impl.chains, chains);
  if (!impl.progress) return;  // plan() will agree on them
  try {
    std::vector<TensorDesc> tensors;
    for (PlannedTensor const& tensor : impl.tensors) tensors.push_back(tensor.desc);
    std::vector<BucketDesc> const buckets = impl.buckets;
    impl.plan(tensors, buckets);
  } catch (...) {
    std::swap(impl.options.rules, rules);
    std::swap(impl.chains, chains);
    throw;
  }
}

}  // namespace gradsieve
