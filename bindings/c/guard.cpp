// SPDX-License-Identifier: Apache-2.0
#include "bindings/c/guard.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <new>

namespace gradsieve::c {
namespace {

// A fixed place: to say that memory is short must not take any.
thread_local std::array<char, 2048> last_message{};

// More than any struct will ever have: what is beyond was never set.
constexpr std::uint32_t kMaxStructBytes = 4096;

std::uint32_t checked_struct_size(void const* given, char const* name) {
  std::uint32_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size >= sizeof size && size <= kMaxStructBytes) return size;
  throw Error(Code::invalid_argument, "the struct_size of '" + std::string(name) + "' is " +
                                          std::to_string(size) +
                                          "; expected sizeof the struct, as GSV_INIT sets it");
}

}  // namespace

gsvResult_t fail(Code code, char const* message) noexcept {
  std::snprintf(last_message.data(), last_message.size(), "%s", message);
  return static_cast<gsvResult_t>(code);
}

gsvResult_t fail_with_exception() noexcept {
  try {
    throw;
  } catch (Error const& error) {
    return fail(error.code(), error.what());
  } catch (std::bad_alloc const&) {
    return fail(Code::out_of_memory, "the machine has no memory for this");
  } catch (std::exception const& error) {
    return fail(Code::internal, error.what());
  } catch (...) {
    return fail(Code::internal, "something that is no std::exception was thrown");
  }
}

char const* last_error() noexcept { return last_message.data(); }

void throw_null(char const* name) {
  throw Error(Code::invalid_argument, "'" + std::string(name) + "' is NULL");
}

std::string required_text(char const* text, char const* name) { return &required(text, name); }

std::uint32_t checked_choice(std::uint32_t value, std::uint32_t last, char const* name) {
  if (value <= last) return value;
  throw Error(Code::invalid_argument, "'" + std::string(name) + "' is " + std::to_string(value) +
                                          "; expected 0 ... " + std::to_string(last));
}

DType dtype_of(std::uint32_t dtype) { return choice(dtype, DType::f64, "dtype"); }

void copy_in(void* known, std::uint32_t known_bytes, void const* given, char const* name) {
  std::uint32_t const size = checked_struct_size(given, name);
  std::memcpy(known, given, std::min(size, known_bytes));
  auto const* const bytes = static_cast<unsigned char const*>(given);
  if (std::any_of(bytes + std::min(size, known_bytes), bytes + size,
                  [](unsigned char byte) { return byte != 0; })) {
    throw Error(Code::unsupported, "'" + std::string(name) + "' sets members that this version (" +
                                       gsvGetVersionText() + ") does not have");
  }
}

void copy_out(void const* known, std::uint32_t known_bytes, void* given, char const* name) {
  std::uint32_t const size = checked_struct_size(given, name);
  std::uint32_t const common = std::min(size, known_bytes);
  constexpr std::size_t kBehindSize = sizeof(std::uint32_t);
  auto* const bytes = static_cast<unsigned char*>(given);
  std::memcpy(bytes + kBehindSize, static_cast<unsigned char const*>(known) + kBehindSize,
              common - kBehindSize);
  std::fill(bytes + common, bytes + size, static_cast<unsigned char>(0));
}

void write_text(std::string_view value, char* text, std::uint64_t capacity, std::uint64_t* length) {
  if (text == nullptr && length == nullptr) throw_null("length");
  if (length != nullptr) *length = value.size();
  if (text == nullptr) return;
  if (capacity <= value.size()) {
    throw Error(Code::capacity_exceeded, "the text has " + std::to_string(value.size()) +
                                             " bytes and a closing 0; there is room for " +
                                             std::to_string(capacity));
  }
  std::memcpy(text, value.data(), value.size());
  text[value.size()] = '\0';
}

}  // namespace gradsieve::c
