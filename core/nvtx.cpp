// SPDX-License-Identifier: Apache-2.0
#include "core/nvtx.hpp"

#ifdef GRADSIEVE_HAVE_NVTX

#include <nvtx3/nvToolsExt.h>

namespace gradsieve {
namespace {

nvtxDomainHandle_t domain() noexcept {
  static nvtxDomainHandle_t const handle = nvtxDomainCreateA("gradsieve");
  return handle;
}

}  // namespace

void nvtx_push(char const* name, std::uint64_t payload) noexcept {
  nvtxEventAttributes_t event = {};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = name;
  event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  event.payload.ullValue = payload;
  nvtxDomainRangePushEx(domain(), &event);
}

void nvtx_pop() noexcept { nvtxDomainRangePop(domain()); }

}  // namespace gradsieve

#endif
