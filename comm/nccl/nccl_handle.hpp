// SPDX-License-Identifier: Apache-2.0
// Making a communicator waits for other ranks and cannot be called off; here it can.
#pragma once

#include <chrono>
#include <functional>

#include "comm/nccl/nccl_api.hpp"

namespace gradsieve {

/// What a new communicator of ours looks like to NCCL.
[[nodiscard]] ncclConfig_t blocking_config() noexcept;

/// Runs make(&handle) with the device current, in a thread that is left behind when it is late; a
/// communicator that it brings after all is aborted there. `make` owns what it needs; `call` names
/// it. Throws Error: timeout, or what NCCL says.
[[nodiscard]] ncclComm_t make_handle(NcclApi const& api, int device,
                                     std::chrono::milliseconds deadline, char const* call,
                                     std::function<ncclResult_t(ncclComm_t*)> make);

}  // namespace gradsieve
