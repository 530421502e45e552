// SPDX-License-Identifier: Apache-2.0
#include "compressors/index_codec.hpp"

#include <algorithm>
#include <string>

#include "compressors/body_fields.hpp"

namespace gradsieve {
namespace {

std::optional<kernels::IndexForm> form_of(std::string const& name) {
  if (name == "auto") return std::nullopt;
  if (name == "bitmap") return kernels::IndexForm::bitmap;
  if (name == "elias_fano") return kernels::IndexForm::elias_fano;
  throw Error(Code::not_implemented, "index(form=" + name +
                                         "): the form is reserved but not implemented; this build "
                                         "has: auto, bitmap, elias_fano");
}

}  // namespace

IndexFormCodec::IndexFormCodec(Params const& params) : form_(form_of(params.choice("form"))) {}

std::size_t IndexFormCodec::bound(std::uint64_t universe,
                                  std::uint64_t num_indices) const noexcept {
  if (form_) return kernels::index_bound(*form_, universe, num_indices);
  return std::min(kernels::index_bound(kernels::IndexForm::bitmap, universe, num_indices),
                  kernels::index_bound(kernels::IndexForm::elias_fano, universe, num_indices));
}

std::optional<std::uint32_t> IndexFormCodec::fixed_form(std::uint64_t universe,
                                                        std::uint64_t num_indices) const noexcept {
  return static_cast<std::uint32_t>(
      form_.value_or(kernels::smallest_index_form(universe, num_indices)));
}

Status IndexFormCodec::encode(ExecContext const& ctx, std::uint64_t universe,
                              std::span<std::uint32_t const> indices, Body output,
                              std::uint32_t& form) const noexcept {
  kernels::IndexForm const chosen =
      form_.value_or(kernels::smallest_index_form(universe, indices.size()));
  form = static_cast<std::uint32_t>(chosen);
  std::size_t const num_bytes = kernels::index_bytes(chosen, universe, indices.size());
  Bytes const out = output.resize(num_bytes);
  if (out.size() != num_bytes) return kBodyTooSmall;
  if (num_bytes > 0) kernels::encode_indices(ctx, chosen, indices, universe, out);
  return {};
}

}  // namespace gradsieve

GRADSIEVE_REGISTER_INDEX_CODEC(
    index_codec, IndexFormCodec,
    PluginInfo{.name = "index",
               .kind = PluginKind::index_codec,
               .summary = "Codes the chosen indices in the form that is named, or the smallest.",
               .paper = "Elias, J. ACM 1974; Fano, MIT Project MAC memorandum 61, 1971",
               .params = {{.name = "form",
                           .type = ParamType::choice,
                           .default_value = "auto",
                           .choices = {"auto", "bitmap", "elias_fano", "delta", "rice"},
                           .summary = "auto takes the fewest bytes; delta and rice are reserved"}},
               .positional = "form"});
