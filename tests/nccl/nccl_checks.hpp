// SPDX-License-Identifier: Apache-2.0
// What every exchange of device memory must give, for ranks of any kind.
#pragma once

#include "tests/nccl/nccl_ranks.hpp"

namespace gradsieve::testing {

/// Against plain computations on the host, at sizes around borders and at any alignment.
void check_all_gather(NcclRank& rank, DeviceExchange& exchange);
void check_all_to_all(NcclRank& rank, DeviceExchange& exchange);
void check_all_reduce(NcclRank& rank, DeviceExchange& exchange);
void check_all_reduce_min(NcclRank& rank, DeviceExchange& exchange);

/// One stream fills, another exchanges, a third reads, with events between them, or with one of
/// the two waits left out.
enum class EventWaits { all, without_filling, without_exchange };
[[nodiscard]] bool distinct_streams_agree(NcclRank& rank, EventWaits waits);
/// All four in a graph that is replayed 20 times on changing data.
void check_graph(NcclRank& rank);

}  // namespace gradsieve::testing
