// SPDX-License-Identifier: Apache-2.0
// gradsieve encode and decode.
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

#include <unistd.h>

#include "gradsieve/registry.hpp"

#include "bindings/cli/commands.hpp"
#include "bindings/cli/gsv_file.hpp"
#include "bindings/shared/offline_codec.hpp"
#include "core/npy.hpp"
#include "core/philox.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::cli {
namespace {

using bindings::chain_for_size;
using bindings::Draws;
using bindings::OfflineCodec;
using bindings::throw_if_failed;
namespace fs = std::filesystem;

std::string in_quotes(std::string const& path) { return "'" + path + "'"; }

void refuse_same(std::string const& input, std::string const& output) {
  std::error_code missing;
  if (!fs::equivalent(input, output, missing)) return;
  throw Error(Code::invalid_argument,
              in_quotes(output) + " is the file that is read; expected another name");
}

/// The residual in f32, zero where no file was named; empty without feedback.
std::vector<float> read_residual(EncodeOptions const& options, Chain const& chain,
                                 std::uint64_t num_elements) {
  if (!chain.feedback.enabled) {
    if (options.residual_input.empty() && options.residual_output.empty()) return {};
    throw Error(Code::invalid_usage, "there is no residual, because the spec is '" + chain.text +
                                         "'; expected ; feedback=residual in it");
  }
  std::vector<float> residual(static_cast<std::size_t>(num_elements));
  if (options.residual_input.empty()) return residual;
  NpyArray const array = read_npy(options.residual_input);
  if (array.num_elements() != num_elements) {
    throw Error(Code::invalid_argument, in_quotes(options.residual_input) + " has " +
                                            std::to_string(array.num_elements()) +
                                            " elements; expected " + std::to_string(num_elements) +
                                            ", as in " + in_quotes(options.input));
  }
  if (array.dtype == DType::f64) {
    throw Error(Code::unsupported,
                in_quotes(options.residual_input) + " holds f64; expected f32 or bf16");
  }
  kernels::widen({}, array.view(), residual);
  return residual;
}

/// Writes e' beside its final name, so that it appears together with the encoded file.
class PendingResidual {
 public:
  PendingResidual(std::string path, std::span<float const> residual,
                  FeedbackOptions const& feedback, Draws const& draws,
                  std::vector<std::uint64_t> const& shape)
      : path_(std::move(path)), pending_(path_ + ".pending" + std::to_string(::getpid())) {
    if (feedback.dtype == DType::f32) {
      write_npy(pending_, residual, shape);
      return;
    }
    std::vector<BFloat16> narrow(residual.size());
    RoundingKey const key{philox_key(draws.seed, 0, Purpose::residual, draws.rank), draws.step, 0};
    kernels::store_bf16({}, residual, key, narrow);
    write_npy(pending_, std::span<BFloat16 const>(narrow), shape);
  }
  ~PendingResidual() {
    std::error_code ignored;
    fs::remove(pending_, ignored);
  }
  PendingResidual(PendingResidual const&) = delete;
  PendingResidual& operator=(PendingResidual const&) = delete;

  void publish() {
    std::error_code error;
    fs::rename(pending_, path_, error);
    if (error) throw Error(Code::io_error, in_quotes(path_) + " cannot be written");
  }

 private:
  std::string path_;
  std::string pending_;
};

void report(std::string const& from, std::uintmax_t from_bytes, std::string const& to,
            std::uintmax_t to_bytes) {
  char ratio[32];
  std::snprintf(ratio, sizeof(ratio), "%.3g",
                static_cast<double>(from_bytes) / static_cast<double>(to_bytes));
  std::cout << from << " (" << from_bytes << " bytes) -> " << to << " (" << to_bytes
            << " bytes), ratio " << ratio << '\n';
}

}  // namespace

void run_encode(EncodeOptions const& options) {
  static_cast<void>(make_chain(options.spec));  // a wrong spec is told before a large file is read
  refuse_same(options.input, options.output);
  NpyArray const array = read_npy(options.input);
  Chain const chain = chain_for_size(options.spec, array.num_elements());
  std::vector<float> residual = read_residual(options, chain, array.num_elements());
  Draws const draws{options.seed, options.step, options.rank};

  OfflineCodec codec(chain, array.num_elements(), array.dtype, draws, options.num_threads);
  OfflineCodec::Encoded const encoded = codec.encode(array.view(), residual);

  std::optional<PendingResidual> pending;
  if (!options.residual_output.empty()) {
    pending.emplace(options.residual_output, residual, chain.feedback, draws, array.shape);
  }
  GsvFile file;
  file.spec = chain.text;
  file.dtype = array.dtype;
  file.seed = options.seed;
  file.shape = array.shape;
  file.payload = encoded.payload();
  write_gsv(options.output, file);
  if (pending) pending->publish();
  report(options.input, array.data.size(), options.output, fs::file_size(options.output));
}

void run_decode(DecodeOptions const& options) {
  refuse_same(options.input, options.output);
  GsvFile const file = read_gsv(options.input);
  PayloadHeader header;
  try {
    throw_if_failed(wire::read_header(file.payload, header));
    OfflineCodec codec(make_chain(file.spec), file.num_elements(), file.dtype,
                       {file.seed, header.step, header.rank}, options.num_threads);
    Buffer const result(static_cast<std::size_t>(file.num_elements()) * size_of(file.dtype),
                        host_memory());
    TensorView const view(result.data(), file.num_elements(), file.dtype);
    codec.decode(file.payload, view);
    write_npy(options.output, view, file.shape);
  } catch (Error const& error) {
    if (error.code() == Code::io_error) throw;
    throw Error(error.code(), in_quotes(options.input) + ": " + error.what());
  }
  report(options.input, fs::file_size(options.input), options.output,
         fs::file_size(options.output));
}

}  // namespace gradsieve::cli
