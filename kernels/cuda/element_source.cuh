// SPDX-License-Identifier: Apache-2.0
// The elements of c as items of a selection (select.cuh).
#pragma once

#include "kernels/cuda/corrected_tile.cuh"
#include "kernels/cuda/select.cuh"

namespace gradsieve::kernels::cuda {

struct ElementSource {
  using Key = std::uint32_t;
  struct Item {
    Key key;
    std::uint32_t index;
    float value;
    bool is_sure;
  };

  float const* c;
  std::uint64_t num_elements;

  [[nodiscard]] __device__ bool has_work(std::uint64_t, SelectTile const& record) const {
    return record.num_above + record.num_taken != 0;
  }
  [[nodiscard]] __device__ std::uint32_t num_items(std::uint64_t tile) const {
    return static_cast<std::uint32_t>(
        min(num_elements - tile * kSelectTile, std::uint64_t{kSelectTile}));
  }
  [[nodiscard]] __device__ Item item(std::uint64_t tile, std::uint32_t i) const {
    std::uint64_t const index = tile * kSelectTile + i;
    float const value = c[index];
    return {magnitude_of(value), static_cast<std::uint32_t>(index), value, false};
  }
};

struct ElementWriter {
  std::uint32_t* indices;
  float* values;
  float* residual;

  __device__ void write(ElementSource::Item const& item, std::uint64_t place) const {
    indices[place] = item.index;
    values[place] = item.value;
    residual[item.index] = 0.0F;
  }
  __device__ void leave(ElementSource::Item const&) const {}
};

}  // namespace gradsieve::kernels::cuda
