// SPDX-License-Identifier: Apache-2.0
// The registry of plug-ins: names, documentation, parameters with unit, range and default.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gradsieve/compressor.hpp"
#include "gradsieve/sparsifier.hpp"
#include "gradsieve/spec.hpp"

namespace gradsieve {

enum class PluginKind : std::uint8_t {
  compressor,   ///< dense gradient to bytes; also the value stage behind a sparsifier
  sparsifier,   ///< chooses elements
  index_codec,  ///< codes the chosen indices
  byte_codec,   ///< last stage: bytes to fewer bytes
  feedback,     ///< what happens to what was not sent
};
[[nodiscard]] std::string_view plugin_kind_name(PluginKind kind) noexcept;

enum class ParamType : std::uint8_t { real, integer, boolean, choice };

/// One parameter: all of it is data, so that lists, errors and tests come from one place. Every
/// member has an initialiser, so that a declaration names only what it has.
struct ParamInfo {
  std::string name = {};
  ParamType type = ParamType::real;
  std::string unit = {};           ///< "fraction", "elements", "steps", ...; empty for choices
  std::string default_value = {};  ///< as it would be written in a spec
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_excluded = false;              ///< (min, max] instead of [min, max]
  std::vector<std::string> choices = {};  ///< of a choice
  std::string summary = {};
};

/// Checked parameters of one stage: every declared name has a value of its type and range.
class Params {
 public:
  using Value = std::variant<double, std::int64_t, bool, std::string>;

  Params() = default;
  explicit Params(std::map<std::string, Value, std::less<>> values) : values_(std::move(values)) {}

  [[nodiscard]] double real(std::string_view name) const;
  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] bool boolean(std::string_view name) const;
  [[nodiscard]] std::string const& choice(std::string_view name) const;

  /// True if the chain is used under error feedback: random-k then does not rescale.
  bool with_feedback = false;

 private:
  template <typename T>
  [[nodiscard]] T const& get(std::string_view name) const;
  std::map<std::string, Value, std::less<>> values_;
};

/// Everything known about a plug-in but its code.
struct PluginInfo {
  std::string name = {};
  PluginKind kind = PluginKind::compressor;
  std::uint8_t payload_id = 0;  ///< 0-31 built in, 32-159 registered, 160-255 private
  std::string summary = {};     ///< one sentence
  std::string paper = {};       ///< authors, venue, arXiv id; "-" if there is none
  std::vector<ParamInfo> params = {};
  std::string positional = {};  ///< parameter that an argument without a key sets; empty: none
};

/// A lossless last stage on bytes.
class ByteCodec {
 public:
  virtual ~ByteCodec() = default;
  [[nodiscard]] virtual std::size_t bound(std::size_t num_bytes) const noexcept = 0;
  [[nodiscard]] virtual std::size_t workspace_bytes(std::size_t num_bytes) const noexcept = 0;
  virtual Status encode(ExecContext const& ctx, ConstBytes input, Body output) const noexcept = 0;
  /// `output` has exactly the size that the input must decode to at most; sets `num_bytes`.
  virtual Status decode(ExecContext const& ctx, ConstBytes input, Bytes output,
                        std::size_t& num_bytes) const noexcept = 0;
};

/// Codes a strictly ascending list of `num_indices` indices below `universe`.
class IndexCodec {
 public:
  virtual ~IndexCodec() = default;
  [[nodiscard]] virtual std::size_t bound(std::uint64_t universe,
                                          std::uint64_t num_indices) const noexcept = 0;
  /// The form that encode() chooses, if it follows from these two alone and this codec runs where
  /// data is on a device: the code then has exactly as many bytes as the form says.
  [[nodiscard]] virtual std::optional<std::uint32_t> fixed_form(
      std::uint64_t universe, std::uint64_t num_indices) const noexcept {
    static_cast<void>(universe);
    static_cast<void>(num_indices);
    return std::nullopt;
  }
  /// `form` receives the id that is written in the sparse body.
  virtual Status encode(ExecContext const& ctx, std::uint64_t universe,
                        std::span<std::uint32_t const> indices, Body output,
                        std::uint32_t& form) const noexcept = 0;
};

/// What the residual layer is told: the rest of error feedback is in the hook.
struct FeedbackOptions {
  bool enabled = false;
  double decay = 1.0;        ///< factor on the residual before it is added again
  DType dtype = DType::f32;  ///< how it is stored: f32, or bf16 with stochastic rounding
};

class Registry {
 public:
  using CompressorFactory = std::function<std::unique_ptr<Compressor>(Params const&)>;
  using SparsifierFactory = std::function<std::unique_ptr<Sparsifier>(Params const&)>;
  using IndexCodecFactory = std::function<std::unique_ptr<IndexCodec>(Params const&)>;
  using ByteCodecFactory = std::function<std::unique_ptr<ByteCodec>(Params const&)>;
  using FeedbackFactory = std::function<FeedbackOptions(Params const&)>;
  using Factory = std::variant<CompressorFactory, SparsifierFactory, IndexCodecFactory,
                               ByteCodecFactory, FeedbackFactory>;

  /// Throws Error(invalid_usage) if the name is taken by another stage, or by another kind of
  /// feedback, or the payload id within its kind.
  void add(PluginInfo info, Factory factory);

  [[nodiscard]] std::vector<PluginInfo const*> plugins() const;  ///< by kind, then name
  /// By name, a kind of feedback by `feedback=NAME`; null if there is none.
  [[nodiscard]] PluginInfo const* find(std::string_view name) const noexcept;
  [[nodiscard]] PluginInfo const* find_payload_id(std::uint8_t payload_id) const noexcept;

  /// Checks a stage's arguments against the schema; Error(invalid_argument or unknown_name) names
  /// the nearest valid spelling and the range.
  [[nodiscard]] Params check(Stage const& stage, PluginInfo const& info) const;

  [[nodiscard]] std::unique_ptr<Compressor> make_compressor(Stage const& stage,
                                                            bool with_feedback = false) const;
  [[nodiscard]] std::unique_ptr<Sparsifier> make_sparsifier(Stage const& stage,
                                                            bool with_feedback = false) const;
  [[nodiscard]] std::unique_ptr<IndexCodec> make_index_codec(Stage const& stage) const;
  [[nodiscard]] std::unique_ptr<ByteCodec> make_byte_codec(Stage const& stage) const;
  [[nodiscard]] FeedbackOptions make_feedback(Stage const& stage) const;

 private:
  struct Entry {
    PluginInfo info;
    Factory factory;
  };
  [[nodiscard]] Entry const& require(Stage const& stage, PluginKind kind) const;
  std::map<std::string, Entry, std::less<>> entries_;
};

/// All plug-ins of this build; constant after its first use.
[[nodiscard]] Registry const& builtin_registry();

/// Adds the plug-in of the shared library at this path (docs/plugin_abi.md) and returns its name.
/// The library stays loaded. Throws Error: io_error if there is no such file, unsupported for
/// another version of the interface, invalid_usage for a wrong declaration or a name that is taken.
std::string load_plugin(Registry& registry, std::string const& path);
/// The same for builtin_registry(), before its first use: for programs, at the start of main.
std::string load_builtin_plugin(std::string const& path);

/// Generated from the gsv_add_plugin() lines.
void register_builtin_plugins(Registry& registry);

enum class ExchangeChoice : std::uint8_t { automatic, gather, two_shot, all_reduce };
enum class Scope : std::uint8_t { tensor, bucket, model };

/// A spec made real: what one tensor's gradients go through.
struct Chain {
  std::string text;  ///< canonical spec, every default spelled out: this is what ranks compare
  std::shared_ptr<Compressor const> compressor;
  std::uint8_t payload_id = 0;  ///< of the outermost codec, for headers
  FeedbackOptions feedback;
  ExchangeChoice exchange = ExchangeChoice::automatic;
  Scope scope = Scope::tensor;
  std::uint64_t dense_below_elements = 0;  ///< tensors smaller than this are sent as `none`
};

/// Parses and builds. Clauses: feedback=none|residual(decay=…, dtype=f32|bf16),
/// exchange=auto|gather| two_shot|all_reduce, scope=tensor|bucket|model, dense_below=elements.
/// Throws Error with a sentence that says what would have been accepted.
[[nodiscard]] Chain make_chain(std::string_view spec,
                               Registry const& registry = builtin_registry());

/// Name of the registering function of a plug-in; each source defines it once, as its last line.
///
///   GRADSIEVE_REGISTER_COMPRESSOR(sign, SignCompressor, PluginInfo{...});
#define GRADSIEVE_REGISTER_COMPRESSOR(name, type, ...) \
  GRADSIEVE_REGISTER_(name, type, CompressorFactory, ::gradsieve::Compressor, __VA_ARGS__)
#define GRADSIEVE_REGISTER_SPARSIFIER(name, type, ...) \
  GRADSIEVE_REGISTER_(name, type, SparsifierFactory, ::gradsieve::Sparsifier, __VA_ARGS__)
#define GRADSIEVE_REGISTER_INDEX_CODEC(name, type, ...) \
  GRADSIEVE_REGISTER_(name, type, IndexCodecFactory, ::gradsieve::IndexCodec, __VA_ARGS__)
#define GRADSIEVE_REGISTER_BYTE_CODEC(name, type, ...) \
  GRADSIEVE_REGISTER_(name, type, ByteCodecFactory, ::gradsieve::ByteCodec, __VA_ARGS__)

#define GRADSIEVE_REGISTER_(plugin_name, type, factory, base, ...)                     \
  namespace gradsieve {                                                                \
  void register_##plugin_name(Registry& registry);                                     \
  void register_##plugin_name(Registry& registry) {                                    \
    registry.add(__VA_ARGS__,                                                          \
                 Registry::factory([](Params const& params) -> std::unique_ptr<base> { \
                   return std::make_unique<type>(params);                              \
                 }));                                                                  \
  }                                                                                    \
  }                                                                                    \
  static_assert(true, "asks for the semicolon")

}  // namespace gradsieve
