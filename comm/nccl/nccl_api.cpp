// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_api.hpp"

#include <array>
#include <cstdlib>
#include <string>

#include <dlfcn.h>

namespace gradsieve {

namespace {

constexpr char kExpected[] =
    "; expected NCCL 2.18 or newer where the loader looks for libraries, or its path in "
    "GRADSIEVE_NCCL_LIBRARY";

template <typename Function>
void find(void* library, char const* name, Function& function) noexcept {
  function = reinterpret_cast<Function>(::dlsym(library, name));
}

/// Throws unless the library has the function.
template <typename Function>
void need(void* library, char const* name, Function& function) {
  find(library, name, function);
  if (function == nullptr)
    throw Error(Code::unsupported, std::string("the NCCL library has no ") + name + kExpected);
}

/// Before the rest: an old library is told by its age, not by the first function that it lacks.
void need_version(void* library, NcclApi& api) {
  need(library, "ncclGetVersion", api.get_version);
  if (api.get_version(&api.version) != ncclSuccess || api.version < kLeastNcclVersion)
    throw Error(Code::unsupported,
                "the NCCL library is version " + nccl_version_text(api.version) + kExpected);
}

NcclApi table_of(void* library) {
  NcclApi api;
  need_version(library, api);
  need(library, "ncclGetUniqueId", api.get_unique_id);
  need(library, "ncclGetErrorString", api.get_error_string);
  need(library, "ncclGetLastError", api.get_last_error);
  need(library, "ncclCommInitRankConfig", api.comm_init_rank_config);
  need(library, "ncclCommSplit", api.comm_split);
  need(library, "ncclCommDestroy", api.comm_destroy);
  need(library, "ncclCommAbort", api.comm_abort);
  need(library, "ncclCommGetAsyncError", api.comm_get_async_error);
  need(library, "ncclCommCount", api.comm_count);
  need(library, "ncclCommUserRank", api.comm_user_rank);
  need(library, "ncclCommCuDevice", api.comm_cu_device);
  need(library, "ncclGroupStart", api.group_start);
  need(library, "ncclGroupEnd", api.group_end);
  need(library, "ncclSend", api.send);
  need(library, "ncclRecv", api.recv);
  need(library, "ncclAllGather", api.all_gather);
  need(library, "ncclAllReduce", api.all_reduce);
  find(library, "ncclAlltoAll", api.all_to_all);
  return api;
}

/// The loader's own words on a library, which begin with its name.
std::string loader_error(char const* name) {
  char const* const text = ::dlerror();
  return text == nullptr ? name : text;
}

}  // namespace

NcclApi open_nccl(char const* path) {
  std::array<char const*, 2> const names =
      path == nullptr ? std::array<char const*, 2>{"libnccl.so.2", "libnccl.so"}
                      : std::array<char const*, 2>{path, nullptr};
  std::string tried;
  for (char const* name : names) {
    if (name == nullptr) break;
    if (void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return table_of(library);
    tried += (tried.empty() ? "" : ", then ") + loader_error(name);
  }
  throw Error(Code::unsupported, "NCCL cannot be opened: tried " + tried + kExpected);
}

NcclApi const& nccl_api() {
  static NcclApi const api = open_nccl(std::getenv("GRADSIEVE_NCCL_LIBRARY"));
  return api;
}

Status status_of(ncclResult_t result) noexcept {
  switch (result) {
    case ncclSuccess:
    case ncclInProgress:
      return {};
    case ncclUnhandledCudaError:
      return {Code::device_error, "NCCL: a CUDA call failed"};
    case ncclSystemError:
      return {Code::transport_error, "NCCL: a system call or the network failed"};
    case ncclRemoteError:
      return {Code::peer_failed, "NCCL: another rank failed, or the network to it"};
    case ncclInvalidArgument:
      return {Code::invalid_argument, "NCCL: an argument was refused"};
    // Our own arguments were checked: what is left is that the ranks do not fit together.
    case ncclInvalidUsage:
      return {Code::mismatch, "NCCL: the ranks do not make the same calls with the same sizes"};
    default:
      return {Code::transport_error, "NCCL failed inside"};
  }
}

std::string nccl_version_text(int version) {
  // NCCL_VERSION: hundreds up to 2.8, ten thousands from 2.9 on.
  int const unit = version < 10000 ? 1000 : 10000;
  return std::to_string(version / unit) + "." + std::to_string(version % unit / 100) + "." +
         std::to_string(version % 100);
}

}  // namespace gradsieve
