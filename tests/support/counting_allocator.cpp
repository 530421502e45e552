// SPDX-License-Identifier: Apache-2.0
#include "tests/support/counting_allocator.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> allocations{0};
std::atomic<std::uint64_t> cxx_allocations{0};

void count() noexcept { allocations.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

namespace gradsieve::testing {

std::uint64_t num_allocations() noexcept { return allocations.load(std::memory_order_relaxed); }

std::uint64_t num_cxx_allocations() noexcept {
  return cxx_allocations.load(std::memory_order_relaxed);
}

}  // namespace gradsieve::testing

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// glibc looks these up in the program first; what C libraries ask for is then counted too.
extern "C" {

void* __libc_malloc(std::size_t num_bytes);
void* __libc_calloc(std::size_t count, std::size_t num_bytes);
void* __libc_realloc(void* pointer, std::size_t num_bytes);
void* __libc_memalign(std::size_t alignment, std::size_t num_bytes);

void* malloc(std::size_t num_bytes) noexcept {
  count();
  return __libc_malloc(num_bytes);
}

void* calloc(std::size_t num, std::size_t num_bytes) noexcept {
  count();
  return __libc_calloc(num, num_bytes);
}

void* realloc(void* pointer, std::size_t num_bytes) noexcept {
  count();
  return __libc_realloc(pointer, num_bytes);
}

void* aligned_alloc(std::size_t alignment, std::size_t num_bytes) noexcept {
  count();
  return __libc_memalign(alignment, num_bytes);
}

int posix_memalign(void** pointer, std::size_t alignment, std::size_t num_bytes) noexcept {
  count();
  *pointer = __libc_memalign(alignment, num_bytes);
  return *pointer == nullptr && num_bytes != 0 ? 12 : 0;  // ENOMEM
}

}  // extern "C"

#endif

namespace {

void* take(std::size_t num_bytes, std::size_t alignment) {
  cxx_allocations.fetch_add(1, std::memory_order_relaxed);
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  count();  // elsewhere aligned_alloc does
#endif
  std::size_t const whole = (num_bytes + alignment) / alignment * alignment;  // never 0
  void* const pointer = std::aligned_alloc(alignment, whole);
  if (pointer == nullptr) {
    throw std::bad_alloc();
  }
  return pointer;
}

constexpr std::size_t kDefault = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

void* operator new(std::size_t num_bytes) { return take(num_bytes, kDefault); }
void* operator new[](std::size_t num_bytes) { return take(num_bytes, kDefault); }
void* operator new(std::size_t num_bytes, std::align_val_t alignment) {
  return take(num_bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t num_bytes, std::align_val_t alignment) {
  return take(num_bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t num_bytes, std::nothrow_t const&) noexcept {
  try {
    return take(num_bytes, kDefault);
  } catch (std::bad_alloc const&) {
    return nullptr;
  }
}
void* operator new[](std::size_t num_bytes, std::nothrow_t const& tag) noexcept {
  return operator new(num_bytes, tag);
}
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete[](void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::align_val_t) noexcept { std::free(pointer); }
void operator delete[](void* pointer, std::align_val_t) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept { std::free(pointer); }
void operator delete[](void* pointer, std::size_t, std::align_val_t) noexcept {
  std::free(pointer);
}
