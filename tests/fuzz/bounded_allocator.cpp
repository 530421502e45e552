// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/bounded_allocator.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

// In the program's own thread-local block: looking at it allocates nothing.
thread_local bool bounded = false;
thread_local std::size_t bytes_left = 0;

void take(std::size_t num_bytes) noexcept {
  if (!bounded) return;
  if (num_bytes > bytes_left) {
    bounded = false;
    std::fprintf(stderr, "an allocation of %zu bytes; the bound leaves %zu\n", num_bytes,
                 bytes_left);
    std::abort();
  }
  bytes_left -= num_bytes;
}

}  // namespace

namespace gradsieve::testing {

AllocationBound::AllocationBound(std::size_t num_bytes) noexcept {
  bytes_left = num_bytes;
  bounded = true;
}
AllocationBound::~AllocationBound() { bounded = false; }
std::size_t AllocationBound::left() noexcept { return bytes_left; }

}  // namespace gradsieve::testing

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define GRADSIEVE_HAVE_MALLOC_HOOKS 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GRADSIEVE_HAVE_MALLOC_HOOKS 1
#endif

#if defined(GRADSIEVE_HAVE_MALLOC_HOOKS)

extern "C" {

// The sanitizers' allocators call it for everything they hand out.
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(void const volatile*,
                                                                  std::size_t),
                                              void (*free_hook)(void const volatile*));
}

namespace {

[[maybe_unused]] int const installed = __sanitizer_install_malloc_and_free_hooks(
    [](void const volatile*, std::size_t num_bytes) { take(num_bytes); },
    [](void const volatile*) {});

}  // namespace

#elif defined(__GLIBC__)

// glibc looks these up in the program first; the default operator new calls malloc.
extern "C" {

void* __libc_malloc(std::size_t num_bytes);
void* __libc_calloc(std::size_t count, std::size_t num_bytes);
void* __libc_realloc(void* pointer, std::size_t num_bytes);
void* __libc_memalign(std::size_t alignment, std::size_t num_bytes);

void* malloc(std::size_t num_bytes) noexcept {
  take(num_bytes);
  return __libc_malloc(num_bytes);
}
void* calloc(std::size_t count, std::size_t num_bytes) noexcept {
  take(count * num_bytes);
  return __libc_calloc(count, num_bytes);
}
void* realloc(void* pointer, std::size_t num_bytes) noexcept {
  take(num_bytes);
  return __libc_realloc(pointer, num_bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t num_bytes) noexcept {
  take(num_bytes);
  return __libc_memalign(alignment, num_bytes);
}

}  // extern "C"

#endif
