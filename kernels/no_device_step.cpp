// SPDX-License-Identifier: Apache-2.0
// In place of kernels/cuda/device_step.cu in a build without CUDA, whose hooks never come here: a
// hook with backend=cuda cannot be made.
#include "kernels/device_step.hpp"

namespace gradsieve::kernels {

void set_step(ExecContext const&, std::uint64_t, std::uint64_t, float, DeviceStep*) noexcept {}
void set_words(ExecContext const&, std::span<std::uint64_t const>, std::uint64_t*) noexcept {}
void resolve_outcome(ExecContext const&, DeviceStep const*, std::span<DeviceParcel>) noexcept {}
void begin_step(ExecContext const&, DeviceStep*, std::span<DeviceParcel>, bool, PieceWords const&,
                std::span<std::uint32_t>) noexcept {}
void seal_letter(ExecContext const&, PayloadHeader const&, std::uint64_t, DeviceStep const*,
                 DeviceParcel*, std::uint32_t, std::byte*) noexcept {}
void open_letter(ExecContext const&, LetterCheck const&, std::byte const*) noexcept {}
void write_lanes(ExecContext const&, bool, DeviceStep const*, DeviceParcel*, std::uint32_t,
                 float*) noexcept {}
void read_lanes(ExecContext const&, LetterCheck const&, float const*) noexcept {}
void fill_if(ExecContext const&, std::uint32_t const*, bool, TensorView) noexcept {}
void copy_if(ExecContext const&, std::uint32_t const*, std::span<std::byte const>,
             std::span<std::byte>) noexcept {}
void cast_vote(ExecContext const&, bool, DeviceStep*, std::span<DeviceParcel const>) noexcept {}
void tally(ExecContext const&, DeviceStep*) noexcept {}
void set_outcome(ExecContext const&, DeviceOutcome, DeviceStep*) noexcept {}
void refuse_step(ExecContext const&, DeviceStep*) noexcept {}

}  // namespace gradsieve::kernels
