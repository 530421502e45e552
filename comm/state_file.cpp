// SPDX-License-Identifier: Apache-2.0
#include "comm/state_file.hpp"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "core/hash.hpp"

namespace gradsieve {
namespace {

constexpr char kMagic[8] = {'G', 'S', 'V', 'S', 'T', 'A', 'T', '1'};

class Writer {
 public:
  template <typename T>
  void number(T value) {
    bytes(&value, sizeof value);
  }
  void text(std::string const& value) {
    number<std::uint64_t>(value.size());
    bytes(value.data(), value.size());
  }
  void bytes(void const* data, std::size_t size) {
    std::byte const* const first = static_cast<std::byte const*>(data);
    out.insert(out.end(), first, first + size);
  }
  std::vector<std::byte> out;
};

/// Reads bytes that anybody may have written: every length is checked against what is left.
class Reader {
 public:
  Reader(ConstBytes in, std::string const& name) : in_(in), name_(name) {}

  template <typename T>
  T number() {
    return wire::load<T>(take(sizeof(T)).data());
  }
  std::string text() {
    ConstBytes const bytes = take(number<std::uint64_t>());
    return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
  }
  ConstBytes take(std::uint64_t size) {
    if (size > in_.size())
      throw Error(Code::corrupt_payload, name_ + " ends too early for a state");
    ConstBytes const taken = in_.first(static_cast<std::size_t>(size));
    in_ = in_.subspan(static_cast<std::size_t>(size));
    return taken;
  }
  [[nodiscard]] bool empty() const { return in_.empty(); }
  [[noreturn]] void damaged(char const* what) const {
    throw Error(Code::corrupt_payload, name_ + " is damaged: " + what);
  }

 private:
  ConstBytes in_;
  std::string const& name_;
};

// Whoever makes the checksum fit may still have written anything.
Memento read_memento(Reader& reader) {
  Memento memento;
  memento.residual_scale = reader.number<float>();
  if (!std::isfinite(memento.residual_scale) || memento.residual_scale <= 0.0F)
    reader.damaged("a loss scale is not a positive number");
  std::uint32_t const num_slots = reader.number<std::uint32_t>();
  std::uint64_t const count = reader.number<std::uint64_t>();
  if (count > std::numeric_limits<std::uint64_t>::max() / sizeof(float))
    reader.damaged("it claims more residual elements than it holds");
  ConstBytes const values = reader.take(count * sizeof(float));
  memento.residual.resize(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(memento.residual.data(), values.data(), values.size());
  for (float const x : memento.residual) {
    if (!std::isfinite(x)) reader.damaged("a residual is not finite");
  }
  for (std::uint32_t s = 0; s < num_slots; ++s) {
    Memento::Slot slot;
    slot.name = reader.text();
    std::uint32_t const kind = reader.number<std::uint32_t>();
    if (kind > static_cast<std::uint32_t>(SlotKind::partitioned))
      reader.damaged("a slot of no known kind");
    slot.kind = static_cast<SlotKind>(kind);
    ConstBytes const content = reader.take(reader.number<std::uint64_t>());
    slot.bytes.assign(content.begin(), content.end());
    memento.slots.push_back(std::move(slot));
  }
  return memento;
}

[[noreturn]] void throw_io(std::string const& what, std::string const& path) {
  throw Error(Code::io_error, what + " '" + path + "': " + std::strerror(errno));
}

}  // namespace

std::vector<std::byte> serialize(StateFile const& file) {
  Writer writer;
  writer.bytes(kMagic, sizeof kMagic);
  writer.number(file.world_size);
  writer.number(file.rank);
  writer.number(file.seed);
  writer.number(file.step);
  writer.number(file.history);
  writer.number<std::uint64_t>(file.tensors.size());
  for (auto const& [name, memento] : file.tensors) {
    writer.text(name);
    writer.number(memento.residual_scale);
    writer.number(static_cast<std::uint32_t>(memento.slots.size()));
    writer.number<std::uint64_t>(memento.residual.size());
    writer.bytes(memento.residual.data(), memento.residual.size() * sizeof(float));
    for (Memento::Slot const& slot : memento.slots) {
      writer.text(slot.name);
      writer.number(static_cast<std::uint32_t>(slot.kind));
      writer.number<std::uint64_t>(slot.bytes.size());
      writer.bytes(slot.bytes.data(), slot.bytes.size());
    }
  }
  writer.number(wire::checksum(writer.out));
  return std::move(writer.out);
}

void write_state_file(std::string const& path, ConstBytes state) {
  std::string const temporary = path + ".partial";
  int const descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) throw_io("cannot create", temporary);
  std::size_t written = 0;
  while (written < state.size()) {
    ssize_t const count = ::write(descriptor, state.data() + written, state.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    written += static_cast<std::size_t>(count);
  }
  bool const complete = written == state.size() && ::fsync(descriptor) == 0;
  int const reason = errno;
  bool const closed = ::close(descriptor) == 0;
  if (!complete || !closed || ::rename(temporary.c_str(), path.c_str()) != 0) {
    if (!complete) errno = reason;
    int const kept = errno;
    ::unlink(temporary.c_str());
    errno = kept;
    throw_io("cannot write state to", path);
  }
}

std::vector<std::byte> read_state_file(std::string const& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw_io("cannot read state from", path);
  std::vector<char> const content{std::istreambuf_iterator<char>(stream),
                                  std::istreambuf_iterator<char>()};
  if (stream.bad()) throw_io("cannot read state from", path);
  ConstBytes const bytes = std::as_bytes(std::span(content));
  return {bytes.begin(), bytes.end()};
}

StateFile parse_state(ConstBytes bytes, std::string const& name) {
  if (bytes.size() < sizeof kMagic + 8 || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    throw Error(Code::corrupt_payload, name + " is no state: it does not begin with GSVSTAT1");
  }
  ConstBytes const checked = bytes.first(bytes.size() - 8);
  Reader reader(checked.subspan(sizeof kMagic), name);
  if (wire::load<std::uint64_t>(bytes.data() + checked.size()) != wire::checksum(checked))
    reader.damaged("its checksum does not fit");
  StateFile file;
  file.world_size = reader.number<std::uint32_t>();
  file.rank = reader.number<std::uint32_t>();
  file.seed = reader.number<std::uint64_t>();
  file.step = reader.number<std::uint64_t>();
  file.history = reader.number<std::uint64_t>();
  if (file.rank >= file.world_size) reader.damaged("its rank is outside its group");
  std::uint64_t const num_tensors = reader.number<std::uint64_t>();
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    std::string tensor = reader.text();
    if (!file.tensors.emplace(std::move(tensor), read_memento(reader)).second)
      reader.damaged("a tensor occurs twice");
  }
  if (!reader.empty()) throw Error(Code::corrupt_payload, name + " holds more than a state");
  return file;
}

StateFile redistribute(std::span<StateFile const> old_files, std::size_t rank,
                       std::size_t world_size, bool reset) {
  StateFile merged = old_files[0];
  merged.world_size = static_cast<std::uint32_t>(world_size);
  merged.rank = static_cast<std::uint32_t>(rank);
  for (auto& [name, memento] : merged.tensors) {
    std::vector<double> sum(memento.residual.size(), 0.0);
    for (StateFile const& file : old_files) {
      if (reset || file.rank % world_size != rank) continue;
      auto const found = file.tensors.find(name);
      if (found == file.tensors.end() || found->second.residual.size() != sum.size()) {
        throw Error(Code::mismatch, "redistribute: rank " + std::to_string(file.rank) +
                                        "'s file has no fitting '" + name + "'");
      }
      // The true gradient's units are common to all files; their loss scales may differ.
      double const factor =
          static_cast<double>(memento.residual_scale) / found->second.residual_scale;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += factor * found->second.residual[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) memento.residual[i] = static_cast<float>(sum[i]);
    if (reset) memento.slots.clear();
  }
  return merged;
}

}  // namespace gradsieve
