# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients of embeddings: rows with given indices."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

from gradsieve import _abi
from gradsieve._comm import Comm
from gradsieve._library import library
from gradsieve._session import Session
from gradsieve.errors import GradsieveError, check
from gradsieve.torch._bucket import Bucket

_FIRST_TAG = 0x20000000  # beyond those of hooks


class SparseMean(NamedTuple):
    """The same on all ranks."""

    gradient: torch.Tensor
    is_finite: bool  #: none of what the ranks brought was NaN or infinite


class SparseBuckets:
    """The sparse gradients of a step: exchanged beside the hook, and of the same vote.

    What fails on one rank fails the step on all, and so does what is not finite on one.
    """

    def __init__(self, session: Session, comm: Comm, timeout: float, on_nonfinite: str) -> None:
        self._session = session
        self._comm = comm
        self._timeout = timeout
        self._on_nonfinite = on_nonfinite
        self._found_nonfinite = False

    def check(self, buckets: Iterable[Bucket]) -> None:
        """Raises for what is not exchanged."""
        for bucket in buckets:
            if bucket.is_sparse and bucket.buffer.dtype == torch.float64:
                raise GradsieveError(
                    f"the sparse gradient of {bucket.names[0]!r} is f64, and rows travel as f32; "
                    "expected f32, or dense f64 (sparse=False) with the rule 'none'",
                    "unsupported",
                    tensor=bucket.names[0],
                )

    def begin(self) -> None:
        self._found_nonfinite = False

    def reduce(self, bucket: Bucket) -> torch.Tensor:
        """The mean over all ranks. An error here is also one of the session's finish()."""
        name = bucket.names[0]
        try:
            mean = reduce_sparse(bucket.buffer, self._comm, bucket.number, self._timeout)
            if not mean.is_finite and self._on_nonfinite == "error":
                raise GradsieveError("an element of some rank is NaN or infinite", "non_finite")
        except Exception as error:
            code = error.code if isinstance(error, GradsieveError) else "internal"
            sentence = f"the sparse gradient of {name!r}: {error}"
            failure = GradsieveError(sentence, code, tensor=name, field="gradient")
            self._session.veto(failure)
            raise failure from error
        if not mean.is_finite:
            self._found_nonfinite = True
            filling = math.nan if self._on_nonfinite == "propagate" else 0.0
            mean.gradient.values().fill_(filling)
        return mean.gradient

    def finish(self) -> None:
        """Ends the step. Means are the same on all ranks, so all take back what is not finite."""
        self._session.finish()
        if self._found_nonfinite:
            self._session.refuse()


def reduce_sparse(gradient: torch.Tensor, comm: Comm, place: int, timeout: float) -> SparseMean:
    """The mean over all ranks of a sparse COO gradient, as one. Ranks may bring different rows.

    What is on a device goes through host memory.
    """
    device = gradient.device
    gradient = gradient.coalesce().cpu()
    if gradient.sparse_dim() != 1:
        raise TypeError(
            f"a sparse gradient has {gradient.sparse_dim()} sparse dimensions; expected 1, the rows"
        )
    rows = gradient.indices()[0]
    values = gradient.values().to(torch.float32).reshape(rows.numel(), -1)
    width = max(1, values.shape[1]) if rows.numel() else _width(gradient)
    flat = (rows.unsqueeze(1) * width + torch.arange(width)).reshape(-1).contiguous()
    values = values.reshape(-1).contiguous()
    options = _abi.SparseOptions(
        tag=_FIRST_TAG + place, deadline_ms=max(1, round(timeout * 1000))
    )
    answer = _abi.Handle()
    check(
        library().gsvSparseAllReduce(
            flat.data_ptr(),
            values.data_ptr(),
            flat.numel(),
            gradient.shape[0] * width,
            1.0 / comm.world_size,
            ctypes.byref(answer),
            ctypes.byref(options),
            comm.handle,
            None,
        )
    )
    try:
        indices, summed = _list(answer)
    finally:
        library().gsvSparseDestroy(answer)
    found_rows = indices.reshape(-1, width)[:, 0] // width
    shape = (found_rows.numel(), *gradient.shape[1:])
    result = summed.reshape(shape).to(gradient.dtype)
    mean = torch.sparse_coo_tensor(
        found_rows.unsqueeze(0), result, gradient.shape, is_coalesced=True, check_invariants=False
    )
    return SparseMean(mean.to(device), bool(summed.isfinite().all()))


def _width(gradient: torch.Tensor) -> int:
    return max(1, gradient.shape[1:].numel())


def _list(answer: _abi.Handle) -> tuple[torch.Tensor, torch.Tensor]:
    indices, values, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    check(
        library().gsvSparseGet(
            answer, 0, ctypes.byref(indices), ctypes.byref(values), ctypes.byref(count)
        )
    )
    if count.value == 0:
        return torch.empty(0, dtype=torch.int64), torch.empty(0)
    wide = (ctypes.c_int64 * count.value).from_address(indices.value or 0)
    narrow = (ctypes.c_float * count.value).from_address(values.value or 0)
    return (
        torch.frombuffer(wide, dtype=torch.int64).clone(),
        torch.frombuffer(narrow, dtype=torch.float32).clone(),
    )
