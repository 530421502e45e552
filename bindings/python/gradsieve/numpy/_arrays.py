# SPDX-License-Identifier: Apache-2.0
"""Encode and decode of one array."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gradsieve import _abi
from gradsieve._library import library
from gradsieve.errors import check
from gradsieve.spec import DTYPES, Context

_NAMES = {np.dtype("f4"): "f32", np.dtype("f2"): "f16", np.dtype("f8"): "f64"}


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The library's name of an element type, by NumPy's or (bfloat16) an extension's."""
    if dtype in _NAMES:
        return _NAMES[dtype]
    if dtype.name == "bfloat16":
        return "bf16"
    raise TypeError(
        f"the element type is {dtype}; expected float32, float16, float64, or bfloat16 of ml_dtypes"
    )


def encode(
    gradient: ArrayLike,
    spec: str,
    *,
    residual: NDArray[np.float32] | None = None,
    step: int = 0,
    rank: int = 0,
    seed: int = 0,
    num_threads: int = 1,
) -> bytes:
    """`gradient` as one payload with a checksum, elements in C order.

    `residual`, a contiguous float32 array of as many elements, is added before and receives what
    the payload does not carry; the spec then needs feedback. `step`, `rank` and `seed` are what
    random numbers and schedules depend on. NaN or infinity is an error.
    """
    array = np.ascontiguousarray(gradient)
    number = DTYPES[dtype_name(array.dtype)]
    if residual is not None:
        _check_residual(residual, array.size)
    context = Context(seed, num_threads)
    text = spec.encode()
    capacity, used = ctypes.c_uint64(), ctypes.c_uint64()
    check(
        library().gsvEncodeBound(array.size, number, text, ctypes.byref(capacity), context.handle)
    )
    payload = ctypes.create_string_buffer(max(1, capacity.value))
    options = _abi.EncodeOptions(rank=rank, step=step)
    check(
        library().gsvEncode(
            array.ctypes.data,
            payload,
            capacity.value,
            ctypes.byref(used),
            array.size,
            number,
            text,
            None if residual is None else residual.ctypes.data,
            ctypes.byref(options),
            context.handle,
            None,
        )
    )
    return ctypes.string_at(payload, used.value)


def decode(
    payload: bytes,
    spec: str,
    shape: int | tuple[int, ...],
    dtype: DTypeLike = np.float32,
    *,
    seed: int = 0,
    num_threads: int = 1,
) -> NDArray[Any]:
    """What a payload says. An error unless this spec, for this shape, may have written it."""
    result = np.empty(shape, dtype)
    context = Context(seed, num_threads)
    check(
        library().gsvDecode(
            payload,
            len(payload),
            result.ctypes.data,
            result.size,
            DTYPES[dtype_name(result.dtype)],
            spec.encode(),
            context.handle,
            None,
        )
    )
    return result


def _check_residual(residual: NDArray[np.float32], size: int) -> None:
    fits = (
        isinstance(residual, np.ndarray)
        and residual.dtype == np.float32
        and residual.size == size
        and residual.flags.c_contiguous
        and residual.flags.writeable
    )
    if not fits:
        found = f"{getattr(residual, 'dtype', type(residual))} of {np.size(residual)}"
        raise ValueError(
            f"residual is {found}; expected a writable contiguous float32 array of {size} elements"
        )
