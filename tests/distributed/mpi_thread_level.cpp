// SPDX-License-Identifier: Apache-2.0
// Case C-73: a program that initialises MPI itself, at the thread level that its argument names
// (single, funneled, serialized, multiple), then uses the library, then ends MPI itself.
#include <array>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <mpi.h>

#include "gradsieve/mpi.hpp"

#include "comm/exchange/collectives.hpp"

namespace gradsieve {
namespace {

int num_failures = 0;

void expect(bool holds, char const* what) {
  if (holds) return;
  ++num_failures;
  std::fprintf(stderr, "mpi_thread_level: expected: %s\n", what);
}

void expect_usage_error(std::function<void()> const& call, char const* what) {
  try {
    call();
    expect(false, what);
  } catch (Error const& error) {
    expect(error.code() == Code::invalid_usage && std::string(error.what()).size() > 20, what);
  }
}

/// [1, 2] from each rank.
Status reduce(Transport& transport, std::array<float, 2>& result) {
  std::array<float, 2> const own{1.0F, 2.0F};
  std::vector<Request> requests(2 * static_cast<std::size_t>(transport.world_size()));
  std::vector<std::byte> scratch(
      exchange::all_reduce_scratch_bytes(transport.world_size(), own.size(), DType::f32));
  exchange::ExchangeContext context;
  context.transport = &transport;
  context.requests = requests;
  context.scratch = scratch;
  context.deadline = Clock::now() + std::chrono::seconds(20);
  return exchange::all_reduce(context, std::span<float const>(own), std::span<float>(result));
}

void check_reduce(Transport& transport, char const* what) {
  std::array<float, 2> result{};
  Status const status = reduce(transport, result);
  float const ranks = static_cast<float>(transport.world_size());
  expect(status.ok() && result[0] == ranks && result[1] == 2.0F * ranks, what);
}

void run(int level) {
  std::unique_ptr<Transport> const transport = make_mpi_transport(MPI_COMM_WORLD);
  check_reduce(*transport, "a sum on the thread that initialised MPI");
  expect(transport->traits().any_thread == (level == MPI_THREAD_MULTIPLE),
         "a progress thread exactly where MPI allows any thread");

  std::thread([&] {
    if (level >= MPI_THREAD_SERIALIZED) {
      check_reduce(*transport, "a sum on another thread");
      return;
    }
    std::array<float, 2> result{};
    expect(reduce(*transport, result).code() == Code::invalid_usage,
           "invalid_usage on a thread that MPI was not initialised for");
    expect_usage_error([] { static_cast<void>(make_mpi_transport(MPI_COMM_WORLD)); },
                       "an error for a transport made on such a thread");
  }).join();
  check_reduce(*transport, "a sum after all that");
}

}  // namespace
}  // namespace gradsieve

int main(int argc, char** argv) {
  using namespace gradsieve;
  std::map<std::string, int> const levels{{"single", MPI_THREAD_SINGLE},
                                          {"funneled", MPI_THREAD_FUNNELED},
                                          {"serialized", MPI_THREAD_SERIALIZED},
                                          {"multiple", MPI_THREAD_MULTIPLE}};
  auto const level = argc == 2 ? levels.find(argv[1]) : levels.end();
  if (level == levels.end()) {
    std::fprintf(stderr, "usage: mpi_thread_level single|funneled|serialized|multiple\n");
    return 2;
  }
  expect_usage_error([] { static_cast<void>(make_mpi_transport(MPI_COMM_WORLD)); },
                     "an error before MPI_Init");

  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, level->second, &provided);
  run(provided);
  std::unique_ptr<Transport> const survivor = make_mpi_transport(MPI_COMM_WORLD);
  int result = num_failures == 0 ? 0 : 1;
  MPI_Allreduce(MPI_IN_PLACE, &result, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();

  Request request;
  expect(survivor->send(Channel::data, 0, 0, {}, request).code() == Code::invalid_usage,
         "invalid_usage after MPI_Finalize");
  expect_usage_error([] { static_cast<void>(make_mpi_transport(MPI_COMM_WORLD)); },
                     "an error after MPI_Finalize");
  return num_failures == 0 ? result : 1;
}
