# SPDX-License-Identifier: Apache-2.0
"""What DDP did not take of our results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch.autograd import Variable


class _Returned(NamedTuple):
    """What a hook has put into a bucket for one parameter."""

    name: str
    parameter: torch.Tensor
    part: torch.Tensor  #: of the bucket
    version: int  #: of the gradient when the bucket came


class Undelivered:
    """Means that reached no gradient, by parameter, in units of the true gradient.

    Where `find_unused_parameters` finds that no rank used a parameter, DDP drops what the hook has
    put into the bucket for it: what waited in residuals and was sent in this pass. Every rank keeps
    that mean, which is the same on all, and adds it to its next gradient: the next mean holds it.
    """

    def __init__(self, is_exact: bool) -> None:
        self._is_exact = is_exact
        self._waiting: dict[str, torch.Tensor] = {}
        self._added: set[str] = set()  # of those that wait, what the last pass has taken
        self._dropped: dict[str, torch.Tensor] = {}  # by DDP, in the last pass
        self._returned: list[_Returned] = []
        self._scale = 1.0

    def settle(self, committed: bool) -> None:
        """Before the next pass: what became of the last one."""
        # Rolled back with "merge", the residual has what was added; with "exact", nobody has.
        if committed or not self._is_exact:
            for name in self._added:
                del self._waiting[name]
        if committed:
            self._waiting.update(self._dropped)
        self._added.clear()
        self._dropped.clear()

    def begin(self, scale: float) -> None:
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
            self._returned.clear()  # a rank that has joined: it has no gradients

    def _look(self) -> None:
        for returned in self._returned:
            if _was_taken(returned):
                continue
            mean = returned.part.to(torch.float32).div(self._scale)
            if mean.is_cuda or mean.any():
                self._dropped[returned.name] = mean
        self._returned.clear()

    def state(self) -> dict[str, torch.Tensor]:
        return {name: mean.cpu() for name, mean in self._waiting.items()}

    def load(self, state: Mapping[str, torch.Tensor], factor: float, device: torch.device) -> None:
        """`factor`: ranks that there were by ranks that there are, so that their sum stays."""
        self._waiting = {name: mean.to(device) * factor for name, mean in state.items()}
        self._added.clear()
        self._dropped.clear()


def _was_taken(returned: _Returned) -> bool:
    gradient = returned.parameter.grad
    if gradient is None:
        return False
    if gradient._version != returned.version:
        return True
    return gradient.data_ptr() == returned.part.data_ptr()  # gradient_as_bucket_view


