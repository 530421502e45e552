// SPDX-License-Identifier: Apache-2.0
// Plug-ins by name. A wrong declaration is an error when it is added, not when it is used.
#include "gradsieve/registry.hpp"

#include <algorithm>
#include <set>

#include "core/plugin_text.hpp"

namespace gradsieve {
namespace {

bool is_name(std::string_view text) {
  auto const lower = [](char c) { return c >= 'a' && c <= 'z'; };
  auto const inner = [&](char c) { return lower(c) || (c >= '0' && c <= '9') || c == '_'; };
  return !text.empty() && lower(text.front()) && std::all_of(text.begin(), text.end(), inner);
}

// A kind of feedback never stands in a chain, so it may share a name with a stage: it is entered as
// it is written, `feedback=none`. Stages share one set of names, whatever their kind.
std::string key_of(PluginKind kind, std::string_view name) {
  return (kind == PluginKind::feedback ? "feedback=" : "") + std::string(name);
}

// The alternatives of Factory stand in the order of PluginKind.
bool makes(Registry::Factory const& factory, PluginKind kind) {
  return factory.index() == static_cast<std::size_t>(kind);
}

[[noreturn]] void refuse(PluginInfo const& info, std::string const& sentence) {
  throw Error(Code::invalid_usage, "plug-in '" + info.name + "': " + sentence);
}

void check_declaration(PluginInfo const& info, Registry::Factory const& factory) {
  if (!is_name(info.name)) refuse(info, "the name must be [a-z][a-z0-9_]*");
  if (!makes(factory, info.kind))
    refuse(info, "the factory does not make " + kind_phrase(info.kind));
  std::set<std::string_view> names;
  for (ParamInfo const& param : info.params) {
    if (!is_name(param.name))
      refuse(info, "the name of parameter '" + param.name + "' must be [a-z][a-z0-9_]*");
    if (!names.insert(param.name).second)
      refuse(info, "parameter '" + param.name + "' is declared twice");
  }
  if (!info.positional.empty() && !names.contains(info.positional)) {
    refuse(info, "the positional parameter '" + info.positional + "' is not declared");
  }
}

}  // namespace

void Registry::add(PluginInfo info, Factory factory) {
  check_declaration(info, factory);
  try {
    static_cast<void>(check(Stage{info.name, {}}, info));
  } catch (Error const& error) {
    refuse(info, std::string("a default value is not valid (") + error.what() + ")");
  }
  std::string key = key_of(info.kind, info.name);
  if (entries_.contains(key)) refuse(info, "the name is taken");
  for (auto const& [name, entry] : entries_) {
    // 0 stands for plug-ins that never write a payload of their own.
    bool const same = entry.info.kind == info.kind && entry.info.payload_id == info.payload_id;
    if (same && info.payload_id != 0) {
      refuse(info, "payload id " + std::to_string(info.payload_id) + " is taken by '" + name + "'");
    }
  }
  entries_.emplace(std::move(key), Entry{std::move(info), std::move(factory)});
}

std::vector<PluginInfo const*> Registry::plugins() const {
  std::vector<PluginInfo const*> plugins;
  for (auto const& [name, entry] : entries_) plugins.push_back(&entry.info);
  std::stable_sort(plugins.begin(), plugins.end(),
                   [](PluginInfo const* a, PluginInfo const* b) { return a->kind < b->kind; });
  return plugins;
}

PluginInfo const* Registry::find(std::string_view name) const noexcept {
  auto const found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second.info;
}

PluginInfo const* Registry::find_payload_id(std::uint8_t payload_id) const noexcept {
  if (payload_id == 0) return nullptr;
  // Only these two put their id into a header.
  for (PluginKind const kind : {PluginKind::compressor, PluginKind::byte_codec}) {
    for (auto const& [name, entry] : entries_) {
      if (entry.info.kind == kind && entry.info.payload_id == payload_id) return &entry.info;
    }
  }
  return nullptr;
}

Registry::Entry const& Registry::require(Stage const& stage, PluginKind kind) const {
  auto const found = entries_.find(key_of(kind, stage.name));
  PluginKind const kinds[] = {kind};
  if (found == entries_.end() || found->second.info.kind != kind)
    throw_wrong_plugin(*this, stage.name, kinds);
  return found->second;
}

std::unique_ptr<Compressor> Registry::make_compressor(Stage const& stage,
                                                      bool with_feedback) const {
  Entry const& entry = require(stage, PluginKind::compressor);
  Params params = check(stage, entry.info);
  params.with_feedback = with_feedback;
  return std::get<CompressorFactory>(entry.factory)(params);
}

std::unique_ptr<Sparsifier> Registry::make_sparsifier(Stage const& stage,
                                                      bool with_feedback) const {
  Entry const& entry = require(stage, PluginKind::sparsifier);
  Params params = check(stage, entry.info);
  params.with_feedback = with_feedback;
  return std::get<SparsifierFactory>(entry.factory)(params);
}

std::unique_ptr<IndexCodec> Registry::make_index_codec(Stage const& stage) const {
  Entry const& entry = require(stage, PluginKind::index_codec);
  return std::get<IndexCodecFactory>(entry.factory)(check(stage, entry.info));
}

std::unique_ptr<ByteCodec> Registry::make_byte_codec(Stage const& stage) const {
  Entry const& entry = require(stage, PluginKind::byte_codec);
  return std::get<ByteCodecFactory>(entry.factory)(check(stage, entry.info));
}

FeedbackOptions Registry::make_feedback(Stage const& stage) const {
  Entry const& entry = require(stage, PluginKind::feedback);
  return std::get<FeedbackFactory>(entry.factory)(check(stage, entry.info));
}

}  // namespace gradsieve
