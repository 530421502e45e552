// SPDX-License-Identifier: Apache-2.0
// What every exchange has to do on every transport. A check returns what it found wrong, or
// nothing: so the same checks run on threads, on MPI, and on transports that are broken on purpose.
// Values are unique per rank and index (1000·rank + index), so that a swap cannot go unseen.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/exchange/collectives.hpp"

namespace gradsieve::test {

/// All that an ExchangeContext points to.
class Exchanger {
 public:
  explicit Exchanger(Transport& transport, std::uint32_t tag = 1,
                     std::chrono::milliseconds deadline = std::chrono::seconds(20));

  /// A context with at least `scratch_bytes`, a fresh deadline and the next tag.
  [[nodiscard]] exchange::ExchangeContext& next(std::size_t scratch_bytes = 0);
  [[nodiscard]] std::span<bool> gone() { return {gone_.get(), ranks_}; }

 private:
  std::size_t ranks_;
  std::chrono::milliseconds deadline_;
  std::vector<Request> requests_;
  std::vector<std::byte> scratch_;
  std::unique_ptr<bool[]> gone_;
  exchange::ExchangeContext context_;
};

[[nodiscard]] inline std::uint64_t rank_value(int rank, std::uint64_t index) {
  return 1000 * static_cast<std::uint64_t>(rank) + index;
}

std::string check_all_gather(Transport& transport);
std::string check_all_gather_of_unequal_sizes(Transport& transport);
std::string check_all_to_all(Transport& transport);
std::string check_all_reduce_f32(Transport& transport);
std::string check_all_reduce_f64(Transport& transport);
/// Sums whose value depends on the order of addition are those of rank order, on every rank.
std::string check_all_reduce_adds_in_rank_order(Transport& transport);
std::string check_word(Transport& transport);
/// Case C-77: blocks land at their places, and nothing between them is touched.
std::string check_gaps_keep_their_canaries(Transport& transport);
std::string check_messages_of_one_tag_arrive_in_order(Transport& transport);
std::string check_channels_do_not_wait_for_each_other(Transport& transport);

/// A sparse sum of unequal numbers of pairs, with repeats, equals the dense one on every rank.
std::string check_sparse_sum(Transport& transport);

struct NamedCheck {
  char const* name;
  std::function<std::string(Transport&)> run;
};
[[nodiscard]] std::vector<NamedCheck> const& exchange_checks();

}  // namespace gradsieve::test
