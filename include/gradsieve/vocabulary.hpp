// SPDX-License-Identifier: Apache-2.0
// The words everything else is written in: status, codes, element types, views.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace gradsieve {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<std::byte const>;

/// What went wrong, or `ok`. Values have gaps, are never renumbered, and are the same in C, C++ and
/// Python.
enum class Code : std::uint32_t {
  ok = 0,
  // The caller's side.
  invalid_argument = 10,
  invalid_usage = 11,
  unknown_name = 12,
  // What this build or version does not do.
  not_built = 20,
  not_implemented = 21,
  unsupported = 22,
  // Bytes and files.
  corrupt_payload = 30,
  capacity_exceeded = 31,
  io_error = 32,
  // Other ranks.
  mismatch = 40,
  peer_failed = 41,
  timeout = 42,
  aborted = 43,
  in_doubt = 44,
  forked_child = 45,
  // Numbers.
  non_finite = 50,
  // The machine.
  out_of_memory = 60,
  transport_error = 61,
  device_error = 62,
  internal = 70,
};

/// The name of a code, as it is written in this header ("corrupt_payload").
[[nodiscard]] std::string_view code_name(Code code) noexcept;

/// The result of everything that runs in a step: a code and a static sentence, 16 bytes.
/// Rank, tensor and field come from Hook::failure().
class [[nodiscard]] Status {
 public:
  constexpr Status() noexcept = default;
  constexpr Status(Code code, char const* message) noexcept : message_(message), code_(code) {}

  [[nodiscard]] constexpr bool ok() const noexcept { return code_ == Code::ok; }
  [[nodiscard]] constexpr Code code() const noexcept { return code_; }
  [[nodiscard]] constexpr char const* message() const noexcept { return message_; }

 private:
  char const* message_ = "ok";
  Code code_ = Code::ok;
};
static_assert(sizeof(Status) == 16);

/// Thrown by configuration and planning only; what() is a sentence that names what would have been
/// accepted. The type and the code are API, the text is not.
class Error : public std::runtime_error {
 public:
  Error(Code code, std::string const& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] Code code() const noexcept { return code_; }

 private:
  Code code_;
};

#define GRADSIEVE_RETURN_IF_ERROR(expression)                              \
  do {                                                                     \
    if (::gradsieve::Status gsv_status = (expression); !gsv_status.ok()) { \
      return gsv_status;                                                   \
    }                                                                      \
  } while (false)

/// Element types of gradients. Values are on the wire and never renumbered.
enum class DType : std::uint8_t { f32 = 0, f16 = 1, bf16 = 2, f64 = 3 };

[[nodiscard]] constexpr std::size_t size_of(DType dtype) noexcept {
  return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
}
[[nodiscard]] std::string_view dtype_name(DType dtype) noexcept;

/// Half-precision numbers as bit patterns; arithmetic is in f32 (kernels/ops.hpp converts).
struct Float16 {
  std::uint16_t bits = 0;
  friend bool operator==(Float16, Float16) = default;
};
struct BFloat16 {
  std::uint16_t bits = 0;
  friend bool operator==(BFloat16, BFloat16) = default;
};

template <typename T>
inline constexpr DType kDTypeOf = [] {
  static_assert(sizeof(T) == 0, "no DType for this type");
  return DType::f32;
}();
template <>
inline constexpr DType kDTypeOf<float> = DType::f32;
template <>
inline constexpr DType kDTypeOf<double> = DType::f64;
template <>
inline constexpr DType kDTypeOf<Float16> = DType::f16;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::bf16;

/// Where memory lives.
enum class Device : std::uint8_t { host = 0, cuda = 1 };

/// An opaque stream handle; null on the CPU.
struct Stream {
  void* handle = nullptr;
};

/// A flat, contiguous array of gradient elements. Never owns. Any element alignment is valid.
struct TensorView {
  void* data = nullptr;
  std::uint64_t num_elements = 0;
  DType dtype = DType::f32;
  Device device = Device::host;

  constexpr TensorView() noexcept = default;
  constexpr TensorView(void* pointer, std::uint64_t count, DType type,
                       Device where = Device::host) noexcept
      : data(pointer), num_elements(count), dtype(type), device(where) {}
  template <typename T>
  requires(!std::is_const_v<T>) constexpr TensorView(
      std::span<T> elements) noexcept  // NOLINT: a view of a span is the span
      : data(elements.data()), num_elements(elements.size()), dtype(kDTypeOf<T>) {}

  [[nodiscard]] constexpr std::uint64_t num_bytes() const noexcept {
    return num_elements * size_of(dtype);
  }
  template <typename T>
  [[nodiscard]] std::span<T> as() const noexcept {
    return {static_cast<T*>(data), static_cast<std::size_t>(num_elements)};
  }
  [[nodiscard]] TensorView slice(std::uint64_t offset, std::uint64_t count) const noexcept {
    return {static_cast<std::byte*>(data) + offset * size_of(dtype), count, dtype, device};
  }
};

struct ConstTensorView {
  void const* data = nullptr;
  std::uint64_t num_elements = 0;
  DType dtype = DType::f32;
  Device device = Device::host;

  constexpr ConstTensorView() noexcept = default;
  constexpr ConstTensorView(void const* pointer, std::uint64_t count, DType type,
                            Device where = Device::host) noexcept
      : data(pointer), num_elements(count), dtype(type), device(where) {}
  constexpr ConstTensorView(TensorView view) noexcept  // NOLINT: adding const is implicit
      : data(view.data), num_elements(view.num_elements), dtype(view.dtype), device(view.device) {}
  template <typename T>
  constexpr ConstTensorView(std::span<T> elements) noexcept  // NOLINT: a view of a span is the span
      : data(elements.data()),
        num_elements(elements.size()),
        dtype(kDTypeOf<std::remove_const_t<T>>) {}

  [[nodiscard]] constexpr std::uint64_t num_bytes() const noexcept {
    return num_elements * size_of(dtype);
  }
  template <typename T>
  [[nodiscard]] std::span<T const> as() const noexcept {
    return {static_cast<T const*>(data), static_cast<std::size_t>(num_elements)};
  }
  [[nodiscard]] ConstTensorView slice(std::uint64_t offset, std::uint64_t count) const noexcept {
    return {static_cast<std::byte const*>(data) + offset * size_of(dtype), count, dtype, device};
  }
};

/// A number that is known when a call is made, or that is read when the work runs, from the word at
/// `at`: a captured graph replays with what that word holds by then. The word lives where the
/// backend's data lives.
template <typename T>
struct StepValue {
  T value = {};
  T const* at = nullptr;

  constexpr StepValue() noexcept = default;
  constexpr StepValue(T number) noexcept : value(number) {}  // NOLINT: a number is one
  [[nodiscard]] static constexpr StepValue in_word(T const* word) noexcept {
    StepValue result;
    result.at = word;
    return result;
  }
  [[nodiscard]] constexpr T get() const noexcept { return at == nullptr ? value : *at; }
  constexpr operator T() const noexcept { return get(); }  // NOLINT: used like the number itself
};

/// A stable 64-bit key made from a parameter's name (FNV-1a); state and random numbers hang on it.
using TensorId = std::uint64_t;
[[nodiscard]] constexpr TensorId tensor_id(std::string_view name) noexcept {
  TensorId hash = 0xcbf29ce484222325u;
  for (char const c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

/// What a compressor is told about the elements it works on: a tensor, or a piece of one.
struct TensorInfo {
  TensorId id = 0;
  std::uint64_t offset_elements = 0;  ///< of this piece within its tensor
  std::uint64_t num_elements = 0;     ///< of this piece
  std::uint64_t num_rows = 1;         ///< of the whole tensor, for those who need a matrix shape
  DType dtype = DType::f32;
};

}  // namespace gradsieve
