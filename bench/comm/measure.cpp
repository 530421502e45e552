// SPDX-License-Identifier: Apache-2.0
#include "bench/comm/measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/exchange/collectives.hpp"
#include "core/hash.hpp"
#include "core/philox.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::bench {
namespace {

constexpr std::chrono::seconds kDeadline{120};

/// Numbers that ranks tell each other outside the measured part.
class Talk {
 public:
  explicit Talk(Transport& transport)
      : size_(static_cast<std::size_t>(transport.world_size())),
        requests_(2 * size_),
        words_(size_),
        flags_(std::make_unique<bool[]>(2 * size_)) {
    context_.transport = &transport;
    context_.requests = requests_;
    context_.gone = {flags_.get(), size_};
    context_.channel = Channel::control;
    context_.tag = 0x0d000000u;
  }
  std::vector<std::uint64_t> const& gather(std::uint64_t own) {
    context_.deadline = Clock::now() + kDeadline;
    ++context_.tag;
    expect_ok(exchange::all_gather_word(context_, own, words_, {flags_.get() + size_, size_}));
    return words_;
  }
  void barrier() { gather(0); }
  std::uint64_t sum(std::uint64_t own) {
    std::uint64_t total = 0;
    for (std::uint64_t const word : gather(own)) total += word;
    return total;
  }
  double maximum(double own) {
    double largest = own;
    for (std::uint64_t const word : gather(std::bit_cast<std::uint64_t>(own)))
      largest = std::max(largest, std::bit_cast<double>(word));
    return largest;
  }
  /// Rank 0's bytes, on all ranks as many as they bring.
  std::vector<std::byte> of_rank_0(ConstBytes own) {
    Transport& transport = *context_.transport;
    std::vector<std::byte> bytes(own.begin(), own.end());
    ++context_.tag;
    Deadline const deadline = Clock::now() + kDeadline;
    for (int peer = 1; peer < transport.world_size(); ++peer) {
      Request request;
      if (transport.rank() == 0) {
        expect_ok(transport.send(context_.channel, peer, context_.tag, own, request));
      } else if (transport.rank() == peer) {
        expect_ok(transport.receive(context_.channel, 0, context_.tag, bytes, request));
      } else {
        continue;
      }
      expect_ok(transport.wait(request, deadline));
    }
    return bytes;
  }

 private:
  static void expect_ok(Status const& status) {
    if (!status.ok()) throw Error(status.code(), "a rank does not answer");
  }

  std::size_t size_;
  std::vector<Request> requests_;
  std::vector<std::uint64_t> words_;
  std::unique_ptr<bool[]> flags_;
  exchange::ExchangeContext context_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0.0 : values[values.size() / 2];
}

void convert_to(std::vector<float> const& values, TensorView out) {
  if (out.dtype == DType::f64) {
    std::ranges::copy(values, out.as<double>().begin());
    return;
  }
  ExecContext ctx;
  kernels::narrow(ctx, values, false, out);
}

/// Calls visit(index, value) for every element.
template <typename Visit>
void for_each_value(ConstTensorView view, Visit const& visit) {
  if (view.dtype == DType::f64) {
    std::span<double const> const values = view.as<double>();
    for (std::size_t i = 0; i < values.size(); ++i) visit(i, values[i]);
    return;
  }
  ExecContext ctx;
  std::vector<float> wide(4096);
  for (std::uint64_t begin = 0; begin < view.num_elements; begin += wide.size()) {
    wide.resize(std::min<std::uint64_t>(wide.size(), view.num_elements - begin));
    kernels::widen(ctx, view.slice(begin, wide.size()), wide);
    for (std::size_t i = 0; i < wide.size(); ++i) visit(begin + i, double{wide[i]});
  }
}

/// What the last step has left on this rank, against the truth and against the other ranks.
void check(Transport& transport, Case const& which, TensorView result, double divisor, Row& row) {
  std::vector<double> expected(which.num_elements, 0.0);
  std::vector<std::byte> memory(result.num_bytes());
  TensorView const given(memory.data(), which.num_elements, which.dtype);
  int const last_step = which.warmup_iterations + which.iterations - 1;
  for (int r = 0; r < transport.world_size(); ++r) {
    fill_gradient(which.seed, r, static_cast<std::uint64_t>(last_step), given);
    for_each_value(given, [&](std::size_t i, double x) { expected[i] += x / divisor; });
  }
  double error = 0.0;
  double norm = 0.0;
  for_each_value(result, [&](std::size_t i, double x) {
    error += (x - expected[i]) * (x - expected[i]);
    norm += expected[i] * expected[i];
  });
  row.relative_error = norm > 0.0 ? std::sqrt(error / norm) : 0.0;
  row.num_wrong = count_wrong(transport, result);
}

/// Bytes that a rank sends of a bucket.
double predicted(std::string const& exchange, TensorDesc const& bucket, int world_size,
                 std::size_t capacity_bytes) {
  double const others = world_size - 1;
  if (exchange == "gather") return others * static_cast<double>(capacity_bytes);
  // Both kinds of all-reduce move every element out of each rank twice, but for its own share.
  double const body = exchange == "two_shot"
                          ? static_cast<double>(capacity_bytes)
                          : static_cast<double>(bucket.num_elements) *
                                (bucket.dtype == DType::f64 ? sizeof(double) : sizeof(float));
  return 2.0 * others / world_size * body;
}

Row measure_library(Transport& transport, Case const& which, Talk& talk) {
  Row row{.spec = which.spec,
          .exchange = "library",
          .num_elements = which.num_elements,
          .dtype = which.dtype};
  std::vector<std::byte> memory(which.num_elements * size_of(which.dtype));
  TensorView const data(memory.data(), which.num_elements, which.dtype);
  std::vector<double> total;
  for (int i = 0; i < which.warmup_iterations + which.iterations; ++i) {
    fill_gradient(which.seed, transport.rank(), static_cast<std::uint64_t>(i), data);
    talk.barrier();
    Clock::time_point const start = Clock::now();
    if (!transport.dense_all_reduce(data).ok()) {
      row.supported = false;
      return row;
    }
    if (i >= which.warmup_iterations) {
      total.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
  }
  double const others = transport.world_size() - 1;
  row.predicted_bytes = row.wire_bytes = 2.0 * others / transport.world_size() *
                                         static_cast<double>(memory.size());  // the ring's optimum
  row.total_us = row.exchange_us = talk.maximum(median(total));
  if (which.check) check(transport, which, data, 1.0, row);  // it has sums alone
  return row;
}

}  // namespace

void fill_gradient(std::uint64_t seed, int rank, std::uint64_t step, TensorView gradient) {
  std::vector<float> values(gradient.num_elements);
  PhiloxKey const key = philox_key(seed, 0x9e11, Purpose::select, static_cast<std::uint32_t>(rank));
  for (std::size_t i = 0; i < values.size(); i += 4) {
    auto const words = philox(key, i / 4, step);
    for (std::size_t j = 0; j < 4 && i + j < values.size(); ++j) {
      // The cube of a uniform number: the top percent holds about a tenth of the sum and most of
      // the energy.
      float const u = static_cast<float>(static_cast<std::int32_t>(words[j])) * 0x1p-31F;
      float const layer = std::ldexp(1.0F, static_cast<int>((i + j) * 8 / values.size()) - 4);
      values[i + j] = layer * u * u * u * u * u;
    }
  }
  convert_to(values, gradient);
}

std::uint64_t sum_over_ranks(Transport& transport, std::uint64_t own) {
  return Talk(transport).sum(own);
}

std::uint64_t count_wrong(Transport& transport, ConstTensorView result) {
  Talk talk(transport);
  ConstBytes const own(static_cast<std::byte const*>(result.data), result.num_bytes());
  std::string_view const text(reinterpret_cast<char const*>(own.data()), own.size());
  std::vector<std::uint64_t> const& hashes = talk.gather(PlanHash().add(text).value());
  if (std::ranges::count(hashes, hashes[0]) == transport.world_size()) return 0;

  // Only where they do differ the elements are worth sending.
  std::vector<std::byte> const first = talk.of_rank_0(own);
  std::size_t const size = size_of(result.dtype);
  std::uint64_t num_wrong = 0;
  for (std::size_t i = 0; i < own.size(); i += size)
    num_wrong += std::memcmp(own.data() + i, first.data() + i, size) != 0 ? 1 : 0;
  return talk.sum(num_wrong);
}

Row measure(Transport& transport, Case const& which) {
  Talk talk(transport);
  if (which.spec == kLibraryDense) return measure_library(transport, which, talk);

  Hook hook(transport, {.rules = {{"*", which.spec}}, .op = which.op, .seed = which.seed});
  std::uint64_t const bucket_elements =
      which.bucket_elements == 0 ? which.num_elements : which.bucket_elements;
  std::vector<TensorDesc> tensors;
  std::vector<BucketDesc> buckets;
  for (std::uint64_t begin = 0; begin < which.num_elements || begin == 0;
       begin += std::max<std::uint64_t>(bucket_elements, 1)) {
    std::string const name = "gradient" + std::to_string(tensors.size());
    tensors.push_back({.name = name,
                       .num_elements = std::min(bucket_elements, which.num_elements - begin),
                       .dtype = which.dtype});
    buckets.push_back({{name}});
  }
  hook.plan(tensors, buckets);

  std::vector<std::byte> memory(
      std::max<std::size_t>(which.num_elements * size_of(which.dtype), 1));
  TensorView const gradient(memory.data(), which.num_elements, which.dtype);
  std::vector<double> encode, exchange, decode, total, wire;
  int const steps = which.warmup_iterations + which.iterations;
  for (int i = 0; i < steps; ++i) {
    fill_gradient(which.seed, transport.rank(), static_cast<std::uint64_t>(i), gradient);
    talk.barrier();
    Clock::time_point const start = Clock::now();
    Event event;
    Status status = hook.begin(static_cast<std::uint64_t>(i));
    std::uint64_t at = 0;
    for (std::size_t b = 0; b < tensors.size() && status.ok(); ++b) {
      TensorView const bucket = gradient.slice(at, tensors[b].num_elements);
      status = hook.reduce(static_cast<std::uint32_t>(b), bucket, event);
      at += tensors[b].num_elements;
    }
    StepResult const result = hook.finish();
    double const elapsed = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    if (!status.ok() || !result.committed) throw Error(Code::internal, hook.failure().message);
    if (i < which.warmup_iterations) continue;
    Stats all;
    for (Stats const& stats : hook.bucket_stats()) {
      all.encode_seconds += stats.encode_seconds;
      all.exchange_seconds += stats.exchange_seconds;
      all.decode_seconds += stats.decode_seconds;
      all.wire_bytes += stats.wire_bytes;
    }
    encode.push_back(all.encode_seconds * 1e6);
    exchange.push_back(all.exchange_seconds * 1e6);
    decode.push_back(all.decode_seconds * 1e6);
    total.push_back(elapsed);
    wire.push_back(static_cast<double>(all.wire_bytes));
  }

  Row row;
  row.spec = which.spec;
  row.num_elements = which.num_elements;
  row.dtype = which.dtype;
  Stats const stats = hook.bucket_stats()[0];
  row.exchange = stats.exchange;
  row.wire_bytes = median(wire);
  row.encode_us = talk.maximum(median(encode));
  row.exchange_us = talk.maximum(median(exchange));
  row.decode_us = talk.maximum(median(decode));
  row.total_us = talk.maximum(median(total));
  Chain const chain = make_chain(stats.spec);
  for (TensorDesc const& tensor : tensors) {
    TensorInfo const info{0, 0, tensor.num_elements, 1, which.dtype};
    std::size_t const bodies[] = {
        chain.compressor->round(chain.compressor->num_rounds() - 1, info).capacity_bytes};
    row.predicted_bytes +=
        predicted(row.exchange, tensor, transport.world_size(), wire::payload_capacity(bodies));
  }
  double const divisor = which.op == ReduceOp::mean ? transport.world_size() : 1;
  if (which.check) check(transport, which, gradient, divisor, row);
  return row;
}

}  // namespace gradsieve::bench
