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
/// Throws Error(io_error).
void write_json(std::string const& path, std::vector<Row> const& rows, int world_size,
                std::string const& command);
void write_csv(std::string const& path, std::vector<Row> const& rows, int world_size);

}  // namespace gradsieve::bench
