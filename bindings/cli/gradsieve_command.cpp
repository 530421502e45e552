// SPDX-License-Identifier: Apache-2.0
// gradsieve: look at the library, and encode and decode arrays in files.
//
// Exit codes: 0 ok, 1 the data is wrong (a damaged file, an array that is not finite), 2 usage.
#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "gradsieve/vocabulary.hpp"

#include "bindings/cli/build_info.hpp"
#include "bindings/cli/commands.hpp"
#include "bindings/cli/plugin_option.hpp"
#include "core/log.hpp"
#include "core/plugin_text.hpp"
#include "core/simd_target.hpp"

namespace gradsieve::cli {
namespace {

constexpr int kOk = 0;
constexpr int kWrongResult = 1;
constexpr int kUsage = 2;

int exit_code_of(Code code) {
  switch (code) {
    case Code::corrupt_payload:
    case Code::capacity_exceeded:
    case Code::mismatch:
    case Code::non_finite:
    case Code::internal:
      return kWrongResult;
    default:
      return kUsage;
  }
}

int default_threads() {
  // 0 means that the system does not know.
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

void add_info(CLI::App& app, InfoOptions& options) {
  CLI::App* const command = app.add_subcommand("info", "What was built, and what a spec means");
  command->add_option("--spec", options.spec, "Describe this spec instead of the build");
  command
      ->add_option("--elements", options.num_elements,
                   "Elements of the tensor that it is described for")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->callback([&options] { run_info(options); });
}

void add_list(CLI::App& app, ListOptions& options) {
  CLI::App* const command =
      app.add_subcommand("list", "All plug-ins with their parameters and claims");
  command->add_flag("--json", options.json, "For programs");
  command->callback([&options] { run_list(options); });
}

void add_encode(CLI::App& app, EncodeOptions& options) {
  CLI::App* const command =
      app.add_subcommand("encode", "A .npy array through a spec into a .gsv file");
  command->add_option("--spec", options.spec, "For example 'topk(density=0.01) | int8'")
      ->required();
  command->add_option("--residual", options.residual_input,
                      "f32 array that is added first (error feedback)");
  command->add_option("--residual-out", options.residual_output,
                      "Where the rest goes that was not encoded");
  command
      ->add_option("--step", options.step, "Training step: addresses random numbers and schedules")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seed", options.seed, "Of random numbers")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--rank", options.rank, "Whose random numbers")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--threads", options.num_threads, "The result does not depend on it")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command->add_option("IN", options.input, "f32, f16, f64, or u16 patterns of bf16; a .npy file")
      ->required();
  command->add_option("OUT", options.output, "The .gsv file to write")->required();
  command->callback([&options] { run_encode(options); });
}

void add_decode(CLI::App& app, DecodeOptions& options) {
  CLI::App* const command = app.add_subcommand("decode", "A .gsv file back into a .npy array");
  command->add_option("--threads", options.num_threads, "The result does not depend on it")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command->add_option("IN", options.input, "A file that encode wrote")->required();
  command->add_option("OUT", options.output, "The .npy file to write")->required();
  command->callback([&options] { run_decode(options); });
}

void add_conform(CLI::App& app, ConformOptions& options) {
  CLI::App* const command =
      app.add_subcommand("conform", "Ask the whole conformance suite of a plug-in");
  command->add_option("--plugin", options.plugin, "The shared library")->required();
  command->callback([&options] { run_conform(options); });
}

/// CLI11 takes a word that it does not know for the lack of one that it does.
void check_subcommand(CLI::App const& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::vector<std::string> names;
  for (CLI::App const* const command : app.get_subcommands({}))
    names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), argv[1]) != names.end()) return;
  std::string const near = suggestion(argv[1], names);
  throw Error(Code::unknown_name, "no subcommand '" + std::string(argv[1]) + "'" + near +
                                      (near.empty() ? "; e" : " E") +
                                      "xpected one of: " + joined(names));
}

int run(int argc, char** argv) {
  CLI::App app("Gradients compressed, exchanged and summed between ranks", "gradsieve");
  app.set_version_flag("--version", std::string("gradsieve ") + kVersion);
  app.require_subcommand(1);
  InfoOptions info;
  ListOptions list;
  EncodeOptions encode;
  encode.num_threads = default_threads();
  DecodeOptions decode;
  decode.num_threads = default_threads();
  add_info(app, info);
  add_list(app, list);
  add_encode(app, encode);
  add_decode(app, decode);
  for (CLI::App* const command : app.get_subcommands({})) add_plugin_option(*command);
  ConformOptions conform;
  add_conform(app, conform);
  try {
    log(LogLevel::version, "INIT", "gradsieve %s, %s", kVersion, kCompiler);
    check_simd_environment();
    check_subcommand(app, argc, argv);
    app.parse(argc, argv);
    std::cout.flush();
    if (!std::cout) throw Error(Code::io_error, "standard output cannot be written");
    return kOk;
  } catch (CLI::ParseError const& error) {
    return app.exit(error) == 0 ? kOk : kUsage;  // --help and --version arrive here too
  } catch (Error const& error) {
    std::cerr << "gradsieve: " << error.what() << '\n';
    return exit_code_of(error.code());
  } catch (std::bad_alloc const&) {
    std::cerr << "gradsieve: the machine has not enough memory for this array\n";
    return kUsage;
  } catch (std::exception const& error) {
    std::cerr << "gradsieve: " << error.what() << '\n';
    return kWrongResult;
  }
}

}  // namespace
}  // namespace gradsieve::cli

int main(int argc, char** argv) { return gradsieve::cli::run(argc, argv); }
