// SPDX-License-Identifier: Apache-2.0
// Plug-ins that do nothing, for tests of the registry alone.
#pragma once

#include <memory>

#include "gradsieve/registry.hpp"

namespace gradsieve::testing {

class FakeCompressor : public Compressor {
 public:
  explicit FakeCompressor(Params const& given) : params(given) {}
  Claims claims() const noexcept override { return {}; }
  RoundInfo round(int, TensorInfo const&) const noexcept override { return {}; }
  Params params;

 private:
  Status do_encode(ExecContext const&, int, TensorInfo const&, std::span<float const>, StateView,
                   Body) const noexcept override {
    return {};
  }
  Status do_decode_add(ExecContext const&, int, TensorInfo const&, ConstBytes, float, StateView,
                       std::span<float>) const noexcept override {
    return {};
  }
};

class FakeSparsifier : public Sparsifier {
 public:
  explicit FakeSparsifier(Params const& given) : params(given) {}
  Claims claims() const noexcept override { return {}; }
  std::uint64_t capacity_indices(TensorInfo const&) const noexcept override { return 0; }
  Params params;
};

class FakeIndexCodec : public IndexCodec {
 public:
  explicit FakeIndexCodec(Params const&) {}
  std::size_t bound(std::uint64_t, std::uint64_t) const noexcept override { return 0; }
  Status encode(ExecContext const&, std::uint64_t, std::span<std::uint32_t const>, Body,
                std::uint32_t&) const noexcept override {
    return {};
  }
};

class FakeByteCodec : public ByteCodec {
 public:
  explicit FakeByteCodec(Params const&) {}
  std::size_t bound(std::size_t) const noexcept override { return 0; }
  std::size_t workspace_bytes(std::size_t) const noexcept override { return 0; }
  Status encode(ExecContext const&, ConstBytes, Body) const noexcept override { return {}; }
  Status decode(ExecContext const&, ConstBytes, Bytes, std::size_t&) const noexcept override {
    return {};
  }
};

template <typename Base, typename Fake>
auto making() {
  return
      [](Params const& params) -> std::unique_ptr<Base> { return std::make_unique<Fake>(params); };
}

inline Registry::CompressorFactory fake_compressor() {
  return making<Compressor, FakeCompressor>();
}
inline Registry::SparsifierFactory fake_sparsifier() {
  return making<Sparsifier, FakeSparsifier>();
}
inline Registry::IndexCodecFactory fake_index_codec() {
  return making<IndexCodec, FakeIndexCodec>();
}
inline Registry::ByteCodecFactory fake_byte_codec() { return making<ByteCodec, FakeByteCodec>(); }

/// topk (a sparsifier with a parameter of every type), int8, bf16, index, zstd and residual.
inline Registry fake_registry() {
  Registry registry;
  PluginInfo topk{
      .name = "topk", .kind = PluginKind::sparsifier, .summary = "largest", .paper = "-"};
  topk.params = {
      {.name = "density",
       .type = ParamType::real,
       .unit = "fraction",
       .default_value = "0.01",
       .min = 0.0,
       .max = 1.0,
       .min_excluded = true,
       .summary = "kept"},
      {.name = "hold",
       .type = ParamType::integer,
       .unit = "steps",
       .default_value = "1",
       .min = 1.0,
       .max = 100000.0,
       .summary = "reuse"},
      {.name = "sampled", .type = ParamType::boolean, .default_value = "off", .summary = "sample"},
      {.name = "tie",
       .type = ParamType::choice,
       .default_value = "lower",
       .choices = {"lower", "higher"},
       .summary = "ties"}};
  topk.positional = "density";
  registry.add(topk, fake_sparsifier());
  registry.add({.name = "int8",
                .payload_id = 4,
                .params = {{.name = "block",
                            .type = ParamType::integer,
                            .unit = "elements",
                            .default_value = "256",
                            .min = 1.0,
                            .max = 4096.0}}},
               fake_compressor());
  registry.add({.name = "bf16", .payload_id = 2}, fake_compressor());
  registry.add({.name = "index",
                .kind = PluginKind::index_codec,
                .params = {{.name = "form",
                            .type = ParamType::choice,
                            .default_value = "auto",
                            .choices = {"auto", "bitmap", "elias_fano"}}},
                .positional = "form"},
               fake_index_codec());
  registry.add({.name = "zstd", .kind = PluginKind::byte_codec, .payload_id = 24},
               fake_byte_codec());
  registry.add({.name = "residual",
                .kind = PluginKind::feedback,
                .params = {{.name = "decay",
                            .type = ParamType::real,
                            .default_value = "1",
                            .min = 0.0,
                            .max = 1.0}}},
               Registry::FeedbackFactory([](Params const& params) {
                 return FeedbackOptions{.enabled = true, .decay = params.real("decay")};
               }));
  return registry;
}

/// The text of the Error that `call` throws; its code through `code`.
template <typename Call>
std::string error_of(Call const& call, Code* code = nullptr) {
  try {
    call();
  } catch (Error const& error) {
    if (code != nullptr) *code = error.code();
    return error.what();
  }
  return "no error";
}

}  // namespace gradsieve::testing
