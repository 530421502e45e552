# SPDX-License-Identifier: Apache-2.0
"""What DDP did not take of our results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch.autograd import Variable


class _Returned(NamedTuple):
    """What a hook has put into a bucket for one parameter."""

    name: str
    parameter: torch.Tensor
    part: torch.Tensor  #: of the bucket
    version: int  #: of the gradient when the bucket came


class Notices(Protocol):
    """What one rank leaves for another: never waits for anybody."""

    def leave(self, number: int, names: Iterable[str]) -> None: ...

    def find(self, number: int) -> list[str]: ...


class Undelivered:
    """Means that reached no gradient, by parameter, in units of the true gradient.

    Where `find_unused_parameters` finds that no rank used a parameter, DDP drops what the hook has
    put into the bucket for it: what waited in residuals and was sent in this pass. Every rank keeps
    that mean, which is the same on all, and adds it to its next gradient: the next mean holds it.

    A rank that has joined (`Join`) stands for zeros in the buckets of the others and sees no
    gradient of theirs. Those leave it a notice of what DDP has dropped. It looks for that when it
    comes back to us, and that is late enough: all have met in a collective of DDP's since.
    """

    def __init__(self, is_exact: bool, notices: Notices) -> None:
        self._is_exact = is_exact
        self._notices = notices
        self._passes = 0  # the same on all ranks
        self._has_joined = False  # in the last pass
        self._waiting: dict[str, torch.Tensor] = {}
        self._added: set[str] = set()  # of those that wait, what the last pass has taken
        self._dropped: dict[str, torch.Tensor] = {}  # by DDP, in the last pass
        self._returned: list[_Returned] = []
        self._scale = 1.0

    def settle(self, committed: bool) -> None:
        """Before the next pass: what became of the last one."""
        self._read_notice()
        # Rolled back with "merge", the residual has what was added; with "exact", nobody has.
        if committed or not self._is_exact:
            for name in self._added:
                del self._waiting[name]
        if committed:
            self._waiting.update(self._dropped)
        self._added.clear()
        self._dropped.clear()

    def begin(self, scale: float) -> None:
        self._passes += 1
        self._scale = scale
        self._returned.clear()

    def add_to(self, name: str, parameter: torch.Tensor, part: torch.Tensor) -> None:
        """Adds what waits for a parameter to its part of a bucket, which is then looked after."""
        waiting = self._waiting.get(name)
        if waiting is not None:
            part.add_(waiting, alpha=self._scale)
            self._added.add(name)
        version = -1 if parameter.grad is None else parameter.grad._version
        self._returned.append(_Returned(name, parameter, part, version))

    def watch(self) -> None:
        """Looks at the gradients after DDP has written them. From within backward."""
        engine = Variable._execution_engine
        try:
            # DDP's own callback comes after this one, and one that is added then comes after DDP's.
            engine.queue_callback(lambda: engine.queue_callback(self._look))
        except RuntimeError:
            self._has_joined = True  # it has no gradients

    def _look(self) -> None:
        for returned in self._returned:
            if not _was_taken(returned):
                self._drop(returned)
        self._returned.clear()
        if self._dropped:
            self._notices.leave(self._passes, self._dropped)

    def _drop(self, returned: _Returned) -> None:
        mean = returned.part.to(torch.float32).div(self._scale)
        if mean.is_cuda or mean.any():
            self._dropped[returned.name] = mean

    def _read_notice(self) -> None:
        if not self._has_joined:
            return
        dropped = set(self._notices.find(self._passes))
        for returned in self._returned:
            if returned.name in dropped:
                self._drop(returned)
        self._returned.clear()
        self._has_joined = False

    def state(self) -> dict[str, torch.Tensor]:
        return {name: mean.cpu() for name, mean in self._waiting.items()}

    def load(self, state: Mapping[str, torch.Tensor], factor: float, device: torch.device) -> None:
        """`factor`: ranks that there were by ranks that there are, so that their sum stays."""
        self._waiting = {name: mean.to(device) * factor for name, mean in state.items()}
        self._added.clear()
        self._dropped.clear()
        self._returned.clear()
        self._has_joined = False


def _was_taken(returned: _Returned) -> bool:
    gradient = returned.parameter.grad
    if gradient is None:
        return False
    if gradient._version != returned.version:
        return True
    return gradient.data_ptr() == returned.part.data_ptr()  # gradient_as_bucket_view
