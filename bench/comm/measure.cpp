// SPDX-License-Identifier: Apache-2.0
#include "bench/comm/measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
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
  std::vector<double> gather(double own) {
    context_.deadline = Clock::now() + kDeadline;
    ++context_.tag;
    Status const status = exchange::all_gather_word(context_, std::bit_cast<std::uint64_t>(own),
                                                    words_, {flags_.get() + size_, size_});
    if (!status.ok()) throw Error(status.code(), "a rank does not answer");
    std::vector<double> values(size_);
    for (std::size_t r = 0; r < size_; ++r) values[r] = std::bit_cast<double>(words_[r]);
    return values;
  }
  double maximum(double own) { return std::ranges::max(gather(own)); }

 private:
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
  ExecContext ctx;
  kernels::narrow(ctx, values, false, out);
}

double predicted(Row const& row, Case const& which, int world_size, std::size_t capacity_bytes) {
  double const others = world_size - 1;
  if (row.exchange == "gather") return others * static_cast<double>(capacity_bytes);
  // Both kinds of all-reduce move every element out of each rank twice, but for its own share.
  double const body = row.exchange == "two_shot"
                          ? static_cast<double>(capacity_bytes)
                          : static_cast<double>(which.num_elements) * sizeof(float);
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
    talk.gather(0.0);
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

Row measure(Transport& transport, Case const& which) {
  Talk talk(transport);
  if (which.spec == kLibraryDense) return measure_library(transport, which, talk);

  Hook hook(transport, {.rules = {{"*", which.spec}}, .op = which.op, .seed = which.seed});
  TensorDesc const tensors[] = {
      {.name = "gradient", .num_elements = which.num_elements, .dtype = which.dtype}};
  BucketDesc const buckets[] = {{{"gradient"}}};
  hook.plan(tensors, buckets);

  std::vector<std::byte> memory(
      std::max<std::size_t>(which.num_elements * size_of(which.dtype), 1));
  TensorView const gradient(memory.data(), which.num_elements, which.dtype);
  std::vector<double> encode, exchange, decode, total, wire;
  int const steps = which.warmup_iterations + which.iterations;
  for (int i = 0; i < steps; ++i) {
    fill_gradient(which.seed, transport.rank(), static_cast<std::uint64_t>(i), gradient);
    talk.gather(0.0);
    Clock::time_point const start = Clock::now();
    Event event;
    Status status = hook.begin(static_cast<std::uint64_t>(i));
    if (status.ok()) status = hook.reduce(0, gradient, event);
    StepResult const result = hook.finish();
    double const elapsed = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    if (!status.ok() || !result.committed) throw Error(Code::internal, hook.failure().message);
    if (i < which.warmup_iterations) continue;
    Stats const stats = hook.bucket_stats()[0];
    encode.push_back(stats.encode_seconds * 1e6);
    exchange.push_back(stats.exchange_seconds * 1e6);
    decode.push_back(stats.decode_seconds * 1e6);
    total.push_back(elapsed);
    wire.push_back(static_cast<double>(stats.wire_bytes));
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
  TensorInfo const info{0, 0, which.num_elements, 1, which.dtype};
  std::size_t const bodies[] = {
      chain.compressor->round(chain.compressor->num_rounds() - 1, info).capacity_bytes};
  row.predicted_bytes =
      predicted(row, which, transport.world_size(), wire::payload_capacity(bodies));
  if (!which.check) return row;

  double const divisor = which.op == ReduceOp::mean ? transport.world_size() : 1;
  std::vector<double> expected(which.num_elements, 0.0);
  std::vector<std::byte> other(memory.size());
  std::vector<float> wide(which.num_elements);
  ExecContext ctx;
  for (int r = 0; r < transport.world_size(); ++r) {
    TensorView const view(other.data(), which.num_elements, which.dtype);
    fill_gradient(which.seed, r, static_cast<std::uint64_t>(steps - 1), view);
    kernels::widen(ctx, view, wide);
    for (std::size_t i = 0; i < wide.size(); ++i)
      expected[i] += static_cast<double>(wide[i]) / divisor;
  }
  kernels::widen(ctx, gradient, wide);
  double error = 0.0;
  double norm = 0.0;
  PlanHash hash;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    error += (wide[i] - expected[i]) * (wide[i] - expected[i]);
    norm += expected[i] * expected[i];
    hash.add(std::bit_cast<std::uint32_t>(wide[i]));
  }
  row.relative_error = norm > 0.0 ? std::sqrt(error / norm) : 0.0;
  // 52 bits of the hash survive as a double, which is plenty to tell two results apart.
  std::vector<double> const hashes = talk.gather(static_cast<double>(hash.value() >> 12));
  row.num_wrong = static_cast<std::uint64_t>(
      std::ranges::count_if(hashes, [&](double h) { return h != hashes[0]; }));
  return row;
}

}  // namespace gradsieve::bench
