// SPDX-License-Identifier: Apache-2.0
// Other rules for a plan that stands: at once, or from a step on that all ranks agree on before.
#include <utility>

#include "comm/hook_impl.hpp"
#include "core/device_stream.hpp"
#include "core/hash.hpp"

namespace gradsieve {

std::string Hook::Impl::rules_text(std::span<Rule const> rules, Chains const& of_rules) {
  std::string text;
  for (std::size_t i = 0; i < rules.size(); ++i)
    text += (i > 0 ? ", " : "") + rules[i].match + " = " + of_rules[i]->text;
  return text;
}

void Hook::Impl::check_rules_may_change() const {
  if (in_step) throw Error(Code::invalid_usage, "set_rules: a step is running; call finish first");
  if (outcome == Outcome::in_doubt)
    throw Error(Code::in_doubt,
                "set_rules: the outcome of the last step is unknown; call recover first");
}

void Hook::Impl::use_rules(std::vector<Rule> rules) {
  Chains made = make_chains(rules);
  std::swap(options.rules, rules);
  std::swap(chains, made);
  if (!progress) return;  // plan() will agree on them
  try {
    std::vector<TensorDesc> descs;
    for (PlannedTensor const& tensor : tensors) descs.push_back(tensor.desc);
    std::vector<BucketDesc> const same_buckets = buckets;
    plan(descs, same_buckets);
  } catch (...) {
    std::swap(options.rules, rules);
    std::swap(chains, made);
    throw;
  }
}

/// Their text, every default spelled out. Throws Error if they are wrong or do not fit the plan.
std::string Hook::Impl::checked_rules(std::vector<Rule>& rules) {
  Chains made = make_chains(rules);
  std::string text = rules_text(rules, made);
  std::swap(options.rules, rules);
  std::swap(chains, made);
  std::exception_ptr failure;
  try {
    for (PlannedTensor const& tensor : tensors) static_cast<void>(chain_for(tensor.desc));
  } catch (...) {
    failure = std::current_exception();
  }
  std::swap(options.rules, rules);
  std::swap(chains, made);
  if (failure) std::rethrow_exception(failure);
  return text;
}

void Hook::Impl::set_rules(std::vector<Rule> rules, std::uint64_t at_step) {
  check_rules_may_change();
  {
    std::lock_guard const lock(failure_mutex);
    last_failure = {};
  }
  // A rank that refuses takes part all the same: the others are told, and wait for nobody.
  std::exception_ptr own_failure;
  std::string text;
  try {
    text = checked_rules(rules);
  } catch (std::exception const& error) {
    own_failure = std::current_exception();
    text = std::string("rules that are refused there: ") + error.what();
  }

  std::size_t const world_size = static_cast<std::size_t>(transport->world_size());
  std::vector<Request> fresh(2 * world_size);  // there may be no plan yet
  auto const absent = std::make_unique<bool[]>(world_size);
  exchange::ExchangeContext context;
  context.transport = transport;
  context.requests = fresh;
  context.gone = {absent.get(), world_size};
  context.channel = Channel::control;
  // Between two steps of its own: what comes late of a call that timed out is not taken for the
  // next one's. Sixteen tags are more than a conversation about two fields takes.
  context.tag = 0x0d000000u | (static_cast<std::uint32_t>(end_tag * 16) & 0x00fffff0u);
  context.deadline = Clock::now() + options.exchange_deadline;
  HandshakeField const fields[] = {
      {"at_step", at_step, std::to_string(at_step)},
      {"spec", PlanHash().add(std::string_view(text)).value(), text},
  };
  Failure failure;
  try {
    handshake(context, fields, {}, failure, "set_rules");
  } catch (Error const& error) {
    if (failure.code == Code::ok)
      failure = {error.code(), context.blamed_rank, "", "handshake", error.what()};
    std::lock_guard const lock(failure_mutex);
    last_failure = failure;
    if (!own_failure) throw;
  }
  if (own_failure) std::rethrow_exception(own_failure);
  next_rules.insert_or_assign(at_step, NextRules{std::move(rules), std::move(text)});
}

Status Hook::Impl::take_due_rules(std::uint64_t new_step) noexcept {
  auto const end = next_rules.upper_bound(new_step);
  if (end == next_rules.begin()) return {};
  if (device && is_capturing(device->caller)) {
    return {Code::invalid_usage,
            "begin: other rules are due at this step, and a plan cannot be captured; run it once "
            "before the capture"};
  }
  char const* const refused =
      "begin: the rules that are due at this step cannot be planned; the old ones hold, and "
      "failure() says why";
  auto const refuse = [&](Code code, std::string const& message) -> Status {
    std::lock_guard const lock(failure_mutex);
    if (last_failure.code == Code::ok) last_failure = {code, -1, "", "spec", message};
    return {code, refused};
  };
  try {
    std::vector<Rule> rules = std::move(std::prev(end)->second.rules);
    next_rules.erase(next_rules.begin(), end);
    use_rules(std::move(rules));
    return {};
  } catch (Error const& error) {
    return refuse(error.code(), error.what());
  } catch (...) {
    return {Code::out_of_memory, refused};
  }
}

void Hook::set_rules(std::vector<Rule> rules) {
  impl_->check_rules_may_change();
  impl_->use_rules(std::move(rules));
}

void Hook::set_rules(std::vector<Rule> rules, std::uint64_t at_step) {
  impl_->set_rules(std::move(rules), at_step);
}

}  // namespace gradsieve
