// SPDX-License-Identifier: Apache-2.0
// What ran and what it cost: counters for people and tools.
#include <cmath>
#include <limits>
#include <ostream>
#include <string>

#include "comm/hook_impl.hpp"
#include "core/log.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {
namespace {

char const* exchange_name(Parcel const& parcel, int world_size) {
  if (world_size == 1) return "none";
  switch (parcel.exchange) {
    case ExchangeKind::gather:
      return "gather";
    case ExchangeKind::sum:
      return "all_reduce";
    case ExchangeKind::shard_sum:
      return "two_shot";
  }
  return "";
}

double norm(std::span<float const> values) {
  double sum = 0.0;
  for (float const x : values) sum += static_cast<double>(x) * x;
  return std::sqrt(sum);
}

/// Adds `share` of a parcel's counters.
void add(Stats& stats, Parcel const& parcel, double share) {
  auto const part = [&](std::uint64_t bytes) {
    return static_cast<std::uint64_t>(share * static_cast<double>(bytes) + 0.5);
  };
  stats.wire_bytes += part(parcel.wire_bytes);
  stats.total_wire_bytes += part(parcel.total_wire_bytes);
  stats.encode_seconds += share * parcel.encode_spent.seconds;
  stats.exchange_seconds += share * parcel.exchange_seconds;
  stats.decode_seconds += share * parcel.decode_spent.seconds;
  stats.total_encode_seconds += share * parcel.total_encode_spent.seconds;
  stats.total_exchange_seconds += share * parcel.total_exchange_seconds;
  stats.total_decode_seconds += share * parcel.total_decode_spent.seconds;
  stats.encode_cpu_seconds += share * parcel.encode_spent.cpu_seconds;
  stats.decode_cpu_seconds += share * parcel.decode_spent.cpu_seconds;
  stats.total_encode_cpu_seconds += share * parcel.total_encode_spent.cpu_seconds;
  stats.total_decode_cpu_seconds += share * parcel.total_decode_spent.cpu_seconds;
}

/// Calls visit(piece) for the pieces of the parcel that begin in [begin, end).
template <typename Visit>
void for_each_piece(Parcel const& parcel, std::uint64_t begin, std::uint64_t end,
                    Visit const& visit) {
  for (Round const& round : parcel.rounds) {
    for (Letter const& letter : round.letters) {
      for (Piece const& piece : letter.pieces) {
        if (piece.parcel_offset >= begin && piece.parcel_offset < end) visit(piece);
      }
    }
  }
}

/// Adds what the sparsifier kept; without one, all elements are kept.
void add_kept(Stats& stats, Parcel const& parcel, std::uint64_t begin, std::uint64_t end) {
  bool const selects = parcel.words.kept_elements + parcel.words.overflowed_elements > 0;
  if (!selects) stats.kept_elements += end - begin;
  for_each_piece(parcel, begin, end, [&](Piece const& piece) {
    stats.kept_elements += piece.kept_elements;
    stats.overflowed_elements += piece.overflowed_elements;
  });
}

/// A tensor's part of its parcel: by the bytes of its bodies, or by its elements where it has none
/// of its own (before the first step, or in a lane of several tensors).
double share_of(PlannedTensor const& tensor, Parcel const& parcel) {
  double own = 0.0;
  double all = 0.0;
  for_each_piece(parcel, 0, parcel.num_elements,
                 [&](Piece const& piece) { all += static_cast<double>(piece.body_bytes); });
  for_each_piece(parcel, tensor.parcel_offset, tensor.parcel_offset + tensor.desc.num_elements,
                 [&](Piece const& piece) { own += static_cast<double>(piece.body_bytes); });
  if (parcel.chain->scope == Scope::tensor && all > 0.0) return own / all;
  return parcel.num_elements == 0 ? 0.0
                                  : static_cast<double>(tensor.desc.num_elements) /
                                        static_cast<double>(parcel.num_elements);
}

std::string first_names(std::vector<PlannedTensor> const& tensors, std::uint32_t parcel) {
  constexpr int kShown = 4;
  std::string names;
  int count = 0;
  for (PlannedTensor const& tensor : tensors) {
    if (tensor.parcel != parcel) continue;
    if (++count <= kShown) names += (names.empty() ? "" : ", ") + tensor.desc.name;
  }
  return count > kShown ? names + ", … " + std::to_string(count - kShown) + " more" : names;
}

}  // namespace

std::vector<Stats> Hook::tensor_stats() const {
  std::vector<Stats> result;
  for (PlannedTensor const& tensor : impl_->tensors) {
    Parcel const& parcel = impl_->parcels[tensor.parcel];
    Stats stats;
    stats.name = tensor.desc.name;
    stats.spec = parcel.chain->text;
    stats.exchange = exchange_name(parcel, impl_->transport->world_size());
    stats.num_elements = tensor.desc.num_elements;
    stats.dense_bytes = tensor.desc.num_elements * size_of(tensor.desc.dtype);
    add(stats, parcel, share_of(tensor, parcel));
    add_kept(stats, parcel, tensor.parcel_offset, tensor.parcel_offset + tensor.desc.num_elements);
    if (parcel.with_residual) {
      stats.residual_norm = norm(residual(tensor.desc.name));
    } else if (!parcel.scratch.empty() && parcel.reached == Reached::encoded) {
      stats.dropped_norm = norm(impl_->fetched(
          parcel.scratch.subspan(static_cast<std::size_t>(tensor.parcel_offset),
                                 static_cast<std::size_t>(tensor.desc.num_elements))));
    }
    result.push_back(std::move(stats));
  }
  return result;
}

std::vector<Stats> Hook::bucket_stats() const {
  std::vector<Stats> result;
  for (std::size_t b = 0; b < impl_->buckets.size(); ++b) {
    Stats stats;
    stats.name = "bucket " + std::to_string(b);
    for (std::uint32_t const index : impl_->bucket_parcels[b]) {
      Parcel const& parcel = impl_->parcels[index];
      stats.spec += (stats.spec.empty() ? "" : ", ") + parcel.chain->text;
      stats.exchange += (stats.exchange.empty() ? "" : ", ") +
                        std::string(exchange_name(parcel, impl_->transport->world_size()));
      stats.num_elements += parcel.num_elements;
      stats.dense_bytes += parcel.num_elements * size_of(parcel.dtype);
      add(stats, parcel, 1.0);
      add_kept(stats, parcel, 0, parcel.num_elements);
    }
    result.push_back(std::move(stats));
  }
  return result;
}

void Hook::describe(std::ostream& out) const {
  int const world_size = impl_->transport->world_size();
  out << "rank " << impl_->transport->rank() << " of " << world_size << " over "
      << impl_->transport->traits().name << ": " << impl_->tensors.size() << " tensors in "
      << impl_->buckets.size() << " buckets\n";
  for (Parcel const& parcel : impl_->parcels) {
    out << "  bucket " << parcel.bucket << ": " << parcel.num_elements << " x "
        << dtype_name(parcel.dtype) << " in " << parcel.lanes.size() << " lanes ("
        << first_names(impl_->tensors, parcel.index) << "), " << parcel.chain->text << ", "
        << exchange_name(parcel, world_size) << ", at most " << parcel.rounds.back().capacity_bytes
        << " bytes a payload";
    if (!parcel.stand_aside.empty()) out << "; dense because " << parcel.stand_aside;
    out << '\n';
  }
  out << "  state " << state_bytes() << " bytes, workspace and payloads " << workspace_bytes()
      << " bytes\n";
}

// --- those who watch -----------------------------------------------------------------------------

void Hook::Impl::log_plan() const {
  int const world_size = transport->world_size();
  log(LogLevel::info, "INIT", "rank %d of %d over %s: %zu tensors in %zu buckets",
      transport->rank(), world_size, std::string(transport->traits().name).c_str(), tensors.size(),
      buckets.size());
  for (Parcel const& parcel : parcels) {
    log(LogLevel::info, "CODEC", "bucket %u: %llu x %s, %s, %s", parcel.bucket,
        static_cast<unsigned long long>(parcel.num_elements), dtype_name(parcel.dtype).data(),
        parcel.chain->text.c_str(), exchange_name(parcel, world_size));
    if (parcel.with_residual) {
      log(LogLevel::info, "EF", "bucket %u: residual in %s, rollback=%s", parcel.bucket,
          dtype_name(parcel.residual_dtype).data(),
          options.rollback == Rollback::exact ? "exact" : "merge");
    }
    if (!parcel.stand_aside.empty()) {
      log(LogLevel::warn, "CODEC", "bucket %u is sent dense: %s", parcel.bucket,
          parcel.stand_aside.c_str());
    }
  }
}

double Hook::Impl::residual_norm() noexcept {
  double sum = 0.0;
  for (Parcel& parcel : parcels) {
    if (!parcel.with_residual) continue;
    bool const is_next = options.rollback == Rollback::exact && parcel.reached == Reached::encoded;
    std::span<float const> values = parcel.residual_dtype != DType::f32
                                        ? std::span<float const>(parcel.scratch)
                                        : (is_next ? parcel.next : parcel.current).as<float>();
    ExecContext ctx = context(parcel, decode_workspace, decode_threads);
    std::vector<float> copy;
    if (device) {
      try {
        copy = fetched(values);
      } catch (...) {
        return std::numeric_limits<double>::quiet_NaN();
      }
      values = copy;
      ctx = {};  // summed on the host
    }
    double own = 0.0;
    kernels::sum_squares(ctx, values, &own);
    sum += own;
  }
  return std::sqrt(sum);
}

void Hook::Impl::report(StepResult const& result) noexcept {
  if (!result.status.ok() && log_enabled(LogLevel::warn, "COMM")) {
    std::lock_guard const lock(failure_mutex);
    log(LogLevel::warn, "COMM", "step %llu: %s (rank %d, tensor '%s', %s)",
        static_cast<unsigned long long>(step), result.status.message(), last_failure.rank,
        last_failure.tensor.c_str(), last_failure.field.c_str());
  }
  bool const traces = log_enabled(LogLevel::trace, "COMM");
  if (!traces && observer == nullptr) return;
  StepRecord record;
  record.step = step;
  record.committed = result.committed;
  record.found_nonfinite = result.found_nonfinite;
  record.result = code_name(result.status.code()).data();  // a literal
  for (Parcel const& parcel : parcels) {
    record.dense_bytes += parcel.num_elements * size_of(parcel.dtype);
    record.wire_bytes += parcel.wire_bytes;
    bool const selects = parcel.words.kept_elements + parcel.words.overflowed_elements > 0;
    record.kept_elements += selects ? parcel.words.kept_elements : parcel.num_elements;
    record.overflowed_elements += parcel.words.overflowed_elements;
    record.encode_spent += parcel.encode_spent;
    record.decode_spent += parcel.decode_spent;
    record.exchange_seconds += parcel.exchange_seconds;
  }
  if (traces) {
    log(LogLevel::trace, "COMM", "step %llu %s: %llu of %llu bytes, %.3f ms on the way",
        static_cast<unsigned long long>(step), result.committed ? "committed" : "not committed",
        static_cast<unsigned long long>(record.wire_bytes),
        static_cast<unsigned long long>(record.dense_bytes), 1e3 * record.exchange_seconds);
  }
  if (observer == nullptr) return;
  record.residual_norm = residual_norm();
  observer->step(record);
}

std::size_t Hook::state_bytes() const noexcept {
  std::size_t total = 0;
  for (Parcel const& parcel : impl_->parcels) {
    total += parcel.current.num_bytes() + parcel.next.num_bytes();
    for (Lane const& lane : parcel.lanes) {
      for (SlotState const& slot : lane.slots)
        total += slot.committed.num_bytes() + slot.next.num_bytes();
    }
  }
  return total;
}

std::size_t Hook::workspace_bytes() const noexcept {
  std::size_t total = impl_->encode_memory.num_bytes() + impl_->decode_memory.num_bytes() +
                      impl_->exchange_memory.num_bytes();
  for (Parcel const& parcel : impl_->parcels) {
    for (Buffer const& buffer : parcel.memory) total += buffer.num_bytes();
  }
  return total;
}

}  // namespace gradsieve
