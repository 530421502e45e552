// SPDX-License-Identifier: Apache-2.0
#include "comm/exchange/sparse_agreement.hpp"

#include <array>

#include "comm/exchange/sparse_message.hpp"
#include "comm/exchange/swap.hpp"

namespace gradsieve::exchange {

namespace {

constexpr std::size_t kAnnounceBytes = wire::kHeaderBytes + 8;
constexpr std::size_t kConfirmBytes = wire::kHeaderBytes + 16;

std::string named(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

SparseAgreement::SparseAgreement(Transport& transport, std::uint64_t num_elements,
                                 SparseExchangeOptions const& options)
    : transport_(transport),
      num_elements_(num_elements),
      options_(options),
      ranks_(static_cast<std::size_t>(transport.world_size())),
      requests_(2 * ranks_),
      num_pairs_(ranks_, 0),
      gone_(std::make_unique<bool[]>(ranks_)) {
  if (options.failure != nullptr) options.failure->clear();
}

// After a rank was late the others only say goodbye to each other.
Deadline SparseAgreement::deadline() const noexcept {
  return Clock::now() + (status_.code() == Code::timeout ? Clock::duration(kGrace)
                                                         : Clock::duration(options_.deadline));
}

ExchangeContext SparseAgreement::context(Bytes scratch) noexcept {
  ExchangeContext context;
  context.transport = &transport_;
  context.requests = requests_;
  context.scratch = scratch;
  context.gone = {gone_.get(), ranks_};
  context.tag = options_.tag;
  context.deadline = deadline();
  return context;
}

void SparseAgreement::note(Status status, std::string const& sentence) {
  if (status.ok() || !status_.ok()) return;
  status_ = status;
  if (options_.failure != nullptr)
    *options_.failure = sentence.empty() ? status.message() : sentence;
}

void SparseAgreement::note_exchange(Status status, ExchangeContext const& context) {
  if (status.ok()) return;
  std::string const who = context.blamed_rank < 0 ? "this rank" : named(context.blamed_rank);
  note(status, "sparse exchange: " + who + ": " + status.message());
}

std::string SparseAgreement::pairs_differ(int sender, std::uint64_t has, int receiver,
                                          std::uint64_t expects) const {
  std::uint64_t const width = pair_bytes(num_elements_);
  return "sparse exchange: " + named(sender) + " sends " + std::to_string(has) + " pairs (" +
         std::to_string(has * width) + " bytes), but " + named(receiver) + " expects " +
         std::to_string(expects) + " pairs (" + std::to_string(expects * width) + " bytes)";
}

void SparseAgreement::announce(std::uint64_t own_pairs) {
  std::array<std::byte, kAnnounceBytes> own{};
  bool const failed = !status_.ok();
  wire::write_header(sparse_header(SparseRound::announce, transport_.rank(), options_.tag,
                                   num_elements_, failed ? 0 : 8, status_),
                     own);
  wire::store(own.data() + wire::kHeaderBytes, own_pairs);
  std::vector<std::byte> scratch(all_gather_scratch_bytes(transport_.world_size(), kAnnounceBytes));
  ExchangeContext context = this->context(scratch);
  std::size_t const length = failed ? wire::kHeaderBytes : kAnnounceBytes;

  Status const status = all_gather(
      context, ConstBytes(own).first(length), kAnnounceBytes, [&](int rank, ConstBytes bytes) {
        PayloadHeader header;
        if (Status const read =
                read_sparse_header(bytes, SparseRound::announce, rank, options_.tag, header);
            !read.ok()) {
          note(read, "sparse exchange: " + named(rank) + ": " + read.message());
        } else if (header.status != 0) {
          note({Code::peer_failed, "a rank reports that it failed"},
               "sparse exchange: " + named(rank) + " reports " +
                   std::string(code_name(static_cast<Code>(header.status))));
        } else if (header.num_elements != num_elements_) {
          note({Code::mismatch, "ranks disagree on the number of elements"},
               "sparse exchange: " + named(rank) + " has num_elements " +
                   std::to_string(header.num_elements) + ", " + named(transport_.rank()) + " has " +
                   std::to_string(num_elements_));
        } else if (bytes.size() != kAnnounceBytes) {
          note({Code::corrupt_payload, "an announcement has the wrong length"}, "");
        } else {
          num_pairs_[static_cast<std::size_t>(rank)] =
              wire::load<std::uint64_t>(bytes.data() + wire::kHeaderBytes);
          if (num_pairs_[static_cast<std::size_t>(rank)] > num_elements_)
            note({Code::corrupt_payload, "a rank announces more pairs than there are elements"},
                 "");
        }
        return Status{};
      });
  note_exchange(status, context);
}

// Each rank tells each other what it will send to it, once more, and what it expects from it. Both
// ends of a misunderstanding see both numbers.
void SparseAgreement::confirm(std::uint64_t own_pairs) {
  int const own_rank = transport_.rank();
  std::vector<std::array<std::byte, kConfirmBytes>> own(ranks_);
  std::vector<ConstBytes> own_bytes(ranks_);
  for (std::size_t peer = 0; peer < ranks_; ++peer) {
    wire::write_header(
        sparse_header(SparseRound::confirm, own_rank, options_.tag, num_elements_, 16), own[peer]);
    wire::store(own[peer].data() + wire::kHeaderBytes, own_pairs);
    wire::store(own[peer].data() + wire::kHeaderBytes + 8, num_pairs_[peer]);
    own_bytes[peer] = own[peer];
  }
  std::vector<std::byte> scratch(all_to_all_scratch_bytes(transport_.world_size(), kConfirmBytes));
  ExchangeContext context = this->context(scratch);

  Status const status =
      all_to_all(context, own_bytes, kConfirmBytes, [&](int rank, ConstBytes bytes) {
        PayloadHeader header;
        Status read = read_sparse_header(bytes, SparseRound::confirm, rank, options_.tag, header);
        if (read.ok() && bytes.size() != kConfirmBytes)
          read = {Code::corrupt_payload, "a confirmation has the wrong length"};
        if (!read.ok()) {
          note(read, "sparse exchange: " + named(rank) + ": " + read.message());
          return Status{};
        }
        std::uint64_t const sends = wire::load<std::uint64_t>(bytes.data() + wire::kHeaderBytes);
        std::uint64_t const expects =
            wire::load<std::uint64_t>(bytes.data() + wire::kHeaderBytes + 8);
        Status const mismatch{Code::mismatch,
                              "two ranks disagree on the number of pairs between them"};
        if (sends != num_pairs_[static_cast<std::size_t>(rank)])
          note(mismatch,
               pairs_differ(rank, sends, own_rank, num_pairs_[static_cast<std::size_t>(rank)]));
        if (expects != own_pairs) note(mismatch, pairs_differ(own_rank, own_pairs, rank, expects));
        return Status{};
      });
  note_exchange(status, context);
}

void SparseAgreement::collect_verdicts() {
  std::vector<std::uint64_t> words(ranks_);
  std::unique_ptr<bool[]> const heard = std::make_unique<bool[]>(ranks_);
  ExchangeContext context = this->context({});
  std::uint64_t const own = static_cast<std::uint64_t>(status_.code());
  Status const status = all_gather_word(context, own, words, {heard.get(), ranks_});
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    if (!heard[rank] || words[rank] == 0) continue;
    note({Code::peer_failed, "a rank reports that it failed"},
         "sparse exchange: " + named(static_cast<int>(rank)) + " reports " +
             std::string(code_name(static_cast<Code>(words[rank]))));
  }
  note_exchange(status, context);
}

}  // namespace gradsieve::exchange
