// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "bench/convergence/ranks.hpp"

namespace gradsieve::study {
namespace {

class ThreadRanks final : public Ranks {
 public:
  explicit ThreadRanks(StudyPlan const& plan) : plan_(plan) {}

  int world_size() const noexcept override { return plan_.num_ranks; }
  bool has_first_rank() const noexcept override { return true; }
  void abort(int) noexcept override {}

  // A group of its own for each run: what one run leaves behind cannot reach the next.
  RunRecord run(RankBody const& body) override {
    LocalGroup group(plan_.num_ranks);
    std::vector<RunRecord> records(static_cast<std::size_t>(plan_.num_ranks));
    std::exception_ptr first_error;
    std::mutex error_mutex;
    auto const run_rank = [&](int rank) {
      try {
        Link link(group.transport(rank), plan_);
        records[static_cast<std::size_t>(rank)] = body(link.transport());
      } catch (...) {
        std::lock_guard const lock(error_mutex);
        // The others fail because of the first, with less to say.
        if (!first_error) first_error = std::current_exception();
        for (int peer = 0; peer < plan_.num_ranks; ++peer) group.transport(peer).abort();
      }
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < plan_.num_ranks; ++rank) threads.emplace_back(run_rank, rank);
    for (auto& thread : threads) thread.join();
    if (first_error) std::rethrow_exception(first_error);
    return std::move(records.front());
  }

 private:
  StudyPlan const& plan_;
};

}  // namespace

Link::Link(Transport& transport, StudyPlan const& plan) : transport_(&transport) {
  if (plan.limit_bits_per_s <= 0.0 && plan.limit_latency_us <= 0.0) return;
  auto const latency_ns = static_cast<std::int64_t>(1e3 * plan.limit_latency_us);
  limited_ = make_limited(transport, {plan.limit_bits_per_s, std::chrono::nanoseconds(latency_ns)});
  transport_ = limited_.get();
}

std::unique_ptr<Ranks> make_thread_ranks(StudyPlan const& plan) {
  return std::make_unique<ThreadRanks>(plan);
}

}  // namespace gradsieve::study
