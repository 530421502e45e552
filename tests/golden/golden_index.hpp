// SPDX-License-Identifier: Apache-2.0
// Reads golden.json and the payloads that make_golden.py wrote.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace gradsieve::testing {

using Json = nlohmann::json;

inline std::string golden_path(std::string const& name) {
  return std::string(GOLDEN_DIR) + "/" + name;
}

inline std::vector<std::byte> read_golden(std::string const& name) {
  std::ifstream file(golden_path("payloads/" + name), std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + name);
  std::string const text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::byte> bytes(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) bytes[i] = static_cast<std::byte>(text[i]);
  return bytes;
}

inline Json const& golden_index() {
  static Json const index = [] {
    std::ifstream file(golden_path("golden.json"));
    return Json::parse(file);
  }();
  return index;
}

inline std::vector<std::byte> from_hex(std::string const& text) {
  std::vector<std::byte> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

/// Little-endian numbers.
template <typename T>
std::vector<T> numbers_from_hex(std::string const& text) {
  std::vector<std::byte> const bytes = from_hex(text);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline std::uint64_t word_from_hex(Json const& text) {
  return std::stoull(text.get<std::string>(), nullptr, 16);
}

/// The damaged form of a good payload.
inline std::vector<std::byte> damaged_bytes(std::vector<std::byte> bytes, Json const& damage) {
  bytes.resize(damage["length"].get<std::size_t>());
  for (Json const& patch : damage["bytes"]) {
    std::vector<std::byte> const patched = from_hex(patch[1].get<std::string>());
    std::copy(patched.begin(), patched.end(), bytes.begin() + patch[0].get<std::ptrdiff_t>());
  }
  return bytes;
}

}  // namespace gradsieve::testing
