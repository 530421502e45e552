// SPDX-License-Identifier: Apache-2.0
// Opens a plug-in and enters it like one of ours.
#include "compressors/load_plugin.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include <dlfcn.h>

#include "gradsieve/plugin.h"
#include "gradsieve/registry.hpp"

#include "compressors/plugin_compressor.hpp"

namespace gradsieve {
namespace {

constexpr std::uint64_t kKnownUses = gsvPluginUsesRounds | gsvPluginUsesFused | gsvPluginUsesOwned |
                                     gsvPluginUsesSlots | gsvPluginUsesF64 | gsvPluginUsesFeatures;
constexpr std::uint32_t kMaxParams = 64;

[[noreturn]] void refuse(std::string const& path, Code code, std::string const& sentence) {
  throw Error(code, "plug-in '" + path + "': " + sentence);
}

/// The given struct, with zeros for what it does not have. Never freed, as what it points to.
gsvPluginV1x const& copy_of(void const* symbol, std::string const& path) {
  std::uint32_t head[2];  // version and size come first in every version
  std::memcpy(head, symbol, sizeof head);
  if (head[0] != GSV_PLUGIN_ABI_VERSION)
    refuse(path, Code::unsupported,
           "it has version " + std::to_string(head[0]) + " of the interface; expected " +
               std::to_string(GSV_PLUGIN_ABI_VERSION));
  if (head[1] < offsetof(gsvPluginV1x, feature))
    refuse(path, Code::unsupported,
           "its struct_size is " + std::to_string(head[1]) + "; expected " +
               std::to_string(sizeof(gsvPluginV1x)));
  auto* const table = new gsvPluginV1x{};
  std::memcpy(table, symbol, std::min<std::size_t>(head[1], sizeof *table));
  return *table;
}

gsvPluginV1x const& exported_table(std::string const& path) {
  // A name without a slash would be searched for; a plug-in is a file that somebody named.
  std::string const file = path.find('/') == std::string::npos ? "./" + path : path;
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) refuse(path, Code::io_error, ::dlerror());
  void const* const symbol = ::dlsym(library, GSV_PLUGIN_SYMBOL);
  if (symbol == nullptr) refuse(path, Code::unsupported, "it exports no " GSV_PLUGIN_SYMBOL);
  return copy_of(symbol, path);
}

void check(gsvPluginV1x const& table, std::string const& path) {
  if (table.kind != gsvPluginCompressor)
    refuse(path, Code::unsupported,
           "it is of kind " + std::to_string(table.kind) + "; expected 0, a compressor");
  if ((table.uses & gsvPluginUsesCuda) != 0)
    refuse(path, Code::unsupported,
           "it uses CUDA, which version 1 of the interface keeps for later: plug-ins get host "
           "memory only");
  if ((table.uses & ~kKnownUses) != 0)
    refuse(path, Code::unsupported,
           "it uses what this host does not have (bits " +
               std::to_string(table.uses & ~kKnownUses) + ")");
  if (table.name == nullptr || table.summary == nullptr || table.paper == nullptr ||
      (table.num_params != 0 && table.params == nullptr) || table.num_params > kMaxParams)
    refuse(path, Code::invalid_usage, "it lacks a name, a summary, a paper or its parameters");
  bool const complete = table.create != nullptr && table.destroy != nullptr &&
                        table.describe != nullptr && table.round_info != nullptr &&
                        table.encode != nullptr && table.decode_add != nullptr;
  if (!complete) refuse(path, Code::invalid_usage, "it lacks a function that every plug-in has");
  if (table.payload_id < 32 || table.payload_id > 255)
    refuse(path, Code::invalid_usage,
           "its payload id is " + std::to_string(table.payload_id) +
               "; expected 32 ... 159 as registered, or 160 ... 255");
}

std::string text(char const* given) { return given == nullptr ? "" : given; }

ParamInfo param_of(gsvParamInfo const& given, std::string const& path) {
  if (given.name == nullptr || given.type > gsvParamChoice ||
      (given.num_choices != 0 && given.choices == nullptr))
    refuse(path, Code::invalid_usage, "a parameter has no name, no type or no choices");
  ParamInfo info;
  info.name = given.name;
  info.type = static_cast<ParamType>(given.type);
  info.unit = text(given.unit);
  info.default_value = text(given.default_value);
  info.summary = text(given.summary);
  info.min_excluded = given.min_excluded != 0;
  if (info.type == ParamType::real || info.type == ParamType::integer) {
    info.min = given.min;
    info.max = given.max;
  }
  for (std::uint32_t i = 0; i < given.num_choices; ++i)
    info.choices.push_back(text(given.choices[i]));
  return info;
}

PluginInfo info_of(gsvPluginV1x const& table, std::string const& path) {
  PluginInfo info;
  info.name = table.name;
  info.kind = PluginKind::compressor;
  info.payload_id = static_cast<std::uint8_t>(table.payload_id);
  info.summary = table.summary;
  info.paper = table.paper;
  info.positional = text(table.positional);
  auto const* place = reinterpret_cast<std::byte const*>(table.params);
  for (std::uint32_t i = 0; i < table.num_params; ++i) {
    std::uint32_t const size = table.params->struct_size;  // the stride of the whole list
    gsvParamInfo param{};
    std::memcpy(&param, place, std::min<std::size_t>(size, sizeof param));
    info.params.push_back(param_of(param, path));
    place += size;
  }
  return info;
}

std::string enter(Registry& registry, gsvPluginV1x const& table, std::string const& path) {
  check(table, path);
  PluginInfo const info = info_of(table, path);
  registry.add(
      info, Registry::CompressorFactory(
                [&table, infos = info.params](Params const& params) -> std::unique_ptr<Compressor> {
                  return std::make_unique<PluginCompressor>(table, infos, params);
                }));
  return info.name;
}

}  // namespace

std::string load_plugin(Registry& registry, std::string const& path) {
  return enter(registry, exported_table(path), path);
}

std::string add_plugin(Registry& registry, void const* table) {
  std::string const where = "in memory";
  return enter(registry, copy_of(table, where), where);
}

}  // namespace gradsieve
