// SPDX-License-Identifier: Apache-2.0
// "Did you mean ...?"
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace gradsieve {

/// Fewest insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`
/// (each place is touched once at most).
[[nodiscard]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t const replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      bool const swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

/// The candidate that `name` was most likely meant to be, the first of several; empty if none is
/// near: more than a third of the letters would have to change, and none begins with `name`.
/// Case, `-` and `_` are not told apart.
[[nodiscard]] inline std::string nearest(std::string_view name,
                                         std::vector<std::string> const& candidates) {
  auto const plain = [](std::string_view text) {
    std::string result;
    for (char const c : text) {
      if (c == '-' || c == '_') continue;
      result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return result;
  };
  // No name is as long as this, and the distance costs the product of the lengths.
  if (name.size() > 64) return {};
  std::string const wanted = plain(name);
  std::string best;
  std::size_t best_distance = wanted.size();
  for (std::string const& candidate : candidates) {
    std::string const offered = plain(candidate);
    std::size_t distance = edit_distance(wanted, offered);
    bool const begins = wanted.size() >= 3 && offered.starts_with(wanted);
    if (begins) distance = std::min<std::size_t>(distance, 1);
    std::size_t const allowed =
        std::max<std::size_t>(1, std::max(wanted.size(), offered.size()) / 3);
    if (distance <= allowed && distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace gradsieve
