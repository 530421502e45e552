// SPDX-License-Identifier: Apache-2.0
// The border of the C interface: no exception leaves guard(), and nothing comes in unchecked.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "gradsieve/gradsieve.h"
#include "gradsieve/vocabulary.hpp"

#include "core/foreign_enum.hpp"

namespace gradsieve::c {

/// Keeps the sentence for gsvGetLastError and returns the code.
gsvResult_t fail(Code code, char const* message) noexcept;
/// The same for the exception in flight.
gsvResult_t fail_with_exception() noexcept;
[[nodiscard]] char const* last_error() noexcept;

/// Runs the body of one C function: void, or a Status.
template <typename Body>
gsvResult_t guard(Body const& body) noexcept {
  try {
    if constexpr (std::is_same_v<std::invoke_result_t<Body>, Status>) {
      Status const status = body();
      return status.ok() ? gsvSuccess : fail(status.code(), status.message());
    } else {
      body();
      return gsvSuccess;
    }
  } catch (...) {
    return fail_with_exception();
  }
}

[[noreturn]] void throw_null(char const* name);

/// Throws Error(invalid_argument) if the pointer is NULL. `name` is the parameter's.
template <typename T>
T& required(T* pointer, char const* name) {
  if (pointer == nullptr) throw_null(name);
  return *pointer;
}
[[nodiscard]] std::string required_text(char const* text, char const* name);

/// An array of `count` elements; NULL only if that is 0.
template <typename T>
std::span<T> required_array(T* pointer, std::uint64_t count, char const* name) {
  if (pointer == nullptr && count != 0) throw_null(name);
  return {pointer, static_cast<std::size_t>(count)};
}

/// The enumerator with this number. Throws Error(invalid_argument) beyond `last`.
[[nodiscard]] std::uint32_t checked_choice(std::uint32_t value, std::uint32_t last,
                                           char const* name);
template <typename Enum>
[[nodiscard]] Enum choice(std::uint32_t value, Enum last, char const* name) {
  return static_cast<Enum>(checked_choice(value, static_cast<std::uint32_t>(last), name));
}
/// The same for a C enum that was passed by value.
template <typename Given, typename Enum>
requires std::is_enum_v<Given>
[[nodiscard]] Enum choice(Given const& given, Enum last, char const* name) {
  return choice(number_of(given), last, name);
}
[[nodiscard]] DType dtype_of(std::uint32_t dtype);
[[nodiscard]] inline DType dtype_of(gsvDtype_t const& dtype) { return dtype_of(number_of(dtype)); }

// --- structs of several versions ----------------------------------------------------------------

void copy_in(void* known, std::uint32_t known_bytes, void const* given, char const* name);
void copy_out(void const* known, std::uint32_t known_bytes, void* given, char const* name);

/// What the caller filled, as this version knows it; all defaults for NULL.
template <typename T>
[[nodiscard]] T read(T const* given, char const* name) {
  T known = {};
  if (given != nullptr) copy_in(&known, sizeof(T), given, name);
  known.struct_size = sizeof(T);
  return known;
}

/// Element `index` of an array whose stride is the struct_size of its first element.
template <typename T>
[[nodiscard]] T* element(T* array, std::size_t index) {
  using Byte = std::conditional_t<std::is_const_v<T>, std::byte const, std::byte>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(array) + index * array->struct_size);
}

/// Into a struct whose struct_size the caller has set.
template <typename T>
void write(T const& known, T* given, char const* name) {
  required(given, name);
  copy_out(&known, sizeof(T), given, name);
}

/// Answers (text, capacity, length), the closing 0 included.
void write_text(std::string_view value, char* text, std::uint64_t capacity, std::uint64_t* length);

}  // namespace gradsieve::c
