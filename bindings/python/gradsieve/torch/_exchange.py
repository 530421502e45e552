# SPDX-License-Identifier: Apache-2.0
"""Gradients of any trainer, between backward and step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from gradsieve._comm import Comm
from gradsieve._hook import Stats, StepResult, Tensor
from gradsieve._session import Session, check_alone
from gradsieve.spec import Rules
from gradsieve.torch._device import check_device, device_of
from gradsieve.torch._group_transport import GroupTransport, comm_for
from gradsieve.torch._tensors import Names, desc_of, dtype_name

DEFAULT_BUCKET_BYTES = 25 << 20


class Exchange:
    """Replaces the gradients of `named_parameters` by their mean over the ranks of `group`.

    For trainers without DistributedDataParallel, with gradient accumulation, compiled models or
    pipelines. Gradients that are None count as zeros, unless they are None on every rank: then they
    stay None, and so does what these parameters remember. Options: as of HookState. Collective.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        spec: Rules,
        group: Any = None,
        *,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        timeout: float = 30.0,
        **options: Any,
    ) -> None:
        self._group = group if group is not None else dist.group.WORLD
        self._parameters = Names(named_parameters).parameters
        self._device = device_of(self._parameters.values())
        self._bucket_bytes = bucket_bytes
        options = {
            "timeout": timeout,
            "backend": self._device.backend,
            "stream": self._device.stream,
            **options,
        }
        with self._device.scope():
            check_alone(spec, **options)
        self._transport = GroupTransport(self._group, timeout)
        with self._device.scope():
            host = Comm.of_transport(self._transport)
            comm = comm_for(host, self._group, self._device)
            self._session = Session(comm, spec, **options)
        self._used: torch.Tensor | None = None
        self._buckets: list[list[str]] = []

    def reduce(self, *, loss_scale: float = 1.0, wait: bool = True) -> StepResult:
        """One step: all ranks call it after backward. The result says whether it is committed.

        Where some rank brought NaN or infinity, the affected gradients are NaN on every rank and
        the step is not committed. A rank that fails is a GradsieveError on every rank. Over NCCL,
        with `wait=False`, the outcome is left pending on the device: what is on the current stream
        finds the gradients in order, and `synchronize` or the next call tells what went wrong. So
        it may be captured in a CUDA graph, after one step that was not: see `replay`.
        """
        used = torch.tensor([p.grad is not None for p in self._parameters.values()]).to(torch.uint8)
        self._transport.largest(used)
        session = self._session
        self._device.fork()
        with self._device.scope():
            if self._used is None or not torch.equal(used, self._used):
                self._plan(used)
            session.begin(loss_scale)
        flats = [self._flatten(bucket) for bucket in self._buckets]
        self._device.fork()
        with self._device.scope():
            for number, flat in enumerate(flats):
                session.hook.reduce(number, flat.data_ptr(), flat.numel(), dtype_name(flat))
            result = session.finish()
        self._device.join()
        for bucket, flat in zip(self._buckets, flats):
            self._scatter(bucket, flat)
        if self._device.is_capturing():
            session.captured()
        return self.synchronize() if wait else result

    def synchronize(self) -> StepResult:
        """The outcome of the last step, waited for where it is pending."""
        self._device.fork()
        with self._device.scope():
            return self._session.synchronize()

    def replay(self, *, loss_scale: float = 1.0) -> None:
        """Before each launch, on the current stream, of a graph that `reduce` was captured in."""
        self._device.fork()
        with self._device.scope():
            self._session.replay(loss_scale)
        self._device.join()

    def committed_word(self) -> int | None:
        """Address of a device word, 1 in stream order if the last step is committed; CUDA only."""
        return self._session.hook.committed_word()

    def _plan(self, used: torch.Tensor) -> None:
        names = [name for name, flag in zip(self._parameters, used.tolist()) if flag]
        self._buckets = self._buckets_of(names)
        tensors: list[Tensor] = []
        positions = []
        for bucket in self._buckets:
            positions.append(list(range(len(tensors), len(tensors) + len(bucket))))
            for name in bucket:
                parameter = self._parameters[name]
                tensors.append(desc_of(name, parameter, dtype_name(parameter)))
        self._session.plan(tensors, positions)
        self._used = used

    def _buckets_of(self, names: Sequence[str]) -> list[list[str]]:
        buckets: list[list[str]] = []
        room: dict[torch.dtype, tuple[list[str], int]] = {}
        for name in names:
            parameter = self._parameters[name]
            size = parameter.numel() * parameter.element_size()
            bucket, used = room.get(parameter.dtype, ([], self._bucket_bytes + 1))
            if used + size > self._bucket_bytes:
                bucket, used = [], 0
                buckets.append(bucket)
            bucket.append(name)
            room[parameter.dtype] = (bucket, used + size)
        return buckets

    def _flatten(self, bucket: Sequence[str]) -> torch.Tensor:
        parts = []
        for name in bucket:
            parameter = self._parameters[name]
            check_device(parameter, self._device)
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            if gradient.layout != torch.strided:
                gradient = gradient.to_dense()
            parts.append(gradient.to(parameter.dtype).reshape(-1))
        return torch.cat(parts)

    def _scatter(self, bucket: Sequence[str], flat: torch.Tensor) -> None:
        offset = 0
        for name in bucket:
            parameter = self._parameters[name]
            part = flat[offset : offset + parameter.numel()].view(parameter.shape)
            offset += parameter.numel()
            if parameter.grad is None or parameter.grad.layout != torch.strided:
                parameter.grad = part.clone()
            else:
                parameter.grad.copy_(part)

    # --------------------------------------------------------------------------- between steps

    @property
    def step(self) -> int:
        """The number of the next step."""
        return self._session.step

    def refuse(self) -> bool:
        """Takes the last step back, if it was committed. All ranks, before the next reduce."""
        return self._session.refuse()

    def set_rules(self, rules: Rules, at_step: int | None = None) -> None:
        """Other rules from step `at_step` on (None: the next); residuals stay.

        Collective, between steps: the ranks agree at once. Where rules or steps differ, or a rank
        refuses its own, every rank raises and the old rules hold. No part of a checkpoint.
        """
        self._session.set_rules(rules, at_step)

    def stats(self, of: str = "tensors") -> list[Stats]:
        """Counters per tensor, or per bucket with of="buckets"."""
        return self._session.hook.stats(of)

    def residual(self, name: str) -> torch.Tensor:
        """What of a parameter's gradient was not sent yet, flat."""
        return torch.frombuffer(self._session.residual(name), dtype=torch.float32).clone()

    def state_dict(self) -> dict[str, Any]:
        """What this rank must keep to resume bit for bit: save one per rank."""
        state = self._session.state_dict()
        blob = torch.frombuffer(bytearray(state["state"]), dtype=torch.uint8)
        return {**state, "state": blob}

    def load_state_dict(
        self,
        states: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        on_world_change: str = "error",
    ) -> None:
        """As HookState.load_state_dict."""
        given = [states] if isinstance(states, Mapping) else list(states)
        plain = [{**state, "state": bytes(state["state"].numpy())} for state in given]
        self._session.load_state_dict(plain, on_world_change)
