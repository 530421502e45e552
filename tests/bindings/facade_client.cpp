// SPDX-License-Identifier: Apache-2.0
// The facade over libgsv.so from a program of another string ABI: nothing of the C++ library and no
// std type crosses the border. usage: facade_client [PLUGIN]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

#include "gradsieve/gsv.hpp"

namespace {

int num_failures = 0;

void expect(bool holds, char const* what) {
  if (holds) return;
  ++num_failures;
  std::fprintf(stderr, "expected: %s\n", what);
}

std::vector<float> gradient_of(int rank, std::uint64_t step) {
  std::vector<float> gradient(1000);
  for (std::size_t i = 0; i < gradient.size(); ++i)
    gradient[i] =
        std::sin(static_cast<float>(i * (step + 2) + 31 * static_cast<std::size_t>(rank)));
  return gradient;
}

struct Run {
  std::vector<float> result;
  std::vector<float> residual;
};

/// Seven steps; stops after four, saves, and goes on in another hook if `interrupted`.
Run train(gsv::Comm const& comm, gsv::Context const& context, bool interrupted) {
  std::vector<gsv::Rule> const rules = {{"*", "topk(density=0.05) | int8 ; feedback=residual"}};
  auto hook = std::make_unique<gsv::Hook>(comm, rules, context);
  hook->plan({{"weight", 600, 1, gsvFloat32}, {"bias", 400, 1, gsvFloat32}}, {{0, 1}});
  Run run;
  for (std::uint64_t step = 0; step < 7; ++step) {
    if (interrupted && step == 4) {
      std::vector<std::byte> const state = hook->save_state();
      hook = std::make_unique<gsv::Hook>(comm, rules, context);
      hook->plan({{"weight", 600, 1, gsvFloat32}, {"bias", 400, 1, gsvFloat32}}, {{0, 1}});
      hook->load_state({state});
    }
    run.result = gradient_of(comm.rank(), step);
    hook->begin(step);
    hook->wait(hook->reduce(0, run.result.data(), run.result.size()));
    expect(hook->finish().committed, "a step that commits");
  }
  run.residual = hook->residual("weight", 600);
  auto const stats = hook->stats();
  expect(stats.size() == 2 && std::strcmp(stats[1].name, "bias") == 0, "statistics of two tensors");
  expect(hook->describe().find("topk") != std::string::npos, "a plan that names its spec");
  return run;
}

std::vector<Run> train_all(bool interrupted) {
  gsv::Context const context(17);
  std::vector<gsv::Comm> const comms = gsv::Comm::local(2);
  std::vector<Run> runs(2);
  std::thread other([&] { runs[1] = train(comms[1], context, interrupted); });
  runs[0] = train(comms[0], context, interrupted);
  other.join();
  return runs;
}

void check_training() {
  std::vector<Run> const straight = train_all(false);
  std::vector<Run> const interrupted = train_all(true);
  expect(straight[0].result == straight[1].result, "the same result on both ranks");
  expect(straight[0].residual != straight[1].residual, "residuals of their own");
  for (int rank : {0, 1}) {
    expect(straight[rank].result == interrupted[rank].result, "the same bits after a resume");
    expect(straight[rank].residual == interrupted[rank].residual, "the same residual, too");
  }
}

void check_other_rules() {
  gsv::Context const context;
  gsv::Comm const comm = std::move(gsv::Comm::local(1)[0]);
  gsv::Hook hook(comm, {{"*", "topk(density=0.05)"}}, context);
  hook.plan({{"weight", 600, 1, gsvFloat32}}, {{0}});
  hook.set_rules({{"*", "int8"}}, 1);
  for (std::uint64_t step = 0; step < 2; ++step) {
    std::vector<float> gradient = gradient_of(0, step);
    hook.begin(step);
    hook.reduce(0, gradient.data(), 600);
    expect(hook.finish().committed, "a step that commits");
    char const* const expected = step < 1 ? "topk" : "int8";
    expect(std::strncmp(hook.stats()[0].spec, expected, 4) == 0, "rules of the agreed step");
  }
  expect(hook.stats()[0].total_encode_cpu_seconds > 0.0, "CPU time of two steps");
  hook.set_rules({{"*", "none"}});
  expect(std::strncmp(hook.stats()[0].spec, "none", 4) == 0, "rules that hold at once");
}

void check_codec() {
  gsv::Context const context;
  std::vector<float> const gradient = gradient_of(0, 1);
  std::vector<float> residual(1000);
  std::string const spec = "topk(density=0.1) ; feedback=residual";
  auto const payload = context.encode(spec, gradient.data(), 1000, residual.data());
  std::vector<float> decoded(1000);
  context.decode(spec, payload, decoded.data(), 1000);
  for (std::size_t i = 0; i < 1000; ++i)
    expect(decoded[i] + residual[i] == gradient[i], "an element sent or kept");
  expect(std::count_if(decoded.begin(), decoded.end(), [](float x) { return x != 0.0F; }) == 100,
         "a tenth of them sent");
  expect(context.info("int8 ; feedback=residual", 10).state_bytes_exact == 80, "two residuals");
}

void check_errors() {
  gsv::Context const context;
  try {
    static_cast<void>(context.canonical("topk(densty=0.1)"));
    expect(false, "an error");
  } catch (gsv::Error const& error) {
    expect(std::string(error.what()).find("density") != std::string::npos, "the nearest spelling");
    expect(std::strcmp(error.name(), gsvGetResultName(error.result())) == 0, "a name of the code");
  }
}

void check_plugin(char const* path) {
  gsv::Context context;
  std::string const name = context.load_plugin(path);
  expect(context.plugins().find('"' + name + '"') != std::string::npos, "the plug-in in the list");
  std::vector<float> const gradient = {0.75F, -3.0F, 0.0F, 1e-3F};
  std::vector<float> decoded(4);
  context.decode(name, context.encode(name, gradient.data(), 4), decoded.data(), 4);
  expect(decoded[1] < 0.0F && decoded[2] == 0.0F, "a decoded gradient");
  try {
    context.load_plugin(path);
    expect(false, "a name that is taken");
  } catch (gsv::Error const& error) {
    expect(error.result() == gsvInvalidUsage, "invalid_usage for a second of the name");
  }
}

}  // namespace

int main(int argc, char** argv) try {
  check_training();
  check_other_rules();
  check_codec();
  check_errors();
  if (argc > 1) check_plugin(argv[1]);
  return num_failures == 0 ? 0 : 1;
} catch (gsv::Error const& error) {
  std::fprintf(stderr, "%s: %s\n", error.name(), error.what());
  return 1;
}
