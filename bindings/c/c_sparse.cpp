// SPDX-License-Identifier: Apache-2.0
// Exchanges of given indices.
#include "bindings/c/guard.hpp"
#include "bindings/c/handles.hpp"

using namespace gradsieve;

namespace {

SparseInput input_of(std::uint64_t const* indices, float const* values, std::uint64_t count,
                     std::uint64_t num_elements) {
  return {num_elements, c::required_array(indices, count, "indices"),
          c::required_array(values, count, "values")};
}

/// Runs `exchange(transport, lists, options)` and throws its own sentence if it fails.
template <typename Exchange>
gsvSparse* run(gsvComm_t comm, gsvSparseOptions const* options, Exchange const& exchange) {
  gsvSparseOptions const given = c::read(options, "options");
  std::string failure;
  SparseExchangeOptions known;
  known.tag = given.tag;
  known.failure = &failure;
  if (given.deadline_ms != 0) known.deadline = std::chrono::milliseconds(given.deadline_ms);
  auto result = std::make_unique<gsvSparse>();
  Status const status = exchange(*c::required(comm, "comm").transport, result->lists, known);
  if (!status.ok()) throw Error(status.code(), failure.empty() ? status.message() : failure);
  return result.release();
}

}  // namespace

extern "C" {

gsvResult_t gsvSparseAllGather(uint64_t const* indices, float const* values, uint64_t count,
                               uint64_t num_elements, gsvSparse_t* result,
                               gsvSparseOptions_t const* options, gsvComm_t comm, gsvStream_t) {
  return c::guard([&] {
    SparseInput const input = input_of(indices, values, count, num_elements);
    c::required(result, "result");
    *result = run(comm, options, [&](Transport& transport, auto& lists, auto const& known) {
      return sparse_all_gather(transport, input, lists, known);
    });
  });
}

gsvResult_t gsvSparseAllReduce(uint64_t const* indices, float const* values, uint64_t count,
                               uint64_t num_elements, float weight, gsvSparse_t* result,
                               gsvSparseOptions_t const* options, gsvComm_t comm, gsvStream_t) {
  return c::guard([&] {
    SparseInput const input = input_of(indices, values, count, num_elements);
    c::required(result, "result");
    *result = run(comm, options, [&](Transport& transport, auto& lists, auto const& known) {
      lists.resize(1);
      return sparse_all_reduce(transport, input, weight, lists[0], known);
    });
  });
}

gsvResult_t gsvSparseGet(gsvSparse_t result, uint32_t list, uint64_t const** indices,
                         float const** values, uint64_t* count) {
  return c::guard([&] {
    std::vector<SparseResult> const& lists = c::required(result, "result").lists;
    if (list >= lists.size())
      throw Error(Code::invalid_argument, "list is " + std::to_string(list) + "; the result has " +
                                              std::to_string(lists.size()));
    c::required(indices, "indices") = lists[list].indices.data();
    c::required(values, "values") = lists[list].values.data();
    c::required(count, "count") = lists[list].indices.size();
  });
}

gsvResult_t gsvSparseDestroy(gsvSparse_t result) {
  return c::guard([&] { delete result; });
}

}  // extern "C"
