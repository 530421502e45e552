// SPDX-License-Identifier: Apache-2.0
// The interface of compressors that live in a shared library of their own. Experimental: v1x may
// change by a decision in docs/decisions/ until it is frozen as v1. The guide: docs/plugin_abi.md.
//
// A plug-in exports one object, gsv_plugin_v1x, and imports nothing. Its functions neither
// communicate nor allocate (but create), keep no state outside of the slots, and may be called from
// several threads at once, with different slots. Structs begin with struct_size, which who fills
// them sets; what a smaller struct lacks counts as zero.
#pragma once

#include "gradsieve/gradsieve.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GSV_PLUGIN_ABI_VERSION 1
#define GSV_PLUGIN_SYMBOL "gsv_plugin_v1x"

/// What of this interface a plug-in uses. A host refuses bits that it does not know.
enum {
  gsvPluginUsesRounds = 1 << 0,    ///< more than one round: absorb
  gsvPluginUsesFused = 1 << 1,     ///< encode_with_residual
  gsvPluginUsesOwned = 1 << 2,     ///< encode_owned and the mass sink
  gsvPluginUsesSlots = 1 << 3,     ///< state slots
  gsvPluginUsesF64 = 1 << 4,       ///< arrays of f64, where the piece says so
  gsvPluginUsesFeatures = 1 << 5,  ///< asks the host, or can be asked
  gsvPluginUsesCuda = 1 << 6       ///< reserved
};

typedef enum gsvPluginKind { gsvPluginCompressor = 0 } gsvPluginKind_t;

// --- what a plug-in says of itself ---------------------------------------------------------------

typedef enum gsvParamType {
  gsvParamReal = 0,
  gsvParamInteger = 1,
  gsvParamBoolean = 2,
  gsvParamChoice = 3
} gsvParamType_t;

typedef struct gsvParamInfo {
  uint32_t struct_size;
  uint32_t type;  ///< gsvParamType_t
  char const* name;
  char const* unit;           ///< "fraction", "elements", …; NULL for choices and booleans
  char const* default_value;  ///< as it would be written in a spec; NULL: must be given
  double min;                 ///< of numbers: a closed range
  double max;
  uint32_t min_excluded;  ///< 1: (min, max]
  uint32_t num_choices;
  char const* const* choices;
  char const* summary;
} gsvParamInfo_t;

/// A checked parameter of one stage, in the order of their declaration.
typedef struct gsvParamValue {
  uint32_t struct_size;
  uint32_t type;
  char const* name;
  double real;
  int64_t integer;
  char const* text;  ///< of a choice
  uint32_t boolean;
  uint32_t reserved;
} gsvParamValue_t;

/// Promises and sizes that hold for every piece.
typedef struct gsvCodecInfo {
  uint32_t struct_size;
  uint32_t claims;      ///< gsvClaim…; the conformance suite tests each
  double contraction;   ///< δ in ‖g − ĝ‖² ≤ (1 − δ)‖g‖²; 0 promises nothing
  uint32_t num_rounds;  ///< 0: 1
  uint32_t reserved;
  uint64_t block_elements;  ///< shards are cut at multiples of it; 0: 1
} gsvCodecInfo_t;

// --- what a call is told -------------------------------------------------------------------------

/// A tensor, or a piece of one.
typedef struct gsvPiece {
  uint32_t struct_size;
  uint32_t dtype;  ///< gsvDtype_t of the gradient
  uint64_t tensor_id;
  uint64_t offset_elements;  ///< of the piece within its tensor
  uint64_t num_elements;
  uint64_t num_rows;  ///< of the whole tensor
} gsvPiece_t;

typedef enum gsvExchangeKind {
  gsvExchangeGather = 0,   ///< own bytes of each rank to all ranks
  gsvExchangeSum = 1,      ///< bodies are arrays that are added before decoding
  gsvExchangeShardSum = 2  ///< the owner of a shard adds, encodes once more, sends to all
} gsvExchangeKind_t;

typedef enum gsvSumType { gsvSumNone = 0, gsvSumF32 = 1, gsvSumF64 = 2 } gsvSumType_t;

typedef struct gsvRoundInfo {
  uint32_t struct_size;
  uint32_t exchange;  ///< gsvExchangeKind_t
  uint32_t sum_type;  ///< gsvSumType_t
  uint32_t reserved;
  uint64_t capacity_bytes;  ///< of a piece's body, at most
} gsvRoundInfo_t;

typedef enum gsvSlotKind {
  gsvSlotLocalSum = 0,    ///< each rank has its own; the sum over ranks is conserved
  gsvSlotReplicated = 1,  ///< equal on all ranks
  gsvSlotPartitioned = 2  ///< by owner
} gsvSlotKind_t;

typedef struct gsvSlotInfo {
  uint32_t struct_size;
  uint32_t kind;  ///< gsvSlotKind_t
  char const* name;
  uint64_t num_bytes;
} gsvSlotInfo_t;

/// A slot during a step. What holds from here on is `next` if `*written`, else `committed`.
typedef struct gsvSlot {
  uint32_t struct_size;
  uint32_t kind;
  char const* name;
  void const* committed;  ///< as the last committed step left it; zeros at first
  void* next;             ///< what this step writes, as a whole
  uint64_t num_bytes;
  uint8_t* written;  ///< set to 1 by who writes `next`
} gsvSlot_t;

/// What changes from step to step; the place outlives the call.
typedef struct gsvStepWords {
  uint64_t step;
  float loss_scale;
  uint32_t parity;  ///< step & 1
  uint32_t flags;   ///< 1: a gradient element was not finite; 2: elements did not fit
  uint32_t reserved;
  uint64_t kept_elements;  ///< added to by who selects
  uint64_t overflowed_elements;
} gsvStepWords_t;

enum { gsvStepNonFinite = 1, gsvStepOverflow = 2 };

struct gsvCall;

/// What a host does for its plug-ins.
typedef struct gsvHost {
  uint32_t struct_size;
  uint32_t abi_version;
  /// Runs body(argument, begin, end) for [0, grain), [grain, 2 grain), … of [0, count), on the
  /// call's threads; returns when all are done.
  void (*parallel_for)(const struct gsvCall* call, uint64_t count, uint64_t grain,
                       void (*body)(void* argument, uint64_t begin, uint64_t end), void* argument);
  /// Four random words at (block, the call's step): a function of the seed, the tensor, the purpose
  /// (16 … 2^31 are the plug-in's) and the rank; shared by all ranks if `shared`.
  void (*random)(const struct gsvCall* call, gsvPiece_t const* piece, uint32_t purpose,
                 uint32_t shared, uint64_t block, uint32_t words[4]);
  /// The first half of error feedback, for fused encoders: residual_out ← g + carry·residual_in
  /// where that is finite, else carry·residual_in; sets gsvStepNonFinite. residual_in may be NULL.
  void (*compensate)(const struct gsvCall* call, gsvPiece_t const* piece, void const* gradient,
                     float const* residual_in, float* residual_out, float carry);
  /// NULL unless the host has a feature of this name; what it points to is the feature's.
  void const* (*feature)(char const* name);
} gsvHost_t;

typedef struct gsvCall {
  uint32_t struct_size;
  uint32_t backend;  ///< gsvBackend_t
  gsvHost_t const* host;
  void* host_data;  ///< the host's own
  gsvStream_t stream;
  void* workspace;  ///< aligned to 256
  uint64_t workspace_bytes;
  gsvStepWords_t* words;
  gsvSlot_t const* slots;  ///< in the order of their declaration; stride: struct_size
  uint32_t num_slots;
  uint32_t round;
  uint64_t seed;
  int32_t rank;
  int32_t world_size;
  uint32_t owned;  ///< 1: the owner's second encoding: its random numbers are others
  uint32_t reserved;
} gsvCall_t;

/// A piece's body while it is written; aligned to 16.
typedef struct gsvBody {
  void* data;
  uint64_t capacity_bytes;
  uint64_t* num_bytes;  ///< to be set
} gsvBody_t;

/// Bodies that came in: body(data, 0 … count − 1, &num_bytes).
typedef struct gsvReceived {
  uint32_t struct_size;
  uint32_t count;
  void const* data;
  void const* (*body)(void const* data, uint32_t index, uint64_t* num_bytes);
} gsvReceived_t;

/// Takes what an exchange could not deliver.
typedef struct gsvMassSink {
  uint32_t struct_size;
  uint32_t reserved;
  void* self;
  /// [num_elements] for the undelivered part of the piece, in units of the sum, to be overwritten;
  /// NULL if there is no room.
  float* (*undelivered)(void* self, gsvPiece_t const* piece);
} gsvMassSink_t;

// --- the plug-in ---------------------------------------------------------------------------------

/// `codec` is what create made. Every function but those marked optional is there. A failing
/// function returns the code of gradsieve.h that fits; bodies may be anything that somebody sent,
/// so decoders check before they store.
typedef struct gsvPluginV1x {
  uint32_t abi_version;  ///< GSV_PLUGIN_ABI_VERSION
  uint32_t struct_size;
  uint32_t kind;        ///< gsvPluginKind_t
  uint32_t payload_id;  ///< 32 … 159 by registration in docs/plugin_abi.md, 160 … 255 private
  uint64_t uses;        ///< gsvPluginUses…
  char const* name;     ///< as in a spec: [a-z][a-z0-9_]*
  char const* summary;  ///< one sentence
  char const* paper;    ///< authors, venue, arXiv id; "-" if there is none
  gsvParamInfo_t const* params;
  uint32_t num_params;
  uint32_t reserved;
  char const* positional;  ///< parameter that an argument without a key sets, or NULL

  gsvResult_t (*create)(gsvParamValue_t const* values, uint32_t num_values, uint32_t with_feedback,
                        void** codec);
  void (*destroy)(void* codec);

  void (*describe)(void const* codec, gsvCodecInfo_t* info);
  void (*round_info)(void const* codec, uint32_t round, gsvPiece_t const* piece,
                     gsvRoundInfo_t* info);
  /// Optional. Bytes that one call takes at most.
  uint64_t (*workspace_bytes)(void const* codec, gsvPiece_t const* piece);
  /// Optional. Slots of a piece: fills at most `capacity`, returns how many there are.
  uint32_t (*slots)(void const* codec, gsvPiece_t const* piece, gsvSlotInfo_t* slots,
                    uint32_t capacity);
  /// Optional. Bytes of a sum round's body in this step; otherwise its capacity.
  uint64_t (*sum_bytes)(void const* codec, uint32_t round, gsvPiece_t const* piece, uint64_t step);

  /// body ← encode(corrected), [num_elements] f32, or f64 where the piece's dtype is that.
  gsvResult_t (*encode)(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                        void const* corrected, gsvBody_t const* body);
  /// Optional: gradient and residual in, body and new residual out, in one pass; the bits of
  /// compensate, encode, retain. residual_in may be NULL or residual_out itself.
  gsvResult_t (*encode_with_residual)(void const* codec, gsvCall_t const* call,
                                      gsvPiece_t const* piece, void const* gradient,
                                      float const* residual_in, float* residual_out, float carry,
                                      gsvBody_t const* body);
  /// Optional: the owner's half of a shard-sum. Otherwise encode once more, the rest to the sink.
  gsvResult_t (*encode_owned)(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                              float const* sum, gsvBody_t const* body, gsvMassSink_t const* sink);
  /// With more than one round: what the others sent in all rounds but the last, one body per rank
  /// or the one sum.
  gsvResult_t (*absorb)(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                        gsvReceived_t const* received);
  /// accumulator += weight · decode(body), f32 or f64 as in encode.
  gsvResult_t (*decode_add)(void const* codec, gsvCall_t const* call, gsvPiece_t const* piece,
                            void const* body, uint64_t num_bytes, double weight, void* accumulator);
  /// Optional. NULL unless the plug-in has a feature of this name.
  void const* (*feature)(char const* name);
} gsvPluginV1x_t;

#ifdef __cplusplus
}  // extern "C"
#define GSV_PLUGIN_EXPORT extern "C" GSV_API const gsvPluginV1x_t
#else
#define GSV_PLUGIN_EXPORT GSV_API const gsvPluginV1x_t
#endif
