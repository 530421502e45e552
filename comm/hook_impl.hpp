// SPDX-License-Identifier: Apache-2.0
// What a Hook owns. hook.cpp is the straight line; hook_plan.cpp and hook_layout.cpp lay it,
// hook_encode.cpp, hook_exchange.cpp and hook_decode.cpp hold its helpers, hook_step.cpp the
// transaction around it, hook_state.cpp export and import.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gradsieve/hook.hpp"

#include "comm/exchange/collectives.hpp"
#include "comm/hook_device.hpp"
#include "comm/observer.hpp"
#include "comm/parcel.hpp"
#include "comm/progress.hpp"
#include "comm/vote.hpp"

namespace gradsieve {

/// What a tensor remembers while no plan covers it: between two layouts, or read from a file.
struct Memento {
  std::vector<float> residual;  ///< f32, in units of the loss scale beside it
  float residual_scale = 1.0F;
  struct Slot {
    std::string name;
    SlotKind kind = SlotKind::replicated;
    std::vector<std::byte> bytes;
  };
  std::vector<Slot> slots;
};

struct StateFile;

[[noreturn]] inline void refuse_plan(std::string const& message) {
  throw Error(Code::invalid_argument, "plan: " + message);
}

/// What plan() makes; exchanged as a whole, so that a plan that fails leaves the one before in
/// force.
struct Layout {
  std::vector<PlannedTensor> tensors;
  std::vector<BucketDesc> buckets;
  std::vector<std::vector<std::uint32_t>>
      bucket_tensors;  ///< indices into tensors, in bucket order
  std::vector<std::vector<std::uint32_t>> bucket_parcels;
  std::vector<Parcel> parcels;
  std::uint64_t model_hash = 0;
  std::uint32_t num_sequences = 0;  ///< exchanges per step
  DeviceLayout on_device;           ///< empty unless backend=cuda
  Buffer encode_memory;
  Buffer decode_memory;
  Buffer exchange_memory;
  Workspace encode_workspace;
  Workspace decode_workspace;
  std::unique_ptr<Progress> progress;  ///< null: there is no plan that could run
};

/// Outlives the layout, whose memory is given back in the order of its stream.
struct DeviceOwner {
  std::unique_ptr<HookDevice> device;  ///< null unless backend=cuda
};

struct Hook::Impl : DeviceOwner, Layout {
  Impl(Transport& transport, HookOptions options);
  ~Impl() { progress.reset(); }  // its thread works with all the rest

  // --- plan (hook_plan.cpp) ---
  void plan(std::span<TensorDesc const> tensors, std::span<BucketDesc const> buckets);
  void place(std::span<TensorDesc const> new_tensors, std::span<BucketDesc const> new_buckets);
  void agree_on_plan();
  void agree_on_layout(std::exception_ptr own_failure);
  void lay_parcels();
  void lay_rounds(Parcel& parcel);
  void allocate(Parcel& parcel);
  void allocate_shared();
  void log_plan() const;
  [[nodiscard]] Registry const& registry() const noexcept;
  [[nodiscard]] std::vector<std::shared_ptr<Chain const>> make_chains(
      std::span<Rule const> rules) const;
  [[nodiscard]] std::shared_ptr<Chain const> chain_for(TensorDesc const& tensor) const;
  void decide_exchange(Parcel& parcel, Chain const& chain);

  // --- other rules (hook_rules.cpp) ---
  using Chains = std::vector<std::shared_ptr<Chain const>>;
  [[nodiscard]] static std::string rules_text(std::span<Rule const> rules, Chains const& of_rules);
  void check_rules_may_change() const;
  void use_rules(std::vector<Rule> rules);
  [[nodiscard]] std::string checked_rules(std::vector<Rule>& rules);
  void set_rules(std::vector<Rule> rules, std::uint64_t at_step);
  Status take_due_rules(std::uint64_t new_step) noexcept;

  // --- the straight line (hook.cpp) and its helpers ---
  Status reduce(Parcel& parcel, TensorView gradient) noexcept;
  Status decline(Parcel& parcel, Status status, char const* field) noexcept;
  void complete(Parcel& parcel) noexcept;
  Status encode(Parcel& parcel, int round) noexcept;
  Status exchange_round(Parcel& parcel, int round) noexcept;
  Status absorb(Parcel& parcel, int round) noexcept;
  Status deliver(Parcel& parcel) noexcept;

  Status encode_letter(Parcel& parcel, int round, Letter& letter) noexcept;
  Status encode_sum(Parcel& parcel, int round, Letter& letter) noexcept;
  Status encode_piece(Parcel& parcel, int round, Piece& piece, Body body) noexcept;
  Status encode_owned(Parcel& parcel, int round) noexcept;
  void fill_if_nonfinite(Parcel& parcel) noexcept;
  void seal(Parcel& parcel, int round, Letter& letter, bool owned, Status status,
            std::uint64_t body_bytes) noexcept;
  Status open(Parcel& parcel, int round, bool owned, int sender, ConstBytes payload,
              Letter const& letter, PayloadHeader& header) noexcept;
  Status decode_letter(Parcel& parcel, int round, Letter const& letter, bool owned, int sender,
                       ConstBytes payload, double weight, bool into_shard) noexcept;
  [[nodiscard]] std::uint64_t bytes_as_encoded(Round const& round) const noexcept;
  Status exchange_gather(Parcel& parcel, int round) noexcept;
  Status exchange_sum(Parcel& parcel, int round) noexcept;
  Status exchange_shards(Parcel& parcel, int round) noexcept;
  [[nodiscard]] ExecContext context(Parcel& parcel, Workspace& workspace,
                                    ThreadPool& threads) noexcept;
  [[nodiscard]] ExecContext encode_context(Parcel& parcel, int round) noexcept;
  [[nodiscard]] ResidualView residual_view(Parcel& parcel, Piece const& piece) const noexcept;
  [[nodiscard]] TensorView accumulator(Parcel& parcel, Piece const& piece) const noexcept;
  void clear_accumulators(Parcel& parcel) noexcept;
  void prepare(Parcel& parcel,
               bool failed) noexcept;  ///< residual into the scratch, where it has another type
  void store_residual(Parcel& parcel, int round) noexcept;
  void take_back(Parcel& parcel, int round) noexcept;  ///< what an encode that failed has taken
  void blame(Parcel const& parcel, Status status, int rank, char const* field) noexcept;
  [[nodiscard]] exchange::ExchangeContext& data_context(Parcel& parcel,
                                                        std::uint32_t sequence) noexcept;
  [[nodiscard]] std::uint32_t tag(std::uint32_t sequence) const noexcept;
  [[nodiscard]] double weight() const noexcept;

  // --- on a device: payloads and exchanges (hook_device_letters.cpp) ---
  void lay_fixed(Round& round, int index, Parcel& parcel);
  Status encode_fixed_letter(Parcel& parcel, int round, Letter& letter) noexcept;
  Status encode_batch(Parcel& parcel, int round, Letter& letter) noexcept;
  Status encode_fixed_owned(Parcel& parcel, int round, MassSink& sink) noexcept;
  Status encode_owned_pieces(Parcel& parcel, int round, std::span<float const> sum,
                             MassSink& sink) noexcept;
  void seal_fixed(Parcel& parcel, int round, Letter& letter, bool owned, Status status) noexcept;
  Status exchange_on_device(Parcel& parcel, int round) noexcept;
  Status gather_on_device(Parcel& parcel, int round) noexcept;
  Status sum_on_device(Parcel& parcel, int round) noexcept;
  Status shards_on_device(Parcel& parcel, int round) noexcept;
  [[nodiscard]] kernels::LetterCheck letter_check(Parcel& parcel, int round, bool owned, int sender,
                                                  Letter const& letter) noexcept;
  Status decode_fixed_letter(Parcel& parcel, int round, Letter const& letter, bool owned,
                             int sender, ConstBytes payload, double weight,
                             bool into_shard) noexcept;
  Status decode_batch(Parcel& parcel, Batch const& batch, ConstBytes bodies, double factor,
                      std::span<float> shard, bool is_first) noexcept;
  [[nodiscard]] PayloadHeader header_of(Parcel const& parcel, int round, Letter const& letter,
                                        bool owned) const noexcept;

  // --- on a device: the transaction (hook_device_step.cpp) ---
  void check_device_options() const;
  void allocate_on_device();
  void make_batches(Parcel& parcel);
  void upload_device_state() noexcept;
  [[nodiscard]] Stream stream() const noexcept;
  [[nodiscard]] ExecContext device_context() noexcept;
  [[nodiscard]] kernels::DeviceParcel* device_parcel(Parcel const& parcel) const noexcept;
  Status fork_device() noexcept;
  Status begin_on_device() noexcept;
  void set_device_words(Stream where) noexcept;
  void settle_on_device(Parcel& parcel) noexcept;
  void give_back(Parcel& parcel, std::span<float> target, std::uint32_t const* only_if) noexcept;
  void add_undelivered(Parcel& parcel, std::span<float> target,
                       std::uint32_t const* only_if) noexcept;
  void resolve_on_device(Parcel& parcel, std::span<float> target);
  [[nodiscard]] std::vector<float> fetched(std::span<float const> values) const;
  Status finish_on_device(bool well) noexcept;
  Status fetch_device_state() noexcept;
  void take_device_findings(StepResult& result) noexcept;
  StepResult synchronize() noexcept;
  StepResult leave_pending(StepResult result) noexcept;
  void put_outcome() noexcept;
  Status refuse_on_device() noexcept;
  Status recover_on_device(Transport& other) noexcept;
  void close_history() noexcept;
  Status replay(std::uint64_t step, float loss_scale) noexcept;

  // --- the transaction (hook_step.cpp) ---
  Status begin(std::uint64_t step, float loss_scale) noexcept;
  StepResult finish() noexcept;
  Status veto(Status status) noexcept;
  Status refuse() noexcept;
  Status recover(Transport& other) noexcept;
  void settle() noexcept;
  void settle(Parcel& parcel) noexcept;
  /// What the outcome of the running step makes of a parcel's residual, in f32; `target` has
  /// num_elements and may be the residual itself.
  void resolve(Parcel& parcel, Outcome what, std::span<float> target) noexcept;
  void report(StepResult const& result) noexcept;  ///< of a finished step, to those who asked
  [[nodiscard]] double residual_norm() noexcept;   ///< of what retain left, all parcels
  [[nodiscard]] float resolved_scale(Parcel const& parcel, Outcome what) const noexcept;

  // --- state (hook_state.cpp) ---
  [[nodiscard]] std::unordered_map<std::string, Memento> remember();
  void restore();  ///< from the shelf
  void import_states(std::span<StateFile> files, OnWorldChange on_world_change);

  Transport* transport;
  HookOptions options;
  MemoryResource* memory;
  std::vector<std::shared_ptr<Chain const>> chains;  ///< one per rule
  std::shared_ptr<Chain const> dense_chain;
  struct NextRules {
    std::vector<Rule> rules;
    std::string text;
  };
  std::map<std::uint64_t, NextRules> next_rules;  ///< by the step they begin at, agreed upon

  /// State of tensors that the present plan does not have.
  std::unordered_map<std::string, Memento> shelf;

  ThreadPool encode_threads;
  ThreadPool decode_threads;
  std::vector<Request> requests;
  std::vector<Request> control_requests;
  std::unique_ptr<bool[]> gone;     ///< missed a deadline of this step's exchanges
  std::unique_ptr<bool[]> unheard;  ///< the vote's own: a rank that was late may still vote
  std::unique_ptr<bool[]> heard;
  std::vector<std::uint64_t> vote_words;
  std::vector<ConstBytes> letters_out;  ///< own[q] of an all_to_all
  std::vector<ConstBytes> bodies_in;    ///< received[r] of an absorb
  exchange::ExchangeContext data;
  exchange::ExchangeContext control;
  std::unique_ptr<Observer> observer;  ///< null unless the environment asks for one

  std::uint64_t step = 0;
  std::uint64_t attempt = 0;  ///< calls of begin so far, equal on all ranks
  /// Tags of the running step. They are not made of the step's number, which may be tried again: a
  /// late message of the first try must not match the second.
  std::uint64_t first_tag = 0;
  std::uint64_t end_tag = 0;
  std::uint64_t committed_attempt = 0;         ///< the last one that counts, 0: none
  std::uint64_t committed_attempt_before = 0;  ///< what refuse() goes back to
  bool counts = false;                         ///< whether the last finished step committed
  float loss_scale = 1.0F;
  bool in_step = false;
  StepResult last_result;
  std::atomic<bool> step_failed{false};
  Outcome outcome = Outcome::none;
  std::uint64_t history = 0;  ///< hash of all outcomes so far: ranks that disagree find out
  long process_id = 0;

  mutable std::mutex failure_mutex;
  Failure last_failure;
  Status vetoed;  ///< ok: this rank has nothing against the step
};

}  // namespace gradsieve
