// SPDX-License-Identifier: Apache-2.0
#include "comm/vote.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "core/hash.hpp"

namespace gradsieve {

VoteResult vote(exchange::ExchangeContext& context, std::uint64_t step, bool ok,
                std::span<std::uint64_t> words, std::span<bool> heard) noexcept {
  std::uint64_t const own = ok ? step + 1 : 0;
  Status const status = exchange::all_gather_word(context, own, words, heard);

  VoteResult result;
  bool all_agree = true;
  for (std::size_t rank = 0; rank < words.size(); ++rank) {
    int const number = static_cast<int>(rank);
    if (!heard[rank]) {
      if (result.missing_rank < 0) result.missing_rank = number;
    } else if (words[rank] != step + 1) {
      all_agree = false;
      if (result.refusing_rank < 0) result.refusing_rank = number;
    }
  }
  if (!ok || !all_agree) {
    result.outcome = Outcome::rolled_back;
  } else if (result.missing_rank < 0 && status.ok()) {
    result.outcome = Outcome::committed;
  }
  return result;
}

namespace {

constexpr std::size_t kTextBytes = 512;  ///< of a value shown in a mismatch message

/// A conversation of the handshake: each exchange gets the next tag.
class Conversation {
 public:
  Conversation(exchange::ExchangeContext& context, char const* during)
      : during_(during),
        context_(context),
        words_(world_size()),
        heard_(std::make_unique<bool[]>(world_size())) {}

  std::span<std::uint64_t const> gather(std::uint64_t own) {
    Status const status =
        exchange::all_gather_word(context_, own, words_, {heard_.get(), world_size()});
    ++context_.tag;
    if (!status.ok()) fail(status);
    return words_;
  }

  std::vector<std::string> gather_text(std::string const& own) {
    std::string const text = own.substr(0, kTextBytes);
    std::vector<std::string> texts(world_size());
    std::vector<std::byte> scratch(
        exchange::all_gather_scratch_bytes(static_cast<int>(world_size()), kTextBytes));
    context_.scratch = scratch;
    Status const status =
        exchange::all_gather(context_, std::as_bytes(std::span(text)), kTextBytes,
                             [&](int rank, ConstBytes bytes) -> Status {
                               texts[static_cast<std::size_t>(rank)].assign(
                                   reinterpret_cast<char const*>(bytes.data()), bytes.size());
                               return {};
                             });
    ++context_.tag;
    context_.scratch = {};
    if (!status.ok()) fail(status);
    return texts;
  }

  [[nodiscard]] std::size_t world_size() const {
    return static_cast<std::size_t>(context_.transport->world_size());
  }
  /// The call that talks, for the sentences.
  [[nodiscard]] char const* during() const noexcept { return during_; }
  [[nodiscard]] std::size_t own_rank() const {
    return static_cast<std::size_t>(context_.transport->rank());
  }

 private:
  [[noreturn]] void fail(Status const& status) const {
    throw Error(status.code(), std::string(during_) + ": rank " +
                                   std::to_string(context_.blamed_rank) +
                                   " did not answer the handshake (" + status.message() + ")");
  }

  char const* during_;
  exchange::ExchangeContext& context_;
  std::vector<std::uint64_t> words_;
  std::unique_ptr<bool[]> heard_;
};

/// The first rank whose word differs from rank 0's, or world_size.
std::size_t first_different(std::span<std::uint64_t const> words) {
  auto const found = std::find_if(words.begin(), words.end(),
                                  [&](std::uint64_t word) { return word != words[0]; });
  return static_cast<std::size_t>(found - words.begin());
}

/// `own`: what this rank has, as the other ranks are to see it.
[[noreturn]] void throw_mismatch(Conversation& talk, Failure& failure, std::size_t rank,
                                 std::string const& field, std::string const& tensor,
                                 std::string const& own) {
  std::vector<std::string> const texts = talk.gather_text(own);
  failure.code = Code::mismatch;
  failure.rank = static_cast<int>(rank);
  failure.field = field;
  failure.tensor = tensor;
  failure.message = std::string(talk.during()) + ": ranks disagree on " + field + ": rank 0 has '" +
                    texts[0] + "', rank " + std::to_string(rank) + " has '" + texts[rank] +
                    "'; expected the same on all ranks";
  throw Error(Code::mismatch, failure.message);
}

std::string tensor_text(TensorDesc const& tensor) {
  return tensor.name + " [" + std::to_string(tensor.num_elements) + "] " +
         std::string(dtype_name(tensor.dtype));
}

// All ranks have seen that their tensors differ, so all of them ask for the same parts in turn.
[[noreturn]] void find_tensor_mismatch(Conversation& talk, std::span<TensorDesc const> tensors,
                                       Failure& failure) {
  std::span<std::uint64_t const> const counts = talk.gather(tensors.size());
  std::size_t const odd_rank = first_different(counts);
  std::size_t const shared = *std::min_element(counts.begin(), counts.end());
  for (std::size_t i = 0; i < shared; ++i) {
    TensorDesc const& tensor = tensors[i];
    HandshakeField const parts[] = {
        {"name", PlanHash().add(std::string_view(tensor.name)).value(), ""},
        {"num_elements", tensor.num_elements, ""},
        {"dtype", static_cast<std::uint64_t>(tensor.dtype), ""},
        {"num_rows", tensor.num_rows, ""},
    };
    for (HandshakeField const& part : parts) {
      std::size_t const rank = first_different(talk.gather(part.hash));
      if (rank == talk.world_size()) continue;
      throw_mismatch(talk, failure, rank, part.name, tensor.name, tensor_text(tensor));
    }
  }
  std::string const text = std::to_string(tensors.size()) + " tensors" +
                           (tensors.empty() ? "" : ", the last is " + tensor_text(tensors.back()));
  throw_mismatch(talk, failure, odd_rank, "tensors", "", text);
}

}  // namespace

std::uint64_t tensor_hash(TensorDesc const& tensor) noexcept {
  return PlanHash()
      .add(std::string_view(tensor.name))
      .add(tensor.num_elements)
      .add(tensor.dtype)
      .add(tensor.num_rows)
      .value();
}

void handshake(exchange::ExchangeContext& context, std::span<HandshakeField const> fields,
               std::span<TensorDesc const> tensors, Failure& failure, char const* during) {
  PlanHash hash;
  for (HandshakeField const& field : fields) hash.add(field.hash);
  for (TensorDesc const& tensor : tensors) hash.add(tensor_hash(tensor));
  Conversation talk(context, during);
  if (first_different(talk.gather(hash.value())) == talk.world_size()) return;

  for (HandshakeField const& field : fields) {
    std::size_t const rank = first_different(talk.gather(field.hash));
    if (rank < talk.world_size())
      throw_mismatch(talk, failure, rank, field.name, "", field.own_value);
  }
  find_tensor_mismatch(talk, tensors, failure);
}

}  // namespace gradsieve
