// SPDX-License-Identifier: Apache-2.0
// Host memory: aligned, zero-filled, on huge pages where that pays.
#include "gradsieve/memory.hpp"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include <sys/mman.h>

namespace gradsieve {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
// Differences of pointers must fit; no machine has more in any case.
constexpr std::size_t kMaxBytes = std::numeric_limits<std::ptrdiff_t>::max() - kHugePageBytes;

[[noreturn]] void throw_out_of_memory(std::size_t num_bytes) {
  throw Error(Code::out_of_memory,
              "the host has no room for a block of " + std::to_string(num_bytes) + " bytes");
}

class HostMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t num_bytes, Stream) override {
    if (num_bytes > kMaxBytes) throw_out_of_memory(num_bytes);
    std::size_t const alignment =
        num_bytes >= kHugePageBytes ? kHugePageBytes : Workspace::kAlignment;
    std::size_t const blocks = num_bytes / alignment + (num_bytes % alignment != 0 ? 1 : 0);
    // aligned_alloc takes multiples of the alignment only, and may return null for 0 bytes.
    std::size_t const rounded_bytes = blocks == 0 ? alignment : blocks * alignment;
    void* const pointer = std::aligned_alloc(alignment, rounded_bytes);
    if (pointer == nullptr) throw_out_of_memory(num_bytes);
    // Random access to a residual on 4 KiB pages misses the TLB at nearly every index. This is a
    // hint: a kernel that refuses it costs time and nothing else.
    if (alignment == kHugePageBytes) {
      static_cast<void>(::madvise(pointer, rounded_bytes, MADV_HUGEPAGE));
    }
    // Writing the zeros now, after the hint, also faults the pages in at plan time and not in a
    // step.
    std::memset(pointer, 0, rounded_bytes);
    return pointer;
  }

  void deallocate(void* pointer, std::size_t, Stream) noexcept override { std::free(pointer); }
};

}  // namespace

MemoryResource& host_memory() noexcept {
  // Never destroyed: buffers of static objects may be given back after main has returned.
  static HostMemory& resource = *new HostMemory;
  return resource;
}

Buffer::Buffer(std::size_t num_bytes, MemoryResource& resource, Stream stream)
    : num_bytes_(num_bytes), resource_(&resource), stream_(stream) {
  if (num_bytes != 0) data_ = static_cast<std::byte*>(resource.allocate(num_bytes, stream));
}

Buffer::~Buffer() {
  if (data_ != nullptr) resource_->deallocate(data_, num_bytes_, stream_);
}

}  // namespace gradsieve
