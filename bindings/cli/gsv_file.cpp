// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/gsv_file.hpp"

#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include <unistd.h>

#include "gradsieve/wire.hpp"

namespace gradsieve::cli {
namespace {

constexpr std::string_view kMagic = "GSVFILE1";
constexpr std::size_t kFixedBytes =
    40;  // magic, spec_bytes, dtype, num_elements, seed, num_dimensions
constexpr std::size_t kChecksumBytes = 8;  // behind the payload, of everything before
constexpr std::size_t kMaxSpecBytes = 65536;
constexpr std::size_t kMaxDimensions = 64;  // NumPy has the same limit

[[noreturn]] void fail(Code code, std::filesystem::path const& path, std::string const& sentence) {
  throw Error(code, "'" + path.string() + "': " + sentence);
}

[[noreturn]] void damaged(std::filesystem::path const& path, std::string const& what) {
  fail(Code::corrupt_payload, path, "is damaged or cut off: " + what);
}

// Nothing where the product does not fit 64 bits.
std::optional<std::uint64_t> product(std::vector<std::uint64_t> const& shape) {
  std::uint64_t count = 1;
  for (std::uint64_t const size : shape) {
    if (__builtin_mul_overflow(count, size, &count)) return std::nullopt;
  }
  return count;
}

Buffer read_all(std::filesystem::path const& path) {
  std::error_code error;
  std::uint64_t const num_bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file)
    fail(Code::io_error, path, "cannot be read; expected a file that 'gradsieve encode' wrote");
  Buffer buffer(static_cast<std::size_t>(num_bytes), host_memory());
  file.read(reinterpret_cast<char*>(buffer.data()), static_cast<std::streamsize>(num_bytes));
  if (!file) fail(Code::io_error, path, "could not be read to its end");
  return buffer;
}

// Everything before the payload.
std::vector<std::byte> head_of(GsvFile const& file) {
  std::size_t const num_sizes = file.shape.size();
  std::size_t const spec_begin = kFixedBytes + 8 * num_sizes;
  std::vector<std::byte> head(wire::aligned(spec_begin + file.spec.size()));
  std::memcpy(head.data(), kMagic.data(), kMagic.size());
  wire::store(head.data() + 8, static_cast<std::uint32_t>(file.spec.size()));
  wire::store(head.data() + 12, static_cast<std::uint32_t>(file.dtype));
  wire::store(head.data() + 16, file.num_elements());
  wire::store(head.data() + 24, file.seed);
  wire::store(head.data() + 32, static_cast<std::uint64_t>(num_sizes));
  for (std::size_t i = 0; i < num_sizes; ++i)
    wire::store(head.data() + kFixedBytes + 8 * i, file.shape[i]);
  std::memcpy(head.data() + spec_begin, file.spec.data(), file.spec.size());
  return head;
}

// The fields before the payload; where that begins.
std::size_t read_head(std::filesystem::path const& path, ConstBytes bytes, GsvFile& file) {
  if (bytes.size() < kFixedBytes + wire::kHeaderBytes + kChecksumBytes)
    damaged(path, "it is too short");
  auto const spec_bytes = wire::load<std::uint32_t>(bytes.data() + 8);
  auto const dtype = wire::load<std::uint32_t>(bytes.data() + 12);
  auto const num_elements = wire::load<std::uint64_t>(bytes.data() + 16);
  auto const num_sizes = wire::load<std::uint64_t>(bytes.data() + 32);
  if (spec_bytes > kMaxSpecBytes || num_sizes > kMaxDimensions ||
      dtype > static_cast<std::uint32_t>(DType::f64)) {
    damaged(path, "a field of its head is out of range");
  }
  std::size_t const spec_begin = kFixedBytes + 8 * static_cast<std::size_t>(num_sizes);
  std::size_t const end = wire::aligned(spec_begin + spec_bytes);
  if (end + wire::kHeaderBytes + kChecksumBytes > bytes.size())
    damaged(path, "it ends within its head");
  file.dtype = static_cast<DType>(dtype);
  file.seed = wire::load<std::uint64_t>(bytes.data() + 24);
  for (std::size_t i = 0; i < num_sizes; ++i) {
    file.shape.push_back(wire::load<std::uint64_t>(bytes.data() + kFixedBytes + 8 * i));
  }
  file.spec.assign(reinterpret_cast<char const*>(bytes.data()) + spec_begin, spec_bytes);
  if (product(file.shape) != num_elements ||
      num_elements > std::numeric_limits<std::size_t>::max() / 8) {
    damaged(path, "its shape and its number of elements do not fit");
  }
  return end;
}

}  // namespace

std::uint64_t GsvFile::num_elements() const noexcept { return product(shape).value_or(0); }

GsvFile read_gsv(std::filesystem::path const& path) { return parse_gsv(read_all(path), path); }

GsvFile parse_gsv(Buffer content, std::filesystem::path const& path) {
  GsvFile file;
  file.storage = std::move(content);
  ConstBytes const bytes = file.storage.bytes();
  if (bytes.size() < kMagic.size() ||
      std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    fail(Code::corrupt_payload, path,
         "does not begin with GSVFILE1; expected a file that 'gradsieve encode' wrote");
  }
  std::size_t const begin = read_head(path, bytes, file);
  std::size_t const end = bytes.size() - kChecksumBytes;
  // Every byte counts: a wrong seed would give wrong numbers and no other sign.
  if (wire::checksum(bytes.first(end)) != wire::load<std::uint64_t>(bytes.data() + end)) {
    damaged(path, "the checksum at its end does not match");
  }
  file.payload = bytes.subspan(begin, end - begin);
  return file;
}

void write_gsv(std::filesystem::path const& path, GsvFile const& file) {
  std::vector<std::byte> bytes = head_of(file);
  bytes.insert(bytes.end(), file.payload.begin(), file.payload.end());
  std::uint64_t const checksum = wire::checksum(bytes);
  bytes.resize(bytes.size() + kChecksumBytes);
  wire::store(bytes.data() + bytes.size() - kChecksumBytes, checksum);

  // The process id keeps two programs that write into one folder apart.
  std::filesystem::path temporary = path;
  temporary += ".tmp" + std::to_string(::getpid());
  std::ofstream out(temporary, std::ios::binary);
  out.write(reinterpret_cast<char const*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(temporary, path, error);
  if (!out || error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    fail(Code::io_error, path, "cannot be written; expected an existing folder with space left");
  }
}

}  // namespace gradsieve::cli
