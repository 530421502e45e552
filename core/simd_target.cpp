// SPDX-License-Identifier: Apache-2.0
// Which instruction set the CPU kernels use: what was built, what the machine runs, what was asked.
#include "core/simd_target.hpp"

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>

#include "gradsieve/context.hpp"

#include "core/log.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gradsieve {
namespace {

constexpr SimdTarget kTargets[] = {SimdTarget::portable, SimdTarget::avx2, SimdTarget::avx512};
constexpr char const* kVariable = "GRADSIEVE_SIMD";

#if defined(GRADSIEVE_HAVE_TARGET_AVX2)
constexpr bool kBuiltAvx2 = true;
#else
constexpr bool kBuiltAvx2 = false;
#endif
#if defined(GRADSIEVE_HAVE_TARGET_AVX512)
constexpr bool kBuiltAvx512 = true;
#else
constexpr bool kBuiltAvx512 = false;
#endif

#if defined(__x86_64__)
// clang 14 has no name for these two in __builtin_cpu_supports.
bool has_f16c_and_lzcnt() noexcept {
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  bool const f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1U << 29)) != 0;
  bool const lzcnt =
      __get_cpuid(0x80000001U, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1U << 5)) != 0;
  return f16c && lzcnt;
}

// The lists follow the compiler flags in cmake/gsv_functions.cmake. The builtin also asks the
// operating system whether it saves the wide registers.
bool cpu_runs_avx2() noexcept {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") && has_f16c_and_lzcnt();
}

bool cpu_runs_avx512() noexcept {
  return cpu_runs_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vbmi2");
}
#else
bool cpu_runs_avx2() noexcept { return false; }
bool cpu_runs_avx512() noexcept { return false; }
#endif

bool is_supported(SimdTarget target) noexcept {
  static bool const avx2 = kBuiltAvx2 && cpu_runs_avx2();
  static bool const avx512 = kBuiltAvx512 && cpu_runs_avx512();
  switch (target) {
    case SimdTarget::portable:
      return true;
    case SimdTarget::avx2:
      return avx2;
    case SimdTarget::avx512:
      return avx512;
  }
  return false;
}

SimdTarget widest() noexcept {
  if (is_supported(SimdTarget::avx512)) return SimdTarget::avx512;
  return is_supported(SimdTarget::avx2) ? SimdTarget::avx2 : SimdTarget::portable;
}

std::optional<SimdTarget> target_of(std::string_view name) noexcept {
  for (SimdTarget const target : kTargets) {
    if (name == simd_target_name(target)) return target;
  }
  return std::nullopt;
}

// Empty counts as unset: that is how a shell takes a variable back for one command.
std::string_view asked_for() noexcept {
  char const* const value = std::getenv(kVariable);
  return value == nullptr ? std::string_view{} : value;
}

std::string supported_names() {
  std::string names;
  for (SimdTarget const target : supported_simd_targets()) {
    names += (names.empty() ? "" : ", ") + std::string(simd_target_name(target));
  }
  return names;
}

SimdTarget initial() noexcept {
  std::string_view const name = asked_for();
  if (name.empty()) return widest();
  auto const target = target_of(name);
  if (target && is_supported(*target)) return *target;
  log(LogLevel::warn, "INIT",
      "GRADSIEVE_SIMD is '%.*s', which this machine or build does not run; using %s",
      static_cast<int>(name.size()), name.data(), simd_target_name(widest()).data());
  return widest();
}

std::atomic<SimdTarget>& current() noexcept {
  static std::atomic<SimdTarget> target = initial();
  return target;
}

}  // namespace

SimdTarget simd_target() noexcept { return current().load(std::memory_order_relaxed); }

void force_simd_target(SimdTarget target) {
  if (!is_supported(target)) {
    throw Error(Code::unsupported,
                "SIMD target " + std::string(simd_target_name(target)) +
                    " does not run here; this machine and build have: " + supported_names());
  }
  current().store(target, std::memory_order_relaxed);
}

std::vector<SimdTarget> supported_simd_targets() {
  std::vector<SimdTarget> targets;
  for (SimdTarget const target : kTargets) {
    if (is_supported(target)) targets.push_back(target);
  }
  return targets;
}

std::string_view simd_target_name(SimdTarget target) noexcept {
  switch (target) {
    case SimdTarget::portable:
      return "portable";
    case SimdTarget::avx2:
      return "avx2";
    case SimdTarget::avx512:
      return "avx512";
  }
  return "unknown";
}

void check_simd_environment() {
  std::string_view const name = asked_for();
  if (name.empty()) return;
  auto const target = target_of(name);
  if (!target) {
    throw Error(Code::invalid_argument, "GRADSIEVE_SIMD is '" + std::string(name) +
                                            "'; expected one of: portable, avx2, avx512");
  }
  if (!is_supported(*target)) {
    throw Error(Code::unsupported, "GRADSIEVE_SIMD is '" + std::string(name) +
                                       "', which does not run here; this machine and build have: " +
                                       supported_names());
  }
}

}  // namespace gradsieve
