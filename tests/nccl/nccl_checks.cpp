// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/nccl_checks.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace gradsieve::testing {

namespace {

constexpr std::size_t kSizes[] = {0, 1, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097};

std::size_t num_ranks(NcclRank const& rank) { return static_cast<std::size_t>(rank.world_size()); }

template <typename T>
Bytes bytes_on(OnDevice<T> const& array) {
  return std::as_writable_bytes(array.span());
}

std::vector<std::byte> gathered(NcclRank const& rank, std::size_t count, int purpose = 0) {
  std::vector<std::byte> all;
  for (int r = 0; r < rank.world_size(); ++r) {
    std::vector<std::byte> const part = bytes_of(r, count, purpose);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

/// Part r: what rank r has for this one.
std::vector<std::byte> swapped(NcclRank const& rank, std::size_t part_bytes, int purpose = 0) {
  std::vector<std::byte> all;
  for (int r = 0; r < rank.world_size(); ++r) {
    std::vector<std::byte> const theirs = bytes_of(r, part_bytes * num_ranks(rank), purpose);
    auto const begin = theirs.begin() + static_cast<std::ptrdiff_t>(part_bytes) * rank.rank();
    all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(part_bytes));
  }
  return all;
}

/// Small whole numbers, whose sum is exact in any order.
template <typename T>
std::vector<T> numbers_of(int rank, std::size_t count, int purpose = 0) {
  std::vector<T> numbers(count);
  for (std::size_t i = 0; i < count; ++i)
    numbers[i] = static_cast<T>(static_cast<int>(byte_of(rank, i, purpose)) - 128);
  return numbers;
}

template <typename T>
std::vector<T> summed(NcclRank const& rank, std::size_t count, int purpose = 0) {
  std::vector<T> sum(count);
  for (int r = 0; r < rank.world_size(); ++r) {
    std::vector<T> const numbers = numbers_of<T>(r, count, purpose);
    for (std::size_t i = 0; i < count; ++i) sum[i] += numbers[i];
  }
  return sum;
}

template <typename T>
void check_sum(NcclRank& rank, DeviceExchange& exchange, std::size_t count, bool in_place) {
  CudaStep& step = rank.step();
  OnDevice<T> const own(step, numbers_of<T>(rank.rank(), count));
  OnDevice<T> const other(step, std::vector<T>(count));
  OnDevice<T> const& sum = in_place ? own : other;
  Status const status =
      exchange.all_reduce(step.stream(), ConstTensorView(own.span()), TensorView(sum.span()));
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(same_bytes(summed<T>(rank, count), sum.read())) << count << " in place " << in_place;
  EXPECT_TRUE(sum.intact());
}

/// Numbers whose sum depends on the order: any order will do, but one for all ranks.
void check_sum_is_common(NcclRank& rank, DeviceExchange& exchange) {
  constexpr std::size_t kCount = 1000;
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i)
    values[i] = 1.0F / static_cast<float>(i + 3 * static_cast<std::size_t>(rank.rank()) + 1);
  CudaStep& step = rank.step();
  OnDevice<float> const own(step, values);
  OnDevice<float> const all(step, std::vector<float>(kCount * num_ranks(rank)));
  ASSERT_TRUE(
      exchange.all_reduce(step.stream(), ConstTensorView(own.span()), TensorView(own.span())).ok());
  ASSERT_TRUE(exchange.all_gather(step.stream(), bytes_on(own), bytes_on(all)).ok());
  std::vector<float> const sums = all.read();
  auto const begin_of = [&](std::size_t r) {
    return sums.begin() + static_cast<std::ptrdiff_t>(r * kCount);
  };
  std::vector<float> const first(begin_of(0), begin_of(1));
  for (std::size_t r = 1; r < num_ranks(rank); ++r)
    EXPECT_TRUE(same_bytes(first, std::vector<float>(begin_of(r), begin_of(r + 1)))) << r;
}

}  // namespace

void check_all_gather(NcclRank& rank, DeviceExchange& exchange) {
  CudaStep& step = rank.step();
  for (std::size_t const size : kSizes) {
    OnDevice<std::byte> const own(step, bytes_of(rank.rank(), size), size % 3);
    OnDevice<std::byte> const all(step, std::vector<std::byte>(size * num_ranks(rank)), size % 5);
    Status const status = exchange.all_gather(step.stream(), own.span(), all.span());
    ASSERT_TRUE(status.ok()) << size << ": " << status.message();
    EXPECT_TRUE(same_bytes(gathered(rank, size), all.read())) << size;
    EXPECT_TRUE(all.intact());
  }
}

void check_all_to_all(NcclRank& rank, DeviceExchange& exchange) {
  CudaStep& step = rank.step();
  for (std::size_t const size : kSizes) {
    std::size_t const total = size * num_ranks(rank);
    OnDevice<std::byte> const own(step, bytes_of(rank.rank(), total), size % 3);
    OnDevice<std::byte> const received(step, std::vector<std::byte>(total), size % 5);
    Status const status = exchange.all_to_all(step.stream(), own.span(), received.span());
    ASSERT_TRUE(status.ok()) << size << ": " << status.message();
    EXPECT_TRUE(same_bytes(swapped(rank, size), received.read())) << size;
    EXPECT_TRUE(received.intact());
  }
}

void check_all_reduce(NcclRank& rank, DeviceExchange& exchange) {
  for (std::size_t const size : kSizes) {
    check_sum<float>(rank, exchange, size, false);
    check_sum<float>(rank, exchange, size, true);
    check_sum<double>(rank, exchange, size, size % 2 == 0);
  }
  check_sum_is_common(rank, exchange);
}

void check_all_reduce_min(NcclRank& rank, DeviceExchange& exchange) {
  CudaStep& step = rank.step();
  for (int lowest = 0; lowest < rank.world_size(); ++lowest) {
    // Beyond what a signed number would take.
    std::uint64_t const value =
        std::numeric_limits<std::uint64_t>::max() -
        (rank.rank() == lowest ? 1000U : 10U + static_cast<unsigned>(rank.rank()));
    OnDevice<std::uint64_t> const own(step, std::vector<std::uint64_t>{value});
    OnDevice<std::uint64_t> const least(step, std::vector<std::uint64_t>{0});
    ASSERT_TRUE(exchange.all_reduce_min(step.stream(), own.data(), least.data()).ok());
    EXPECT_EQ(least.read()[0], std::numeric_limits<std::uint64_t>::max() - 1000U);
  }
}

// Pinned memory, because a copy from pageable memory waits for itself.
bool distinct_streams_agree(NcclRank& rank, EventWaits waits) {
  constexpr std::size_t kCount = 1000;
  CudaStep filling;
  CudaStep reading;
  std::size_t const total = kCount * num_ranks(rank);
  OnDevice<std::byte> const own(filling, std::vector<std::byte>(kCount));
  OnDevice<std::byte> const all(reading, std::vector<std::byte>(total));
  Buffer const values(kCount, pinned_memory());
  Buffer const result(total, pinned_memory());
  bool agree = true;
  for (int round = 0; round < 3; ++round) {
    std::ranges::copy(bytes_of(rank.rank(), kCount, round), values.data());
    CudaEvent filled;
    CudaEvent exchanged;
    require(cudaMemcpyAsync(own.data(), values.data(), kCount, cudaMemcpyHostToDevice,
                            filling.cuda_stream()));
    filled.record(filling.stream());
    if (waits != EventWaits::without_filling) filled.hold_back(rank.stream());
    EXPECT_TRUE(rank.exchange().all_gather(rank.stream(), own.span(), all.span()).ok());
    exchanged.record(rank.stream());
    if (waits != EventWaits::without_exchange) exchanged.hold_back(reading.stream());
    require(cudaMemcpyAsync(result.data(), all.data(), total, cudaMemcpyDeviceToHost,
                            reading.cuda_stream()));
    reading.wait();
    std::vector<std::byte> const received(result.data(), result.data() + total);
    agree = agree && same_bytes(gathered(rank, kCount, round), received);
    filling.wait();  // the next round fills `values`
    rank.step().wait();
  }
  return agree;
}

namespace {

/// What is captured, and the memory it works on.
class ExchangeGraph {
 public:
  static constexpr std::size_t kCount = 513;

  explicit ExchangeGraph(NcclRank& rank)
      : rank_(rank),
        step_(rank.step()),
        own_(step_, std::vector<std::byte>(kCount)),
        all_(step_, std::vector<std::byte>(kCount * num_ranks(rank))),
        parts_(step_, std::vector<std::byte>(kCount * num_ranks(rank))),
        swapped_(step_, std::vector<std::byte>(kCount * num_ranks(rank))),
        numbers_(step_, std::vector<float>(kCount)),
        sum_(step_, std::vector<float>(kCount)),
        word_(step_, std::vector<std::uint64_t>(1)),
        least_(step_, std::vector<std::uint64_t>(1)) {}
  ~ExchangeGraph() {
    static_cast<void>(cudaGraphExecDestroy(executable_));
    static_cast<void>(cudaGraphDestroy(graph_));
  }
  ExchangeGraph(ExchangeGraph const&) = delete;
  ExchangeGraph& operator=(ExchangeGraph const&) = delete;

  /// All four, on the stream; also what is captured.
  [[nodiscard]] Status enqueue() {
    DeviceExchange& exchange = rank_.exchange();
    Stream const stream = rank_.stream();
    GRADSIEVE_RETURN_IF_ERROR(exchange.all_gather(stream, own_.span(), all_.span()));
    GRADSIEVE_RETURN_IF_ERROR(exchange.all_to_all(stream, parts_.span(), swapped_.span()));
    GRADSIEVE_RETURN_IF_ERROR(
        exchange.all_reduce(stream, ConstTensorView(numbers_.span()), TensorView(sum_.span())));
    return exchange.all_reduce_min(stream, word_.data(), least_.data());
  }

  void capture() {
    require(cudaStreamBeginCapture(step_.cuda_stream(), cudaStreamCaptureModeThreadLocal));
    Status const status = enqueue();
    require(cudaStreamEndCapture(step_.cuda_stream(), &graph_));
    ASSERT_TRUE(status.ok()) << status.message();
    require(cudaGraphInstantiate(&executable_, graph_, 0));
  }

  void launch() { require(cudaGraphLaunch(executable_, step_.cuda_stream())); }

  void fill(int round) {
    put(own_, bytes_of(rank_.rank(), kCount, round));
    put(parts_, bytes_of(rank_.rank(), kCount * num_ranks(rank_), round));
    put(numbers_, numbers_of<float>(rank_.rank(), kCount, round));
    put(word_, {word(rank_.rank(), round)});
  }

  void check(int round) {
    EXPECT_TRUE(same_bytes(gathered(rank_, kCount, round), all_.read())) << round;
    EXPECT_TRUE(same_bytes(swapped(rank_, kCount, round), swapped_.read())) << round;
    EXPECT_TRUE(same_bytes(summed<float>(rank_, kCount, round), sum_.read())) << round;
    std::uint64_t least = word(0, round);
    for (int r = 1; r < rank_.world_size(); ++r) least = std::min(least, word(r, round));
    EXPECT_EQ(least_.read()[0], least) << round;
  }

 private:
  [[nodiscard]] static std::uint64_t word(int rank, int round) {
    return static_cast<std::uint64_t>(byte_of(rank, 7, round)) << 40;
  }
  template <typename T>
  void put(OnDevice<T> const& array, std::vector<T> const& values) {
    require(cudaMemcpyAsync(array.data(), values.data(), values.size() * sizeof(T),
                            cudaMemcpyHostToDevice, step_.cuda_stream()));
    step_.wait();
  }

  NcclRank& rank_;
  CudaStep& step_;
  OnDevice<std::byte> own_;
  OnDevice<std::byte> all_;
  OnDevice<std::byte> parts_;
  OnDevice<std::byte> swapped_;
  OnDevice<float> numbers_;
  OnDevice<float> sum_;
  OnDevice<std::uint64_t> word_;
  OnDevice<std::uint64_t> least_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

void check_graph(NcclRank& rank) {
  ExchangeGraph graph(rank);
  graph.fill(100);
  ASSERT_TRUE(graph.enqueue().ok());  // connects the ranks
  graph.check(100);
  graph.capture();
  for (int round = 0; round < 20; ++round) {
    graph.fill(round);
    graph.launch();
    graph.check(round);
  }
}

}  // namespace gradsieve::testing
