// SPDX-License-Identifier: Apache-2.0
// The bytes of one rank's state, in a file or in memory, and what becomes of several when the
// number of ranks changes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/hook_impl.hpp"

namespace gradsieve {

struct StateFile {
  std::uint32_t world_size = 1;
  std::uint32_t rank = 0;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t history = 0;
  std::map<std::string, Memento> tensors;
};

/// Layout (little-endian): "GSVSTAT1", u32 world_size, u32 rank, u64 seed, u64 step, u64 history,
/// u64 number of tensors; per tensor: u64 length and name, f32 residual scale, u32 number of slots,
/// u64 number of residual elements and the f32 values; per slot: u64 length and name, u32 kind, u64
/// length and bytes; at the end the XXH64 of all before.
[[nodiscard]] std::vector<std::byte> serialize(StateFile const& file);

/// `name` stands for the bytes in errors. Throws Error(corrupt_payload) if they are no such state.
[[nodiscard]] StateFile parse_state(ConstBytes bytes, std::string const& name);

/// The file appears whole or not at all. Throws Error(io_error).
void write_state_file(std::string const& path, ConstBytes state);
[[nodiscard]] std::vector<std::byte> read_state_file(std::string const& path);

/// The state of `rank` among `world_size`, from the files of all old ranks: a residual (local_sum)
/// goes to rank (old rank mod world_size) and is added there, so that the sum over ranks stays; a
/// replicated slot is rank 0's. `reset` drops what is local.
[[nodiscard]] StateFile redistribute(std::span<StateFile const> old_files, std::size_t rank,
                                     std::size_t world_size, bool reset);

}  // namespace gradsieve
