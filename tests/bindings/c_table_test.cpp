// SPDX-License-Identifier: Apache-2.0
// A transport that a framework brings as a table of C functions.
#include <atomic>
#include <mutex>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "gradsieve/transport.hpp"

#include "tests/bindings/c_client.h"
#include "tests/bindings/c_ranks.hpp"

namespace gradsieve::testing {
namespace {

/// One rank of a local group behind C functions: what a framework writes.
class Framework {
 public:
  Framework(LocalGroup& group, int rank) : transport_(group.transport(rank)) {}

  [[nodiscard]] gsvTransportTable_t table() {
    gsvTransportTable_t table = GSV_INIT(gsvTransportTable_t);
    table.flags = gsvTransportAnyThread;
    table.name = "framework";
    table.rank = transport_.rank();
    table.world_size = transport_.world_size();
    table.self = this;
    table.send = [](void* self, std::int32_t channel, std::int32_t peer, std::uint32_t tag,
                    void const* bytes, std::uint64_t num_bytes, gsvRequest_t* request) {
      auto& framework = *static_cast<Framework*>(self);
      Request& inner = framework.open(request);
      return framework.started(
          framework.transport_.send(static_cast<Channel>(channel), peer, tag,
                                    {static_cast<std::byte const*>(bytes), num_bytes}, inner),
          request);
    };
    table.receive = [](void* self, std::int32_t channel, std::int32_t peer, std::uint32_t tag,
                       void* bytes, std::uint64_t capacity, gsvRequest_t* request) {
      auto& framework = *static_cast<Framework*>(self);
      Request& inner = framework.open(request);
      return framework.started(
          framework.transport_.receive(static_cast<Channel>(channel), peer, tag,
                                       {static_cast<std::byte*>(bytes), capacity}, inner),
          request);
    };
    table.wait = [](void* self, gsvRequest_t* request, std::uint64_t timeout_ns) {
      auto& framework = *static_cast<Framework*>(self);
      Request& inner = *reinterpret_cast<Request*>(request->storage[0]);
      Status const status =
          framework.transport_.wait(inner, Clock::now() + std::chrono::nanoseconds(timeout_ns));
      request->num_bytes = inner.num_bytes + framework.exaggeration;
      request->message = status.ok() ? nullptr : status.message();
      framework.close(request);
      return static_cast<gsvResult_t>(status.code());
    };
    table.abort = [](void* self) { static_cast<Framework*>(self)->transport_.abort(); };
    table.release = [](void* self) { ++static_cast<Framework*>(self)->num_released; };
    return table;
  }

  [[nodiscard]] std::size_t num_open() {
    std::lock_guard const lock(mutex_);
    return open_.size();
  }

  std::uint64_t exaggeration = 0;  ///< says that more bytes came than did
  int num_released = 0;

 private:
  Request& open(gsvRequest_t* request) {
    auto* const inner = new Request;
    request->storage[0] = reinterpret_cast<std::uint64_t>(inner);
    std::lock_guard const lock(mutex_);
    open_.insert(inner);
    return *inner;
  }
  void close(gsvRequest_t* request) {
    auto* const inner = reinterpret_cast<Request*>(request->storage[0]);
    {
      std::lock_guard const lock(mutex_);
      open_.erase(inner);
    }
    delete inner;
  }
  gsvResult_t started(Status status, gsvRequest_t* request) {
    if (!status.ok()) {
      request->message = status.message();
      close(request);
    }
    return static_cast<gsvResult_t>(status.code());
  }

  Transport& transport_;
  std::mutex mutex_;
  std::set<Request*> open_;
};

TEST(CTableTest, TrainsWithTheBitsOfTheLocalTransport) {
  constexpr int kRanks = 3;
  constexpr std::uint32_t kSteps = 6;
  ClientJob const job = {"topk(density=0.05) | int8 ; feedback=residual",
                         kSteps,
                         gsvRollbackExact,
                         0,
                         {100, 2000, 1, 0}};
  std::uint64_t const total = std::accumulate(std::begin(job.tensor_elements),
                                              std::end(job.tensor_elements), std::uint64_t{0});
  ContextPtr const context = make_context();
  std::vector<std::vector<float>> results[2];
  std::vector<float> residuals(total);

  std::vector<CommPtr> const local = make_local_comms(kRanks);
  LocalGroup group(kRanks);
  std::vector<std::unique_ptr<Framework>> frameworks;
  std::vector<CommPtr> tables;
  for (int rank = 0; rank < kRanks; ++rank) {
    frameworks.push_back(std::make_unique<Framework>(group, rank));
    gsvTransportTable_t const table = frameworks.back()->table();
    gsvComm_t comm = nullptr;
    ASSERT_GSV(gsvCommInitTable(&comm, &table));
    tables.emplace_back(comm);
  }
  for (int way = 0; way < 2; ++way) {
    results[way].assign(kRanks, std::vector<float>(kSteps * total));
    for_each_rank(kRanks, [&](int rank) {
      auto const r = static_cast<std::size_t>(rank);
      std::vector<float> rest(total);
      EXPECT_EQ(client_train((way == 0 ? local : tables)[r].get(), context.get(), &job,
                             results[way][r].data(), rest.data()),
                gsvSuccess);
    });
  }

  EXPECT_EQ(results[0], results[1]);
  for (int rank = 0; rank < kRanks; ++rank) {
    auto const r = static_cast<std::size_t>(rank);
    std::uint64_t sent[2] = {};
    gsvCommCounters(local[r].get(), &sent[0], nullptr);
    gsvCommCounters(tables[r].get(), &sent[1], nullptr);
    EXPECT_EQ(sent[0], sent[1]);
    EXPECT_GT(sent[1], 0U);
    EXPECT_EQ(frameworks[r]->num_open(), 0U);
    EXPECT_EQ(frameworks[r]->num_released, 0);
    tables[r].reset();
    EXPECT_EQ(frameworks[r]->num_released, 1);
  }
}

TEST(CTableTest, AHookKeepsItsTransportAlive) {
  LocalGroup group(1);
  Framework framework(group, 0);
  gsvTransportTable_t const table = framework.table();
  gsvComm_t comm = nullptr;
  ASSERT_GSV(gsvCommInitTable(&comm, &table));
  ContextPtr context = make_context();
  HookPtr hook = make_hook(comm, context.get(), "int8");
  context.reset();
  gsvCommDestroy(comm);
  EXPECT_EQ(framework.num_released, 0);
  ASSERT_GSV(plan_one(hook.get(), 100));
  std::vector<float> gradient(100, 1.0F);
  gsvStepResult_t outcome = GSV_INIT(gsvStepResult_t);
  EXPECT_GSV(step_one(hook.get(), 0, gradient, outcome));

  hook.reset();

  EXPECT_EQ(framework.num_released, 1);
}

TEST(CTableTest, ALengthBeyondTheRoomIsATransportError) {
  LocalGroup group(2);
  Framework frameworks[] = {{group, 0}, {group, 1}};
  frameworks[1].exaggeration = std::uint64_t{1} << 40;
  ContextPtr const context = make_context();
  for_each_rank(2, [&](int rank) {
    gsvTransportTable_t const table = frameworks[rank].table();
    gsvComm_t comm = nullptr;
    ASSERT_GSV(gsvCommInitTable(&comm, &table));
    CommPtr const owned(comm);
    gsvHookOptions_t options = GSV_INIT(gsvHookOptions_t);
    options.exchange_deadline_ms = 500;
    HookPtr const hook = make_hook(comm, context.get(), "int8", options);
    gsvResult_t const result = plan_one(hook.get(), 100);
    if (rank == 1) {
      EXPECT_EQ(result, gsvTransportError) << gsvGetLastError();
      EXPECT_NE(std::string(gsvGetLastError()).find("more bytes"), std::string::npos)
          << gsvGetLastError();
    }
  });
}

TEST(CTableTest, ANumberThatIsNoResultIsATransportError) {
  LocalGroup group(2);
  ContextPtr const context = make_context();
  for (std::uint32_t const number : {1u, 1u << 20, ~0u}) {
    static std::uint32_t answer;
    answer = number;
    Framework framework(group, 0);
    gsvTransportTable_t table = framework.table();
    table.send = [](void*, std::int32_t, std::int32_t, std::uint32_t, void const*, std::uint64_t,
                    gsvRequest_t*) { return any_number<gsvResult_t>(answer); };
    table.receive = [](void*, std::int32_t, std::int32_t, std::uint32_t, void*, std::uint64_t,
                       gsvRequest_t*) { return any_number<gsvResult_t>(answer); };
    gsvComm_t comm = nullptr;
    ASSERT_GSV(gsvCommInitTable(&comm, &table));
    CommPtr const owned(comm);
    HookPtr const hook = make_hook(comm, context.get(), "int8");

    EXPECT_EQ(plan_one(hook.get(), 100), gsvTransportError) << number;
  }
}

TEST(CTableTest, RefusesATableThatLacksAFunctionOrARank) {
  LocalGroup group(1);
  Framework framework(group, 0);
  gsvComm_t comm = nullptr;
  gsvTransportTable_t table = framework.table();
  table.wait = nullptr;
  EXPECT_EQ(gsvCommInitTable(&comm, &table), gsvInvalidArgument);
  table = framework.table();
  table.rank = 1;
  EXPECT_EQ(gsvCommInitTable(&comm, &table), gsvInvalidArgument);
  EXPECT_NE(std::string(gsvGetLastError()).find("rank 1 of 1"), std::string::npos)
      << gsvGetLastError();
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(framework.num_released, 0);
}

}  // namespace
}  // namespace gradsieve::testing
