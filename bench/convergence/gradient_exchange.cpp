// SPDX-License-Identifier: Apache-2.0
#include "bench/convergence/gradient_exchange.hpp"

#include <algorithm>
#include <cmath>

namespace gradsieve::study {
namespace {

// Apart from the tags of the hook's votes, which share the control channel.
constexpr std::uint32_t kGatherTag = 0x5354'5544;

HookOptions hook_options(std::string const& spec, std::uint64_t seed, StudyPlan const& plan) {
  HookOptions options;
  // Biases are a thousandth of a model and steer whole rows: they travel dense beside a sparsifier.
  // A spec that says "none" or "bf16" is a baseline and means every tensor.
  bool const is_chain =
      spec.find('|') != std::string::npos || spec.find("feedback") != std::string::npos;
  if (is_chain) options.rules.push_back({"*.bias", "none"});
  options.rules.push_back({"*", spec});
  options.seed = seed;
  options.exchange_deadline = std::chrono::seconds(plan.timeout_s);
  options.vote_deadline = std::chrono::seconds(2 * plan.timeout_s);
  return options;
}

}  // namespace

GradientExchange::GradientExchange(Transport& transport, std::span<Parameter const> parameters,
                                   std::string const& spec, std::uint64_t seed,
                                   StudyPlan const& plan)
    : transport_(transport), hook_(transport, hook_options(spec, seed, plan)) {
  lay_out(parameters, plan.bucket_bytes);
  std::vector<TensorDesc> tensors;
  for (auto const& parameter : parameters) {
    tensors.push_back({parameter.name, parameter.num_elements, parameter.num_rows, DType::f32});
  }
  hook_.plan(tensors, bucket_descs_);
  events_.resize(buckets_.size());
}

void GradientExchange::lay_out(std::span<Parameter const> parameters, std::uint64_t bucket_bytes) {
  struct Place {
    std::size_t bucket;
    std::size_t offset;
  };
  std::vector<Place> places(parameters.size());
  std::vector<std::size_t> bucket_elements;
  std::uint64_t const bucket_limit = bucket_bytes / sizeof(float);
  for (std::size_t i = parameters.size(); i-- > 0;) {
    std::uint64_t const num_elements = parameters[i].num_elements;
    if (bucket_elements.empty() || bucket_elements.back() + num_elements > bucket_limit) {
      bucket_elements.push_back(0);
      bucket_descs_.emplace_back();
    }
    places[i] = {bucket_elements.size() - 1, bucket_elements.back()};
    bucket_elements.back() += num_elements;
    bucket_descs_.back().tensors.push_back(parameters[i].name);
  }
  for (std::size_t const num_elements : bucket_elements) buckets_.emplace_back(num_elements);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    gradients_.push_back(std::span(buckets_[places[i].bucket])
                             .subspan(places[i].offset, parameters[i].num_elements));
  }
}

bool GradientExchange::reduce(std::uint64_t step) {
  std::uint64_t const before = transport_.counters().bytes_sent;
  check(hook_.begin(step));
  for (std::uint32_t i = 0; i < buckets_.size(); ++i) {
    check(hook_.reduce(i, std::span(buckets_[i]), events_[i]));
  }
  for (Event const& event : events_) check(hook_.wait(event));
  StepResult const result = hook_.finish();
  check(result.status);
  wire_bytes_ += transport_.counters().bytes_sent - before;
  if (!result.committed && !result.found_nonfinite) {
    throw Error(Code::internal,
                "step " + std::to_string(step) + " was rolled back without a reason");
  }
  return result.committed;
}

ExchangeTotals GradientExchange::totals() const {
  ExchangeTotals totals{.wire_bytes = wire_bytes_};
  for (Stats const& bucket : hook_.bucket_stats()) {
    totals.encode_s += bucket.total_encode_seconds;
    totals.exchange_s += bucket.total_exchange_seconds;
    totals.decode_s += bucket.total_decode_seconds;
  }
  double squares = 0.0;
  for (Stats const& tensor : hook_.tensor_stats())
    squares += tensor.residual_norm * tensor.residual_norm;
  totals.residual_norm = std::sqrt(squares);
  return totals;
}

void GradientExchange::check(Status status) const {
  if (status.ok()) return;
  Failure const failure = hook_.failure();
  std::string sentence = "rank " + std::to_string(transport_.rank()) + ": " + status.message();
  if (failure.code != Code::ok) {
    sentence += " (" + failure.message;
    if (failure.rank >= 0) sentence += ", rank " + std::to_string(failure.rank);
    if (!failure.tensor.empty()) sentence += ", tensor " + failure.tensor;
    if (!failure.field.empty()) sentence += ", field " + failure.field;
    sentence += ")";
  }
  throw Error(status.code(), sentence);
}

std::uint64_t measure_step_bytes(Transport& transport, std::span<Parameter const> parameters,
                                 std::string const& spec, StudyPlan const& plan) {
  GradientExchange exchange(transport, parameters, spec, 0, plan);
  bool committed = exchange.reduce(0);
  std::uint64_t const after_first = exchange.totals().wire_bytes;
  committed = exchange.reduce(1) && committed;
  if (!committed) throw Error(Code::internal, "a step of zeros was rolled back");
  return exchange.totals().wire_bytes - after_first;
}

std::vector<double> gather_to_first_rank(Transport& transport, std::span<double const> values,
                                         StudyPlan const& plan) {
  Deadline const deadline = Clock::now() + std::chrono::seconds(plan.timeout_s);
  auto const check = [](Status status) {
    if (!status.ok())
      throw Error(status.code(),
                  std::string("collecting numbers of all ranks: ") + status.message());
  };
  Request request;
  if (transport.rank() != 0) {
    check(transport.send(Channel::control, 0, kGatherTag, std::as_bytes(values), request));
    check(transport.wait(request, deadline));
    return {};
  }
  std::vector<double> all(values.begin(), values.end());
  all.resize(values.size() * static_cast<std::size_t>(transport.world_size()));
  for (int peer = 1; peer < transport.world_size(); ++peer) {
    auto const part =
        std::span(all).subspan(static_cast<std::size_t>(peer) * values.size(), values.size());
    request = {};
    check(transport.receive(Channel::control, peer, kGatherTag, std::as_writable_bytes(part),
                            request));
    check(transport.wait(request, deadline));
  }
  return all;
}

}  // namespace gradsieve::study
