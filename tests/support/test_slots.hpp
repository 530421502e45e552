// SPDX-License-Identifier: Apache-2.0
// The state of one piece, held the way a hook holds it: two copies of every slot.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "gradsieve/compressor.hpp"

namespace gradsieve::testing {

/// The bytes of one tensor between steps.
using SavedSlots = std::vector<std::vector<std::byte>>;

class TestSlots {
 public:
  TestSlots(Compressor const& compressor, TensorInfo const& piece) {
    for (SlotInfo const& info : compressor.slots(piece)) {
      infos_.push_back(info);
      committed_.emplace_back(info.num_bytes);
      next_.emplace_back(info.num_bytes, std::byte{0xEE});  // a step may not rely on what is there
    }
    refresh();
  }
  TestSlots(TestSlots const&) = delete;
  TestSlots& operator=(TestSlots const&) = delete;

  [[nodiscard]] StateView view() noexcept { return {views_}; }

  void commit() {
    for (std::size_t i = 0; i < infos_.size(); ++i) {
      if (flags_[i]) {
        committed_[i].swap(next_[i]);
      }
    }
    refresh();
  }
  void roll_back() { refresh(); }

  [[nodiscard]] SavedSlots const& committed() const noexcept { return committed_; }
  void restore(SavedSlots const& saved) {
    committed_ = saved;
    refresh();
  }

 private:
  void refresh() {
    flags_ = std::make_unique<bool[]>(infos_.size());
    views_.clear();
    for (std::size_t i = 0; i < infos_.size(); ++i) {
      views_.push_back({infos_[i], committed_[i], next_[i], &flags_[i]});
    }
  }

  std::vector<SlotInfo> infos_;
  SavedSlots committed_;
  SavedSlots next_;
  std::unique_ptr<bool[]> flags_;
  std::vector<SlotView> views_;
};

}  // namespace gradsieve::testing
