// SPDX-License-Identifier: Apache-2.0
// The C interface as C++17: handles that destroy themselves, errors as exceptions. Header only, so
// that it goes with any compiler and any string ABI; needs libgsv.so and nothing of the C++
// library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradsieve/gradsieve.h"

namespace gsv {

/// what() is the sentence; result() is API, the sentence is not.
class Error : public std::runtime_error {
 public:
  Error(gsvResult_t result, std::string const& message)
      : std::runtime_error(message), result_(result) {}
  [[nodiscard]] gsvResult_t result() const noexcept { return result_; }
  [[nodiscard]] char const* name() const noexcept { return gsvGetResultName(result_); }

 private:
  gsvResult_t result_;
};

inline void check(gsvResult_t result) {
  if (result != gsvSuccess) throw Error(result, gsvGetLastError());
}

namespace detail {

struct Deleter {
  void operator()(gsvContext_t context) const noexcept { gsvContextDestroy(context); }
  void operator()(gsvComm_t comm) const noexcept { gsvCommDestroy(comm); }
  void operator()(gsvHook_t hook) const noexcept { gsvHookDestroy(hook); }
  void operator()(gsvSparse_t sparse) const noexcept { gsvSparseDestroy(sparse); }
};
template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Deleter>;

/// The text that `ask(text, capacity, &length)` gives.
template <typename Ask>
std::string text_of(Ask const& ask) {
  std::uint64_t length = 0;
  check(ask(nullptr, std::uint64_t{0}, &length));
  std::string text(static_cast<std::size_t>(length), '\0');
  check(ask(&text[0], length + 1, &length));
  return text;
}

template <typename T>
constexpr gsvDtype_t dtype_of() noexcept {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                "name the gsvDtype_t of other types");
  return std::is_same_v<T, float> ? gsvFloat32 : gsvFloat64;
}

}  // namespace detail

class Context {
 public:
  explicit Context(std::uint64_t seed = 0, std::uint32_t num_threads = 1,
                   gsvBackend_t backend = gsvBackendDefault) {
    gsvContextConfig_t config = GSV_INIT(gsvContextConfig_t);
    config.seed = seed;
    config.num_threads = num_threads;
    config.backend = backend;
    gsvContext_t handle = nullptr;
    check(gsvContextCreate(&handle, &config));
    handle_.reset(handle);
  }
  [[nodiscard]] gsvContext_t get() const noexcept { return handle_.get(); }

  /// Its name in specs.
  std::string load_plugin(std::string const& path) {
    std::string name(256, '\0');
    std::uint64_t length = 0;
    check(gsvContextLoadPlugin(get(), path.c_str(), &name[0], name.size(), &length));
    name.resize(static_cast<std::size_t>(length));
    return name;
  }
  [[nodiscard]] std::string canonical(std::string const& spec) const {
    return detail::text_of([&](char* text, std::uint64_t capacity, std::uint64_t* length) {
      return gsvSpecCanonical(spec.c_str(), text, capacity, length, get());
    });
  }
  /// As JSON.
  [[nodiscard]] std::string plugins() const {
    return detail::text_of([&](char* text, std::uint64_t capacity, std::uint64_t* length) {
      return gsvListPlugins(text, capacity, length, get());
    });
  }
  [[nodiscard]] gsvSpecInfo_t info(std::string const& spec, std::uint64_t count,
                                   gsvDtype_t dtype = gsvFloat32) const {
    gsvSpecInfo_t info = GSV_INIT(gsvSpecInfo_t);
    check(gsvGetSpecInfo(spec.c_str(), count, dtype, &info, get()));
    return info;
  }

  /// One payload. `residual` [count] or NULL, as in gsvEncode.
  template <typename T>
  [[nodiscard]] std::vector<std::byte> encode(std::string const& spec, T const* gradient,
                                              std::uint64_t count, float* residual = nullptr,
                                              std::uint64_t step = 0) const {
    gsvEncodeOptions_t options = GSV_INIT(gsvEncodeOptions_t);
    options.step = step;
    std::uint64_t num_bytes = 0;
    gsvDtype_t const dtype = detail::dtype_of<T>();
    check(gsvEncodeBound(count, dtype, spec.c_str(), &num_bytes, get()));
    std::vector<std::byte> payload(static_cast<std::size_t>(num_bytes));
    check(gsvEncode(gradient, payload.data(), payload.size(), &num_bytes, count, dtype,
                    spec.c_str(), residual, &options, get(), nullptr));
    payload.resize(static_cast<std::size_t>(num_bytes));
    return payload;
  }
  template <typename T>
  void decode(std::string const& spec, std::vector<std::byte> const& payload, T* result,
              std::uint64_t count) const {
    check(gsvDecode(payload.data(), payload.size(), result, count, detail::dtype_of<T>(),
                    spec.c_str(), get(), nullptr));
  }

 private:
  detail::Owned<gsvContext_t> handle_;
};

class Comm {
 public:
  /// Takes over what a gsvCommInit… made.
  explicit Comm(gsvComm_t handle) noexcept : handle_(handle) {}

  /// Ranks that are threads of this process.
  [[nodiscard]] static std::vector<Comm> local(std::int32_t world_size) {
    std::vector<gsvComm_t> handles(world_size > 0 ? static_cast<std::size_t>(world_size) : 1);
    check(gsvCommInitLocal(handles.data(), world_size));
    return std::vector<Comm>(handles.begin(), handles.end());
  }
  [[nodiscard]] static Comm table(gsvTransportTable_t const& table) {
    gsvComm_t handle = nullptr;
    check(gsvCommInitTable(&handle, &table));
    return Comm(handle);
  }
  /// `communicator` points to an MPI_Comm, or is NULL for the world.
  [[nodiscard]] static Comm mpi(void const* communicator = nullptr,
                                char const* module_path = nullptr) {
    gsvComm_t handle = nullptr;
    check(gsvCommInitMpi(&handle, communicator, module_path));
    return Comm(handle);
  }

  /// NCCL among the ranks of `host`, each on its current device.
  [[nodiscard]] static Comm nccl(Comm const& host) {
    gsvComm_t handle = nullptr;
    check(gsvCommInitNcclOver(&handle, host.get()));
    return Comm(handle);
  }

  [[nodiscard]] gsvComm_t get() const noexcept { return handle_.get(); }
  [[nodiscard]] std::int32_t rank() const {
    std::int32_t rank = 0;
    check(gsvCommUserRank(get(), &rank));
    return rank;
  }
  [[nodiscard]] std::int32_t world_size() const {
    std::int32_t world_size = 0;
    check(gsvCommCount(get(), &world_size));
    return world_size;
  }
  void abort() { check(gsvCommAbort(get())); }

 private:
  detail::Owned<gsvComm_t> handle_;
};

struct Rule {
  std::string match;
  std::string spec;
};

struct Tensor {
  std::string name;
  std::uint64_t num_elements = 0;
  std::uint64_t num_rows = 1;
  gsvDtype_t dtype = gsvFloat32;
};

struct Failure {
  gsvResult_t result = gsvSuccess;
  std::int32_t rank = -1;
  std::string tensor;
  std::string field;
  std::string message;
};

struct Outcome {
  bool committed = false;
  bool found_nonfinite = false;
  bool pending = false;  ///< on a device, and not known here: Hook::synchronize()
};

/// Gradient exchange for one model on one rank: see gradsieve.h.
class Hook {
 public:
  /// `options` may set everything but the rules.
  Hook(Comm const& comm, std::vector<Rule> const& rules, Context const& context,
       gsvHookOptions_t options = GSV_INIT(gsvHookOptions_t)) {
    std::vector<gsvRule_t> const given = rules_of(rules);
    options.rules = given.data();
    options.num_rules = static_cast<std::uint32_t>(given.size());
    gsvHook_t handle = nullptr;
    check(gsvHookCreate(&handle, comm.get(), &options, context.get()));
    handle_.reset(handle);
  }
  [[nodiscard]] gsvHook_t get() const noexcept { return handle_.get(); }

  /// Each bucket is a list of positions in `tensors`.
  void plan(std::vector<Tensor> const& tensors,
            std::vector<std::vector<std::uint32_t>> const& buckets) {
    std::vector<gsvTensorDesc_t> descs;
    for (Tensor const& tensor : tensors) {
      gsvTensorDesc_t desc = GSV_INIT(gsvTensorDesc_t);
      desc.name = tensor.name.c_str();
      desc.num_elements = tensor.num_elements;
      desc.num_rows = tensor.num_rows;
      desc.dtype = tensor.dtype;
      descs.push_back(desc);
    }
    std::vector<gsvBucketDesc_t> places;
    for (std::vector<std::uint32_t> const& bucket : buckets) {
      gsvBucketDesc_t desc = GSV_INIT(gsvBucketDesc_t);
      desc.tensors = bucket.data();
      desc.num_tensors = static_cast<std::uint32_t>(bucket.size());
      places.push_back(desc);
    }
    check(gsvHookPlan(get(), descs.data(), static_cast<std::uint32_t>(descs.size()), places.data(),
                      static_cast<std::uint32_t>(places.size())));
  }
  void set_rules(std::vector<Rule> const& rules) {
    std::vector<gsvRule_t> const given = rules_of(rules);
    check(gsvHookSetRules(get(), given.data(), static_cast<std::uint32_t>(given.size())));
  }
  /// From step `at_step` on; all ranks agree in this call.
  void set_rules(std::vector<Rule> const& rules, std::uint64_t at_step) {
    std::vector<gsvRule_t> const given = rules_of(rules);
    check(
        gsvHookSetRulesAt(get(), given.data(), static_cast<std::uint32_t>(given.size()), at_step));
  }

  void begin(std::uint64_t step, float loss_scale = 1.0F) {
    check(gsvHookBegin(get(), step, loss_scale));
  }
  template <typename T>
  gsvEvent_t reduce(std::uint32_t bucket, T* gradient, std::uint64_t count) {
    return reduce(bucket, gradient, count, detail::dtype_of<T>());
  }
  gsvEvent_t reduce(std::uint32_t bucket, void* gradient, std::uint64_t count, gsvDtype_t dtype,
                    gsvStream_t stream = nullptr) {
    gsvEvent_t event = {};
    check(gsvHookReduce(get(), bucket, gradient, count, dtype, stream, &event));
    return event;
  }
  void wait(gsvEvent_t const& event) { check(gsvHookWait(get(), &event)); }
  /// Makes finish vote against this step and throw `result`.
  void veto(gsvResult_t result) { check(gsvHookVeto(get(), result)); }
  [[nodiscard]] Outcome finish() {
    gsvStepResult_t result = GSV_INIT(gsvStepResult_t);
    check(gsvHookFinish(get(), &result));
    return {result.committed != 0, result.found_nonfinite != 0, result.pending != 0};
  }
  [[nodiscard]] Outcome synchronize() {
    gsvStepResult_t result = GSV_INIT(gsvStepResult_t);
    check(gsvHookSynchronize(get(), &result));
    return {result.committed != 0, result.found_nonfinite != 0, result.pending != 0};
  }
  /// Before each launch of a graph that a step was captured in.
  void replay(std::uint64_t step, float loss_scale = 1.0F) {
    check(gsvHookReplay(get(), step, loss_scale));
  }
  [[nodiscard]] std::uint32_t const* committed_word() const {
    std::uint32_t const* word = nullptr;
    check(gsvHookCommittedWord(get(), &word));
    return word;
  }
  void refuse() { check(gsvHookRefuse(get())); }
  void recover(Comm const& comm) { check(gsvHookRecover(get(), comm.get())); }

  [[nodiscard]] Failure failure() const {
    gsvFailure_t failure = GSV_INIT(gsvFailure_t);
    check(gsvHookGetFailure(get(), &failure));
    return {static_cast<gsvResult_t>(failure.code), failure.rank, failure.tensor, failure.field,
            failure.message};
  }
  /// The strings in it live until the next call.
  [[nodiscard]] std::vector<gsvStats_t> stats(gsvStatsOf_t of = gsvStatsOfTensors) const {
    std::uint32_t count = 0;
    check(gsvHookGetStats(get(), of, nullptr, 0, &count));
    std::vector<gsvStats_t> stats(count, GSV_INIT(gsvStats_t));
    check(gsvHookGetStats(get(), of, stats.data(), count, &count));
    return stats;
  }
  [[nodiscard]] std::vector<float> residual(std::string const& tensor, std::uint64_t count) const {
    std::vector<float> residual(static_cast<std::size_t>(count));
    check(gsvHookGetResidual(get(), tensor.c_str(), residual.data(), count));
    return residual;
  }
  [[nodiscard]] std::string describe() const {
    return detail::text_of([&](char* text, std::uint64_t capacity, std::uint64_t* length) {
      return gsvHookDescribe(get(), text, capacity, length);
    });
  }
  [[nodiscard]] std::vector<std::byte> save_state() const {
    std::uint64_t num_bytes = 0;
    check(gsvHookSaveState(get(), nullptr, 0, &num_bytes));
    std::vector<std::byte> state(static_cast<std::size_t>(num_bytes));
    check(gsvHookSaveState(get(), state.data(), state.size(), &num_bytes));
    return state;
  }
  void load_state(std::vector<std::vector<std::byte>> const& states,
                  gsvOnWorldChange_t on_world_change = gsvWorldChangeError) {
    std::vector<void const*> starts;
    std::vector<std::uint64_t> sizes;
    for (std::vector<std::byte> const& state : states) {
      starts.push_back(state.data());
      sizes.push_back(state.size());
    }
    check(gsvHookLoadState(get(), starts.data(), sizes.data(),
                           static_cast<std::uint32_t>(states.size()), on_world_change));
  }

 private:
  static std::vector<gsvRule_t> rules_of(std::vector<Rule> const& rules) {
    std::vector<gsvRule_t> given;
    for (Rule const& rule : rules) {
      gsvRule_t one = GSV_INIT(gsvRule_t);
      one.match = rule.match.c_str();
      one.spec = rule.spec.c_str();
      given.push_back(one);
    }
    return given;
  }

  detail::Owned<gsvHook_t> handle_;
};

}  // namespace gsv
