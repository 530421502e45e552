// SPDX-License-Identifier: Apache-2.0
// NCCL, opened at run time: the build needs its header alone.
#pragma once

#include <cstddef>
#include <string>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "gradsieve/vocabulary.hpp"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 0)
#error "gradsieve needs nccl.h of NCCL 2.18 or newer"
#endif

namespace gradsieve {

/// The oldest library that has all of what we call: ncclCommSplit came with it.
inline constexpr int kLeastNcclVersion = NCCL_VERSION(2, 18, 0);

/// What we call of an opened library. Plain pointers: a test may put its own in.
struct NcclApi {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&::ncclCommSplit) comm_split = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclCommCount) comm_count = nullptr;
  decltype(&::ncclCommUserRank) comm_user_rank = nullptr;
  decltype(&::ncclCommCuDevice) comm_cu_device = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) recv = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  /// Since NCCL 2.28, else null. Spelled out, because an older header lacks it as well.
  ncclResult_t (*all_to_all)(void const*, void*, std::size_t, ncclDataType_t, ncclComm_t,
                             cudaStream_t) = nullptr;
  int version = 0;  ///< as NCCL_VERSION makes it
};

/// The library of this process: GRADSIEVE_NCCL_LIBRARY, or libnccl.so.2, or libnccl.so. Opened by
/// the first call and never closed. Throws Error(unsupported), saying what was tried.
[[nodiscard]] NcclApi const& nccl_api();

/// Opens the library at `path`, or where the loader finds it if `path` is null.
[[nodiscard]] NcclApi open_nccl(char const* path);

/// A call that succeeded, or that a non-blocking communicator still works at.
[[nodiscard]] constexpr bool went_well(ncclResult_t result) noexcept {
  return result == ncclSuccess || result == ncclInProgress;
}

/// What a result of NCCL is among our codes, in a step.
[[nodiscard]] Status status_of(ncclResult_t result) noexcept;

/// "2.28.9"
[[nodiscard]] std::string nccl_version_text(int version);

}  // namespace gradsieve
