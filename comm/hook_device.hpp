// SPDX-License-Identifier: Apache-2.0
// What a hook with backend=cuda owns besides. Its work runs on a stream of its own, between an
// event of the caller's stream (the gradient is there) and one that the caller's stream waits for
// (the mean is there). The straight line in hook.cpp is the same; hook_device_step.cpp holds the
// transaction around it, hook_device_letters.cpp payloads and exchanges. Where the transport moves
// device memory in stream order nothing waits on the host, and begin … finish may be captured in a
// graph; else payloads go through pinned memory and the progress thread waits for them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "gradsieve/device_exchange.hpp"
#include "gradsieve/memory.hpp"

#include "comm/staged_exchange.hpp"
#include "core/device_stream.hpp"
#include "kernels/device_step.hpp"

namespace gradsieve {

/// What goes with a plan.
struct DeviceLayout {
  Buffer parcels;           ///< kernels::DeviceParcel
  Buffer piece_words;       ///< Compressor::step_word of each piece, in the order of the plan
  Buffer next_words;        ///< those of the step to come: the payloads of the last may be needed
  Buffer bucket_nonfinite;  ///< a word for each bucket
  std::vector<std::uint64_t> piece_values;  ///< the same as the piece words, on the host
  std::vector<StreamEvent> bucket_done;
  Buffer read_back;  ///< pinned: a DeviceStep and the parcels
  Buffer received;   ///< what all ranks sent in the exchange that runs
  DeviceExchange* exchange = nullptr;
  std::unique_ptr<StagedExchange> staged;  ///< null where the transport has its own
};

struct HookDevice {
  explicit HookDevice(Stream callers);

  [[nodiscard]] Status error() const noexcept {
    return callers_error.ok() ? progress_error : callers_error;
  }
  [[nodiscard]] kernels::DeviceStep* step() const noexcept {
    return step_memory.as<kernels::DeviceStep>().data();
  }

  Stream caller;
  OwnStream work;
  StreamEvent fork;  ///< of the caller's stream
  StreamEvent join;  ///< of the own stream: the last finished step
  Buffer step_memory;
  /// The first launches that failed on the caller's thread and on the progress thread.
  Status callers_error;
  Status progress_error;
  bool is_unread = false;  ///< a finished step whose outcome the host does not know yet
};

}  // namespace gradsieve
