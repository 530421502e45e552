// SPDX-License-Identifier: Apache-2.0
// Hook::plan: agrees with all ranks on tensors, rules and buckets. How those are cut into parcels
// and letters: hook_layout.cpp; their memory: hook_memory.cpp.
#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include <unistd.h>

#include "comm/hook_impl.hpp"
#include "core/glob.hpp"
#include "core/hash.hpp"
#include "core/log.hpp"
#include "core/simd_target.hpp"

namespace gradsieve {
namespace {

/// GRADSIEVE_DISABLE=1: everything is sent as it is, whatever the rules say, to compare with.
bool is_disabled() {
  char const* const value = std::getenv("GRADSIEVE_DISABLE");
  std::string_view const text = value == nullptr ? "" : value;
  if (text == "1") return true;
  if (text.empty() || text == "0") return false;
  throw Error(Code::invalid_argument,
              "GRADSIEVE_DISABLE is '" + std::string(text) + "'; expected 0 or 1");
}

}  // namespace

Hook::Impl::Impl(Transport& t, HookOptions o)
    : transport(&t),
      options(std::move(o)),
      memory(options.memory != nullptr          ? options.memory
             : options.backend == Backend::cuda ? &device_memory()
                                                : &host_memory()),
      encode_threads(options.num_threads),
      decode_threads(options.num_threads),
      process_id(getpid()) {
  check_simd_environment();
  if (!(options.predivide > 0.0)) {
    throw Error(Code::invalid_argument, "HookOptions::predivide must be a positive number");
  }
  if (options.result == ResultForm::sparse) {
    throw Error(Code::not_implemented,
                "HookOptions::result is sparse, which is not implemented; this version has: dense");
  }
  if (options.backend == Backend::cuda) {
    check_device_options();
    device = std::make_unique<HookDevice>(options.stream);
  }
  if (options.vote_deadline <= options.exchange_deadline) {
    throw Error(Code::invalid_argument,
                "HookOptions::vote_deadline must be longer than exchange_deadline");
  }
  dense_chain = std::make_shared<Chain const>(make_chain("none", registry()));
  chains = make_chains(options.rules);
  set_log_rank(transport->rank());
  observer = Observer::from_environment(transport->rank());
}

Registry const& Hook::Impl::registry() const noexcept {
  return options.registry != nullptr ? *options.registry : builtin_registry();
}

std::vector<std::shared_ptr<Chain const>> Hook::Impl::make_chains(
    std::span<Rule const> rules) const {
  if (rules.empty()) {
    throw Error(Code::invalid_argument,
                "HookOptions::rules is empty; expected at least {\"*\", \"none\"}");
  }
  std::vector<std::shared_ptr<Chain const>> made;
  bool const disabled = is_disabled();
  for (Rule const& rule : rules) {
    auto const chain = std::make_shared<Chain const>(make_chain(rule.spec, registry()));
    made.push_back(disabled ? dense_chain : chain);  // a wrong spec is an error all the same
  }
  return made;
}

std::shared_ptr<Chain const> Hook::Impl::chain_for(TensorDesc const& tensor) const {
  for (std::size_t i = 0; i < chains.size(); ++i) {
    if (!glob_match(options.rules[i].match, tensor.name)) continue;
    if (tensor.dtype == DType::f64 && !chains[i]->compressor->claims().f64) {
      refuse_plan("'" + tensor.name + "' is f64, which '" + chains[i]->text +
                  "' does not take; 'none' does");
    }
    if (device && !chains[i]->compressor->claims().cuda) {
      refuse_plan("'" + chains[i]->text +
                  "' does not run with backend=cuda; 'gradsieve list' says "
                  "which do: for '" +
                  tensor.name + "' for example topk(density=0.01) | int8");
    }
    if (device && tensor.dtype == DType::f64)
      refuse_plan("'" + tensor.name + "' is f64; backend=cuda takes f32, f16 and bf16");
    if (device && chains[i]->feedback.dtype != DType::f32)
      refuse_plan("'" + chains[i]->text + "' keeps its residual in bf16; backend=cuda takes f32");
    return tensor.num_elements < chains[i]->dense_below_elements ? dense_chain : chains[i];
  }
  refuse_plan("no rule matches '" + tensor.name + "'; end the rules with {\"*\", \"none\"}");
}

void Hook::Impl::plan(std::span<TensorDesc const> new_tensors,
                      std::span<BucketDesc const> new_buckets) {
  if (in_step) throw Error(Code::invalid_usage, "plan: a step is running; call finish first");
  static_cast<void>(synchronize());
  {
    std::lock_guard const lock(failure_mutex);
    last_failure = {};
  }
  // Whatever this rank has no memory for: the others are told before it throws.
  std::exception_ptr failure;
  auto const keep_failure = [&](auto const& work) {
    try {
      if (!failure) work();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  std::unordered_map<std::string, Memento> mementos;
  keep_failure([&] { mementos = remember(); });
  Layout before = std::exchange(static_cast<Layout&>(*this), {});
  try {
    place(new_tensors, new_buckets);
    agree_on_plan();
    keep_failure([&] {
      lay_parcels();
      for (Parcel& parcel : parcels) allocate(parcel);
      allocate_shared();
    });
    agree_on_layout(failure);
  } catch (...) {
    static_cast<Layout&>(*this) = std::move(before);
    data.scratch = exchange_memory.bytes();
    throw;
  }
  data.scratch = exchange_memory.bytes();
  log_plan();
  if (outcome != Outcome::in_doubt) outcome = Outcome::none;  // it is part of the mementos
  shelf = std::move(mementos);
  restore();
  if (device) upload_device_state();
}

void Hook::Impl::place(std::span<TensorDesc const> new_tensors,
                       std::span<BucketDesc const> new_buckets) {
  std::unordered_map<std::string, std::uint32_t> by_name;
  for (TensorDesc const& desc : new_tensors) {
    if (!by_name.emplace(desc.name, static_cast<std::uint32_t>(tensors.size())).second) {
      refuse_plan("two tensors are called '" + desc.name + "'; names are the keys of their state");
    }
    tensors.push_back({.desc = desc});
  }
  buckets.assign(new_buckets.begin(), new_buckets.end());
  bucket_tensors.assign(buckets.size(), {});
  std::set<std::uint32_t> placed;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    std::uint64_t offset = 0;
    for (std::string const& name : buckets[b].tensors) {
      auto const found = by_name.find(name);
      if (found == by_name.end())
        refuse_plan("bucket " + std::to_string(b) + " names '" + name + "', which is not a tensor");
      if (!placed.insert(found->second).second) refuse_plan("'" + name + "' stands in two buckets");
      PlannedTensor& tensor = tensors[found->second];
      tensor.bucket = static_cast<std::uint32_t>(b);
      tensor.bucket_offset = offset;
      offset += tensor.desc.num_elements;
      bucket_tensors[b].push_back(found->second);
      if (tensor.desc.dtype != tensors[bucket_tensors[b][0]].desc.dtype) {
        refuse_plan("bucket " + std::to_string(b) +
                    " mixes element types; a bucket is one array of one type");
      }
    }
  }
  if (placed.size() != tensors.size()) refuse_plan("every tensor must stand in a bucket");
}

void Hook::Impl::agree_on_plan() {
  std::size_t const world_size = static_cast<std::size_t>(transport->world_size());
  requests = std::vector<Request>(2 * world_size);
  control_requests = std::vector<Request>(2 * world_size);
  gone = std::make_unique<bool[]>(world_size);
  unheard = std::make_unique<bool[]>(world_size);
  heard = std::make_unique<bool[]>(world_size);
  vote_words.assign(world_size, 0);
  letters_out.assign(world_size, {});
  bodies_in.assign(world_size, {});
  data.transport = transport;
  data.requests = requests;
  data.gone = {gone.get(), world_size};
  control = data;
  control.gone = {unheard.get(), world_size};
  control.requests = control_requests;
  control.channel = Channel::control;

  std::string rules = rules_text(options.rules, chains);
  PlanHash rules_hash;
  for (std::size_t i = 0; i < chains.size(); ++i)
    rules_hash.add(std::string_view(options.rules[i].match)).add(std::string_view(chains[i]->text));
  for (auto const& [at_step, next] : next_rules) {
    rules += "; from step " + std::to_string(at_step) + ": " + next.text;
    rules_hash.add(at_step).add(std::string_view(next.text));
  }
  auto const choice = [](char const* name, auto value, std::string text) -> HandshakeField {
    return {name, PlanHash().add(value).value(), std::move(text)};
  };
  PlanHash layout;
  std::string layout_text;
  for (BucketDesc const& bucket : buckets) {
    layout.add(bucket.tensors.size());
    layout_text += (layout_text.empty() ? "" : " | ");
    for (std::string const& name : bucket.tensors) {
      layout.add(std::string_view(name));
      layout_text += name + " ";
    }
  }
  HandshakeField const fields[] = {
      {"version", PayloadHeader::kVersion, std::to_string(PayloadHeader::kVersion)},
      {"spec", rules_hash.value(), rules},
      {"seed", options.seed, std::to_string(options.seed)},
      choice("op", options.op, options.op == ReduceOp::mean ? "mean" : "sum"),
      choice("predivide", options.predivide, std::to_string(options.predivide)),
      choice("layout", device != nullptr, device ? "by capacity" : "by length"),
      choice("rollback", options.rollback, options.rollback == Rollback::merge ? "merge" : "exact"),
      choice("on_nonfinite", options.on_nonfinite,
             options.on_nonfinite == OnNonFinite::propagate ? "propagate"
             : options.on_nonfinite == OnNonFinite::skip    ? "skip"
                                                            : "error"),
      {"epoch", options.epoch, std::to_string(options.epoch)},
      {"history", history, std::to_string(history)},
  };
  std::vector<TensorDesc> descs;
  PlanHash model;
  for (HandshakeField const& field : fields) model.add(field.hash);
  for (PlannedTensor const& tensor : tensors) {
    descs.push_back(tensor.desc);
    model.add(tensor_hash(tensor.desc));
  }
  model_hash = model.add(layout.value()).value();

  Failure failure;
  control.deadline = Clock::now() + options.exchange_deadline;
  control.tag = 0x0f000000u;
  try {
    handshake(control, fields, descs, failure);
    HandshakeField const bucket_field[] = {{"buckets", layout.value(), layout_text}};
    handshake(control, bucket_field, {}, failure);
  } catch (Error const& error) {
    if (failure.code == Code::ok)
      failure = {error.code(), control.blamed_rank, "", "handshake", error.what()};
    std::lock_guard const lock(failure_mutex);
    last_failure = failure;
    throw;
  }
}

/// A rank without the memory that the plan takes does not leave the others alone with it: all keep
/// the plan before.
void Hook::Impl::agree_on_layout(std::exception_ptr own_failure) {
  control.deadline = Clock::now() + options.exchange_deadline;
  Status const status = exchange::all_gather_word(control, own_failure ? 0 : 1, vote_words,
                                                  {heard.get(), vote_words.size()});
  if (own_failure) std::rethrow_exception(own_failure);
  auto const refuse = [&](Code code, int rank, std::string const& what) {
    std::string const message = "plan: rank " + std::to_string(rank) + what;
    std::lock_guard const lock(failure_mutex);
    last_failure = {code, rank, "", "layout", message};
    throw Error(code, message);
  };
  if (!status.ok()) {
    refuse(status.code(), control.blamed_rank,
           std::string(" did not say whether it can take the plan (") + status.message() + ")");
  }
  auto const failed = std::ranges::find(vote_words, std::uint64_t{0});
  if (failed == vote_words.end()) return;
  refuse(Code::peer_failed, static_cast<int>(failed - vote_words.begin()),
         " cannot take it; all ranks keep the plan before");
}

}  // namespace gradsieve
