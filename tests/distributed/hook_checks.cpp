// SPDX-License-Identifier: Apache-2.0
#include "tests/distributed/hook_checks.hpp"

#include "comm/exchange/exchange.hpp"

namespace gradsieve::testing {
namespace {

constexpr std::uint64_t kSteps = 6;

Layout three_tensors() { return one_bucket_each({1000, 33, 1}); }

std::uint64_t hash_of(std::vector<float> const& values) {
  std::uint64_t hash = 1;
  for (std::uint32_t const bits : bits_of(values)) hash = mix64(hash ^ bits);
  return hash;
}

/// The first element that differs in more than the sign of a zero.
std::string difference(std::string const& what, std::vector<float> const& actual, std::vector<float> const& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (actual[i] != expected[i]) {
      return what + ", element " + std::to_string(i) + ": " + std::to_string(actual[i]) + ", expected " +
             std::to_string(expected[i]);
    }
  }
  return "";
}

}  // namespace

bool all_agree(Transport& transport, std::uint64_t word) {
  auto const world_size = static_cast<std::size_t>(transport.world_size());
  std::vector<Request> requests(2 * world_size);
  std::vector<std::byte> scratch(64 * world_size);
  auto const gone = std::make_unique<bool[]>(world_size);
  auto const heard = std::make_unique<bool[]>(world_size);
  std::vector<std::uint64_t> words(world_size);
  exchange::ExchangeContext context;
  context.transport = &transport;
  context.requests = requests;
  context.scratch = scratch;
  context.gone = {gone.get(), world_size};
  context.tag = 0x7e57;
  context.deadline = Clock::now() + std::chrono::seconds(30);
  Status const status = exchange::all_gather_word(context, word, words, {heard.get(), world_size});
  return status.ok() && std::ranges::all_of(words, [&](std::uint64_t w) { return w == word; });
}

std::string check_same_bits(Transport& transport, std::string const& spec) {
  HookRank rank(transport, options_for(spec), all_in_one(three_tensors()));
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    rank.step(step);
    std::vector<float> const results = rank.all_results();
    if (!all_agree(transport, hash_of(results))) return "results differ in step " + std::to_string(step);
    bool const all_zero = std::ranges::all_of(results, [](float x) { return x == 0.0F; });
    bool const all_finite = std::ranges::all_of(results, [](float x) { return std::isfinite(x); });
    if (!all_finite) return "a result is not finite";
    // A threshold may let nothing pass in a step; every other chain sends something.
    if (all_zero && spec.find("threshold") == std::string::npos) return "nothing arrived in step " + std::to_string(step);
  }
  return "";
}

std::string check_definition(Transport& transport, std::string const& spec) {
  bool const is_summed = [&] {
    Chain const chain = make_chain(spec);
    int const last = chain.compressor->num_rounds() - 1;
    return chain.compressor->round(last, whole_tensor("t0", 100)).exchange == ExchangeKind::sum;
  }();
  std::string const chain_spec = spec + " ; feedback=residual";
  Chain const chain = make_chain(chain_spec);
  HookRank rank(transport, options_for(chain_spec + (is_summed ? "" : " ; exchange=gather")), three_tensors());

  std::vector<std::unique_ptr<SimulatedRanks>> owned;
  for (TensorDesc const& tensor : rank.layout().tensors) {
    owned.push_back(std::make_unique<SimulatedRanks>(
        chain, whole_tensor(tensor.name, tensor.num_elements),
        SimulationOptions{.backend = Backend::ref, .world_size = transport.world_size(), .seed = 17}));
  }
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    rank.step(step);
    for (std::size_t t = 0; t < owned.size(); ++t) {
      TensorDesc const& tensor = rank.layout().tensors[t];
      std::vector<Floats> gradients;
      for (int r = 0; r < transport.world_size(); ++r) {
        gradients.push_back(heavy_tailed_of(r, step, tensor.name, tensor.num_elements));
      }
      Outcome const outcome = owned[t]->step(step, gradients);
      if (!outcome.status.ok()) return std::string("the definition failed: ") + outcome.status.message();
      std::string const where = tensor.name + " in step " + std::to_string(step);
      std::string found = difference("mean of " + where, rank.result_of(tensor.name), outcome.mean);
      if (!found.empty()) return found;
      found = difference("residual of " + where, rank.hook().residual(tensor.name),
                         owned[t]->residual(transport.rank()));
      if (!found.empty()) return found;
    }
  }
  return "";
}

}  // namespace gradsieve::testing
