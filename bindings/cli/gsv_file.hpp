// SPDX-License-Identifier: Apache-2.0
// .gsv files: one array, encoded. docs/wire_format.md, 'Files'.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gradsieve/memory.hpp"

namespace gradsieve::cli {

struct GsvFile {
  std::string spec;  ///< canonical
  DType dtype = DType::f32;
  std::uint64_t seed = 0;
  std::vector<std::uint64_t> shape;
  Buffer storage;      ///< of a file that was read: all of it
  ConstBytes payload;  ///< aligned to 16

  [[nodiscard]] std::uint64_t num_elements() const noexcept;
};

/// Throws Error: io_error if it cannot be read, corrupt_payload if it is no such file or damaged.
/// The payload itself is only known to be there in full and to be what was written.
[[nodiscard]] GsvFile read_gsv(std::filesystem::path const& path);

/// The same of bytes that are in memory already; the path is for the sentence of an error.
[[nodiscard]] GsvFile parse_gsv(Buffer content, std::filesystem::path const& path);

/// The file appears whole or not at all. Throws Error(io_error).
void write_gsv(std::filesystem::path const& path, GsvFile const& file);

}  // namespace gradsieve::cli
