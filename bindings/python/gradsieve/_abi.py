# SPDX-License-Identifier: Apache-2.0
"""gradsieve.h in ctypes. test_abi.py compares every struct and function with the header."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

# A handle, and a pointer to a buffer, are plain addresses here.
Handle = c_void_p
Address = c_void_p
Result = c_int

SUCCESS = 0
INVALID_ARGUMENT = 10
UNSUPPORTED = 22
CAPACITY_EXCEEDED = 31
TIMEOUT = 42
ABORTED = 43
TRANSPORT_ERROR = 61
INTERNAL = 70


class Versioned(ctypes.Structure):
    """A struct that begins with its own size."""

    def __init__(self, **members: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(self), **members)


class ContextConfig(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("backend", c_uint32),
        ("seed", c_uint64),
        ("num_threads", c_uint32),
        ("reserved", c_uint32),
    ]


class Request(ctypes.Structure):
    _fields_ = [("num_bytes", c_uint64), ("message", c_char_p), ("storage", c_uint64 * 16)]


SendFunction = ctypes.CFUNCTYPE(
    Result, c_void_p, c_int32, c_int32, c_uint32, c_void_p, c_uint64, POINTER(Request)
)
ReceiveFunction = SendFunction
WaitFunction = ctypes.CFUNCTYPE(Result, c_void_p, POINTER(Request), c_uint64)
AbortFunction = ctypes.CFUNCTYPE(None, c_void_p)
DenseAllReduceFunction = ctypes.CFUNCTYPE(Result, c_void_p, c_void_p, c_uint64, c_uint32)
ReleaseFunction = ctypes.CFUNCTYPE(None, c_void_p)


class TransportTable(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("name", c_char_p),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("self", c_void_p),
        ("send", SendFunction),
        ("receive", ReceiveFunction),
        ("wait", WaitFunction),
        ("abort", AbortFunction),
        ("dense_all_reduce", DenseAllReduceFunction),
        ("release", ReleaseFunction),
    ]


class SpecInfo(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("claims", c_uint32),
        ("contraction", c_double),
        ("num_rounds", c_uint32),
        ("feedback", c_uint32),
        ("payload_bytes", c_uint64),
        ("settled_bytes", c_uint64),
        ("state_bytes_merge", c_uint64),
        ("state_bytes_exact", c_uint64),
        ("workspace_bytes", c_uint64),
        ("dense_below_elements", c_uint64),
    ]


class EncodeOptions(Versioned):
    _fields_ = [("struct_size", c_uint32), ("rank", c_uint32), ("step", c_uint64)]


class Rule(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("match", c_char_p),
        ("spec", c_char_p),
    ]


class TensorDesc(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_uint32),
        ("name", c_char_p),
        ("num_elements", c_uint64),
        ("num_rows", c_uint64),
    ]


class BucketDesc(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("num_tensors", c_uint32),
        ("tensors", POINTER(c_uint32)),
    ]


class HookOptions(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("num_rules", c_uint32),
        ("rules", POINTER(Rule)),
        ("op", c_uint32),
        ("rollback", c_uint32),
        ("on_nonfinite", c_uint32),
        ("num_threads", c_uint32),
        ("predivide", c_double),
        ("seed", c_uint64),
        ("epoch", c_uint64),
        ("exchange_deadline_ms", c_uint64),
        ("vote_deadline_ms", c_uint64),
        ("no_progress_thread", c_uint32),
        ("strict", c_uint32),
        ("stream", c_void_p),
    ]


class Event(ctypes.Structure):
    _fields_ = [("step", c_uint64), ("bucket", c_uint32), ("reserved", c_uint32)]


class StepResult(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("committed", c_uint32),
        ("found_nonfinite", c_uint32),
        ("pending", c_uint32),
    ]


class Failure(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("code", c_uint32),
        ("rank", c_int32),
        ("reserved", c_uint32),
        ("tensor", c_char_p),
        ("field", c_char_p),
        ("message", c_char_p),
    ]


class Stats(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("name", c_char_p),
        ("spec", c_char_p),
        ("exchange", c_char_p),
        ("num_elements", c_uint64),
        ("dense_bytes", c_uint64),
        ("wire_bytes", c_uint64),
        ("total_wire_bytes", c_uint64),
        ("kept_elements", c_uint64),
        ("overflowed_elements", c_uint64),
        ("encode_seconds", c_double),
        ("exchange_seconds", c_double),
        ("decode_seconds", c_double),
        ("total_encode_seconds", c_double),
        ("total_exchange_seconds", c_double),
        ("total_decode_seconds", c_double),
        ("residual_norm", c_double),
        ("dropped_norm", c_double),
        ("encode_cpu_seconds", c_double),
        ("decode_cpu_seconds", c_double),
        ("total_encode_cpu_seconds", c_double),
        ("total_decode_cpu_seconds", c_double),
    ]


class SparseOptions(Versioned):
    _fields_ = [("struct_size", c_uint32), ("tag", c_uint32), ("deadline_ms", c_uint64)]


_SIZE = POINTER(c_uint64)
_TEXT = [c_void_p, c_uint64, _SIZE]

# name: (result, arguments). void* and arrays of numbers are addresses.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "gsvGetResultName": (c_char_p, [Result]),
    "gsvGetLastError": (c_char_p, []),
    "gsvGetVersion": (Result, [POINTER(c_int)]),
    "gsvGetVersionText": (c_char_p, []),
    "gsvContextCreate": (Result, [POINTER(Handle), POINTER(ContextConfig)]),
    "gsvContextDestroy": (Result, [Handle]),
    "gsvContextAddPlugin": (Result, [Handle, Address, *_TEXT]),
    "gsvCommInitLocal": (Result, [POINTER(Handle), c_int32]),
    "gsvCommInitTable": (Result, [POINTER(Handle), POINTER(TransportTable)]),
    "gsvCommInitMpi": (Result, [POINTER(Handle), Address, c_char_p]),
    "gsvNcclGetUniqueId": (Result, [Address]),
    "gsvCommInitNccl": (Result, [POINTER(Handle), c_int32, Address, c_int32]),
    "gsvCommInitNcclOver": (Result, [POINTER(Handle), Handle]),
    "gsvCommInitLimited": (Result, [POINTER(Handle), Handle, c_double, c_uint64]),
    "gsvCommCount": (Result, [Handle, POINTER(c_int32)]),
    "gsvCommUserRank": (Result, [Handle, POINTER(c_int32)]),
    "gsvCommCounters": (Result, [Handle, _SIZE, _SIZE]),
    "gsvCommAbort": (Result, [Handle]),
    "gsvCommDestroy": (Result, [Handle]),
    "gsvSpecCanonical": (Result, [c_char_p, *_TEXT, Handle]),
    "gsvGetSpecInfo": (Result, [c_char_p, c_uint64, c_int, POINTER(SpecInfo), Handle]),
    "gsvListPlugins": (Result, [*_TEXT, Handle]),
    "gsvEncodeBound": (Result, [c_uint64, c_int, c_char_p, _SIZE, Handle]),
    "gsvEncode": (
        Result,
        [Address, Address, c_uint64, _SIZE, c_uint64, c_int, c_char_p, Address]
        + [POINTER(EncodeOptions), Handle, c_void_p],
    ),
    "gsvDecode": (
        Result,
        [Address, c_uint64, Address, c_uint64, c_int, c_char_p, Handle, c_void_p],
    ),
    "gsvHookCreate": (Result, [POINTER(Handle), Handle, POINTER(HookOptions), Handle]),
    "gsvHookDestroy": (Result, [Handle]),
    "gsvHookPlan": (
        Result,
        [Handle, POINTER(TensorDesc), c_uint32, POINTER(BucketDesc), c_uint32],
    ),
    "gsvHookSetRulesAt": (Result, [Handle, POINTER(Rule), c_uint32, c_uint64]),
    "gsvHookBegin": (Result, [Handle, c_uint64, c_float]),
    "gsvHookReduce": (
        Result,
        [Handle, c_uint32, Address, c_uint64, c_int, c_void_p, POINTER(Event)],
    ),
    "gsvHookWait": (Result, [Handle, POINTER(Event)]),
    "gsvHookFinish": (Result, [Handle, POINTER(StepResult)]),
    "gsvHookSynchronize": (Result, [Handle, POINTER(StepResult)]),
    "gsvHookReplay": (Result, [Handle, c_uint64, c_float]),
    "gsvHookCommittedWord": (Result, [Handle, POINTER(c_void_p)]),
    "gsvHookRefuse": (Result, [Handle]),
    "gsvHookVeto": (Result, [Handle, Result]),
    "gsvHookRecover": (Result, [Handle, Handle]),
    "gsvHookGetFailure": (Result, [Handle, POINTER(Failure)]),
    "gsvHookGetStats": (Result, [Handle, c_int, POINTER(Stats), c_uint32, POINTER(c_uint32)]),
    "gsvHookGetResidual": (Result, [Handle, c_char_p, Address, c_uint64]),
    "gsvHookDescribe": (Result, [Handle, *_TEXT]),
    "gsvHookGetMemory": (Result, [Handle, _SIZE, _SIZE]),
    "gsvHookSaveState": (Result, [Handle, Address, c_uint64, _SIZE]),
    "gsvHookLoadState": (Result, [Handle, POINTER(c_void_p), _SIZE, c_uint32, c_int]),
    "gsvSparseAllReduce": (
        Result,
        [Address, Address, c_uint64, c_uint64, c_float, POINTER(Handle)]
        + [POINTER(SparseOptions), Handle, c_void_p],
    ),
    "gsvSparseGet": (
        Result,
        [Handle, c_uint32, POINTER(c_void_p), POINTER(c_void_p), _SIZE],
    ),
    "gsvSparseDestroy": (Result, [Handle]),
}


def declare(library: ctypes.CDLL) -> None:
    """Gives every function its types. AttributeError if the library lacks one."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
