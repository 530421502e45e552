# SPDX-License-Identifier: Apache-2.0
"""What of gradsieve/plugin.h a codec in Python needs, in ctypes; test_abi.py compares the two."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_uint32, c_uint64, c_void_p

from gradsieve._abi import Result, Versioned

ABI_VERSION = 1
EXCHANGES = {"gather": 0, "two_shot": 2}


class CodecInfo(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("claims", c_uint32),
        ("contraction", c_double),
        ("num_rounds", c_uint32),
        ("reserved", c_uint32),
        ("block_elements", c_uint64),
    ]


class Piece(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_uint32),
        ("tensor_id", c_uint64),
        ("offset_elements", c_uint64),
        ("num_elements", c_uint64),
        ("num_rows", c_uint64),
    ]


class RoundInfo(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("exchange", c_uint32),
        ("sum_type", c_uint32),
        ("reserved", c_uint32),
        ("capacity_bytes", c_uint64),
    ]


class StepWords(ctypes.Structure):
    _fields_ = [
        ("step", c_uint64),
        ("loss_scale", c_float),
        ("parity", c_uint32),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("kept_elements", c_uint64),
        ("overflowed_elements", c_uint64),
    ]


class Call(Versioned):
    _fields_ = [
        ("struct_size", c_uint32),
        ("backend", c_uint32),
        ("host", c_void_p),
        ("host_data", c_void_p),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("words", POINTER(StepWords)),
        ("slots", c_void_p),
        ("num_slots", c_uint32),
        ("round", c_uint32),
        ("seed", c_uint64),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("owned", c_uint32),
        ("reserved", c_uint32),
    ]


class Body(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("capacity_bytes", c_uint64),
        ("num_bytes", POINTER(c_uint64)),
    ]


CreateFunction = ctypes.CFUNCTYPE(Result, c_void_p, c_uint32, c_uint32, POINTER(c_void_p))
DestroyFunction = ctypes.CFUNCTYPE(None, c_void_p)
DescribeFunction = ctypes.CFUNCTYPE(None, c_void_p, POINTER(CodecInfo))
RoundInfoFunction = ctypes.CFUNCTYPE(None, c_void_p, c_uint32, POINTER(Piece), POINTER(RoundInfo))
EncodeFunction = ctypes.CFUNCTYPE(
    Result, c_void_p, POINTER(Call), POINTER(Piece), c_void_p, POINTER(Body)
)
DecodeAddFunction = ctypes.CFUNCTYPE(
    Result, c_void_p, POINTER(Call), POINTER(Piece), c_void_p, c_uint64, c_double, c_void_p
)


class PluginV1x(ctypes.Structure):
    _fields_ = [
        ("abi_version", c_uint32),
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("payload_id", c_uint32),
        ("uses", c_uint64),
        ("name", c_char_p),
        ("summary", c_char_p),
        ("paper", c_char_p),
        ("params", c_void_p),
        ("num_params", c_uint32),
        ("reserved", c_uint32),
        ("positional", c_char_p),
        ("create", CreateFunction),
        ("destroy", DestroyFunction),
        ("describe", DescribeFunction),
        ("round_info", RoundInfoFunction),
        ("workspace_bytes", c_void_p),
        ("slots", c_void_p),
        ("sum_bytes", c_void_p),
        ("encode", EncodeFunction),
        ("encode_with_residual", c_void_p),
        ("encode_owned", c_void_p),
        ("absorb", c_void_p),
        ("decode_add", DecodeAddFunction),
        ("feature", c_void_p),
    ]
