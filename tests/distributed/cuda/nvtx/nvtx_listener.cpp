// SPDX-License-Identifier: Apache-2.0
// What a profiler is to NVTX: a library that NVTX_INJECTION64_PATH names. It writes down the ranges
// of each domain for nvtx_test.cpp.
#include "tests/distributed/cuda/nvtx/nvtx_listener.hpp"

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <nvtx3/nvToolsExt.h>

namespace {

std::mutex mutex;
std::map<nvtxDomainHandle_t, std::string> domains;
std::vector<gradsieve::testing::NvtxRange> ranges;
thread_local std::vector<std::size_t> open_ranges;  // of this thread, the innermost last

nvtxDomainHandle_t create_domain(char const* name) {
  std::lock_guard const lock(mutex);
  auto* const handle = reinterpret_cast<nvtxDomainHandle_t>(domains.size() + 1);
  domains[handle] = name;
  return handle;
}

int push(nvtxDomainHandle_t domain, nvtxEventAttributes_t const* event) {
  std::lock_guard const lock(mutex);
  open_ranges.push_back(ranges.size());
  ranges.push_back({domains[domain], event->message.ascii, event->payload.ullValue, false});
  return static_cast<int>(open_ranges.size());
}

int pop(nvtxDomainHandle_t) {
  std::lock_guard const lock(mutex);
  ranges[open_ranges.back()].has_ended = true;
  open_ranges.pop_back();
  return static_cast<int>(open_ranges.size());
}

template <typename Function>
NvtxFunctionPointer as_nvtx(Function* function) {
  return reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
  auto const* const callbacks =
      static_cast<NvtxExportTableCallbacks const*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0 ||
      size <= NVTX_CBID_CORE2_DomainCreateA) {
    return 0;
  }
  *table[NVTX_CBID_CORE2_DomainCreateA] = as_nvtx(create_domain);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = as_nvtx(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = as_nvtx(pop);
  return 1;
}

extern "C" __attribute__((visibility("default"))) void gsv_take_nvtx_ranges(
    std::vector<gradsieve::testing::NvtxRange>& taken) {
  std::lock_guard const lock(mutex);
  taken = std::move(ranges);
  ranges.clear();
}
