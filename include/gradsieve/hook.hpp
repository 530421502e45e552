// SPDX-License-Identifier: Apache-2.0
// The call between backward and update: local gradients in, the compressed and exchanged mean out.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradsieve/context.hpp"
#include "gradsieve/memory.hpp"
#include "gradsieve/registry.hpp"
#include "gradsieve/transport.hpp"
#include "gradsieve/vocabulary.hpp"

namespace gradsieve {

/// One parameter of the model, as planned: the same list in the same order on every rank.
struct TensorDesc {
  std::string name;  ///< key of its state; unique
  std::uint64_t num_elements = 0;
  std::uint64_t num_rows = 1;
  DType dtype = DType::f32;
};

/// Tensors whose gradients lie one behind another in one flat array, in this order.
struct BucketDesc {
  std::vector<std::string> tensors;
};

/// First rule whose glob (`*`, `?`) matches the tensor's name decides.
struct Rule {
  std::string match = "*";
  std::string spec;
};

enum class ReduceOp : std::uint8_t { mean, sum };
enum class Rollback : std::uint8_t { merge, exact };
enum class OnNonFinite : std::uint8_t { propagate, skip, error };
/// What reduce() leaves behind: the mean of every element in place, or (reserved, answered with
/// Error(not_implemented)) the indices and values of those that arrived.
enum class ResultForm : std::uint8_t { dense, sparse };

struct HookOptions {
  std::vector<Rule> rules;  ///< at least one; the last should match "*"
  ReduceOp op = ReduceOp::mean;
  double predivide =
      1.0;  ///< gradients are divided by it before encoding, the weight is multiplied
  Rollback rollback = Rollback::merge;
  OnNonFinite on_nonfinite = OnNonFinite::propagate;
  ResultForm result = ResultForm::dense;
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;  ///< of the group; raise it when the transport was rebuilt
  Backend backend = Backend::cpu;
  /// backend=cuda: the stream on which gradients are made and results are used. The null handle is
  /// the default stream. See also Hook::set_stream.
  Stream stream = {};
  int num_threads = 1;
  std::chrono::milliseconds exchange_deadline{30'000};
  std::chrono::milliseconds vote_deadline{60'000};  ///< longer than an exchange's
  Registry const* registry = nullptr;               ///< null: builtin_registry(); kept by reference
  MemoryResource* memory = nullptr;  ///< null: host_memory(), or device_memory() for backend=cuda
  bool progress_thread = true;  ///< exchanges run beside the caller where the transport allows it
  bool strict = false;          ///< the step fails if what ran is not what was configured
};

/// Names what went wrong: all that a Status is too small for.
struct Failure {
  Code code = Code::ok;
  int rank = -1;       ///< the rank it is about, -1: unknown
  std::string tensor;  ///< the first tensor of the parcel, or the one that differs
  std::string field;   ///< what differs or failed: "spec", "num_elements", "vote", ...
  std::string message;
};

/// A reduction under way.
struct Event {
  std::uint32_t bucket = 0;
  std::uint64_t step = 0;
};

struct StepResult {
  Status status;                 ///< ok: all ranks know the outcome
  bool committed = false;        ///< results may be used
  bool found_nonfinite = false;  ///< on some rank; the step was rolled back
  /// The outcome is on its way on the device, and the rest of this is what is known so far: work of
  /// the caller's stream finds results and Hook::committed_word() in order; a host that must know
  /// calls Hook::synchronize().
  bool pending = false;
};

/// Counters of one tensor or bucket, of the last step and in all.
struct Stats {
  std::string name;
  std::string spec;      ///< canonical, as it ran
  std::string exchange;  ///< "gather", "two_shot", "all_reduce", "none"
  std::uint64_t num_elements = 0;
  std::uint64_t dense_bytes = 0;  ///< of the gradient, per step
  std::uint64_t wire_bytes = 0;   ///< handed to the transport, headers included, last step
  std::uint64_t total_wire_bytes = 0;
  std::uint64_t kept_elements = 0;  ///< chosen by the sparsifier, or all
  std::uint64_t overflowed_elements = 0;
  double encode_seconds = 0.0;  ///< last step; on the clock on the wall
  double exchange_seconds = 0.0;
  double decode_seconds = 0.0;
  double total_encode_seconds = 0.0;
  double total_exchange_seconds = 0.0;
  double total_decode_seconds = 0.0;
  double residual_norm = 0.0;  ///< 2-norm after the last committed step; tensors only
  double dropped_norm = 0.0;   ///< without feedback: 2-norm of what was not sent in the last step
  /// The same work as in encode_seconds and decode_seconds, as CPU time of the thread that did it.
  double encode_cpu_seconds = 0.0;
  double decode_cpu_seconds = 0.0;
  double total_encode_cpu_seconds = 0.0;
  double total_decode_cpu_seconds = 0.0;
};

/// A change of world size: what import does with another number of ranks.
enum class OnWorldChange : std::uint8_t { error, redistribute, reset };

/// Gradient exchange for one model on one rank. Every call is made in the same order on all ranks.
/// A transport serves one hook at a time: hooks whose steps overlap need one each.
///
///   plan() once, then per step: begin(step), reduce() per bucket, finish(), update.
///
/// Nothing allocates or throws between begin and finish.
class Hook {
 public:
  Hook(Transport& transport, HookOptions options);
  ~Hook();
  Hook(Hook const&) = delete;
  Hook& operator=(Hook const&) = delete;

  /// Agrees with all ranks on tensors, specs and seed, and allocates. Called again with another
  /// bucket layout it keeps what the tensors remember.
  /// Throws Error: mismatch (names rank and field), invalid_argument, timeout, peer_failed.
  void plan(std::span<TensorDesc const> tensors, std::span<BucketDesc const> buckets);

  /// Other rules from the next step on, for the tensors and buckets of the plan. Residuals stay.
  /// Same call on all ranks, between finish and begin. Throws as plan() does; the old rules then
  /// hold.
  void set_rules(std::vector<Rule> rules);
  /// The same from step `at_step` on: the first begin() of that step or a later one plans them. The
  /// ranks agree at once, between finish and begin, before or after the first plan; a second call
  /// for a step replaces the first. Where rules or step differ, or a rank refuses its own, every
  /// rank throws Error and nothing changes. No part of an exported state.
  void set_rules(std::vector<Rule> rules, std::uint64_t at_step);

  /// Starts a step and applies the outcome of the one before: commit or roll back. `loss_scale`:
  /// the gradients of this step are this multiple of the true ones.
  Status begin(std::uint64_t step, float loss_scale = 1.0F) noexcept;

  /// Starts the reduction of a bucket, in place: [num_elements of its tensors] local gradients in,
  /// their mean over all ranks out, valid after wait(). The bucket stays untouched by the caller
  /// until then. Reports what can be known at once; a gradient of another size or dtype than
  /// planned fails the step on all ranks, and is not kept.
  Status reduce(std::uint32_t bucket, TensorView gradient, Event& event) noexcept;

  /// Waits for a bucket; the Status of its exchange. backend=cuda: the caller's stream waits
  /// instead of the host, and what is found wrong on the device is told by finish() or
  /// synchronize().
  Status wait(Event const& event) noexcept;

  /// Makes finish() vote against this step and answer `status`: what this rank exchanges beside the
  /// hook has failed. Between begin and finish, by any thread; the first one counts. Buckets that
  /// come later tell the others.
  Status veto(Status status) noexcept;

  /// Waits for all buckets, then votes. After `committed` the optimizer may read the results.
  /// backend=cuda over a transport in stream order: enqueues both and returns, `pending`.
  StepResult finish() noexcept;

  /// Waits until the outcome of the last finished step is known, at most the vote's deadline, and
  /// returns it. On the CPU, and over transports without stream order, finish() has waited already.
  StepResult synchronize() noexcept;

  /// backend=cuda: the caller's stream from now on. Between steps, or for the next reduce.
  Status set_stream(Stream stream) noexcept;

  /// backend=cuda over a transport in stream order: to be called on the host before each launch of
  /// a graph that begin, reduce and finish of one step were captured in (their `step` and
  /// `loss_scale` are of no account). The graph then is that step.
  Status replay(std::uint64_t step, float loss_scale = 1.0F) noexcept;

  /// backend=cuda: device word that is 1 in stream order once the last finished step is committed,
  /// else 0. An optimizer that reads it needs no host. Null on the CPU.
  [[nodiscard]] std::uint32_t const* committed_word() const noexcept;

  /// Undoes a committed step before the next begin (a loss scaler that skips). Same call on all
  /// ranks.
  Status refuse() noexcept;

  /// Whether the last finished step counts and its results may be used: StepResult::committed, and
  /// after refuse() or recover() what has become of it.
  [[nodiscard]] bool committed() const noexcept;

  /// After Code::in_doubt: commits if any survivor committed, else rolls back. With `transport`, if
  /// it is another, the hook goes on; where rank or world size have changed, plan() comes first.
  Status recover(Transport& transport) noexcept;

  [[nodiscard]] Failure failure() const;
  [[nodiscard]] std::vector<Stats> tensor_stats() const;
  [[nodiscard]] std::vector<Stats> bucket_stats() const;
  /// Parcels, capacities and memory, as planned, for people.
  void describe(std::ostream& out) const;
  [[nodiscard]] std::size_t state_bytes() const noexcept;
  [[nodiscard]] std::size_t workspace_bytes() const noexcept;

  /// The committed residual of a tensor in units of the true gradient (f32), for tests and tools.
  [[nodiscard]] std::vector<float> residual(std::string_view tensor) const;

  /// Writes everything this rank must keep to resume bit for bit. Call between finish and begin.
  /// Throws Error(io_error); the file appears whole or not at all.
  void export_state(std::string const& path) const;
  /// Reads it back after plan(). `paths`: this rank's file if the world size is unchanged; the
  /// files of all old ranks, in rank order, for `redistribute`, which conserves the sum of
  /// residuals.
  void import_state(std::span<std::string const> paths,
                    OnWorldChange on_world_change = OnWorldChange::error);
  /// The same bytes, in memory.
  [[nodiscard]] std::vector<std::byte> save_state() const;
  void load_state(std::span<ConstBytes const> states,
                  OnWorldChange on_world_change = OnWorldChange::error);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradsieve
