// SPDX-License-Identifier: Apache-2.0
// Coded index sets and byte stages on their own, where universes and lengths are free.
#include <array>
#include <cstring>

#include "gradsieve/registry.hpp"

#include "kernels/index_forms.hpp"
#include "tests/fuzz/bounded_allocator.hpp"
#include "tests/fuzz/fuzz_target.hpp"
#include "tests/support/gradient_shapes.hpp"

namespace gradsieve::testing {
namespace {

constexpr std::array<std::uint64_t, 8> kUniverses = {
    0, 1, 64, 300, 65537, std::uint64_t{1} << 22, 0x7fffffff, kMaxPieceElements};
constexpr std::size_t kMostIndices = 512;

/// Input: which universe (1), number of indices (2), the code.
void run_index_form(std::uint32_t form, ConstBytes input) {
  InputReader reader(input);
  std::uint64_t const universe = kUniverses[reader.number(1) % kUniverses.size()];
  auto const count = static_cast<std::size_t>(reader.number(2) % (kMostIndices + 1));
  ExactCopy const code(reader.rest());
  ExactCopy room_ref(std::vector<std::byte>(count * sizeof(std::uint32_t)));
  ExactCopy room_cpu(std::vector<std::byte>(count * sizeof(std::uint32_t)));
  AllocationBound const nothing(0);
  bool decoded[2];
  for (Backend const backend : {Backend::ref, Backend::cpu}) {
    Bytes const room = (backend == Backend::ref ? room_ref : room_cpu).writable();
    std::span<std::uint32_t> const indices(reinterpret_cast<std::uint32_t*>(room.data()), count);
    decoded[backend == Backend::ref ? 0 : 1] =
        kernels::decode_indices({.backend = backend}, form, code.bytes(), universe, indices);
  }
  require(decoded[0] == decoded[1], "the backends disagree on whether a code is valid");
  if (!decoded[0]) return;
  std::span<std::uint32_t const> const indices(
      reinterpret_cast<std::uint32_t const*>(room_ref.bytes().data()), count);
  require(std::ranges::equal(room_ref.bytes(), room_cpu.bytes()), "the backends disagree on a set");
  for (std::size_t i = 0; i < count; ++i) {
    require(indices[i] < universe, "an index outside the universe");
    require(i == 0 || indices[i - 1] < indices[i], "indices that do not ascend");
  }
}

std::vector<FuzzInput> index_seeds(std::uint32_t form) {
  std::vector<FuzzInput> all;
  for (std::size_t which = 0; which < kUniverses.size(); ++which) {
    std::uint64_t const universe = kUniverses[which];
    for (std::uint64_t const wanted : {0u, 1u, 5u, 300u}) {
      std::uint64_t const count = std::min(wanted, universe);
      std::size_t const num_bytes =
          kernels::index_bytes(static_cast<kernels::IndexForm>(form), universe, count);
      if (num_bytes > 4000) continue;
      std::vector<std::uint32_t> indices;
      for (std::uint64_t i = 0; i < count; ++i)
        indices.push_back(
            static_cast<std::uint32_t>((i * i % 7 + i * (universe / count)) % universe));
      std::ranges::sort(indices);
      indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
      if (indices.size() != count) continue;
      FuzzInput code(num_bytes);
      kernels::encode_indices({}, static_cast<kernels::IndexForm>(form), indices, universe, code);
      all.push_back(join({number_bytes(which, 1), number_bytes(count, 2), code}));
    }
  }
  return all;
}

/// Input: room in the output (2), the wrapped bytes.
class ByteCodecTarget {
 public:
  explicit ByteCodecTarget(std::string const& spec)
      : codec_(builtin_registry().make_byte_codec(parse_spec(spec).chain[0])),
        scratch_(codec_->workspace_bytes(65535)) {}

  void run(ConstBytes input) {
    InputReader reader(input);
    auto const room = static_cast<std::size_t>(reader.number(2));
    ExactCopy const wrapped(reader.rest());
    ExactCopy output((std::vector<std::byte>(room)));
    Workspace workspace(scratch_);
    std::size_t num_bytes = 0;
    AllocationBound const nothing(0);
    Status const status =
        codec_->decode({.workspace = &workspace}, wrapped.bytes(), output.writable(), num_bytes);
    require(status.ok() || status.code() == Code::corrupt_payload, "bad bytes are another code");
    require(num_bytes <= room, "more bytes than there is room for");
  }

  [[nodiscard]] std::vector<FuzzInput> seeds() {
    std::vector<FuzzInput> all;
    for (std::size_t const count : {0u, 1u, 100u, 600u}) {
      for (Shape const shape : {Shape::heavy_tailed, Shape::constant}) {
        std::vector<float> const values = make_gradient(shape, count, 3);
        ConstBytes const raw = std::as_bytes(std::span(values));
        FuzzInput memory(codec_->bound(raw.size()));
        std::uint64_t num_bytes = 0;
        Workspace workspace(scratch_);
        Status const status =
            codec_->encode({.workspace = &workspace}, raw, Body(memory, &num_bytes));
        require(status.ok(), "a seed does not encode");
        memory.resize(static_cast<std::size_t>(num_bytes));
        all.push_back(join({number_bytes(raw.size(), 2), memory}));
      }
    }
    return all;
  }

 private:
  std::unique_ptr<ByteCodec> codec_;
  std::vector<std::byte> scratch_;
};

}  // namespace

void add_index_targets(std::vector<FuzzTarget>& targets) {
  for (auto const& [name, form] : {std::pair{"bitmap", kernels::IndexForm::bitmap},
                                   std::pair{"elias_fano", kernels::IndexForm::elias_fano}}) {
    auto const number = static_cast<std::uint32_t>(form);
    targets.push_back({std::string("index_") + name,
                       [number](ConstBytes input) { run_index_form(number, input); },
                       [number] { return index_seeds(number); }});
  }
  for (PluginInfo const* info : builtin_registry().plugins()) {
    if (info->kind != PluginKind::byte_codec) continue;
    auto const target = std::make_shared<ByteCodecTarget>(info->name);
    targets.push_back({"bytes_" + info->name, [target](ConstBytes input) { target->run(input); },
                       [target] { return target->seeds(); }});
  }
}

}  // namespace gradsieve::testing
