// SPDX-License-Identifier: Apache-2.0
// Which GPUs the kernels of a build run on.
#pragma once

#include <string_view>

namespace gradsieve {

/// Whether a device of compute capability `device` (75 is 7.5) finds a kernel in a build for these
/// architectures, separated by commas, named as in CMAKE_CUDA_ARCHITECTURES: "80-real" is machine
/// code, which later minor versions of the same major one take as well; "90-virtual" is PTX, which
/// every later device takes; "90" is both. A name that is not of this form ("native", "90a")
/// decides nothing: true, and the launch tells.
[[nodiscard]] bool architectures_run_on(std::string_view architectures, int device) noexcept;

}  // namespace gradsieve
