// SPDX-License-Identifier: Apache-2.0
// Files that anybody may have written: state, .gsv, .npy. Checksums are repaired first, so that
// changed bytes get past them.
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include <unistd.h>

#include "gradsieve/hook.hpp"

#include "bindings/cli/gsv_file.hpp"
#include "bindings/shared/offline_codec.hpp"
#include "comm/state_file.hpp"
#include "core/npy.hpp"
#include "tests/fuzz/bounded_allocator.hpp"
#include "tests/fuzz/fuzz_target.hpp"
#include "tests/support/hook_rank.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

constexpr char kStateSpec[] = "cltk(density=0.1, hold=3) ; feedback=residual";

/// The XXH64 in the last eight bytes.
void repair_checksum(Bytes file) {
  if (file.size() < 8) return;
  wire::store(file.data() + file.size() - 8, wire::checksum(file.first(file.size() - 8)));
}

HookRank state_rank(Transport& transport) {
  HookOptions options = options_for(kStateSpec);
  options.progress_thread = false;
  return HookRank(transport, options, one_bucket_each({40, 0, 25}));
}

/// What a short run remembers.
FuzzInput saved_state(std::uint64_t num_steps) {
  FuzzInput content;
  test::run_ranks(1, [&](Transport& transport) {
    HookRank rank = state_rank(transport);
    for (std::uint64_t step = 0; step < num_steps; ++step) rank.step(step);
    content = rank.hook().save_state();
  });
  return content;
}

void run_state_file(ConstBytes input) {
  ExactCopy file(input);
  repair_checksum(file.writable());
  StateFile state;
  try {
    // Names, residuals and slots, each in a node of a map or vector of its own.
    AllocationBound const few(std::size_t{64} * 1024 + 32 * input.size());
    state = parse_state(file.bytes(), "input");
  } catch (Error const& error) {
    require(error.code() == Code::corrupt_payload, "bad bytes are another code");
    return;
  }
  for (auto const& [name, memento] : state.tensors) {
    require(std::isfinite(memento.residual_scale) && memento.residual_scale > 0.0F,
            "a scale that nothing can be divided by");
    for (float const x : memento.residual)
      require(std::isfinite(x), "a residual that is not finite");
  }
  require(state.rank < state.world_size, "a rank outside its group");
}

// Import and four steps: whatever a slot holds must not lead outside a tensor.
void run_state_import(ConstBytes input) {
  static LocalGroup group(1);
  ExactCopy file(input);
  repair_checksum(file.writable());
  HookRank rank = state_rank(group.transport(0));
  ConstBytes const states[] = {file.bytes()};
  std::uint64_t first = 6;
  try {
    rank.hook().load_state(states, OnWorldChange::redistribute);
    first = 4;
  } catch (Error const& error) {
    require(error.what()[0] != '\0', "an error without a sentence");
  }
  for (std::uint64_t step = first; step < 8; ++step) {
    HookRank::Attempt const attempt = rank.attempt(step, heavy_tailed_of);
    require(attempt.begun.ok(), "begin refuses a step after one that ended");
    require(attempt.result.committed || !attempt.reduced.ok(), "a step fails without a reason");
  }
  for (auto const& residual : rank.all_residuals())
    for (float const x : residual) require(!std::isnan(x), "a residual that is NaN");
}

std::vector<FuzzInput> state_seeds() { return {saved_state(1), saved_state(4)}; }

FuzzInput content_of(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  std::string const text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  ConstBytes const bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

constexpr std::uint64_t kMostElements = 4096;
constexpr std::size_t kMostWorkspaceBytes = std::size_t{4} << 20;

void decode_gsv(cli::GsvFile const& file, Bytes payload) {
  PayloadHeader header;
  if (!wire::read_header(payload, header).ok()) return;
  header.checksum = wire::checksum(payload.subspan(wire::kHeaderBytes));
  wire::write_header(header, payload);
  Chain const chain = make_chain(file.spec);
  TensorInfo const piece{.num_elements = file.num_elements(), .dtype = file.dtype};
  if (chain.compressor->workspace_bytes(piece) > kMostWorkspaceBytes) return;
  // The array itself, its f32 form, the chain's workspace and its slots.
  std::size_t slot_bytes = 0;
  for (SlotInfo const& slot : chain.compressor->slots(piece))
    slot_bytes += static_cast<std::size_t>(slot.num_bytes);
  AllocationBound const few(std::size_t{64} * 1024 + 16 * file.num_elements() + 2 * slot_bytes +
                            2 * chain.compressor->workspace_bytes(piece));
  bindings::OfflineCodec codec(chain, file.num_elements(), file.dtype,
                               {file.seed, header.step, header.rank}, 1);
  Buffer const result(static_cast<std::size_t>(file.num_elements()) * size_of(file.dtype),
                      host_memory());
  codec.decode(payload, TensorView(result.data(), file.num_elements(), file.dtype));
}

void run_gsv(ConstBytes input) {
  ExactCopy copy(input);
  repair_checksum(copy.writable());
  Buffer content(input.size(), host_memory());
  std::ranges::copy(copy.bytes(), content.data());
  try {
    cli::GsvFile file;
    {
      AllocationBound const few(std::size_t{8} * 1024 + 4 * input.size());
      file = cli::parse_gsv(std::move(content), "input");
    }
    if (file.num_elements() > kMostElements) return;
    auto const begin = static_cast<std::size_t>(file.payload.data() - file.storage.data());
    decode_gsv(file, file.storage.bytes().subspan(begin, file.payload.size()));
  } catch (Error const& error) {
    require(error.what()[0] != '\0', "an error without a sentence");
  }
}

std::vector<FuzzInput> gsv_seeds() {
  std::vector<FuzzInput> all;
  std::string const path = "/tmp/gsv_fuzz_file." + std::to_string(::getpid());
  for (char const* spec : {"topk(density=0.1) | int8", "sign(block=8) | zstd", "int4", "none",
                           "cltk(density=0.2)", "randomk(density=0.1) | fp16"}) {
    for (std::uint64_t const count : {std::uint64_t{0}, std::uint64_t{90}}) {
      Chain const chain = make_chain(spec);
      std::vector<float> const values = make_gradient(Shape::heavy_tailed, count, 6);
      bindings::OfflineCodec codec(chain, count, DType::f32, {7, 3, 1}, 1);
      bindings::OfflineCodec::Encoded const encoded = codec.encode(std::span(values), {});
      cli::GsvFile file;
      file.spec = chain.text;
      file.seed = 7;
      file.shape = {count / 10, 10};
      file.payload = encoded.payload();
      cli::write_gsv(path, file);
      all.push_back(content_of(path));
    }
  }
  ::unlink(path.c_str());
  return all;
}

void run_npy(ConstBytes input) {
  std::istringstream stream(std::string(reinterpret_cast<char const*>(input.data()), input.size()));
  try {
    AllocationBound const few(std::size_t{8} * 1024 + 12 * input.size());
    NpyArray const array = read_npy(stream, input.size(), "input");
    require(array.data.size() <= input.size(), "more elements than the file has bytes for");
  } catch (Error const& error) {
    require(error.code() == Code::corrupt_payload || error.code() == Code::unsupported,
            "bad bytes are another code");
  }
}

std::vector<FuzzInput> npy_seeds() {
  std::vector<FuzzInput> all;
  std::string const path = "/tmp/gsv_fuzz_npy." + std::to_string(::getpid());
  std::vector<float> const values = make_gradient(Shape::heavy_tailed, 24, 6);
  for (auto const& shape : {std::vector<std::uint64_t>{24}, {4, 6}, {2, 3, 4}}) {
    write_npy(path, std::span(values), shape);
    all.push_back(content_of(path));
  }
  ::unlink(path.c_str());
  return all;
}

}  // namespace

void add_file_targets(std::vector<FuzzTarget>& targets) {
  targets.push_back({"state_file", run_state_file, state_seeds});
  targets.push_back({"state_import", run_state_import, state_seeds});
  targets.push_back({"gsv", run_gsv, gsv_seeds});
  targets.push_back({"npy", run_npy, npy_seeds, 1024});
}

}  // namespace gradsieve::testing
