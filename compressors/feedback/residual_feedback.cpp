// SPDX-License-Identifier: Apache-2.0
// feedback=residual: what is not sent is added to the next gradient.
#include "gradsieve/registry.hpp"

namespace gradsieve {
namespace {

FeedbackOptions make_residual(Params const& params) {
  return {.enabled = true,
          .decay = params.real("decay"),
          .dtype = params.choice("dtype") == "bf16" ? DType::bf16 : DType::f32};
}

}  // namespace

void register_residual_feedback(Registry& registry);
void register_residual_feedback(Registry& registry) {
  registry.add(
      PluginInfo{.name = "residual",
                 .kind = PluginKind::feedback,
                 .summary = "Keeps what was not sent and adds it to the next gradient.",
                 .paper = "Seide et al., INTERSPEECH 2014; Karimireddy et al., ICML 2019, "
                          "arXiv:1901.09847",
                 .params = {{.name = "decay",
                             .type = ParamType::real,
                             .unit = "fraction",
                             .default_value = "1",
                             .min = 0.0,
                             .max = 1.0,
                             .min_excluded = true,
                             .summary = "factor on the residual before it is added again; below 1 "
                                        "some of it is lost"},
                            {.name = "dtype",
                             .type = ParamType::choice,
                             .default_value = "f32",
                             .choices = {"f32", "bf16"},
                             .summary = "how it is stored; bf16 is rounded stochastically"}}},
      Registry::FeedbackFactory(make_residual));
}

}  // namespace gradsieve
