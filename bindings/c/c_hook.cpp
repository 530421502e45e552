// SPDX-License-Identifier: Apache-2.0
// A hook's step. Reports and state: c_hook_report.cpp, c_hook_state.cpp.
#include <utility>

#include "bindings/c/guard.hpp"
#include "bindings/c/handles.hpp"
#include "core/foreign_enum.hpp"

using namespace gradsieve;

namespace {

std::vector<Rule> rules_of(gsvRule const* rules, std::uint32_t count) {
  if (count != 0) c::required(rules, "rules");
  std::vector<Rule> result;
  for (std::uint32_t i = 0; i < count; ++i) {
    gsvRule const rule = c::read(c::element(rules, i), "rules");
    result.push_back({.match = rule.match == nullptr ? "*" : rule.match,
                      .spec = c::required_text(rule.spec, "rules: spec")});
  }
  return result;
}

HookOptions options_of(gsvHookOptions const& given, gsvContext const& context) {
  HookOptions options;
  options.rules = rules_of(given.rules, given.num_rules);
  options.op = c::choice(given.op, ReduceOp::sum, "op");
  if (given.predivide != 0.0) options.predivide = given.predivide;
  options.rollback = c::choice(given.rollback, Rollback::exact, "rollback");
  options.on_nonfinite = c::choice(given.on_nonfinite, OnNonFinite::error, "on_nonfinite");
  options.seed = given.seed != 0 ? given.seed : context.seed;
  options.epoch = given.epoch;
  options.backend = context.backend;
  options.stream = {given.stream};
  options.num_threads =
      given.num_threads != 0
          ? static_cast<int>(c::checked_choice(given.num_threads, 4096, "num_threads"))
          : context.num_threads;
  constexpr std::uint64_t kLongest = 1'000'000'000'000;  // in ns it still fits
  if (given.exchange_deadline_ms > kLongest || given.vote_deadline_ms > kLongest)
    throw Error(Code::invalid_argument, "a deadline is longer than 10^12 ms");
  if (given.exchange_deadline_ms != 0)
    options.exchange_deadline = std::chrono::milliseconds(given.exchange_deadline_ms);
  options.vote_deadline = given.vote_deadline_ms != 0
                              ? std::chrono::milliseconds(given.vote_deadline_ms)
                              : 2 * options.exchange_deadline;
  options.registry = context.registry.get();
  options.progress_thread = given.no_progress_thread == 0;
  options.strict = given.strict != 0;
  return options;
}

std::vector<TensorDesc> tensors_of(gsvTensorDesc const* tensors, std::uint32_t count) {
  if (count != 0) c::required(tensors, "tensors");
  std::vector<TensorDesc> result;
  for (std::uint32_t i = 0; i < count; ++i) {
    gsvTensorDesc const tensor = c::read(c::element(tensors, i), "tensors");
    result.push_back({.name = c::required_text(tensor.name, "tensors: name"),
                      .num_elements = tensor.num_elements,
                      .num_rows = tensor.num_rows == 0 ? 1 : tensor.num_rows,
                      .dtype = c::dtype_of(tensor.dtype)});
  }
  return result;
}

std::vector<BucketDesc> buckets_of(gsvBucketDesc const* buckets, std::uint32_t count,
                                   std::vector<TensorDesc> const& tensors) {
  if (count != 0) c::required(buckets, "buckets");
  std::vector<BucketDesc> result(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    gsvBucketDesc const bucket = c::read(c::element(buckets, i), "buckets");
    for (std::uint32_t const index :
         c::required_array(bucket.tensors, bucket.num_tensors, "buckets: tensors")) {
      if (index >= tensors.size())
        throw Error(Code::invalid_argument, "bucket " + std::to_string(i) + " names tensor " +
                                                std::to_string(index) + " of " +
                                                std::to_string(tensors.size()));
      result[i].tensors.push_back(tensors[index].name);
    }
  }
  return result;
}

Status told(StepResult const& outcome, gsvStepResult_t* result) {
  gsvStepResult known = GSV_INIT(gsvStepResult);
  known.committed = outcome.committed ? 1 : 0;
  known.found_nonfinite = outcome.found_nonfinite ? 1 : 0;
  known.pending = outcome.pending ? 1 : 0;
  c::write(known, result, "result");
  return outcome.status;
}

}  // namespace

extern "C" {

gsvResult_t gsvHookCreate(gsvHook_t* hook, gsvComm_t comm, gsvHookOptions_t const* options,
                          gsvContext_t context) {
  return c::guard([&] {
    c::required(hook, "hook");
    gsvContext const& ctx = c::required(context, "context");
    std::shared_ptr<Transport> const transport = c::required(comm, "comm").transport;
    gsvHookOptions const given = c::read(&c::required(options, "options"), "options");
    *hook = new gsvHook{
        transport, ctx.registry, ctx.backend, Hook(*transport, options_of(given, ctx)), {}};
  });
}

gsvResult_t gsvHookDestroy(gsvHook_t hook) {
  return c::guard([&] { delete hook; });
}

gsvResult_t gsvHookPlan(gsvHook_t hook, gsvTensorDesc_t const* tensors, uint32_t num_tensors,
                        gsvBucketDesc_t const* buckets, uint32_t num_buckets) {
  return c::guard([&] {
    Hook& target = c::required(hook, "hook").hook;
    std::vector<TensorDesc> const descs = tensors_of(tensors, num_tensors);
    target.plan(descs, buckets_of(buckets, num_buckets, descs));
  });
}

gsvResult_t gsvHookSetRules(gsvHook_t hook, gsvRule_t const* rules, uint32_t num_rules) {
  return c::guard([&] { c::required(hook, "hook").hook.set_rules(rules_of(rules, num_rules)); });
}

gsvResult_t gsvHookSetRulesAt(gsvHook_t hook, gsvRule_t const* rules, uint32_t num_rules,
                              uint64_t at_step) {
  return c::guard(
      [&] { c::required(hook, "hook").hook.set_rules(rules_of(rules, num_rules), at_step); });
}

gsvResult_t gsvHookBegin(gsvHook_t hook, uint64_t step, float loss_scale) {
  return c::guard([&] { return c::required(hook, "hook").hook.begin(step, loss_scale); });
}

gsvResult_t gsvHookReduce(gsvHook_t hook, uint32_t bucket, void* gradient, uint64_t count,
                          gsvDtype_t dtype, gsvStream_t stream, gsvEvent_t* event) {
  return c::guard([&]() -> Status {
    if (count != 0) c::required(static_cast<char*>(gradient), "gradient");
    gsvHook& target = c::required(hook, "hook");
    bool const on_device = target.backend == Backend::cuda;
    TensorView const view(gradient, count, c::dtype_of(dtype),
                          on_device ? Device::cuda : Device::host);
    gsvEvent& out = c::required(event, "event");
    if (on_device) GRADSIEVE_RETURN_IF_ERROR(target.hook.set_stream({stream}));
    Event started;
    Status const status = target.hook.reduce(bucket, view, started);
    out = {started.step, started.bucket, 0};
    return status;
  });
}

gsvResult_t gsvHookWait(gsvHook_t hook, gsvEvent_t const* event) {
  return c::guard([&] {
    gsvEvent const given = c::required(event, "event");
    return c::required(hook, "hook").hook.wait({given.bucket, given.step});
  });
}

gsvResult_t gsvHookVeto(gsvHook_t hook, gsvResult_t result) {
  return c::guard([&] {
    return c::required(hook, "hook").hook.veto({code_of(result, Code::internal), ""});
  });
}

gsvResult_t gsvHookFinish(gsvHook_t hook, gsvStepResult_t* result) {
  return c::guard([&] {
    c::required(result, "result");
    return told(c::required(hook, "hook").hook.finish(), result);
  });
}

gsvResult_t gsvHookSynchronize(gsvHook_t hook, gsvStepResult_t* result) {
  return c::guard([&] {
    c::required(result, "result");
    return told(c::required(hook, "hook").hook.synchronize(), result);
  });
}

gsvResult_t gsvHookReplay(gsvHook_t hook, uint64_t step, float loss_scale) {
  return c::guard([&] { return c::required(hook, "hook").hook.replay(step, loss_scale); });
}

gsvResult_t gsvHookCommittedWord(gsvHook_t hook, uint32_t const** word) {
  return c::guard(
      [&] { c::required(word, "word") = c::required(hook, "hook").hook.committed_word(); });
}

gsvResult_t gsvHookRefuse(gsvHook_t hook) {
  return c::guard([&] { return c::required(hook, "hook").hook.refuse(); });
}

gsvResult_t gsvHookRecover(gsvHook_t hook, gsvComm_t comm) {
  return c::guard([&] {
    gsvHook& target = c::required(hook, "hook");
    std::shared_ptr<Transport> transport = c::required(comm, "comm").transport;
    Status const status = target.hook.recover(*transport);
    if (status.ok()) target.transport = std::move(transport);
    return status;
  });
}

}  // extern "C"
