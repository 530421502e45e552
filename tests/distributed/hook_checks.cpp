// SPDX-License-Identifier: Apache-2.0
#include "tests/distributed/hook_checks.hpp"

#include "comm/exchange/collectives.hpp"
#include "comm/exchange/reference.hpp"

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
std::string difference(std::string const& what, std::vector<float> const& actual,
                       std::vector<float> const& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (actual[i] != expected[i]) {
      return what + ", element " + std::to_string(i) + ": " + std::to_string(actual[i]) +
             ", expected " + std::to_string(expected[i]);
    }
  }
  return "";
}

constexpr bool is_power_of_two(int x) { return (x & (x - 1)) == 0; }

/// All ranks of one tensor under exchange=two_shot, by the reference function.
class TwoShotModel {
 public:
  TwoShotModel(Chain const& chain, TensorDesc const& tensor, int world_size)
      : mean(tensor.num_elements),
        chain_(chain),
        piece_(whole_tensor(tensor.name, tensor.num_elements)),
        name_(tensor.name),
        world_size_(world_size) {
    for (int r = 0; r < world_size; ++r) ranks_.push_back(std::make_unique<Rank>(chain, piece_));
  }

  Status step(std::uint64_t step) {
    std::vector<std::vector<float>> gradients;
    std::vector<exchange::ReferenceRank> ranks;
    std::vector<ExecContext> contexts;
    for (int r = 0; r < world_size_; ++r) {
      Rank& rank = *ranks_[static_cast<std::size_t>(r)];
      rank.words = {.step = step};
      rank.workspace.reset();
      std::ranges::fill(rank.undelivered, 0.0F);
      gradients.push_back(heavy_tailed_of(r, step, name_, piece_.num_elements));
      contexts.push_back({.backend = Backend::ref,
                          .workspace = &rank.workspace,
                          .words = &rank.words,
                          .seed = 17,
                          .rank = r,
                          .world_size = world_size_});
    }
    std::vector<std::span<float>> undelivered;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      std::span<float> const residual = ranks_[r]->residual;
      ranks.push_back({.ctx = &contexts[r],
                       .gradient = std::span<float const>(gradients[r]),
                       .residual = {residual, residual, 1.0F},
                       .state = {}});
      undelivered.emplace_back(ranks_[r]->undelivered);
    }
    std::ranges::fill(mean, 0.0F);
    GRADSIEVE_RETURN_IF_ERROR(
        exchange::reference_two_shot({&*chain_.compressor, piece_, 1.0 / world_size_, ranks},
                                     std::span<float>(mean), undelivered));
    for (auto& rank : ranks_) {
      for (std::size_t i = 0; i < rank->residual.size(); ++i) {
        rank->residual[i] += static_cast<float>(world_size_) * rank->undelivered[i];
      }
    }
    for (auto const& gradient : gradients) {
      for (float const x : gradient) largest_ = std::max(largest_, std::abs(x));
    }
    return {};
  }

  [[nodiscard]] std::vector<float> const& residual(int rank) const {
    return ranks_[static_cast<std::size_t>(rank)]->residual;
  }
  [[nodiscard]] float largest() const { return largest_; }

  std::vector<float> mean;

 private:
  struct Rank {
    Rank(Chain const& chain, TensorInfo const& piece)
        : residual(piece.num_elements),
          undelivered(piece.num_elements),
          memory(chain.compressor->workspace_bytes(piece)),
          workspace(memory.span()) {}
    std::vector<float> residual;
    std::vector<float> undelivered;
    Guarded<std::byte> memory;
    Workspace workspace;
    StepWords words;
  };
  Chain chain_;
  TensorInfo piece_;
  std::string name_;
  int world_size_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  float largest_ = 0.0F;
};

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
    if (!all_agree(transport, hash_of(results)))
      return "results differ in step " + std::to_string(step);
    bool const all_zero = std::ranges::all_of(results, [](float x) { return x == 0.0F; });
    bool const all_finite = std::ranges::all_of(results, [](float x) { return std::isfinite(x); });
    if (!all_finite) return "a result is not finite";
    // A threshold may let nothing pass in a step; every other chain sends something.
    if (all_zero && spec.find("threshold") == std::string::npos)
      return "nothing arrived in step " + std::to_string(step);
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
  HookRank rank(transport, options_for(chain_spec + (is_summed ? "" : " ; exchange=gather")),
                three_tensors());

  std::vector<std::unique_ptr<SimulatedRanks>> owned;
  for (TensorDesc const& tensor : rank.layout().tensors) {
    owned.push_back(std::make_unique<SimulatedRanks>(
        chain, whole_tensor(tensor.name, tensor.num_elements),
        SimulationOptions{.world_size = transport.world_size(), .seed = 17}));
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
      if (!outcome.status.ok())
        return std::string("the definition failed: ") + outcome.status.message();
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

std::string check_two_shot(Transport& transport, std::string const& spec) {
  std::string const chain_spec = spec + " ; feedback=residual ; exchange=two_shot";
  Chain const chain = make_chain(chain_spec);
  int const world_size = transport.world_size();
  HookRank rank(transport, options_for(chain_spec), three_tensors());
  std::vector<std::unique_ptr<TwoShotModel>> models;
  for (TensorDesc const& tensor : rank.layout().tensors) {
    models.push_back(std::make_unique<TwoShotModel>(chain, tensor, world_size));
  }

  std::string found;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    rank.step(step);
    for (std::size_t t = 0; t < models.size(); ++t) {
      std::string const& name = rank.layout().tensors[t].name;
      Status const status = models[t]->step(step);
      if (!status.ok()) return std::string("the reference failed: ") + status.message();
      std::string const where = name + " in step " + std::to_string(step);
      found = difference("mean of " + where, rank.result_of(name), models[t]->mean);
      if (!found.empty()) return found;
    }
    rank.after_begin = [&] {
      for (std::size_t t = 0; t < models.size() && found.empty(); ++t) {
        std::string const& name = rank.layout().tensors[t].name;
        std::vector<float> const& expected = models[t]->residual(transport.rank());
        std::vector<float> const actual = rank.hook().residual(name);
        for (std::size_t i = 0; i < actual.size(); ++i) {
          // What came back is in units of the sum: times the world size, which is one rounding
          // more where that is no power of two.
          float const allowed =
              is_power_of_two(world_size) ? 0.0F : 0x1p-22F * models[t]->largest();
          if (std::abs(actual[i] - expected[i]) <= allowed) continue;
          found = "residual of " + name + ", element " + std::to_string(i) + ": " +
                  std::to_string(actual[i]) + ", expected " + std::to_string(expected[i]);
        }
      }
    };
    if (!found.empty()) return found;
  }
  return found;
}

}  // namespace gradsieve::testing
