// SPDX-License-Identifier: Apache-2.0
// What the handles of the C interface point to. Each keeps alive what it was made from.
#pragma once

#include <memory>
#include <vector>

#include "gradsieve/exchange.hpp"
#include "gradsieve/gradsieve.h"
#include "gradsieve/hook.hpp"

struct gsvContext {
  gradsieve::Backend backend = gradsieve::Backend::cpu;
  std::uint64_t seed = 0;
  int num_threads = 1;
  /// Replaced as a whole when a plug-in is loaded: hooks keep the one they were made with.
  std::shared_ptr<gradsieve::Registry const> registry;
};

struct gsvComm {
  std::shared_ptr<gradsieve::Transport> transport;
};

struct gsvHook {
  std::shared_ptr<gradsieve::Transport> transport;
  std::shared_ptr<gradsieve::Registry const> registry;
  gradsieve::Backend backend = gradsieve::Backend::cpu;
  gradsieve::Hook hook;
  std::vector<gradsieve::Stats> stats;  ///< what the last answer's strings point into
};

struct gsvSparse {
  std::vector<gradsieve::SparseResult> lists;
};
