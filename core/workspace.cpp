// SPDX-License-Identifier: Apache-2.0
// The bump arena of a step. Under AddressSanitizer everything in it that was not taken is poisoned:
// the red zones between pieces, and what rewind() gave back.
#include <algorithm>

#include "gradsieve/memory.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define GRADSIEVE_POISONS_ 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GRADSIEVE_POISONS_ 1
#endif
#endif

#ifdef GRADSIEVE_POISONS_
#include <sanitizer/asan_interface.h>
#endif

namespace gradsieve {
namespace {

void poison([[maybe_unused]] std::byte* begin, [[maybe_unused]] std::byte* end) noexcept {
#ifdef GRADSIEVE_POISONS_
  __asan_poison_memory_region(begin, static_cast<std::size_t>(end - begin));
#endif
}

void unpoison([[maybe_unused]] std::byte* begin, [[maybe_unused]] std::byte* end) noexcept {
#ifdef GRADSIEVE_POISONS_
  __asan_unpoison_memory_region(begin, static_cast<std::size_t>(end - begin));
#endif
}

}  // namespace

std::byte* Workspace::take_bytes(std::size_t num_bytes) noexcept {
  if (num_bytes == 0 || num_bytes > memory_.size()) return nullptr;
  // The memory handed in need not be aligned; pieces are.
  auto const address = reinterpret_cast<std::uintptr_t>(memory_.data()) + used_;
  std::size_t const begin = used_ + (kAlignment - address % kAlignment) % kAlignment;
  std::size_t const end = begin + padded(num_bytes);
  if (end > memory_.size()) return nullptr;

  std::byte* const piece = memory_.data() + begin;
  poison(memory_.data() + used_, memory_.data() + end);
  unpoison(piece, piece + num_bytes);
  used_ = end;
  peak_ = std::max(peak_, used_);
  return piece;
}

void Workspace::rewind(std::size_t position) noexcept {
  if (position >= used_) return;
  poison(memory_.data() + position, memory_.data() + used_);
  used_ = position;
}

}  // namespace gradsieve
