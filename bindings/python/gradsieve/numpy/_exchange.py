# SPDX-License-Identifier: Apache-2.0
"""Gradients of an MPI program in NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve._comm import Comm
from gradsieve._hook import Stats, StepResult, Tensor
from gradsieve._session import Session
from gradsieve.numpy._arrays import dtype_name
from gradsieve.spec import Rules

if TYPE_CHECKING:
    from mpi4py import MPI

DEFAULT_BUCKET_BYTES = 25 << 20


class Exchange:
    """Sums what the ranks of `comm` compute, compressed, between backward and update.

    `tensors` maps names to arrays (or anything NumPy makes one of): only shapes and element types
    count, and all ranks give the same. Options: op ("mean", "sum"), rollback ("merge", "exact"),
    on_nonfinite ("propagate", "skip", "error"), seed, num_threads, timeout in seconds, strict.
    Collective.
    """

    def __init__(
        self,
        comm: MPI.Comm | Comm,
        tensors: Mapping[str, ArrayLike],
        spec: Rules,
        *,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        **options: Any,
    ) -> None:
        if not isinstance(comm, Comm):
            from gradsieve.numpy._mpi_transport import comm_of

            comm = comm_of(comm)
        self._session = Session(comm, spec, **options)
        self._arrays = {name: np.asarray(array) for name, array in tensors.items()}
        self._kinds = {name: dtype_name(array.dtype) for name, array in self._arrays.items()}
        self._buckets = _buckets_of(self._arrays, bucket_bytes)
        self._flat = [
            np.empty(sum(self._arrays[name].size for name in bucket), self._arrays[bucket[0]].dtype)
            for bucket in self._buckets
        ]
        self._arrays = {name: _shape_only(array) for name, array in self._arrays.items()}
        self._plan()

    def _plan(self) -> None:
        tensors: list[Tensor] = []
        buckets = []
        for bucket in self._buckets:
            buckets.append(list(range(len(tensors), len(tensors) + len(bucket))))
            for name in bucket:
                array = self._arrays[name]
                rows = array.shape[0] if array.ndim > 1 else 1
                tensors.append(Tensor(name, array.size, self._kinds[name], rows))
        self._session.plan(tensors, buckets)

    def reduce(
        self, gradients: Mapping[str, NDArray[Any]], *, loss_scale: float = 1.0
    ) -> StepResult:
        """Replaces every array by its mean (or sum) over all ranks. Collective.

        Where some rank brought NaN or infinity, the result is not committed: the arrays say NaN (or
        0 with on_nonfinite="skip") on every rank and the update is to be skipped. A rank that fails
        or disagrees is a GradsieveError on every rank.
        """
        self._check(gradients)
        session = self._session
        session.begin(loss_scale)
        events = []
        for number, (bucket, flat) in enumerate(zip(self._buckets, self._flat)):
            np.concatenate([gradients[name].ravel() for name in bucket], out=flat)
            kind = self._kinds[bucket[0]]
            events.append(session.hook.reduce(number, flat.ctypes.data, flat.size, kind))
        result = session.finish()
        for bucket, flat in zip(self._buckets, self._flat):
            offset = 0
            for name in bucket:
                array = gradients[name]
                array[...] = flat[offset : offset + array.size].reshape(array.shape)
                offset += array.size
        return result

    def _check(self, gradients: Mapping[str, NDArray[Any]]) -> None:
        if set(gradients) != set(self._arrays):
            odd = ", ".join(sorted(set(gradients) ^ set(self._arrays)))
            raise ValueError(f"the arrays differ from those planned: {odd}")
        for name, planned in self._arrays.items():
            array = gradients[name]
            if array.shape != planned.shape or array.dtype != planned.dtype:
                raise ValueError(
                    f"'{name}' is {array.dtype}{list(array.shape)}; expected "
                    f"{planned.dtype}{list(planned.shape)} as planned"
                )

    def refuse(self) -> bool:
        """Undoes the last step, if it was committed, before the next reduce. All ranks."""
        return self._session.refuse()

    def set_rules(self, rules: Rules, at_step: int | None = None) -> None:
        """Other rules from step `at_step` on (None: the next); residuals stay.

        Collective, between steps: the ranks agree at once. Where rules or steps differ, or a rank
        refuses its own, every rank raises and the old rules hold. No part of a checkpoint.
        """
        self._session.set_rules(rules, at_step)

    def state_dict(self) -> dict[str, Any]:
        """What this rank must keep to resume bit for bit."""
        return self._session.state_dict()

    def load_state_dict(self, states: Any, on_world_change: str = "error") -> None:
        """This rank's own dictionary, or a list of all old ranks' for another number of ranks.

        `on_world_change`: "error", "redistribute" (the sum of the residuals stays), "reset".
        """
        self._session.load_state_dict(states, on_world_change)

    def residual(self, tensor: str) -> NDArray[np.float32]:
        """What of a tensor was not sent yet."""
        return np.array(self._session.residual(tensor), dtype=np.float32)

    def stats(self, of: str = "tensors") -> list[Stats]:
        """Counters per tensor, or per bucket with of="buckets"."""
        return self._session.hook.stats(of)

    def describe(self) -> str:
        """What is sent how, for people."""
        return self._session.hook.describe()

    @property
    def step(self) -> int:
        """The number of the next step."""
        return self._session.step


def _shape_only(array: NDArray[Any]) -> NDArray[Any]:
    """An array of the same shape and type that holds no memory."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def _buckets_of(arrays: Mapping[str, NDArray[Any]], bucket_bytes: int) -> list[list[str]]:
    """Names, grouped by type, in buckets of about `bucket_bytes`."""
    if not arrays:
        raise ValueError("there are no tensors; expected at least one name with an array")
    by_type: dict[str, list[str]] = {}
    for name, array in arrays.items():
        by_type.setdefault(array.dtype.str + array.dtype.name, []).append(name)
    buckets: list[list[str]] = []
    for names in by_type.values():
        used = bucket_bytes
        for name in names:
            size = arrays[name].nbytes
            if used > 0 and used + size > bucket_bytes:
                buckets.append([])
                used = 0
            buckets[-1].append(name)
            used += size
    return buckets
