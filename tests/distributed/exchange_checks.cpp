// SPDX-License-Identifier: Apache-2.0
#include "tests/distributed/exchange_checks.hpp"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "gradsieve/exchange.hpp"

namespace gradsieve::test {

namespace {

constexpr std::uint64_t kCounts[] = {0, 1, 2, 3, 5, 15, 16, 17, 255, 1025};

std::string complaint(Status const& status, char const* what) {
  return std::string(what) + ": " + std::string(code_name(status.code())) + ": " + status.message();
}

template <typename T>
std::string difference(char const* what, std::uint64_t count, std::uint64_t index, T expected,
                       T actual) {
  std::ostringstream out;
  out << what << " of " << count << " elements: expected " << expected << " at index " << index
      << ", got " << actual;
  return out.str();
}

template <typename T>
std::vector<T> values_of(int rank, std::uint64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::uint64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] = static_cast<T>(rank_value(rank, i));
  return values;
}

/// `bytes` holds exactly the values of `rank`.
std::string compare(char const* what, int rank, std::uint64_t count, ConstBytes bytes) {
  std::vector<std::uint64_t> const expected = values_of<std::uint64_t>(rank, count);
  if (bytes.size() != count * 8)
    return difference(what, count, 0, count * 8, std::uint64_t{bytes.size()});
  std::vector<std::uint64_t> actual(expected.size());
  if (!bytes.empty()) std::memcpy(actual.data(), bytes.data(), bytes.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    if (actual[i] != expected[i]) return difference(what, count, i, expected[i], actual[i]);
  return {};
}

/// An all_gather in which rank r brings count_of(r) values.
template <typename CountOf>
std::string gather_and_compare(Transport& transport, Exchanger& exchanger,
                               CountOf const& count_of) {
  int const world_size = transport.world_size();
  std::uint64_t capacity = 0;
  for (int rank = 0; rank < world_size; ++rank) capacity = std::max(capacity, 8 * count_of(rank));
  std::vector<std::uint64_t> const own =
      values_of<std::uint64_t>(transport.rank(), count_of(transport.rank()));
  std::size_t const scratch =
      exchange::all_gather_scratch_bytes(world_size, static_cast<std::size_t>(capacity));
  exchange::ExchangeContext& context = exchanger.next(scratch);

  std::string wrong;
  int next_rank = 0;
  Status const status =
      exchange::all_gather(context, std::as_bytes(std::span(own)),
                           static_cast<std::size_t>(capacity), [&](int rank, ConstBytes bytes) {
                             if (wrong.empty() && rank != next_rank)
                               wrong = difference("all_gather order", 0, 0, next_rank, rank);
                             if (wrong.empty())
                               wrong = compare("all_gather", rank, count_of(rank), bytes);
                             ++next_rank;
                             return Status{};
                           });
  if (!status.ok()) return complaint(status, "all_gather");
  if (next_rank != world_size) return difference("all_gather calls", 0, 0, world_size, next_rank);
  return wrong;
}

template <typename T>
std::string check_all_reduce(Transport& transport) {
  Exchanger exchanger(transport);
  int const world_size = transport.world_size();
  for (std::uint64_t const count : kCounts) {
    std::vector<T> const own = values_of<T>(transport.rank(), count);
    std::vector<T> result(own.size(), T{-7});
    std::size_t const scratch = exchange::all_reduce_scratch_bytes(world_size, count, kDTypeOf<T>);
    Status const status = exchange::all_reduce(exchanger.next(scratch), std::span<T const>(own),
                                               std::span<T>(result));
    if (!status.ok()) return complaint(status, "all_reduce");
    if (own != values_of<T>(transport.rank(), count)) return "all_reduce changed its input";
    for (std::size_t i = 0; i < result.size(); ++i) {
      T expected = 0;
      for (int rank = 0; rank < world_size; ++rank) expected += static_cast<T>(rank_value(rank, i));
      if (result[i] != expected) return difference("all_reduce", count, i, expected, result[i]);
    }
  }
  return {};
}

}  // namespace

Exchanger::Exchanger(Transport& transport, std::uint32_t tag, std::chrono::milliseconds deadline)
    : ranks_(static_cast<std::size_t>(transport.world_size())),
      deadline_(deadline),
      requests_(2 * ranks_),
      gone_(std::make_unique<bool[]>(ranks_)) {
  context_.transport = &transport;
  context_.requests = requests_;
  context_.gone = gone();
  context_.tag = tag;
}

exchange::ExchangeContext& Exchanger::next(std::size_t scratch_bytes) {
  scratch_.resize(std::max(scratch_.size(), scratch_bytes));
  context_.scratch = scratch_;
  context_.deadline = Clock::now() + deadline_;
  ++context_.tag;
  return context_;
}

std::string check_all_gather(Transport& transport) {
  Exchanger exchanger(transport);
  for (std::uint64_t const count : kCounts) {
    std::string const wrong = gather_and_compare(transport, exchanger, [&](int) { return count; });
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string check_all_gather_of_unequal_sizes(Transport& transport) {
  Exchanger exchanger(transport);
  auto const counts = [](int rank) {
    return std::vector<std::uint64_t>{0, 1, 1000, 17, 3}[static_cast<std::size_t>(rank) % 5];
  };
  std::string const wrong = gather_and_compare(transport, exchanger, counts);
  if (!wrong.empty()) return wrong;
  return gather_and_compare(transport, exchanger,
                            [](int rank) { return rank == 0 ? std::uint64_t{33} : 0; });
}

std::string check_all_to_all(Transport& transport) {
  Exchanger exchanger(transport);
  int const world_size = transport.world_size();
  int const own_rank = transport.rank();
  // All counts are tried even if one went wrong here: another rank may not have noticed, and waits.
  std::string wrong;
  // From rank r to rank q go `count + q` values that begin at 100·q, so that both ends are in them.
  for (std::uint64_t const count : kCounts) {
    auto const make = [&](int from, int to) {
      std::vector<std::uint64_t> values(static_cast<std::size_t>(count) +
                                        static_cast<std::size_t>(to));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = rank_value(from, 100 * static_cast<std::uint64_t>(to) + i);
      return values;
    };
    std::vector<std::vector<std::uint64_t>> own;
    std::vector<ConstBytes> own_bytes;
    for (int to = 0; to < world_size; ++to) own.push_back(make(own_rank, to));
    for (auto const& values : own) own_bytes.push_back(std::as_bytes(std::span(values)));
    std::size_t const capacity =
        8 * (static_cast<std::size_t>(count) + static_cast<std::size_t>(world_size));
    exchange::ExchangeContext& context =
        exchanger.next(exchange::all_to_all_scratch_bytes(world_size, capacity));

    Status const status =
        exchange::all_to_all(context, own_bytes, capacity, [&](int rank, ConstBytes bytes) {
          std::vector<std::uint64_t> const expected = make(rank, own_rank);
          ConstBytes const expected_bytes = std::as_bytes(std::span(expected));
          if (!std::equal(bytes.begin(), bytes.end(), expected_bytes.begin(), expected_bytes.end()))
            wrong = "all_to_all: wrong bytes from rank " + std::to_string(rank);
          return Status{};
        });
    if (!status.ok()) return complaint(status, "all_to_all");
  }
  return wrong;
}

std::string check_all_reduce_f32(Transport& transport) {
  return check_all_reduce<float>(transport);
}
std::string check_all_reduce_f64(Transport& transport) {
  return check_all_reduce<double>(transport);
}

std::string check_all_reduce_adds_in_rank_order(Transport& transport) {
  Exchanger exchanger(transport);
  int const world_size = transport.world_size();
  // Full mantissas of alternating sign: nearly every sum rounds, and how depends on the order.
  auto const value = [](int rank, std::size_t i) {
    std::uint64_t const mixed = (static_cast<std::uint64_t>(rank) + 1) * 7'919'317 + i * 104'729;
    float const magnitude = static_cast<float>(mixed % 16'777'213) * 0.37F;
    return rank % 2 == 0 ? magnitude : -magnitude;
  };
  std::vector<float> own(37);
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = value(transport.rank(), i);
  std::vector<float> result(own.size());
  exchange::ExchangeContext& context =
      exchanger.next(exchange::all_reduce_scratch_bytes(world_size, own.size(), DType::f32));
  Status const status =
      exchange::all_reduce(context, std::span<float const>(own), std::span<float>(result));
  if (!status.ok()) return complaint(status, "all_reduce");
  std::size_t num_order_matters = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    float expected = value(0, i);
    for (int rank = 1; rank < world_size; ++rank) expected += value(rank, i);
    float backwards = value(world_size - 1, i);
    for (int rank = world_size - 2; rank >= 0; --rank) backwards += value(rank, i);
    if (backwards != expected) ++num_order_matters;
    if (result[i] != expected)
      return difference("ordered all_reduce", own.size(), i, expected, result[i]);
  }
  if (world_size > 2 && num_order_matters == 0) return "the values do not tell orders apart";
  return {};
}

std::string check_word(Transport& transport) {
  Exchanger exchanger(transport);
  std::size_t const ranks = static_cast<std::size_t>(transport.world_size());
  std::vector<std::uint64_t> words(ranks);
  std::unique_ptr<bool[]> const heard = std::make_unique<bool[]>(ranks);
  for (Channel const channel : {Channel::data, Channel::control}) {
    exchange::ExchangeContext context = exchanger.next();
    context.channel = channel;
    std::uint64_t const own = rank_value(transport.rank(), 1) | (std::uint64_t{1} << 63);
    Status const status = exchange::all_gather_word(context, own, words, {heard.get(), ranks});
    if (!status.ok()) return complaint(status, "all_gather_word");
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::uint64_t const expected =
          rank_value(static_cast<int>(rank), 1) | (std::uint64_t{1} << 63);
      if (!heard[rank] || words[rank] != expected)
        return difference("word", ranks, rank, expected, words[rank]);
    }
  }
  return {};
}

std::string check_gaps_keep_their_canaries(Transport& transport) {
  constexpr int kCanary = -7;
  std::vector<std::size_t> const counts{2, 1, 3, 0, 2};
  std::vector<std::size_t> const places{0, 5, 9, 13, 15};
  std::vector<int> gathered(20, kCanary);
  int const world_size = transport.world_size();
  std::size_t const own_rank = static_cast<std::size_t>(transport.rank());
  std::vector<int> own(counts[own_rank]);
  for (std::size_t i = 0; i < own.size(); ++i)
    own[i] = static_cast<int>(rank_value(transport.rank(), i));
  Exchanger exchanger(transport);
  std::size_t const capacity = 3 * sizeof(int);

  Status const status = exchange::all_gather(
      exchanger.next(exchange::all_gather_scratch_bytes(world_size, capacity)),
      std::as_bytes(std::span(own)), capacity, [&](int rank, ConstBytes bytes) -> Status {
        std::size_t const r = static_cast<std::size_t>(rank);
        if (bytes.size() != counts[r] * sizeof(int))
          return {Code::corrupt_payload, "a block has the wrong length"};
        if (!bytes.empty()) std::memcpy(gathered.data() + places[r], bytes.data(), bytes.size());
        return {};
      });
  if (!status.ok()) return complaint(status, "all_gather");
  std::vector<int> expected(20, kCanary);
  for (std::size_t r = 0; r < static_cast<std::size_t>(world_size); ++r)
    for (std::size_t i = 0; i < counts[r]; ++i)
      expected[places[r] + i] = static_cast<int>(rank_value(static_cast<int>(r), i));
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (gathered[i] != expected[i])
      return difference("gather with gaps", 20, i, expected[i], gathered[i]);
  return {};
}

std::string check_messages_of_one_tag_arrive_in_order(Transport& transport) {
  constexpr std::size_t kMessages = 6;
  int const world_size = transport.world_size();
  int const to = (transport.rank() + 1) % world_size;
  int const from = (transport.rank() + world_size - 1) % world_size;
  std::vector<std::vector<std::uint64_t>> sent;
  std::vector<std::vector<std::uint64_t>> received(kMessages, std::vector<std::uint64_t>(1000));
  std::vector<Request> requests(2 * kMessages);
  // All are under way at once, some longer than a chunk of the chunked MPI tests.
  for (std::size_t m = 0; m < kMessages; ++m)
    sent.push_back(values_of<std::uint64_t>(transport.rank(), m * 160));
  for (std::size_t m = 0; m < kMessages; ++m) {
    Bytes const room = std::as_writable_bytes(std::span(received[m]));
    Status const status = transport.receive(Channel::data, from, 9, room, requests[m]);
    if (!status.ok()) return complaint(status, "receive");
  }
  for (std::size_t m = 0; m < kMessages; ++m) {
    Status const status = transport.send(Channel::data, to, 9, std::as_bytes(std::span(sent[m])),
                                         requests[kMessages + m]);
    if (!status.ok()) return complaint(status, "send");
  }
  // Waited for from the last to the first: the order of waiting decides nothing.
  for (std::size_t m = 2 * kMessages; m-- > 0;) {
    Status const status = transport.wait(requests[m], Clock::now() + std::chrono::seconds(20));
    if (!status.ok()) return complaint(status, "wait");
  }
  for (std::size_t m = 0; m < kMessages; ++m) {
    ConstBytes const bytes = std::as_bytes(std::span(received[m]))
                                 .first(static_cast<std::size_t>(requests[m].num_bytes));
    std::string const wrong = compare("message in order", from, m * 160, bytes);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string check_channels_do_not_wait_for_each_other(Transport& transport) {
  int const world_size = transport.world_size();
  int const to = (transport.rank() + 1) % world_size;
  int const from = (transport.rank() + world_size - 1) % world_size;
  std::uint64_t const own[2] = {rank_value(transport.rank(), 1), rank_value(transport.rank(), 2)};
  std::uint64_t received[2] = {0, 0};
  Request requests[4];
  Deadline const deadline = Clock::now() + std::chrono::seconds(20);
  auto const word = [](std::uint64_t& value) {
    return std::as_writable_bytes(std::span(&value, 1));
  };
  auto const const_word = [](std::uint64_t const& value) {
    return std::as_bytes(std::span(&value, 1));
  };

  Status status = transport.receive(Channel::data, from, 5, word(received[0]), requests[0]);
  if (status.ok())
    status = transport.receive(Channel::control, from, 5, word(received[1]), requests[1]);
  if (status.ok())
    status = transport.send(Channel::control, to, 5, const_word(own[1]), requests[3]);
  if (status.ok()) status = transport.wait(requests[1], deadline);
  if (status.ok()) status = transport.send(Channel::data, to, 5, const_word(own[0]), requests[2]);
  for (Request& request : requests)
    if (status.ok()) status = transport.wait(request, deadline);
  if (!status.ok()) return complaint(status, "channels");
  for (std::size_t i = 0; i < 2; ++i)
    if (received[i] != rank_value(from, i + 1))
      return difference("channel", 2, i, rank_value(from, i + 1), received[i]);
  return {};
}

std::string check_sparse_sum(Transport& transport) {
  constexpr std::uint64_t kElements = 20'011;
  auto const pairs_of = [](int rank) {
    std::uint64_t const r = static_cast<std::uint64_t>(rank);
    std::pair<std::vector<std::uint64_t>, std::vector<float>> pairs;
    for (std::uint64_t i = 0; i < (r % 3) * 300 + r; ++i) {
      pairs.first.push_back((i * i * 977 + r * 31) % kElements / (1 + i % 2 * 50));
      pairs.second.push_back(static_cast<float>(rank_value(rank, i)));
    }
    return pairs;
  };
  std::vector<float> expected(kElements, 0.0F);
  std::vector<bool> touched(kElements, false);
  for (int rank = 0; rank < transport.world_size(); ++rank) {
    auto const [indices, values] = pairs_of(rank);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      expected[indices[i]] += values[i];
      touched[indices[i]] = true;
    }
  }
  auto const [indices, values] = pairs_of(transport.rank());
  SparseResult result;
  std::string failure;
  Status const status = sparse_all_reduce(transport, {kElements, indices, values}, 1.0F, result,
                                          {.failure = &failure});
  if (!status.ok()) return complaint(status, "sparse_all_reduce") + ": " + failure;
  std::size_t next = 0;
  for (std::uint64_t i = 0; i < kElements; ++i) {
    if (!touched[i]) continue;
    if (next == result.indices.size()) return "sparse sum: too few indices";
    if (result.indices[next] != i)
      return difference("sparse index", next, i, i, result.indices[next]);
    if (result.values[next] != expected[i])
      return difference("sparse sum", next, i, expected[i], result.values[next]);
    ++next;
  }
  return next == result.indices.size() ? std::string() : "sparse sum: too many indices";
}

std::vector<NamedCheck> const& exchange_checks() {
  static std::vector<NamedCheck> const checks{
      {"AllGather", check_all_gather},
      {"AllGatherOfUnequalSizes", check_all_gather_of_unequal_sizes},
      {"AllToAll", check_all_to_all},
      {"AllReduceF32", check_all_reduce_f32},
      {"AllReduceF64", check_all_reduce_f64},
      {"AllReduceAddsInRankOrder", check_all_reduce_adds_in_rank_order},
      {"Word", check_word},
      {"MpienvC77GapsKeepTheirCanaries", check_gaps_keep_their_canaries},
      {"SparseSum", check_sparse_sum},
      {"MessagesOfOneTagArriveInOrder", check_messages_of_one_tag_arrive_in_order},
      {"ChannelsDoNotWaitForEachOther", check_channels_do_not_wait_for_each_other},
  };
  return checks;
}

}  // namespace gradsieve::test
