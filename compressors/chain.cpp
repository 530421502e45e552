// SPDX-License-Identifier: Apache-2.0
// A spec made real. Strict: what cannot be meant is an error that says what could have been.
#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include "gradsieve/registry.hpp"

#include "compressors/chain_text.hpp"
#include "compressors/pipeline.hpp"
#include "core/plugin_text.hpp"

namespace gradsieve {
namespace {

constexpr std::uint8_t kSparsePayloadId = 16;
constexpr char const* kOrder = "a chain is [sparsifier] | [value codec] | [index] | [zstd]";
constexpr PluginKind kStageKinds[] = {PluginKind::compressor, PluginKind::sparsifier,
                                      PluginKind::index_codec, PluginKind::byte_codec};

[[noreturn]] void refuse(std::string const& sentence) {
  throw Error(Code::invalid_argument, sentence);
}

// --- stages --------------------------------------------------------------------------------------

int place_of(PluginKind kind) {
  switch (kind) {
    case PluginKind::sparsifier:
      return 0;
    case PluginKind::compressor:
      return 1;
    case PluginKind::index_codec:
      return 2;
    case PluginKind::byte_codec:
      return 3;
    case PluginKind::feedback:
      break;
  }
  return -1;
}

/// One stage per place, every parameter spelled out.
struct Places {
  std::optional<Stage> stages[4];

  std::optional<Stage>& sparsifier() { return stages[0]; }
  std::optional<Stage>& values() { return stages[1]; }
  std::optional<Stage>& index() { return stages[2]; }
  std::optional<Stage>& bytes() { return stages[3]; }
};

Places sort_stages(std::vector<Stage> const& chain, Registry const& registry) {
  Places places;
  int last = -1;
  for (Stage const& stage : chain) {
    PluginInfo const* const info = registry.find(stage.name);
    if (info == nullptr) throw_wrong_plugin(registry, stage.name, kStageKinds);
    int const place = place_of(info->kind);
    if (place == last) {
      refuse("'" + places.stages[place]->name + " | " + stage.name + "': a chain has " +
             kind_phrase(info->kind) + " once at most; " + kOrder);
    }
    if (place < last) {
      refuse("'" + stage.name + "' cannot follow '" + places.stages[last]->name + "'; " + kOrder);
    }
    places.stages[place] = canonical_stage(stage, *info, registry);
    last = place;
  }
  if (places.index() && !places.sparsifier()) {
    refuse("'index' has nothing to code: no sparsifier stands before it; " + std::string(kOrder));
  }
  return places;
}

/// Fills in the stages that go without saying.
Stage default_stage(char const* name, Registry const& registry) {
  PluginInfo const* const info = registry.find(name);
  if (info == nullptr) refuse(std::string("this build has no '") + name + "'");
  return canonical_stage({name, {}}, *info, registry);
}

std::shared_ptr<Compressor const> build(Places& places, bool with_feedback,
                                        Registry const& registry) {
  if (!places.values()) places.values() = default_stage("none", registry);
  PipelineStages stages;
  stages.values = registry.make_compressor(*places.values(), with_feedback);
  if (places.bytes()) stages.bytes = registry.make_byte_codec(*places.bytes());
  if (!places.sparsifier()) {
    if (stages.bytes == nullptr) return std::move(stages.values);
    return std::make_shared<Pipeline>(std::move(stages));
  }
  stages.sparsifier = registry.make_sparsifier(*places.sparsifier(), with_feedback);
  if (stages.sparsifier->claims().shared_indices) {
    if (places.index()) {
      refuse("'index' has nothing to code: all ranks know the indices of '" +
             places.sparsifier()->name + "'; leave the stage out");
    }
  } else {
    if (!places.index()) places.index() = default_stage("index", registry);
    stages.index = registry.make_index_codec(*places.index());
  }
  return std::make_shared<Pipeline>(std::move(stages));
}

std::uint8_t payload_id_of(Places& places, Registry const& registry) {
  if (places.bytes()) return registry.find(places.bytes()->name)->payload_id;
  if (places.sparsifier()) return kSparsePayloadId;
  return registry.find(places.values()->name)->payload_id;
}

// --- clauses -------------------------------------------------------------------------------------

/// In the order in which the canonical text has them.
std::vector<std::string> const& clause_keys() {
  static std::vector<std::string> const keys = {"feedback", "exchange", "scope", "dense_below"};
  return keys;
}

struct Clauses {
  Stage feedback{"none", {}};
  Stage exchange{"auto", {}};
  Stage scope{"tensor", {}};
  Stage dense_below{"0", {}};

  Stage& of(std::string const& key) {
    if (key == "feedback") return feedback;
    if (key == "exchange") return exchange;
    return key == "scope" ? scope : dense_below;
  }
};

Clauses sort_clauses(std::vector<Clause> const& given) {
  Clauses clauses;
  std::vector<std::string> seen;
  for (Clause const& clause : given) {
    auto const& keys = clause_keys();
    if (std::find(keys.begin(), keys.end(), clause.key) == keys.end()) {
      std::string const near = suggestion(clause.key, keys);
      throw Error(Code::unknown_name, "unknown clause '" + clause.key + "'" + near +
                                          (near.empty() ? "; the" : " The") +
                                          " clauses are: " + joined(keys));
    }
    if (std::find(seen.begin(), seen.end(), clause.key) != seen.end()) {
      refuse("the clause '" + clause.key + "' is given twice");
    }
    seen.push_back(clause.key);
    clauses.of(clause.key) = clause.value;
  }
  return clauses;
}

/// Position of the clause's value among `choices`.
std::size_t choice_of(std::string const& key, Stage const& value,
                      std::vector<std::string> const& choices) {
  if (!value.arguments.empty()) refuse(key + "=" + value.name + " takes no parameters");
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (value.name == choices[i]) return i;
  }
  std::string const near = suggestion(value.name, choices);
  refuse(key + "=" + value.name + " is not a choice" + near + (near.empty() ? "; e" : " E") +
         "xpected one of: " + joined(choices));
}

FeedbackOptions read_feedback(Stage& value, Registry const& registry) {
  FeedbackOptions const options = registry.make_feedback(value);
  value = canonical_stage(value, *registry.find("feedback=" + value.name), registry);
  return options;
}

ExchangeChoice read_exchange(Stage const& value) {
  constexpr ExchangeChoice kChoices[] = {ExchangeChoice::automatic, ExchangeChoice::gather,
                                         ExchangeChoice::two_shot, ExchangeChoice::all_reduce};
  return kChoices[choice_of("exchange", value, {"auto", "gather", "two_shot", "all_reduce"})];
}

Scope read_scope(Stage const& value) {
  constexpr Scope kChoices[] = {Scope::tensor, Scope::bucket, Scope::model};
  Scope const scope = kChoices[choice_of("scope", value, {"tensor", "bucket", "model"})];
  if (scope == Scope::model) {
    throw Error(Code::not_implemented,
                "scope=model selects over all buckets at once and is not implemented; this build "
                "has: tensor, bucket");
  }
  return scope;
}

std::uint64_t read_dense_below(Stage const& value) {
  std::uint64_t elements = 0;
  char const* const end = value.name.data() + value.name.size();
  auto const [stop, error] = std::from_chars(value.name.data(), end, elements);
  if (error != std::errc{} || stop != end || !value.arguments.empty()) {
    refuse("dense_below=" + value.name +
           " is not a number of elements: expected an integer such "
           "as dense_below=4096");
  }
  return elements;
}

// --- what fits what ------------------------------------------------------------------------------

/// Value codecs for which `fits` holds, by name.
template <typename Fits>
std::string compressors_where(Registry const& registry, Fits const& fits) {
  std::vector<std::string> names;
  for (PluginInfo const* const info : registry.plugins()) {
    if (info->kind != PluginKind::compressor) continue;
    if (fits(*registry.make_compressor({info->name, {}}))) names.push_back(info->name);
  }
  return joined(names);
}

bool is_summable(Compressor const& compressor) {
  RoundInfo const last = compressor.round(compressor.num_rounds() - 1, TensorInfo{});
  return last.exchange == ExchangeKind::sum;
}

void check_exchange(Chain const& chain, std::string const& stages, Registry const& registry) {
  if (chain.exchange == ExchangeChoice::all_reduce && !is_summable(*chain.compressor)) {
    std::string const names = compressors_where(registry, is_summable);
    refuse("exchange=all_reduce adds bodies before they are decoded, which those of '" + stages +
           "' cannot be; it goes with: " + names +
           "; behind a sparsifier, with a set that all ranks share (cltk, randomk) and no zstd");
  }
  if (chain.exchange == ExchangeChoice::two_shot && !chain.compressor->claims().elementwise) {
    auto const elementwise = [](Compressor const& one) { return one.claims().elementwise; };
    refuse("exchange=two_shot cuts a tensor into shards, which '" + stages +
           "' does not allow; it goes with: " + compressors_where(registry, elementwise) +
           ", without sparsifier and zstd");
  }
}

std::string text_of(Places const& places, Clauses& clauses) {
  Spec spec;
  for (std::optional<Stage> const& stage : places.stages) {
    if (stage) spec.chain.push_back(*stage);
  }
  for (std::string const& key : clause_keys()) spec.clauses.push_back({key, clauses.of(key)});
  return format_spec(spec);
}

std::string stages_of(Places const& places) {
  std::string text;
  for (std::optional<Stage> const& stage : places.stages) {
    if (stage) text += (text.empty() ? "" : " | ") + stage->name;
  }
  return text;
}

}  // namespace

Chain make_chain(std::string_view spec, Registry const& registry) {
  Spec const parsed = parse_spec(spec);
  Places places = sort_stages(parsed.chain, registry);
  Clauses clauses = sort_clauses(parsed.clauses);

  Chain chain;
  chain.feedback = read_feedback(clauses.feedback, registry);
  chain.exchange = read_exchange(clauses.exchange);
  chain.scope = read_scope(clauses.scope);
  chain.dense_below_elements = read_dense_below(clauses.dense_below);
  chain.compressor = build(places, chain.feedback.enabled, registry);
  chain.payload_id = payload_id_of(places, registry);
  // Nothing is ever left unsent, so a residual would be memory that stays zero.
  if (chain.compressor->claims().lossless) {
    chain.feedback = {};
    clauses.feedback = {"none", {}};
  }
  check_exchange(chain, stages_of(places), registry);
  clauses.dense_below.name = std::to_string(chain.dense_below_elements);
  chain.text = text_of(places, clauses);
  return chain;
}

}  // namespace gradsieve
