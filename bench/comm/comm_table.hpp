// SPDX-License-Identifier: Apache-2.0
// Rows of gradsieve-comm as a table for people, CSV and JSON.
#pragma once

#include <string>
#include <vector>

#include "bench/comm/measure.hpp"

namespace gradsieve::bench {

/// Prints to stdout, in the columns of nccl-tests and ours.
void print_header(int world_size);
void print_row(Row const& row, int world_size);

/// Writes a file whole or not at all. What was not found out is null in JSON and empty in CSV.
/// `sent_bytes`: what all ranks have handed to the transport in the whole run.
/// Throws Error(io_error).
void write_json(std::string const& path, std::vector<Row> const& rows, int world_size,
                std::string const& command, std::uint64_t sent_bytes);
void write_csv(std::string const& path, std::vector<Row> const& rows, int world_size);

}  // namespace gradsieve::bench
