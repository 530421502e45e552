// SPDX-License-Identifier: Apache-2.0
// What stands around the coded elements of a body.
#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "bench/cuda/gpu_case.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::bench {
namespace {

constexpr std::uint64_t kBlockElements = 64;

void add_clear_and_copy(CaseList& list) {
  std::uint64_t const n = list.num_elements;
  GpuCase clear = {.kernel = "clear", .variant = "a body", .traffic = {"4 out", 4}};
  std::size_t const cleared = clear.output(4 * n);
  clear.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::clear(ctx, a.bytes(cleared));
  };
  list.add(std::move(clear));

  GpuCase copy = {.kernel = "copy", .variant = "a body", .traffic = {"4 from + 4 to", 8}};
  std::size_t const from = copy.floats(n, 1);
  std::size_t const to = copy.output(4 * n);
  copy.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::copy(ctx, a.bytes(from), a.bytes(to));
  };
  list.add(std::move(copy));
}

/// A selection of 1 % in room for 1.5 %: on a device the rest is filled, which ref is spared.
void add_count_selection(CaseList& list) {
  std::uint64_t const n = list.num_elements;
  std::uint64_t const k = n / 100;
  std::uint64_t const room = k + k / 2;
  GpuCase c = {.kernel = "count_selection",
               .variant = "1 % in room for 1.5 %",
               .traffic = {"8 (room - k)/n", 0.04}};
  std::size_t const indices = c.output(4 * room);
  std::size_t const values = c.output(4 * room);
  std::size_t const counts = c.prepared(sizeof(SparseCounts));
  c.prepare = [=](ExecContext const& ctx, Arrays const& a) {
    a.write(ctx, counts, std::vector<SparseCounts>{{k, k, 1}});
  };
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    SparseView const view = {.indices = a.as<std::uint32_t>(indices),
                             .values = a.as<float>(values),
                             .num_indices = k,
                             .num_values = k,
                             .num_overflowed = 1,
                             .counts = a.as<SparseCounts>(counts).data()};
    kernels::count_selection(ctx, view, n);
    if (ctx.backend == Backend::cuda) return;
    std::ranges::fill(view.values.subspan(k), 0.0F);
    auto const rest = view.indices.subspan(k);
    std::iota(rest.begin(), rest.end(), static_cast<std::uint32_t>(n));
  };
  list.add(std::move(c));
}

void add_fields(CaseList& list) {
  auto const n = static_cast<double>(list.num_elements);
  std::array<std::byte, kernels::kMaxFields> const fields = {std::byte{1}, std::byte{2}};
  GpuCase put = {.kernel = "put_fields", .traffic = {"64 / n", 64 / n}};
  std::size_t const written = put.output(fields.size());
  put.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::put_fields(ctx, fields, a.data(written));
  };
  list.add(std::move(put));

  GpuCase check = {.kernel = "check_fields", .traffic = {"64 / n", 64 / n}};
  std::size_t const received = check.prepared(fields.size());
  check.prepare = [=](ExecContext const& ctx, Arrays const& a) {
    a.write(ctx, received, std::vector<std::byte>(fields.begin(), fields.end()));
  };
  check.run = [=](ExecContext const& ctx, Arrays const& a) {
    raise_flags(ctx, kernels::check_fields(ctx, fields, a.data(received)) ? 0 : kStepCorrupt);
  };
  list.add(std::move(check));
}

void add_checks(CaseList& list) {
  std::uint64_t const n = list.num_elements;
  GpuCase scales = {.kernel = "check_scales",
                    .variant = "block 64",
                    .traffic = {"4 / block", 4.0 / kBlockElements}};
  std::size_t const checked = scales.input({Content::scales}, n / kBlockElements * 4);
  scales.run = [=](ExecContext const& ctx, Arrays const& a) {
    raise_flags(ctx, kernels::check_scales(ctx, a.bytes(checked)) ? 0 : kStepCorrupt);
  };
  list.add(std::move(scales));

  GpuCase clear = {
      .kernel = "check_clear", .variant = "planes of n bits", .traffic = {"2 / 8", 0.25}};
  std::size_t const bytes = clear.input({}, n / 8);
  std::size_t const mask = clear.input({Content::codes}, n / 8);
  clear.run = [=](ExecContext const& ctx, Arrays const& a) {
    bool const is_clear = kernels::check_clear(ctx, a.bytes(bytes), a.bytes(mask), 0);
    raise_flags(ctx, is_clear ? 0 : kStepCorrupt);
  };
  list.add(std::move(clear));
}

}  // namespace

void add_body_cases(CaseList& list) {
  add_clear_and_copy(list);
  add_count_selection(list);
  add_fields(list);
  add_checks(list);
}

}  // namespace gradsieve::bench
