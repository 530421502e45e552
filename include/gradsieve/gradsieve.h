// SPDX-License-Identifier: Apache-2.0
// The C interface of gradsieve: what libgsv.so exports, and the contract for every binding.
//
// Conventions
//   Results    every function that can fail returns gsvResult_t; the sentence behind it is
//              gsvGetLastError(), of the calling thread. Nothing throws and nothing aborts.
//   Structs    begin with struct_size = sizeof the struct as the caller knows it. In what the
//              caller fills, a member of zero means the default: GSV_INIT(type) is all defaults.
//              Newer members are added at the end; a library that is older than its caller refuses
//              those that are not zero. Arrays are strided by the struct_size of their first
//              struct.
//   Texts      (text, capacity, length): length receives the bytes without the closing 0; text may
//              be NULL to ask for it. Too little capacity is gsvCapacityExceeded.
//   Ownership  Create and Init are answered by Destroy; NULL is no error there. What a handle was
//              made from may be destroyed before it. Strings handed in are copied.
//   Threads    a handle is used by one thread at a time, except where said otherwise.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define GSV_API __attribute__((visibility("default")))
#else
#define GSV_API
#endif

#ifdef __cplusplus
#define GSV_INIT(type)                   \
  ([] {                                  \
    type gsv_made = {};                  \
    gsv_made.struct_size = sizeof(type); \
    return gsv_made;                     \
  }())
extern "C" {
#else
#define GSV_INIT(type) ((type){.struct_size = sizeof(type)})
#endif

#define GSV_VERSION_MAJOR 0
#define GSV_VERSION_MINOR 1
#define GSV_VERSION_PATCH 0

// ---------------------------------------------------------------------------------------- results

/// The same numbers as gradsieve::Code in C++; values have gaps and are never renumbered.
typedef enum gsvResult {
  gsvSuccess = 0,
  // The caller's side.
  gsvInvalidArgument = 10,
  gsvInvalidUsage = 11,
  gsvUnknownName = 12,
  // What this build or version does not do.
  gsvNotBuilt = 20,
  gsvNotImplemented = 21,
  gsvUnsupported = 22,
  // Bytes and files.
  gsvCorruptPayload = 30,
  gsvCapacityExceeded = 31,
  gsvIoError = 32,
  // Other ranks.
  gsvMismatch = 40,
  gsvPeerFailed = 41,
  gsvTimeout = 42,
  gsvAborted = 43,
  gsvInDoubt = 44,
  gsvForkedChild = 45,
  // Numbers.
  gsvNonFinite = 50,
  // The machine.
  gsvOutOfMemory = 60,
  gsvTransportError = 61,
  gsvDeviceError = 62,
  gsvInternal = 70
} gsvResult_t;

/// Name of a result as C++ writes it ("corrupt_payload"); "unknown" for other numbers.
GSV_API char const* gsvGetResultName(gsvResult_t result);
/// The sentence of this thread's last failure, or "". Valid until this thread fails again.
GSV_API char const* gsvGetLastError(void);

/// 10000·major + 100·minor + patch, of the library that runs.
GSV_API gsvResult_t gsvGetVersion(int* version);
/// "0.1.0"
GSV_API char const* gsvGetVersionText(void);

// ----------------------------------------------------------------------------------------- context

typedef struct gsvContext* gsvContext_t;
typedef struct gsvComm* gsvComm_t;
typedef struct gsvHook* gsvHook_t;
typedef struct gsvSparse* gsvSparse_t;
/// A CUDA stream, or NULL on the CPU.
typedef void* gsvStream_t;

typedef enum gsvBackend {
  gsvBackendDefault = 0,  ///< cpu
  gsvBackendRef = 1,      ///< the specification: slow, the same bits
  gsvBackendCpu = 2,
  gsvBackendCuda = 3
} gsvBackend_t;

typedef struct gsvContextConfig {
  uint32_t struct_size;
  uint32_t backend;      ///< gsvBackend_t
  uint64_t seed;         ///< of all random numbers; the same on all ranks
  uint32_t num_threads;  ///< per hook and call, the caller included; 0: 1
  uint32_t reserved;
} gsvContextConfig_t;

/// `config` may be NULL: all defaults.
GSV_API gsvResult_t gsvContextCreate(gsvContext_t* context, gsvContextConfig_t const* config);
GSV_API gsvResult_t gsvContextDestroy(gsvContext_t context);
/// Adds the plug-in of the shared library at this path (docs/plugin_abi.md) to the specs of this
/// context, and writes its name. Hooks that were made before do not see it. The library stays
/// loaded.
GSV_API gsvResult_t gsvContextLoadPlugin(gsvContext_t context, char const* path, char* name,
                                         uint64_t capacity, uint64_t* length);
/// The same for a plug-in that the caller has in memory: `plugin` is a gsvPluginV1x (plugin.h),
/// which is copied; what it points to stays for good.
GSV_API gsvResult_t gsvContextAddPlugin(gsvContext_t context, void const* plugin, char* name,
                                        uint64_t capacity, uint64_t* length);

// ----------------------------------------------------------------------------------- communicators

/// Number of a message's channel: votes and roll calls never wait for payloads.
typedef enum gsvChannel { gsvChannelData = 0, gsvChannelControl = 1 } gsvChannel_t;

/// A started send or receive, owned by the library; it does not move while it is under way.
typedef struct gsvRequest {
  uint64_t num_bytes;    ///< set by wait: bytes received, or sent
  char const* message;   ///< set on failure: a sentence that outlives the transport, or NULL
  uint64_t storage[16];  ///< the transport's own
} gsvRequest_t;

enum {
  gsvTransportAnyThread = 1,    ///< a progress thread may call it beside the caller's
  gsvTransportDeviceMemory = 2  ///< bytes may be device memory
};

/// A transport as C functions, for frameworks that bring their own. Between two ranks, messages of
/// one channel and tag arrive in the order sent. Every function returns by its deadline and never
/// throws or unwinds.
typedef struct gsvTransportTable {
  uint32_t struct_size;
  uint32_t flags;    ///< gsvTransport…
  char const* name;  ///< in reports and errors; copied
  int32_t rank;
  int32_t world_size;
  void* self;  ///< handed to every function

  /// Starts sending `num_bytes` bytes to `peer`; they stay unchanged until wait has returned.
  gsvResult_t (*send)(void* self, int32_t channel, int32_t peer, uint32_t tag, void const* bytes,
                      uint64_t num_bytes, gsvRequest_t* request);
  /// Starts receiving at most `capacity_bytes`. A longer message ends in gsvCapacityExceeded at
  /// wait, never in a store beyond.
  gsvResult_t (*receive)(void* self, int32_t channel, int32_t peer, uint32_t tag, void* bytes,
                         uint64_t capacity_bytes, gsvRequest_t* request);
  /// Waits for a request that send or receive accepted, once, for at most `timeout_ns` (0: looks).
  /// Whatever it returns, the request is over and its bytes are free: gsvTimeout has cancelled it.
  gsvResult_t (*wait)(void* self, gsvRequest_t* request, uint64_t timeout_ns);
  /// Makes every wait of this rank, now and later, return gsvAborted. Called from any thread.
  void (*abort)(void* self);
  /// Optional. The transport's own dense sum over ranks, in place: the baseline to compare with.
  gsvResult_t (*dense_all_reduce)(void* self, void* data, uint64_t count, uint32_t dtype);
  /// Optional. Called once, when the last user of the communicator is gone.
  void (*release)(void* self);
} gsvTransportTable_t;

/// Ranks that are threads of this process: fills comms[0 … world_size − 1], one for each.
GSV_API gsvResult_t gsvCommInitLocal(gsvComm_t* comms, int32_t world_size);
/// A framework's own transport. The table is copied; what `self` points to stays with the caller
/// until `release`.
GSV_API gsvResult_t gsvCommInitTable(gsvComm_t* comm, gsvTransportTable_t const* table);
/// MPI, by the module libgsv_mpi.so that was built for it. `mpi_comm` points to an MPI_Comm, which
/// is duplicated; NULL is MPI_COMM_WORLD. `module_path`: NULL takes GRADSIEVE_MPI_MODULE or else
/// libgsv_mpi.so, beside libgsv.so or where the system's loader finds it. The program initialises
/// MPI. Collective.
GSV_API gsvResult_t gsvCommInitMpi(gsvComm_t* comm, void const* mpi_comm, char const* module_path);
/// The same for a Fortran handle (MPI_Comm_c2f).
GSV_API gsvResult_t gsvCommInitMpiFortran(gsvComm_t* comm, int32_t mpi_comm,
                                          char const* module_path);

/// What such a module exports under the name gsvMpiTransport: it fills the table, whose struct_size
/// the caller has set. `communicator` points to an MPI_Comm, or to an int32_t if `is_fortran`. On
/// failure `message` [capacity] receives a sentence.
typedef gsvResult_t (*gsvTransportModule_t)(void const* communicator, int32_t is_fortran,
                                            gsvTransportTable_t* table, char* message,
                                            uint64_t capacity);

#define GSV_NCCL_ID_BYTES 128
/// NCCL, opened when the first of these is called (GRADSIEVE_NCCL_LIBRARY names another one than
/// libnccl.so.2), each rank on the CUDA device that is current in its thread. gsvNotBuilt in a
/// build without it, gsvUnsupported where it cannot be opened. By an id [GSV_NCCL_ID_BYTES] that
/// one rank makes and brings to the others. Collective.
GSV_API gsvResult_t gsvNcclGetUniqueId(void* id);
GSV_API gsvResult_t gsvCommInitNccl(gsvComm_t* comm, int32_t world_size, void const* id,
                                    int32_t rank);
/// Of the ranks of `host`, which carries the id, handshakes and roll calls; better than an id where
/// there is one, because it can name a rank that is gone. Kept alive by `comm`. Collective.
GSV_API gsvResult_t gsvCommInitNcclOver(gsvComm_t* comm, gsvComm_t host);
/// On an ncclComm_t of the caller's, who keeps it and destroys it after `comm`. Collective.
GSV_API gsvResult_t gsvCommInitNcclBorrowed(gsvComm_t* comm, void* nccl_comm);
/// A slow network around `inner`: a message occupies this rank's outgoing link for latency plus
/// bytes ÷ rate. 0 bits per second: no limit.
GSV_API gsvResult_t gsvCommInitLimited(gsvComm_t* comm, gsvComm_t inner, double bits_per_second,
                                       uint64_t latency_ns);

GSV_API gsvResult_t gsvCommCount(gsvComm_t comm, int32_t* world_size);
GSV_API gsvResult_t gsvCommUserRank(gsvComm_t comm, int32_t* rank);
/// Payload bytes and messages handed to the transport so far. Any thread.
GSV_API gsvResult_t gsvCommCounters(gsvComm_t comm, uint64_t* bytes_sent, uint64_t* messages_sent);
/// Every wait of this rank, now and later, ends in gsvAborted. Any thread.
GSV_API gsvResult_t gsvCommAbort(gsvComm_t comm);
GSV_API gsvResult_t gsvCommDestroy(gsvComm_t comm);

// ------------------------------------------------------------------------- specs and introspection

typedef enum gsvDtype {
  gsvFloat32 = 0,
  gsvFloat16 = 1,
  gsvBfloat16 = 2,
  gsvFloat64 = 3
} gsvDtype_t;

/// Checks a spec and writes its canonical text, every default spelled out. The error of a wrong one
/// says what would have been accepted.
GSV_API gsvResult_t gsvSpecCanonical(char const* spec, char* text, uint64_t capacity,
                                     uint64_t* length, gsvContext_t context);

enum {
  gsvClaimDeterministic = 1 << 0,
  gsvClaimLossless = 1 << 1,
  gsvClaimFixedRate = 1 << 2,
  gsvClaimUnbiased = 1 << 3,
  gsvClaimSharedIndices = 1 << 4,
  gsvClaimElementwise = 1 << 5,
  gsvClaimF64 = 1 << 6,
  gsvClaimAggregateResidual = 1 << 7,  ///< the residual follows from the agreed mean
  gsvClaimCuda = 1 << 8                ///< runs where gradients are on devices
};

/// What a spec costs and promises for a tensor.
typedef struct gsvSpecInfo {
  uint32_t struct_size;
  uint32_t claims;     ///< gsvClaim…
  double contraction;  ///< 0: none promised
  uint32_t num_rounds;
  uint32_t feedback;           ///< 1: what is not sent waits in a residual
  uint64_t payload_bytes;      ///< all rounds, at most, headers included; kept until the next begin
  uint64_t settled_bytes;      ///< of the last body, once density ramps are over
  uint64_t state_bytes_merge;  ///< with rollback=merge: one residual
  uint64_t state_bytes_exact;  ///< with rollback=exact: two residuals
  uint64_t workspace_bytes;
  uint64_t dense_below_elements;  ///< smaller tensors are sent as they are
} gsvSpecInfo_t;

GSV_API gsvResult_t gsvGetSpecInfo(char const* spec, uint64_t count, gsvDtype_t dtype,
                                   gsvSpecInfo_t* info, gsvContext_t context);

/// JSON of every plug-in of the context: name, kind, documentation, claims, and parameters with
/// unit, range and default; what `gradsieve list --json` prints.
GSV_API gsvResult_t gsvListPlugins(char* text, uint64_t capacity, uint64_t* length,
                                   gsvContext_t context);

// ------------------------------------------------------------------------------------ one tensor

/// What random numbers and schedules depend on, beside the context's seed.
typedef struct gsvEncodeOptions {
  uint32_t struct_size;
  uint32_t rank;
  uint64_t step;
} gsvEncodeOptions_t;

/// Most bytes that gsvEncode writes for `count` elements.
GSV_API gsvResult_t gsvEncodeBound(uint64_t count, gsvDtype_t dtype, char const* spec,
                                   uint64_t* capacity_bytes, gsvContext_t context);
/// Encodes `gradient` [count] into one payload with a checksum. `residual` [count] of f32 is added
/// before and receives what the payload does not carry; NULL: neither. `options` may be NULL.
/// A capacity below the bound is enough if the payload fits, else gsvCapacityExceeded; then
/// `payload` is untouched and `residual` unspecified. NaN or infinity: gsvNonFinite.
GSV_API gsvResult_t gsvEncode(void const* gradient, void* payload, uint64_t capacity_bytes,
                              uint64_t* payload_bytes, uint64_t count, gsvDtype_t dtype,
                              char const* spec, float* residual, gsvEncodeOptions_t const* options,
                              gsvContext_t context, gsvStream_t stream);
/// result [count] ← what the payload says. gsvCorruptPayload unless this spec may have written it.
GSV_API gsvResult_t gsvDecode(void const* payload, uint64_t payload_bytes, void* result,
                              uint64_t count, gsvDtype_t dtype, char const* spec,
                              gsvContext_t context, gsvStream_t stream);

// -------------------------------------------------------------------------------------------- hook

/// The first rule whose glob (`*`, `?`) matches the tensor's name decides.
typedef struct gsvRule {
  uint32_t struct_size;
  uint32_t reserved;
  char const* match;  ///< NULL: "*"
  char const* spec;
} gsvRule_t;

/// One parameter of the model: the same list in the same order on every rank.
typedef struct gsvTensorDesc {
  uint32_t struct_size;
  uint32_t dtype;    ///< gsvDtype_t
  char const* name;  ///< key of its state; unique
  uint64_t num_elements;
  uint64_t num_rows;  ///< 0: 1
} gsvTensorDesc_t;

/// Tensors whose gradients lie one behind another in one flat array, in this order.
typedef struct gsvBucketDesc {
  uint32_t struct_size;
  uint32_t num_tensors;
  uint32_t const* tensors;  ///< positions in the list of tensors
} gsvBucketDesc_t;

typedef enum gsvRedOp { gsvMean = 0, gsvSum = 1 } gsvRedOp_t;
typedef enum gsvRollback { gsvRollbackMerge = 0, gsvRollbackExact = 1 } gsvRollback_t;
typedef enum gsvOnNonFinite {
  gsvOnNonFinitePropagate = 0,  ///< the result is NaN, the step rolls back, nobody fails
  gsvOnNonFiniteSkip = 1,       ///< zeros instead of NaN
  gsvOnNonFiniteError = 2
} gsvOnNonFinite_t;

typedef struct gsvHookOptions {
  uint32_t struct_size;
  uint32_t num_rules;
  gsvRule_t const* rules;  ///< at least one; the last should match "*"
  uint32_t op;             ///< gsvRedOp_t
  uint32_t rollback;       ///< gsvRollback_t
  uint32_t on_nonfinite;   ///< gsvOnNonFinite_t
  uint32_t num_threads;    ///< 0: the context's
  double predivide;  ///< gradients are divided by it before, the result multiplied after; 0: 1
  uint64_t seed;     ///< 0: the context's
  uint64_t epoch;    ///< of the group; raise it when the transport was rebuilt
  uint64_t exchange_deadline_ms;  ///< 0: 30000
  uint64_t vote_deadline_ms;      ///< longer than the exchange's; 0: twice that
  uint32_t no_progress_thread;    ///< 1: exchanges run in wait and finish
  uint32_t strict;                ///< 1: a step fails if what ran is not what was configured
  gsvStream_t stream;             ///< of the caller, with a context of backend cuda; NULL: default
} gsvHookOptions_t;

/// A reduction under way.
typedef struct gsvEvent {
  uint64_t step;
  uint32_t bucket;
  uint32_t reserved;
} gsvEvent_t;

typedef struct gsvStepResult {
  uint32_t struct_size;
  uint32_t committed;        ///< 1: results may be used
  uint32_t found_nonfinite;  ///< 1: on some rank; the step was rolled back
  uint32_t pending;  ///< 1: the outcome is on the device and not known here: gsvHookSynchronize
} gsvStepResult_t;

/// Gradient exchange for one model on one rank. Every call is made in the same order on all ranks:
/// plan once, then per step begin, reduce per bucket, finish, update.
GSV_API gsvResult_t gsvHookCreate(gsvHook_t* hook, gsvComm_t comm, gsvHookOptions_t const* options,
                                  gsvContext_t context);
GSV_API gsvResult_t gsvHookDestroy(gsvHook_t hook);

/// Agrees with all ranks on tensors, specs and seed, and allocates. Called again with another
/// bucket layout it keeps what the tensors remember.
GSV_API gsvResult_t gsvHookPlan(gsvHook_t hook, gsvTensorDesc_t const* tensors,
                                uint32_t num_tensors, gsvBucketDesc_t const* buckets,
                                uint32_t num_buckets);
/// Other rules from the next step on, for the tensors and buckets of the plan: the same call on all
/// ranks, between finish and begin. Residuals stay. If it fails, the old rules hold.
GSV_API gsvResult_t gsvHookSetRules(gsvHook_t hook, gsvRule_t const* rules, uint32_t num_rules);
/// The same from step `at_step` on: the first begin of that step or a later one plans them. The
/// ranks agree at once, so this call is collective, between finish and begin, before or after the
/// first plan; a second call for a step replaces the first. Where rules or step differ, or a rank
/// refuses its own, every rank is told and nothing changes. No part of a saved state.
GSV_API gsvResult_t gsvHookSetRulesAt(gsvHook_t hook, gsvRule_t const* rules, uint32_t num_rules,
                                      uint64_t at_step);

/// Starts a step and applies the outcome of the one before. `loss_scale`: the gradients of this
/// step are this multiple of the true ones.
GSV_API gsvResult_t gsvHookBegin(gsvHook_t hook, uint64_t step, float loss_scale);
/// Starts the reduction of a bucket, in place: local gradients in, the mean out, valid after wait.
/// With a context of backend cuda the gradient is device memory, complete in the order of `stream`,
/// which is the caller's from then on: wait and finish make it wait, not the host.
GSV_API gsvResult_t gsvHookReduce(gsvHook_t hook, uint32_t bucket, void* gradient, uint64_t count,
                                  gsvDtype_t dtype, gsvStream_t stream, gsvEvent_t* event);
/// Waits for a bucket; the result of its exchange. May be called beside gsvHookReduce.
GSV_API gsvResult_t gsvHookWait(gsvHook_t hook, gsvEvent_t const* event);
/// Makes finish vote against this step and answer `result`: what this rank exchanges beside the
/// hook has failed. Between begin and finish, by any thread; the first one counts.
GSV_API gsvResult_t gsvHookVeto(gsvHook_t hook, gsvResult_t result);
/// Waits for all buckets, then votes. Only if `committed` may the optimizer read the results.
/// gsvSuccess: all ranks know the outcome.
GSV_API gsvResult_t gsvHookFinish(gsvHook_t hook, gsvStepResult_t* result);
/// Waits for the outcome of the last finished step, where that was pending.
GSV_API gsvResult_t gsvHookSynchronize(gsvHook_t hook, gsvStepResult_t* result);
/// Before each launch of a CUDA graph that begin … finish were captured in: it is this step then.
GSV_API gsvResult_t gsvHookReplay(gsvHook_t hook, uint64_t step, float loss_scale);
/// Device word that is 1, in stream order, if the last finished step is committed; NULL on the CPU.
GSV_API gsvResult_t gsvHookCommittedWord(gsvHook_t hook, uint32_t const** word);
/// Undoes a committed step before the next begin (a loss scaler that skips). All ranks.
GSV_API gsvResult_t gsvHookRefuse(gsvHook_t hook);
/// After gsvInDoubt: commits if any survivor committed, else rolls back. With another communicator
/// the hook goes on with that; where rank or world size have changed, plan comes first.
GSV_API gsvResult_t gsvHookRecover(gsvHook_t hook, gsvComm_t comm);

typedef struct gsvFailure {
  uint32_t struct_size;
  uint32_t code;  ///< gsvResult_t
  int32_t rank;   ///< the rank it is about; −1: unknown
  uint32_t reserved;
  char const* tensor;  ///< the first tensor concerned, or the one that differs
  char const* field;   ///< what differs or failed: "spec", "num_elements", "vote", …
  char const* message;
} gsvFailure_t;

/// Names what went wrong last. The strings are valid until this thread asks again, of any hook.
/// Any thread.
GSV_API gsvResult_t gsvHookGetFailure(gsvHook_t hook, gsvFailure_t* failure);

/// Counters of a tensor or bucket, of the last step and in all.
typedef struct gsvStats {
  uint32_t struct_size;
  uint32_t reserved;
  char const* name;
  char const* spec;      ///< canonical, as it ran
  char const* exchange;  ///< "gather", "two_shot", "all_reduce", "none"
  uint64_t num_elements;
  uint64_t dense_bytes;  ///< of the gradient, per step
  uint64_t wire_bytes;   ///< handed to the transport, headers included, last step
  uint64_t total_wire_bytes;
  uint64_t kept_elements;
  uint64_t overflowed_elements;
  double encode_seconds;  ///< last step; on the clock on the wall
  double exchange_seconds;
  double decode_seconds;
  double total_encode_seconds;
  double total_exchange_seconds;
  double total_decode_seconds;
  double residual_norm;  ///< 2-norm after the last committed step; tensors only
  double dropped_norm;   ///< without feedback: 2-norm of what was not sent in the last step
  /// The same work as in encode_seconds and decode_seconds, as CPU time of the thread that did it.
  double encode_cpu_seconds;
  double decode_cpu_seconds;
  double total_encode_cpu_seconds;
  double total_decode_cpu_seconds;
} gsvStats_t;

typedef enum gsvStatsOf { gsvStatsOfTensors = 0, gsvStatsOfBuckets = 1 } gsvStatsOf_t;

/// Fills stats[0 … capacity − 1] and sets `count` to how many there are; stats[0].struct_size is
/// set by the caller and is the stride. The strings are valid until the hook is asked again.
/// Between finish and begin.
GSV_API gsvResult_t gsvHookGetStats(gsvHook_t hook, gsvStatsOf_t of, gsvStats_t* stats,
                                    uint32_t capacity, uint32_t* count);
/// The committed residual of a tensor [count], in units of the true gradient.
GSV_API gsvResult_t gsvHookGetResidual(gsvHook_t hook, char const* tensor, float* residual,
                                       uint64_t count);
/// Parcels, capacities and memory, as planned, for people.
GSV_API gsvResult_t gsvHookDescribe(gsvHook_t hook, char* text, uint64_t capacity,
                                    uint64_t* length);
GSV_API gsvResult_t gsvHookGetMemory(gsvHook_t hook, uint64_t* state_bytes,
                                     uint64_t* workspace_bytes);

/// What import does with another number of ranks than exported.
typedef enum gsvOnWorldChange {
  gsvWorldChangeError = 0,
  gsvWorldChangeRedistribute = 1,  ///< needs the states of all old ranks; conserves the sum
  gsvWorldChangeReset = 2
} gsvOnWorldChange_t;

/// Everything this rank must keep to resume bit for bit, as one block of bytes; `num_bytes`
/// receives its size, `state` may be NULL to ask. Between finish and begin.
GSV_API gsvResult_t gsvHookSaveState(gsvHook_t hook, void* state, uint64_t capacity_bytes,
                                     uint64_t* num_bytes);
/// Reads it back after plan: this rank's own, or those of all old ranks in rank order.
GSV_API gsvResult_t gsvHookLoadState(gsvHook_t hook, void const* const* states,
                                     uint64_t const* num_bytes, uint32_t num_states,
                                     gsvOnWorldChange_t on_world_change);
/// The same bytes in a file, which appears whole or not at all.
GSV_API gsvResult_t gsvHookExportState(gsvHook_t hook, char const* path);
GSV_API gsvResult_t gsvHookImportState(gsvHook_t hook, char const* const* paths, uint32_t num_paths,
                                       gsvOnWorldChange_t on_world_change);

// --------------------------------------------------------------------- exchanges of given indices

typedef struct gsvSparseOptions {
  uint32_t struct_size;
  uint32_t tag;          ///< keeps exchanges apart that run at the same time
  uint64_t deadline_ms;  ///< 0: 30000
} gsvSparseOptions_t;

/// All ranks' pairs, one list per rank: unique ascending indices, repeats of a rank added up.
/// `indices` [count] below `num_elements`, in any order; ranks may bring different counts, 0 too.
/// `options` may be NULL.
GSV_API gsvResult_t gsvSparseAllGather(uint64_t const* indices, float const* values, uint64_t count,
                                       uint64_t num_elements, gsvSparse_t* result,
                                       gsvSparseOptions_t const* options, gsvComm_t comm,
                                       gsvStream_t stream);
/// One list: the sum over ranks of weight·value at each index, in rank order. weight 1/world_size
/// gives the mean.
GSV_API gsvResult_t gsvSparseAllReduce(uint64_t const* indices, float const* values, uint64_t count,
                                       uint64_t num_elements, float weight, gsvSparse_t* result,
                                       gsvSparseOptions_t const* options, gsvComm_t comm,
                                       gsvStream_t stream);
/// List `list` of a result: a rank's number for all_gather, 0 for all_reduce. The arrays live as
/// long as the result.
GSV_API gsvResult_t gsvSparseGet(gsvSparse_t result, uint32_t list, uint64_t const** indices,
                                 float const** values, uint64_t* count);
GSV_API gsvResult_t gsvSparseDestroy(gsvSparse_t result);

#ifdef __cplusplus
}  // extern "C"
#endif
