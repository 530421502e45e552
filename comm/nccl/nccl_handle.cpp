// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_handle.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/nccl/nccl_communicator.hpp"

namespace gradsieve {

namespace {

/// Shared with the thread that makes the communicator.
struct Birth {
  NcclApi api;
  std::function<ncclResult_t(ncclComm_t*)> make;

  std::mutex mutex;  ///< of what follows
  std::condition_variable changed;
  bool done = false;
  bool abandoned = false;
  ncclResult_t result = ncclInternalError;
  ncclComm_t handle = nullptr;
  std::string text;
};

void give_birth(Birth& birth, int device) {
  DeviceScope const scope(device);
  ncclComm_t handle = nullptr;
  ncclResult_t const result = scope.ok() ? birth.make(&handle) : ncclUnhandledCudaError;
  std::string text = birth.api.get_error_string(result);
  if (result != ncclSuccess) text += std::string("; ") + birth.api.get_last_error(nullptr);

  std::unique_lock lock(birth.mutex);
  birth.result = result;
  birth.handle = handle;
  birth.text = std::move(text);
  birth.done = true;
  birth.changed.notify_all();
  bool const unwanted = birth.abandoned && result == ncclSuccess;
  lock.unlock();
  if (unwanted) static_cast<void>(birth.api.comm_abort(handle));
}

}  // namespace

ncclConfig_t blocking_config() noexcept {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  return config;
}

ncclComm_t make_handle(NcclApi const& api, int device, std::chrono::milliseconds deadline,
                       char const* call, std::function<ncclResult_t(ncclComm_t*)> make) {
  auto const birth = std::make_shared<Birth>();
  birth->api = api;
  birth->make = std::move(make);
  std::thread thread([birth, device] { give_birth(*birth, device); });
  std::unique_lock lock(birth->mutex);
  if (!birth->changed.wait_for(lock, deadline, [&] { return birth->done; })) {
    birth->abandoned = true;
    lock.unlock();
    thread.detach();
    throw Error(Code::timeout, std::string("make_nccl_transport: ") + call +
                                   " did not bring the ranks together in time");
  }
  lock.unlock();
  thread.join();
  // Here it is no matter of sizes, but of devices and of settings.
  Code const code =
      birth->result == ncclInvalidUsage ? Code::invalid_usage : status_of(birth->result).code();
  if (birth->result != ncclSuccess)
    throw Error(code, std::string("make_nccl_transport: ") + call + " failed: " + birth->text +
                          "; expected a device of its own for each rank");
  return birth->handle;
}

}  // namespace gradsieve
