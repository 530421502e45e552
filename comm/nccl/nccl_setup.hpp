// SPDX-License-Identifier: Apache-2.0
// How the ranks of a host transport come to a communicator.
#pragma once

#include <memory>

#include "gradsieve/nccl.hpp"

#include "comm/nccl/nccl_communicator.hpp"

namespace gradsieve {

/// Collective. All ranks throw Error if one of them cannot take part.
[[nodiscard]] std::unique_ptr<NcclCommunicator> make_communicator(Transport& host,
                                                                  NcclOptions options = {});
/// Of the ranks that have the same id.
[[nodiscard]] std::unique_ptr<NcclCommunicator> make_communicator(NcclId const& id, int world_size,
                                                                  int rank, NcclOptions options);

}  // namespace gradsieve
