// SPDX-License-Identifier: Apache-2.0
// The straight line of the library: read Impl::reduce first.
#include "gradsieve/hook.hpp"

#include <unistd.h>

#include "comm/hook_impl.hpp"
#include "core/fp_environment.hpp"

namespace gradsieve {

// The life of one gradient. The first round is encoded at once, on the caller's thread; from there
// on the parcel travels on the progress thread, while the caller brings the next one.
Status Hook::Impl::reduce(Parcel& parcel, TensorView gradient) noexcept {
  parcel.gradient = gradient;
  Status const status =
      encode(parcel, 0);  // compensate: c = g + e; in the last round retain: e = c − ĉ
  parcel.submitted = true;
  progress->submit(parcel.index);
  if (device && on_device.exchange->is_asynchronous()) progress->drain(parcel.index);
  return status;
}

void Hook::Impl::complete(Parcel& parcel) noexcept {
  for (int round = 0; round <= parcel.last_round(); ++round) {
    if (round > 0) static_cast<void>(encode(parcel, round));
    // A parcel that failed still takes part, with a header that says so: no rank waits in vain.
    if (Status const status = exchange_round(parcel, round); !status.ok() && parcel.status.ok()) {
      parcel.status = status;
    }
    if (parcel.status.ok() && round < parcel.last_round()) parcel.status = absorb(parcel, round);
  }
  if (parcel.status.ok()) parcel.status = deliver(parcel);  // decoded mean into the bucket
  if (!parcel.status.ok()) step_failed = true;
  if (device) static_cast<void>(on_device.bucket_done[parcel.bucket].record(stream()));
}

// A bucket that cannot be taken: the gradient stays out of the residual, and all ranks are told.
Status Hook::Impl::decline(Parcel& parcel, Status status, char const* field) noexcept {
  parcel.status = status;
  step_failed = true;
  blame(parcel, status, transport->rank(), field);
  for (Letter& letter : parcel.rounds[0].letters) seal(parcel, 0, letter, false, status, 0);
  parcel.submitted = true;
  progress->submit(parcel.index);
  return status;
}

Hook::Hook(Transport& transport, HookOptions options)
    : impl_(std::make_unique<Impl>(transport, std::move(options))) {}
Hook::~Hook() = default;

void Hook::plan(std::span<TensorDesc const> tensors, std::span<BucketDesc const> buckets) {
  impl_->plan(tensors, buckets);
}

Status Hook::begin(std::uint64_t step, float loss_scale) noexcept {
  FpEnvironment const environment;
  return impl_->begin(step, loss_scale);
}

Status Hook::reduce(std::uint32_t bucket, TensorView gradient, Event& event) noexcept {
  FpEnvironment const environment;
  event = {bucket, impl_->step};
  if (getpid() != impl_->process_id)
    return {Code::forked_child, "this process was forked: only the parent may call"};
  if (!impl_->in_step) return {Code::invalid_usage, "reduce: call begin first"};
  if (bucket >= impl_->bucket_parcels.size())
    return {Code::invalid_argument, "reduce: no such bucket in the plan"};
  std::uint64_t num_elements = 0;
  for (std::uint32_t const tensor : impl_->bucket_tensors[bucket]) {
    num_elements += impl_->tensors[tensor].desc.num_elements;
  }
  Status first;
  if (impl_->device) GRADSIEVE_RETURN_IF_ERROR(impl_->fork_device());
  for (std::uint32_t const index : impl_->bucket_parcels[bucket]) {
    Parcel& parcel = impl_->parcels[index];
    Status unfit;
    char const* field = "num_elements";
    if ((gradient.device == Device::cuda) != (impl_->device != nullptr)) {
      unfit = {Code::invalid_argument,
               "reduce: the gradient is not where the hook's backend works"};
      field = "device";
    } else if (gradient.num_elements != num_elements) {
      unfit = {Code::invalid_argument,
               "reduce: the bucket has another number of elements than planned"};
    } else if (gradient.dtype != parcel.dtype) {
      unfit = {Code::invalid_argument, "reduce: another dtype than planned"};
      field = "dtype";
    }
    if (parcel.submitted) {
      Status const again{Code::invalid_usage,
                         "reduce: this bucket was reduced in this step already"};
      return unfit.ok() ? again : unfit;
    }
    Status const status =
        unfit.ok() ? impl_->reduce(parcel, gradient) : impl_->decline(parcel, unfit, field);
    if (first.ok()) first = status;
  }
  return first;
}

bool Hook::committed() const noexcept { return impl_->counts; }

Status Hook::wait(Event const& event) noexcept {
  if (event.step != impl_->step) return {Code::invalid_usage, "wait: an event of another step"};
  if (event.bucket >= impl_->bucket_parcels.size())
    return {Code::invalid_argument, "wait: no such bucket in the plan"};
  if (getpid() != impl_->process_id)
    return {Code::forked_child, "this process was forked: only the parent may call"};
  FpEnvironment const environment;
  for (std::uint32_t const index : impl_->bucket_parcels[event.bucket]) {
    if (impl_->parcels[index].submitted) impl_->progress->drain(index);
  }
  for (std::uint32_t const index : impl_->bucket_parcels[event.bucket]) {
    if (Status const status = impl_->parcels[index].status; !status.ok()) return status;
  }
  if (impl_->device) return impl_->on_device.bucket_done[event.bucket].hold(impl_->device->caller);
  return {};
}

Status Hook::veto(Status status) noexcept { return impl_->veto(status); }

StepResult Hook::finish() noexcept {
  FpEnvironment const environment;
  return impl_->finish();
}

StepResult Hook::synchronize() noexcept { return impl_->synchronize(); }

Status Hook::replay(std::uint64_t step, float loss_scale) noexcept {
  return impl_->replay(step, loss_scale);
}

Status Hook::set_stream(Stream stream) noexcept {
  if (!impl_->device) return {Code::invalid_usage, "set_stream: only backend=cuda has a stream"};
  impl_->device->caller = stream;
  return {};
}

std::uint32_t const* Hook::committed_word() const noexcept {
  return impl_->device ? &impl_->device->step()->committed : nullptr;
}

Status Hook::refuse() noexcept { return impl_->refuse(); }

Status Hook::recover(Transport& transport) noexcept { return impl_->recover(transport); }

Failure Hook::failure() const {
  std::lock_guard const lock(impl_->failure_mutex);
  return impl_->last_failure;
}

}  // namespace gradsieve
