// SPDX-License-Identifier: Apache-2.0
// What a hook says about itself.
#include <algorithm>
#include <sstream>

#include "bindings/c/guard.hpp"
#include "bindings/c/handles.hpp"

using namespace gradsieve;

namespace {

thread_local Failure last_failure;  // the strings that the last answer points to

gsvStats stats_of(Stats const& stats) {
  gsvStats known = GSV_INIT(gsvStats);
  known.name = stats.name.c_str();
  known.spec = stats.spec.c_str();
  known.exchange = stats.exchange.c_str();
  known.num_elements = stats.num_elements;
  known.dense_bytes = stats.dense_bytes;
  known.wire_bytes = stats.wire_bytes;
  known.total_wire_bytes = stats.total_wire_bytes;
  known.kept_elements = stats.kept_elements;
  known.overflowed_elements = stats.overflowed_elements;
  known.encode_seconds = stats.encode_seconds;
  known.exchange_seconds = stats.exchange_seconds;
  known.decode_seconds = stats.decode_seconds;
  known.total_encode_seconds = stats.total_encode_seconds;
  known.total_exchange_seconds = stats.total_exchange_seconds;
  known.total_decode_seconds = stats.total_decode_seconds;
  known.residual_norm = stats.residual_norm;
  known.dropped_norm = stats.dropped_norm;
  known.encode_cpu_seconds = stats.encode_cpu_seconds;
  known.decode_cpu_seconds = stats.decode_cpu_seconds;
  known.total_encode_cpu_seconds = stats.total_encode_cpu_seconds;
  known.total_decode_cpu_seconds = stats.total_decode_cpu_seconds;
  return known;
}

}  // namespace

extern "C" {

gsvResult_t gsvHookGetFailure(gsvHook_t hook, gsvFailure_t* failure) {
  return c::guard([&] {
    last_failure = c::required(hook, "hook").hook.failure();
    gsvFailure known = GSV_INIT(gsvFailure);
    known.code = static_cast<std::uint32_t>(last_failure.code);
    known.rank = last_failure.rank;
    known.tensor = last_failure.tensor.c_str();
    known.field = last_failure.field.c_str();
    known.message = last_failure.message.c_str();
    c::write(known, failure, "failure");
  });
}

gsvResult_t gsvHookGetStats(gsvHook_t hook, gsvStatsOf_t of, gsvStats_t* stats, uint32_t capacity,
                            uint32_t* count) {
  return c::guard([&] {
    gsvHook& target = c::required(hook, "hook");
    c::required_array(stats, capacity, "stats");
    bool const of_buckets = c::choice(of, gsvStatsOfBuckets, "of") == gsvStatsOfBuckets;
    target.stats = of_buckets ? target.hook.bucket_stats() : target.hook.tensor_stats();
    c::required(count, "count") = static_cast<std::uint32_t>(target.stats.size());
    std::size_t const num_written = std::min<std::size_t>(capacity, target.stats.size());
    for (std::size_t i = 0; i < num_written; ++i) {
      gsvStats* const place = c::element(stats, i);
      place->struct_size = stats->struct_size;
      c::write(stats_of(target.stats[i]), place, "stats");
    }
  });
}

gsvResult_t gsvHookGetResidual(gsvHook_t hook, char const* tensor, float* residual,
                               uint64_t count) {
  return c::guard([&] {
    std::vector<float> const values =
        c::required(hook, "hook").hook.residual(c::required_text(tensor, "tensor"));
    if (values.size() != count)
      throw Error(Code::invalid_argument, "count is " + std::to_string(count) + "; '" +
                                              std::string(tensor) + "' has " +
                                              std::to_string(values.size()) + " elements");
    std::ranges::copy(values, c::required_array(residual, count, "residual").begin());
  });
}

gsvResult_t gsvHookDescribe(gsvHook_t hook, char* text, uint64_t capacity, uint64_t* length) {
  return c::guard([&] {
    std::ostringstream out;
    c::required(hook, "hook").hook.describe(out);
    c::write_text(out.str(), text, capacity, length);
  });
}

gsvResult_t gsvHookGetMemory(gsvHook_t hook, uint64_t* state_bytes, uint64_t* workspace_bytes) {
  return c::guard([&] {
    Hook const& target = c::required(hook, "hook").hook;
    if (state_bytes != nullptr) *state_bytes = target.state_bytes();
    if (workspace_bytes != nullptr) *workspace_bytes = target.workspace_bytes();
  });
}

}  // extern "C"
