// SPDX-License-Identifier: Apache-2.0
#include "tests/support/simulated_ranks.hpp"

#include <algorithm>
#include <map>
#include <span>

namespace gradsieve::testing {
namespace {

/// One pool of each size for all tests of a thread: starting threads would cost more than what they
/// do here.
ThreadPool& pool_of(int num_threads) {
  thread_local std::map<int, std::unique_ptr<ThreadPool>> pools;
  std::unique_ptr<ThreadPool>& pool = pools[num_threads];
  if (pool == nullptr) pool = std::make_unique<ThreadPool>(num_threads);
  return *pool;
}

}  // namespace

TensorInfo whole_tensor(std::string_view name, std::uint64_t num_elements, DType dtype) {
  return {.id = tensor_id(name), .num_elements = num_elements, .dtype = dtype};
}

struct SimulatedRanks::Rank {
  Rank(int rank, Chain const& chain, TensorInfo const& piece, SimulationOptions const& options)
      : number(rank),
        residual(piece.num_elements, options.offset_bytes),
        slots(*chain.compressor, piece),
        workspace_memory(chain.compressor->workspace_bytes(piece)),
        workspace(workspace_memory.span()) {}

  int number;
  Guarded<float> residual;
  TestSlots slots;
  Guarded<std::byte> workspace_memory;
  Workspace workspace;
  StepWords words;
};

SimulatedRanks::SimulatedRanks(Chain const& chain, TensorInfo const& piece,
                               SimulationOptions const& options)
    : chain_(chain), piece_(piece), options_(options) {
  for (int rank = 0; rank < options.world_size; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(rank, chain_, piece_, options_));
  }
}

SimulatedRanks::~SimulatedRanks() = default;

ExecContext SimulatedRanks::context(Rank& rank, std::uint64_t step) {
  rank.workspace.reset();
  rank.words.step = step;
  return {.backend = options_.backend,
          .workspace = &rank.workspace,
          .threads = &pool_of(options_.num_threads),
          .words = &rank.words,
          .seed = options_.seed,
          .rank = rank.number,
          .world_size = options_.world_size};
}

Status SimulatedRanks::run_round(int round, std::uint64_t step,
                                 std::vector<Guarded<float>>& gradients, Outcome& outcome,
                                 std::vector<ConstBytes>& received, Floats& sum) {
  RoundInfo const info = chain_.compressor->round(round, piece_);
  std::vector<ByteVector>& bodies = outcome.bodies.emplace_back();
  for (auto& rank : ranks_) {
    Guarded<std::byte> memory(info.capacity_bytes);
    std::uint64_t num_bytes = 0;
    auto const carry = static_cast<float>(chain_.feedback.decay);
    ResidualView const residual{rank->residual.span(), rank->residual.span(), carry};
    Status const status = chain_.compressor->encode_with_residual(
        context(*rank, step), round, piece_,
        gradients[static_cast<std::size_t>(rank->number)].span(), residual, rank->slots.view(),
        Body(memory.span(), &num_bytes));
    outcome.intact = outcome.intact && memory.intact() && num_bytes <= info.capacity_bytes;
    GRADSIEVE_RETURN_IF_ERROR(status);
    auto const written = memory.span().first(static_cast<std::size_t>(num_bytes));
    bodies.emplace_back(written.begin(), written.end());
  }

  if (info.exchange != ExchangeKind::sum) {
    received.assign(bodies.begin(), bodies.end());
    return {};
  }
  sum.assign(bodies[0].size() / sizeof(float), 0.0F);
  for (std::size_t rank = 0; rank < bodies.size(); ++rank) {
    if (bodies[rank].size() != chain_.compressor->sum_bytes(round, piece_, step)) {
      return {Code::internal, "a body of a sum round has not the length of sum_bytes()"};
    }
    for (std::size_t i = 0; i < sum.size(); ++i) {
      auto const value = wire::load<float>(bodies[rank].data() + i * sizeof(float));
      sum[i] = rank == 0 ? value : sum[i] + value;
    }
  }
  received.assign(1, std::as_bytes(std::span(sum)));
  return {};
}

Outcome SimulatedRanks::step(std::uint64_t step, std::vector<Floats> const& gradients) {
  Outcome outcome;
  outcome.mean.assign(piece_.num_elements, 0.0F);
  std::vector<Guarded<float>> guarded;
  for (Floats const& gradient : gradients) {
    guarded.emplace_back(gradient, options_.offset_bytes);
  }
  std::vector<ConstBytes> received;
  Floats sum;
  int const last = chain_.compressor->num_rounds() - 1;
  auto const run = [&]() -> Status {
    for (int round = 0; round <= last; ++round) {
      GRADSIEVE_RETURN_IF_ERROR(run_round(round, step, guarded, outcome, received, sum));
      if (round == last) {
        break;
      }
      for (auto& rank : ranks_) {
        GRADSIEVE_RETURN_IF_ERROR(chain_.compressor->absorb(context(*rank, step), round, piece_,
                                                            received, rank->slots.view()));
      }
    }
    for (ConstBytes const body : received) {
      GRADSIEVE_RETURN_IF_ERROR(
          decode_add(0, step, body, 1.0 / options_.world_size, outcome.mean, outcome.intact));
    }
    return {};
  };
  outcome.status = run();

  for (auto& rank : ranks_) {
    outcome.flags.push_back(rank->words.flags);
    rank->words.flags = 0;
    outcome.status.ok() ? rank->slots.commit() : rank->slots.roll_back();
    outcome.intact = outcome.intact && rank->residual.intact() && rank->workspace_memory.intact();
  }
  for (std::size_t i = 0; i < guarded.size(); ++i) {  // gradients are read, never written
    outcome.intact = outcome.intact && guarded[i].intact() &&
                     std::ranges::equal(std::as_bytes(guarded[i].span()),
                                        std::as_bytes(std::span(gradients[i])));
  }
  return outcome;
}

Status SimulatedRanks::decode_add(int rank, std::uint64_t step, ConstBytes body, double weight,
                                  Floats& accumulator, bool& intact) {
  Rank& reader = *ranks_[static_cast<std::size_t>(rank)];
  Guarded<float> guarded(accumulator, options_.offset_bytes);
  int const last = chain_.compressor->num_rounds() - 1;
  Status const status =
      chain_.compressor->decode_add(context(reader, step), last, piece_, body, weight,
                                    reader.slots.view(), TensorView(guarded.span()));
  intact = intact && guarded.intact() && reader.workspace_memory.intact();
  accumulator = guarded.copy();
  return status;
}

Floats SimulatedRanks::decode_own(int rank, std::uint64_t step, Outcome const& outcome) {
  Floats decoded(piece_.num_elements, 0.0F);
  bool intact = true;
  Status const status = decode_add(
      rank, step, outcome.bodies.back()[static_cast<std::size_t>(rank)], 1.0, decoded, intact);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(intact) << "decode_add stored outside its accumulator or workspace";
  return decoded;
}

Floats SimulatedRanks::residual(int rank) const {
  return ranks_[static_cast<std::size_t>(rank)]->residual.copy();
}

void SimulatedRanks::set_residual(int rank, Floats const& values) {
  auto const target = ranks_[static_cast<std::size_t>(rank)]->residual.span();
  std::copy(values.begin(), values.end(), target.begin());
}

SavedTensor SimulatedRanks::save() const {
  SavedTensor saved;
  for (auto const& rank : ranks_) {
    saved.residuals.push_back(rank->residual.copy());
    saved.slots.push_back(rank->slots.committed());
  }
  return saved;
}

void SimulatedRanks::restore(SavedTensor const& saved) {
  for (auto& rank : ranks_) {
    auto const number = static_cast<std::size_t>(rank->number);
    set_residual(rank->number, saved.residuals[number]);
    rank->slots.restore(saved.slots[number]);
  }
}

}  // namespace gradsieve::testing
