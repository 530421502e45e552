// SPDX-License-Identifier: Apache-2.0
// The floating-point environment that the promises hold in: round to nearest, denormals kept.
#pragma once

#include <cfenv>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace gradsieve {

/// Sets the environment for a scope and puts the caller's back: frameworks run with flush-to-zero.
class FpEnvironment {
 public:
#if defined(__SSE2__)
  FpEnvironment() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~FpEnvironment() { _mm_setcsr(saved_); }
#else
  FpEnvironment() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FpEnvironment() { std::fesetenv(&saved_); }
#endif
  FpEnvironment(FpEnvironment const&) = delete;
  FpEnvironment& operator=(FpEnvironment const&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, nearest, no FTZ, no DAZ
  unsigned saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace gradsieve
