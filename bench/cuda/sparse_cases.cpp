// SPDX-License-Identifier: Apache-2.0
// What is done with chosen indices: gather, scatter, check, and the index codes.
#include <algorithm>
#include <span>

#include "bench/cuda/gpu_case.hpp"
#include "kernels/index_forms.hpp"
#include "kernels/ops.hpp"

namespace gradsieve::bench {
namespace {

constexpr double kDensity = 0.01;

/// One per cent of the n / granularity blocks, drawn with one in each stratum.
struct Chosen {
  std::uint64_t universe;
  std::uint64_t count;
  std::size_t indices;

  Chosen(GpuCase& c, std::uint64_t num_elements, std::uint64_t granularity)
      : universe(num_elements / granularity),
        count(std::max<std::uint64_t>(
            1, static_cast<std::uint64_t>(static_cast<double>(universe) * kDensity))),
        indices(c.prepared(4 * count)) {}

  void draw(ExecContext const& ctx, Arrays const& a) const {
    kernels::randomk(ctx, {1, 2}, std::uint64_t{3}, universe, a.as<std::uint32_t>(indices));
  }
};

/// A single element costs a whole sector of 32 bytes, read and written.
Traffic traffic_of(std::uint64_t granularity) {
  if (granularity == 1) return {"(4 index + 4 value + 64 x) k/n", 72 * kDensity};
  return {"(4 / granularity + 4 value + 8 x) k/n",
          (12 + 4 / static_cast<double>(granularity)) * kDensity};
}

void add_take_and_scatter(CaseList& list, std::uint64_t granularity) {
  std::uint64_t const n = list.num_elements;
  std::string const variant = "1 %, granularity " + std::to_string(granularity);
  GpuCase take = {.kernel = "take", .variant = variant, .traffic = traffic_of(granularity)};
  Chosen const taken(take, n, granularity);
  std::size_t const x = take.sums(n);
  std::size_t const values = take.output(4 * taken.count * granularity);
  take.prepare = [=](ExecContext const& ctx, Arrays const& a) { taken.draw(ctx, a); };
  take.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::take(ctx, a.as<std::uint32_t>(taken.indices), granularity, a.as<float>(x),
                  a.as<float>(values));
  };
  list.add(std::move(take));

  GpuCase add = {.kernel = "scatter_add", .variant = variant, .traffic = traffic_of(granularity)};
  Chosen const added(add, n, granularity);
  std::size_t const sum = add.sums(n);
  std::size_t const sent = add.floats(added.count * granularity, 1);
  add.prepare = [=](ExecContext const& ctx, Arrays const& a) { added.draw(ctx, a); };
  add.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::scatter_add(ctx, a.as<std::uint32_t>(added.indices), granularity, a.as<float>(sent),
                         0.25F, a.as<float>(sum));
  };
  list.add(std::move(add));
}

void add_check(CaseList& list) {
  std::uint64_t const n = list.num_elements;
  GpuCase c = {.kernel = "check_indices", .variant = "1 %", .traffic = {"4 k/n", 4 * kDensity}};
  Chosen const chosen(c, n, 1);
  c.prepare = [=](ExecContext const& ctx, Arrays const& a) { chosen.draw(ctx, a); };
  c.run = [=](ExecContext const& ctx, Arrays const& a) {
    bool const are_good = kernels::check_indices(ctx, a.as<std::uint32_t>(chosen.indices), n);
    raise_flags(ctx, are_good ? 0 : kStepCorrupt);
  };
  list.add(std::move(c));
}

void add_form(CaseList& list, kernels::IndexForm form, std::string const& name) {
  std::uint64_t const n = list.num_elements;
  GpuCase encode = {.kernel = name + "_encode", .variant = "1 %"};
  Chosen const sent(encode, n, 1);
  std::size_t const num_bytes = kernels::index_bytes(form, n, sent.count);
  Traffic const traffic = {"4 k/n + code",
                           4 * kDensity + static_cast<double>(num_bytes) / static_cast<double>(n)};
  encode.traffic = traffic;
  std::size_t const code = encode.output(num_bytes);
  encode.prepare = [=](ExecContext const& ctx, Arrays const& a) { sent.draw(ctx, a); };
  encode.run = [=](ExecContext const& ctx, Arrays const& a) {
    kernels::encode_indices(ctx, form, a.as<std::uint32_t>(sent.indices), n, a.bytes(code));
  };
  list.add(std::move(encode));

  GpuCase decode = {.kernel = name + "_decode",
                    .variant = "1 %",
                    .traffic = traffic,
                    .workspace_bytes = kernels::index_decode_workspace_bytes(num_bytes)};
  Chosen const expected(decode, n, 1);
  std::size_t const received = decode.prepared(num_bytes);
  std::size_t const indices = decode.output(4 * expected.count);
  decode.prepare = [=](ExecContext const& ctx, Arrays const& a) {
    expected.draw(ctx, a);
    kernels::encode_indices(ctx, form, a.as<std::uint32_t>(expected.indices), n, a.bytes(received));
  };
  decode.run = [=](ExecContext const& ctx, Arrays const& a) {
    bool const is_good = kernels::decode_indices(
        ctx, static_cast<std::uint32_t>(form), a.bytes(received), n, a.as<std::uint32_t>(indices));
    raise_flags(ctx, is_good ? 0 : kStepCorrupt);
  };
  list.add(std::move(decode));
}

}  // namespace

void add_sparse_cases(CaseList& list) {
  add_take_and_scatter(list, 1);
  add_take_and_scatter(list, 256);
  add_check(list);
}

void add_index_cases(CaseList& list) {
  add_form(list, kernels::IndexForm::bitmap, "bitmap");
  add_form(list, kernels::IndexForm::elias_fano, "elias_fano");
}

}  // namespace gradsieve::bench
