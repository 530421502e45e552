// SPDX-License-Identifier: Apache-2.0
// What a communicator does where NCCL takes its time, against functions that do so on purpose.
#include "comm/nccl/nccl_communicator.hpp"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

namespace gradsieve::testing {
namespace {

using std::chrono::milliseconds;
using Ownership = NcclCommunicator::Ownership;

/// What the library of this test says and is told. Function pointers have no state of their own.
struct Script {
  std::atomic<bool> keeps_communicators{false};  ///< as NCCL while a graph uses one
  std::atomic<bool> stuck{false};                ///< a call stays inside
  std::atomic<int> polls_in_progress{0};         ///< how often the answer is ncclInProgress
  std::atomic<int> num_destroyed{0};
  std::atomic<int> num_aborted{0};
};
Script script;

void start_anew() {
  script.keeps_communicators = false;
  script.stuck = false;
  script.polls_in_progress = 0;
  script.num_destroyed = 0;
  script.num_aborted = 0;
}

void stay_while(std::atomic<bool> const& flag) {
  while (flag) std::this_thread::sleep_for(milliseconds(1));
}

ncclResult_t say_one(ncclComm_t, int* value) {
  *value = 1;
  return ncclSuccess;
}
ncclResult_t say_zero(ncclComm_t, int* value) {
  *value = 0;
  return ncclSuccess;
}
ncclResult_t answer(ncclComm_t, ncclResult_t* result) {
  *result = script.polls_in_progress-- > 0 ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t destroy(ncclComm_t) {
  stay_while(script.keeps_communicators);
  ++script.num_destroyed;
  return ncclSuccess;
}
ncclResult_t abort_all(ncclComm_t) {
  stay_while(script.keeps_communicators);
  ++script.num_aborted;
  script.stuck = false;
  return ncclSuccess;
}

NcclApi scripted_api() {
  NcclApi api;
  api.get_error_string = [](ncclResult_t) { return "scripted"; };
  api.get_last_error = [](ncclComm_t) { return "scripted"; };
  api.comm_count = say_one;
  api.comm_user_rank = say_zero;
  api.comm_cu_device = say_zero;
  api.comm_get_async_error = answer;
  api.comm_destroy = destroy;
  api.comm_abort = abort_all;
  return api;
}

class NcclCommunicators : public ::testing::Test {
 protected:
  void SetUp() override { start_anew(); }
};

TEST_F(NcclCommunicators, AreDestroyedOnceByTheirOwner) {
  { NcclCommunicator const owned(scripted_api(), nullptr, Ownership::owned, milliseconds(5000)); }
  EXPECT_EQ(script.num_destroyed, 1);
  EXPECT_EQ(script.num_aborted, 0);
}

TEST_F(NcclCommunicators, AreAbortedOnceAndNotDestroyedThen) {
  {
    NcclCommunicator owned(scripted_api(), nullptr, Ownership::owned, milliseconds(5000));
    owned.abort();
    owned.abort();
    EXPECT_EQ(script.num_aborted, 1);
    EXPECT_EQ(owned.check().code(), Code::aborted);
  }
  EXPECT_EQ(script.num_destroyed, 0);
  EXPECT_EQ(script.num_aborted, 1);
}

TEST_F(NcclCommunicators, AreLeftAloneIfBorrowed) {
  {
    NcclCommunicator borrowed(scripted_api(), nullptr, Ownership::borrowed, milliseconds(5000));
    borrowed.abort();
    EXPECT_EQ(borrowed.check().code(), Code::aborted);
  }
  EXPECT_EQ(script.num_destroyed + script.num_aborted, 0);
}

TEST_F(NcclCommunicators, ThatNcclKeepsHoldNobodyUp) {
  script.keeps_communicators = true;
  Clock::time_point const begin = Clock::now();
  { NcclCommunicator const owned(scripted_api(), nullptr, Ownership::owned, milliseconds(100)); }
  {
    NcclCommunicator owned(scripted_api(), nullptr, Ownership::owned, milliseconds(100));
    owned.abort();
  }
  EXPECT_LT(Clock::now() - begin, milliseconds(20000));
  EXPECT_EQ(script.num_destroyed + script.num_aborted, 0);
  // The graph is gone: now they end.
  script.keeps_communicators = false;
  while (script.num_destroyed + script.num_aborted < 2 &&
         Clock::now() - begin < milliseconds(60000))
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(script.num_destroyed, 1);
  EXPECT_EQ(script.num_aborted, 1);
}

TEST_F(NcclCommunicators, EndACallThatStaysTooLong) {
  NcclCommunicator owned(scripted_api(), nullptr, Ownership::owned, milliseconds(200));
  script.stuck = true;
  Status const status = owned.run([](ncclComm_t) {
    stay_while(script.stuck);
    return ncclSystemError;
  });
  EXPECT_EQ(status.code(), Code::timeout);
  EXPECT_EQ(owned.check().code(), Code::timeout);
  EXPECT_EQ(script.num_aborted, 1);
}

TEST_F(NcclCommunicators, WaitForANonBlockingCall) {
  NcclCommunicator borrowed(scripted_api(), nullptr, Ownership::borrowed, milliseconds(20000));
  script.polls_in_progress = 10;
  EXPECT_TRUE(borrowed.run([](ncclComm_t) { return ncclInProgress; }).ok());
  EXPECT_LE(script.polls_in_progress, 0);
}

TEST_F(NcclCommunicators, DoNotWaitForeverForANonBlockingCall) {
  NcclCommunicator borrowed(scripted_api(), nullptr, Ownership::borrowed, milliseconds(100));
  script.polls_in_progress = 1000000000;
  EXPECT_EQ(borrowed.run([](ncclComm_t) { return ncclInProgress; }).code(), Code::timeout);
}

TEST_F(NcclCommunicators, TranslateWhatNcclSays) {
  NcclCommunicator borrowed(scripted_api(), nullptr, Ownership::borrowed, milliseconds(5000));
  auto const code_of = [&](ncclResult_t result) {
    return borrowed.run([&](ncclComm_t) { return result; }).code();
  };
  EXPECT_EQ(code_of(ncclSuccess), Code::ok);
  EXPECT_EQ(code_of(ncclUnhandledCudaError), Code::device_error);
  EXPECT_EQ(code_of(ncclSystemError), Code::transport_error);
  EXPECT_EQ(code_of(ncclInternalError), Code::transport_error);
  EXPECT_EQ(code_of(ncclInvalidArgument), Code::invalid_argument);
  EXPECT_EQ(code_of(ncclInvalidUsage), Code::mismatch);
  EXPECT_EQ(code_of(ncclRemoteError), Code::peer_failed);
}

}  // namespace
}  // namespace gradsieve::testing
