// SPDX-License-Identifier: Apache-2.0
// The .npy format: 6 magic bytes, version, header length, a Python dictionary as text, the
// elements.
#include "core/npy.hpp"

#include <array>
#include <bit>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <unistd.h>

namespace gradsieve {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are copied as they are");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kAlignment = 64;
// NumPy itself refuses longer headers; a real one has about a hundred bytes.
constexpr std::uint64_t kMaxHeaderBytes = 64 * 1024;

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::uint64_t> shape;
};

[[noreturn]] void fail(Code code, std::filesystem::path const& path, std::string const& sentence) {
  throw Error(code, "'" + path.string() + "': " + sentence);
}

std::string_view descr_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return "<f2";
    case DType::bf16:
      return "<u2";
    case DType::f64:
      return "<f8";
    case DType::f32:
      break;
  }
  return "<f4";
}

std::optional<DType> dtype_of(std::string_view descr) {
  for (DType const dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    if (descr == descr_of(dtype)) return dtype;
  }
  return std::nullopt;
}

// The product of the dimensions, or nothing where it does not fit 64 bits.
std::optional<std::uint64_t> count_elements(std::span<std::uint64_t const> shape) {
  std::uint64_t count = 1;
  for (std::uint64_t const dimension : shape) {
    if (__builtin_mul_overflow(count, dimension, &count)) return std::nullopt;
  }
  return count;
}

// Reads the one dictionary literal that the format allows: three keys, each exactly once.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  std::optional<Header> parse() {
    Header header;
    bool seen[3] = {};
    if (!accept('{')) return std::nullopt;
    while (!accept('}')) {
      auto const key = string();
      if (!key || !accept(':')) return std::nullopt;
      int const which = *key == "descr"           ? 0
                        : *key == "fortran_order" ? 1
                        : *key == "shape"         ? 2
                                                  : -1;
      if (which < 0 || seen[which]) return std::nullopt;
      seen[which] = true;
      bool const read = which == 0   ? descr(header)
                        : which == 1 ? fortran_order(header)
                                     : shape(header);
      if (!read) return std::nullopt;
      if (!accept(',') && !peek('}')) return std::nullopt;
    }
    skip_space();
    if (!text_.empty() || !seen[0] || !seen[1] || !seen[2]) return std::nullopt;
    return header;
  }

 private:
  void skip_space() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\n'))
      text_.remove_prefix(1);
  }
  bool peek(char c) {
    skip_space();
    return !text_.empty() && text_.front() == c;
  }
  bool accept(char c) {
    if (!peek(c)) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool accept_word(std::string_view word) {
    skip_space();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  std::optional<std::string> string() {
    char const quote = peek('"') ? '"' : '\'';
    if (!accept(quote)) return std::nullopt;
    std::size_t const end = text_.find(quote);
    if (end == std::string_view::npos) return std::nullopt;
    std::string value(text_.substr(0, end));
    text_.remove_prefix(end + 1);
    return value;
  }

  bool descr(Header& header) {
    auto value = string();
    if (!value) return false;
    header.descr = std::move(*value);
    return true;
  }

  bool fortran_order(Header& header) {
    header.fortran_order = accept_word("True");
    return header.fortran_order || accept_word("False");
  }

  bool shape(Header& header) {
    if (!accept('(')) return false;
    while (!accept(')')) {
      std::uint64_t dimension = 0;
      if (!number(dimension)) return false;
      header.shape.push_back(dimension);
      if (!accept(',') && !peek(')')) return false;
    }
    return true;
  }

  bool number(std::uint64_t& value) {
    skip_space();
    bool any = false;
    while (!text_.empty() && text_.front() >= '0' && text_.front() <= '9') {
      auto const digit = static_cast<std::uint64_t>(text_.front() - '0');
      if (__builtin_mul_overflow(value, std::uint64_t{10}, &value)) return false;
      if (__builtin_add_overflow(value, digit, &value)) return false;
      text_.remove_prefix(1);
      any = true;
    }
    return any;
  }

  std::string_view text_;
};

std::string header_text(DType dtype, std::span<std::uint64_t const> shape) {
  std::string text =
      "{'descr': '" + std::string(descr_of(dtype)) + "', 'fortran_order': False, 'shape': (";
  for (std::uint64_t const dimension : shape) text += std::to_string(dimension) + ", ";
  // Python writes (3,) for one dimension and (3, 4) for more.
  if (shape.size() > 1) text.erase(text.size() - 2);
  if (shape.size() == 1) text.pop_back();
  text += "), }";
  std::size_t const prefix_bytes = kMagic.size() + 4;
  while ((prefix_bytes + text.size() + 1) % kAlignment != 0) text += ' ';
  return text + '\n';
}

}  // namespace

NpyArray read_npy(std::filesystem::path const& path) {
  std::error_code error;
  std::uint64_t const file_bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) fail(Code::io_error, path, "cannot be read; expected a .npy file");
  return read_npy(file, file_bytes, path);
}

NpyArray read_npy(std::istream& file, std::uint64_t file_bytes, std::filesystem::path const& path) {
  std::array<char, 12> prefix{};
  std::size_t const magic_bytes = kMagic.size();
  file.read(prefix.data(), static_cast<std::streamsize>(magic_bytes + 4));
  if (!file || std::string_view(prefix.data(), magic_bytes) != kMagic) {
    fail(Code::corrupt_payload, path, "is no .npy file: it does not start with \\x93NUMPY");
  }
  int const version = static_cast<unsigned char>(prefix[6]);
  if (version < 1 || version > 3) {
    fail(Code::unsupported, path,
         "has .npy version " + std::to_string(version) + "; expected 1, 2 or 3");
  }
  // Version 1 has a 16-bit header length, the later ones 32 bits.
  std::size_t const length_bytes = version == 1 ? 2 : 4;
  if (version > 1) file.read(prefix.data() + 10, 2);
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) {
    header_bytes |= std::uint64_t{static_cast<unsigned char>(prefix[8 + i])} << (8 * i);
  }
  std::uint64_t const data_offset = magic_bytes + 2 + length_bytes + header_bytes;
  if (!file || header_bytes > kMaxHeaderBytes || data_offset > file_bytes) {
    fail(Code::corrupt_payload, path, "has a header longer than the file or than 64 KiB");
  }
  std::string text(header_bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  auto header = HeaderParser(text).parse();
  if (!file || !header) {
    fail(Code::corrupt_payload, path,
         "has a header that is not {'descr', 'fortran_order', 'shape'}");
  }
  auto const dtype = dtype_of(header->descr);
  if (!dtype) {
    fail(Code::unsupported, path,
         "holds elements of type '" + header->descr +
             "'; expected <f4, <f2, <f8 or <u2 (bf16 patterns)");
  }
  if (header->fortran_order && header->shape.size() > 1) {
    fail(Code::unsupported, path,
         "is in Fortran order; expected C order (numpy.ascontiguousarray)");
  }
  auto const num_elements = count_elements(header->shape);
  std::uint64_t const data_bytes = file_bytes - data_offset;
  if (!num_elements ||
      *num_elements > std::numeric_limits<std::uint64_t>::max() / size_of(*dtype) ||
      *num_elements * size_of(*dtype) != data_bytes) {
    fail(Code::corrupt_payload, path,
         "has " + std::to_string(data_bytes) +
             " bytes of elements, which is not what its shape needs");
  }

  NpyArray array{*dtype, std::move(header->shape), std::vector<std::byte>(data_bytes)};
  file.read(reinterpret_cast<char*>(array.data.data()), static_cast<std::streamsize>(data_bytes));
  if (!file) fail(Code::io_error, path, "could not be read to its end");
  return array;
}

void write_npy(std::filesystem::path const& path, ConstTensorView elements,
               std::span<std::uint64_t const> shape) {
  std::uint64_t const flat[] = {elements.num_elements};
  if (shape.empty()) shape = flat;
  if (count_elements(shape) != elements.num_elements) {
    fail(Code::invalid_argument, path,
         "the shape does not hold " + std::to_string(elements.num_elements) + " elements");
  }
  std::string const text = header_text(elements.dtype, shape);
  if (text.size() > std::numeric_limits<std::uint16_t>::max()) {
    fail(Code::invalid_argument, path, "has too many dimensions for a .npy header");
  }

  // The process id keeps two ranks that write into one folder apart.
  std::filesystem::path temporary = path;
  temporary += ".tmp" + std::to_string(::getpid());
  std::ofstream file(temporary, std::ios::binary);
  char const tail[] = {1, 0, static_cast<char>(text.size() & 0xff),
                       static_cast<char>(text.size() >> 8)};
  file.write(kMagic.data(), static_cast<std::streamsize>(kMagic.size()));
  file.write(tail, sizeof(tail));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.write(static_cast<char const*>(elements.data),
             static_cast<std::streamsize>(elements.num_bytes()));
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    fail(Code::io_error, path, "cannot be written; expected an existing folder with space left");
  }
}

}  // namespace gradsieve
