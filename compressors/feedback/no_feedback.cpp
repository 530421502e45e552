// SPDX-License-Identifier: Apache-2.0
// feedback=none: what is not sent is dropped, and counted.
#include "gradsieve/registry.hpp"

namespace gradsieve {

void register_no_feedback(Registry& registry);
void register_no_feedback(Registry& registry) {
  registry.add(PluginInfo{.name = "none",
                          .kind = PluginKind::feedback,
                          .summary = "Drops what was not sent, and counts it.",
                          .paper = "-"},
               Registry::FeedbackFactory([](Params const&) { return FeedbackOptions{}; }));
}

}  // namespace gradsieve
