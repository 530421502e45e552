# SPDX-License-Identifier: Apache-2.0
"""One bucket of DDP in one backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from gradsieve._hook import Tensor
from gradsieve.errors import GradsieveError
from gradsieve.torch._tensors import desc_of, dtype_name


class Bucket(NamedTuple):
    """What came, and who waits for the mean."""

    number: int
    names: tuple[str, ...]
    parameters: tuple[torch.Tensor, ...]
    buffer: torch.Tensor
    future: torch.futures.Future[Any]

    @property
    def is_sparse(self) -> bool:
        return self.buffer.layout != torch.strided

    def slices(self) -> list[torch.Tensor]:
        """The flat buffer, cut by parameter."""
        return list(torch.split(self.buffer, [parameter.numel() for parameter in self.parameters]))

    @property
    def layout(self) -> tuple[Any, ...]:
        if self.is_sparse:
            return (self.number, self.names, "sparse")
        return (self.number, self.names, dtype_name(self.buffer), self.buffer.numel())

    def descs(self) -> list[Tensor]:
        """Its tensors, for a plan. Sparse ones are none of the hook's."""
        if self.is_sparse:
            return []
        kind = dtype_name(self.buffer)
        pairs = zip(self.names, self.parameters)
        return [desc_of(name, parameter, kind) for name, parameter in pairs]


def plan_of(buckets: Iterable[Sequence[Tensor]]) -> tuple[list[Tensor], list[list[int]]]:
    """All tensors, and the positions of each bucket's."""
    tensors: list[Tensor] = []
    positions = []
    for bucket in buckets:
        positions.append(list(range(len(tensors), len(tensors) + len(bucket))))
        tensors += bucket
    return tensors, positions


def value_of(future: torch.futures.Future[Any]) -> Any:
    """Raises what went wrong: torch hands the exception of a callback on, to backward()."""
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value


def layout_error() -> GradsieveError:
    return GradsieveError(
        "DDP changed its buckets in the middle of a backward pass; expected those of the pass "
        "before. A model that is wrapped anew needs a HookState of its own",
        "invalid_usage",
    )
