// SPDX-License-Identifier: Apache-2.0
// What GRADSIEVE_SIMD asks for, checked where an error can still be reported.
#pragma once

namespace gradsieve {

/// Throws if GRADSIEVE_SIMD names no target (invalid_argument) or one that this machine or build
/// does not run (unsupported). simd_target() itself cannot throw: it then warns and takes the
/// widest.
void check_simd_environment();

}  // namespace gradsieve
