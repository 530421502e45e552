// SPDX-License-Identifier: Apache-2.0
// Ranks tell each other how many pairs they bring, and make sure that they were understood, before
// any pair travels: a disagreement is then an error on all ranks and never a wait for bytes that
// nobody sends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradsieve/exchange.hpp"

#include "comm/exchange/collectives.hpp"

namespace gradsieve::exchange {

class SparseAgreement {
 public:
  SparseAgreement(Transport& transport, std::uint64_t num_elements,
                  SparseExchangeOptions const& options);

  /// Announces `own_pairs` (or the own failure), hears the others, confirms both numbers with each
  /// of them, and learns whether all are content. `prepare` runs between confirming and the
  /// verdict: what fails in it (memory) ends the exchange on all ranks.
  template <typename Prepare>
  Status run(std::uint64_t own_pairs, Status own_status, Prepare const& prepare) {
    note(own_status, "");
    announce(own_pairs);
    confirm(own_pairs);
    if (status_.ok()) note(prepare(), "");
    collect_verdicts();
    return status_;
  }

  [[nodiscard]] std::vector<std::uint64_t> const& num_pairs() const noexcept { return num_pairs_; }
  [[nodiscard]] std::vector<Request>& requests() noexcept { return requests_; }
  [[nodiscard]] Deadline deadline() const noexcept;
  /// Keeps the first failure, and its sentence where the caller asked for one.
  void note(Status status, std::string const& sentence);
  [[nodiscard]] Status status() const noexcept { return status_; }

 private:
  void announce(std::uint64_t own_pairs);
  void confirm(std::uint64_t own_pairs);
  void collect_verdicts();
  [[nodiscard]] ExchangeContext context(Bytes scratch) noexcept;
  void note_exchange(Status status, ExchangeContext const& context);
  [[nodiscard]] std::string pairs_differ(int sender, std::uint64_t has, int receiver,
                                         std::uint64_t expects) const;

  Transport& transport_;
  std::uint64_t num_elements_;
  SparseExchangeOptions const& options_;
  std::size_t ranks_;
  std::vector<Request> requests_;
  std::vector<std::uint64_t> num_pairs_;
  std::unique_ptr<bool[]> gone_;
  Status status_;
};

}  // namespace gradsieve::exchange
