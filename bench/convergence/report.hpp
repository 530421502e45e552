// SPDX-License-Identifier: Apache-2.0
// A study as one HTML file that needs nothing but itself.
#pragma once

#include <string>

#include "bench/convergence/study.hpp"

namespace gradsieve::study {

[[nodiscard]] std::string report_html(StudyRecord const& record);

}  // namespace gradsieve::study
