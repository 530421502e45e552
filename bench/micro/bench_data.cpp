// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/bench_data.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "gradsieve/vocabulary.hpp"

#include "core/npy.hpp"
#include "core/philox.hpp"

namespace gradsieve::bench {
namespace {

float uniform(std::uint32_t bits) { return (static_cast<float>(bits >> 8) + 0.5F) * 0x1p-24F; }

/// Box-Muller on two words of a Philox block.
float normal(std::uint32_t a, std::uint32_t b) {
  return std::sqrt(-2.0F * std::log(uniform(a))) * std::cos(6.2831853F * uniform(b));
}

/// All arrays of a folder, one behind another in the order of their names.
std::vector<float> const& recorded_gradients(std::string const& folder) {
  static std::map<std::string, std::vector<float>> kept;
  auto const [at, is_new] = kept.try_emplace(folder);
  if (!is_new) return at->second;
  std::vector<std::filesystem::path> files;
  for (auto const& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".npy") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (auto const& file : files) {
    NpyArray const array = read_npy(file.string());
    if (array.dtype != DType::f32) continue;
    auto const* const values = reinterpret_cast<float const*>(array.data.data());
    at->second.insert(at->second.end(), values, values + array.num_elements());
  }
  if (at->second.empty()) {
    kept.erase(at);
    throw Error(Code::invalid_argument, "'" + folder + "' holds no f32 .npy file; expected those " +
                                            "that gradsieve-study --dump-gradients writes");
  }
  return at->second;
}

float drawn(Distribution distribution, PhiloxKey const& key, std::uint64_t i,
            std::uint64_t num_elements) {
  auto const w = philox(key, i, 0);
  float const z = normal(w[0], w[1]);
  switch (distribution) {
    case Distribution::gauss:
    case Distribution::recorded:
      return z;
    // A mixture of scaled normals, as layers of a network give it: a percent holds half the energy.
    case Distribution::heavy:
      return z * std::exp(2.0F * normal(w[2], w[3]));
    case Distribution::ties:
      return std::round(2.0F * z) * 0.5F;
    case Distribution::sorted:
      return static_cast<float>(i) / static_cast<float>(num_elements);
    case Distribution::zeros:
      return w[2] % 2000 == 0 ? z : 0.0F;
    case Distribution::rows: {
      auto const row = philox(key, i / 4096, 1);
      return z * std::exp(1.5F * normal(row[0], row[1]));
    }
  }
  return 0.0F;
}

}  // namespace

char const* distribution_name(Distribution distribution) {
  constexpr char const* kNames[] = {"gauss", "heavy", "ties",    "sorted",
                                    "zeros", "rows",  "recorded"};
  return kNames[static_cast<int>(distribution)];
}

std::vector<float> make_distribution(Distribution distribution, std::uint64_t num_elements,
                                     std::uint64_t seed, std::string const& trace_folder) {
  std::vector<float> values(num_elements);
  if (distribution == Distribution::recorded) {
    std::vector<float> const& trace = recorded_gradients(trace_folder);
    for (std::uint64_t i = 0; i < num_elements; ++i) {
      std::uint64_t const at = i + seed * 12345;
      std::uint64_t const round = at / trace.size();
      values[i] = trace[at % trace.size()] * (1.0F + 0x1p-7F * static_cast<float>(round % 64));
    }
    return values;
  }
  PhiloxKey const key = philox_key(seed, 7, Purpose::select, 0);
  for (std::uint64_t i = 0; i < num_elements; ++i) {
    values[i] = drawn(distribution, key, i, num_elements);
  }
  return values;
}

}  // namespace gradsieve::bench
