# SPDX-License-Identifier: Apache-2.0
"""What the communication hook for DistributedDataParallel knows and does."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from gradsieve._comm import Comm
from gradsieve._hook import Stats
from gradsieve._session import Session, check_alone
from gradsieve.errors import GradsieveError
from gradsieve.spec import Rules
from gradsieve.torch._bucket import Bucket, layout_error, plan_of, value_of
from gradsieve.torch._device import check_device, device_of
from gradsieve.torch._group_transport import GroupTransport, comm_for
from gradsieve.torch._sparse import SparseBuckets
from gradsieve.torch._tensors import Names, desc_of, dtype_name
from gradsieve.torch._undelivered import Undelivered
from gradsieve.torch._worker import Worker

# DDP lays its buckets anew after the first backward pass; what two have shown stays.
_PASSES_UNTIL_TRUSTED = 2


class HookState:
    """What `hook` needs to know and remembers: one per model and process.

    `rules`: a spec for all tensors, or ordered (glob, spec) pairs over parameter names.
    `process_group`: DDP's; None is the default group. Two groups of gloo over the same ranks are
    made for the exchange alone, so this is collective. `named_parameters`: of the wrapped model;
    the names are the keys of the residuals.

    `grad_scaler`: the torch.amp.GradScaler in use, by this model alone. Residuals then follow its
    scale, a step that it skips is taken back on all ranks, and rollback is "exact". `timeout`:
    seconds that an exchange may take; the vote, and the other ranks when this is made, have twice
    as long. `link`: (bits per second, seconds of latency) of a slow network to imitate. `overlap`:
    on CUDA, False makes backward wait, on the device, for each bucket: for models that communicate
    over NCCL in backward themselves. Also: rollback ("merge", "exact"), on_nonfinite ("propagate",
    "skip", "error"), seed, num_threads, strict (fail rather than send dense; on the CPU also where
    other bytes are sent than were encoded).

    With GRADSIEVE_DISABLE=1 gradients go the way they go without a hook, bit for bit.
    """

    def __init__(
        self,
        rules: Rules,
        process_group: Any = None,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        *,
        grad_scaler: Any = None,
        rollback: str | None = None,
        timeout: float = 30.0,
        link: tuple[float, float] | None = None,
        overlap: bool = True,
        **options: Any,
    ) -> None:
        if named_parameters is None:
            raise TypeError("named_parameters is missing; expected model.named_parameters()")
        self._group = process_group if process_group is not None else dist.group.WORLD
        self._names = Names(named_parameters)
        self._scaler = grad_scaler
        self._scale = 1.0
        self.disabled = os.environ.get("GRADSIEVE_DISABLE") == "1"
        self._device = device_of(self._names.parameters.values())
        self._overlap = overlap
        options = {
            "rollback": rollback or ("exact" if grad_scaler is not None else "merge"),
            "timeout": timeout,
            "progress_thread": False,  # the worker drives exchanges, and waits for nothing else
            "backend": self._device.backend,
            "stream": self._device.stream,
            **options,
        }
        with self._device.scope():
            check_alone(rules, **options)
        self._transport = GroupTransport(self._group, timeout)
        self._comm = Comm.of_transport(self._transport)
        if link is not None:
            self._comm = self._comm.limited(*link)
        with self._device.scope():
            comm = self._comm if link else comm_for(self._comm, self._group, self._device)
            #: Exchanges run in stream order, and nothing waits for them on the host.
            self._is_ordered = comm is not self._comm
            self._session = Session(comm, rules, **options)
        on_nonfinite = str(options.get("on_nonfinite", "propagate"))
        self._sparse = SparseBuckets(self._session, self._comm, timeout, on_nonfinite)
        is_exact = options["rollback"] == "exact"
        self._undelivered = Undelivered(is_exact, self._transport.notices())
        self._outcome_known: threading.Event | None = None
        self._worker = Worker("gradsieve")
        self._layout: list[tuple[Any, ...]] = []  # as planned
        self._passes = 0  # with this layout
        self._resumed: list[list[str]] = []  # names by bucket, of a checkpoint
        self._pass: list[Bucket] = []  # of the backward pass that is running
        self._collecting = False
        self._failed: list[torch.futures.Future[Any]] = []  # buckets, until the vote
        self._failure: GradsieveError | None = None

    # ------------------------------------------------------------------------------ one bucket

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The hook: starts a bucket; the future is complete when the mean is in it."""
        buffer = bucket.buffer()
        if self.disabled:
            return self._reduce_dense(buffer)
        check_device(buffer, self._device)
        self._device.fork()
        with self._device.scope():
            result = self._take(bucket, buffer)
        # What comes after backward comes after our exchanges: of two communicators that are under
        # way at once each may wait for the other.
        if bucket.is_last() or not self._overlap:
            self._device.join()
        return result

    def _take(self, bucket: GradBucket, buffer: torch.Tensor) -> torch.futures.Future[Any]:
        if not self._pass:
            self._settle()
            if self._failure is not None:
                raise self._failure
        parameters = tuple(bucket.parameters())
        names = tuple(self._names.of(parameter) for parameter in parameters)
        future = self._device.future()
        arrived = Bucket(bucket.index(), names, parameters, buffer, future)
        result = future.then(value_of)
        if not self._pass:
            self._close_last_pass()
            self._collecting = not self._expected(arrived)
            if not self._collecting:
                self._begin()
        elif not self._collecting and not self._expected(arrived):
            self._pass = []
            raise self._fail(layout_error())
        self._pass.append(arrived)
        is_last = bucket.is_last()
        if not self._collecting:
            self._start(arrived, is_last)
        elif is_last:
            self._start_collected()
        if is_last:
            self._pass = []
            self._undelivered.watch()
            if self._is_ordered:
                self._watch()
        return result

    def _watch(self) -> None:
        """The worker waits for the outcome: it ends a step that not all ranks have come to."""
        known = threading.Event()

        def wait() -> None:
            try:
                with self._device.scope():
                    self._session.synchronize()
            except GradsieveError as error:
                named = self._transport.with_rank(error, self._session.step)
                self._failure = self._failure or named
            finally:
                known.set()

        self._outcome_known = known
        self._worker.submit(wait)

    def _settle(self) -> None:
        """Until the outcome of the last pass is known and no other thread uses the hook."""
        if self._outcome_known is not None:
            self._outcome_known.wait()

    def _expected(self, arrived: Bucket) -> bool:
        place = len(self._pass)
        return (
            self._passes >= _PASSES_UNTIL_TRUSTED
            and place < len(self._layout)
            and self._layout[place] == arrived.layout
        )

    def _start_collected(self) -> None:
        """All buckets of a pass whose layout may be new, one after another."""
        buckets = self._pass
        layout = [bucket.layout for bucket in buckets]
        try:
            self._sparse.check(buckets)
            if self._resumed and self._start_as_resumed(buckets):
                return
            if layout != self._layout:
                self._layout = []
                self._session.plan(*plan_of(bucket.descs() for bucket in buckets))
                self._layout = layout
                self._passes = min(self._passes, 1)
            self._begin()
            for bucket in buckets:
                self._start(bucket, bucket is buckets[-1])
        except GradsieveError as error:
            # DDP waits for the futures that it was given before.
            self._fail(error)
            for bucket in buckets:
                if not bucket.future.done():
                    bucket.future.set_result(error)
            return
        self._passes += 1

    def _start_as_resumed(self, buckets: Sequence[Bucket]) -> bool:
        """The first passes after a checkpoint go in its buckets: where shards are cut decides bits.

        Whether there was anything to do. DDP comes to the same buckets when it has laid them anew.
        """
        dense = {
            name: bucket for bucket in buckets if not bucket.is_sparse for name in bucket.names
        }
        there = [list(bucket.names) for bucket in buckets if not bucket.is_sparse]
        planned = {name for names in self._resumed for name in names}
        if there == self._resumed or planned != set(dense):
            self._resumed = []
            return False
        slices = {
            name: part
            for bucket in buckets
            if not bucket.is_sparse
            for name, part in zip(bucket.names, bucket.slices())
        }
        parameters = self._names.parameters
        self._layout = []
        tensors = [
            [desc_of(name, parameters[name], dtype_name(slices[name])) for name in names]
            for names in self._resumed
        ]
        self._session.plan(*plan_of(tensors))
        self._begin()
        for name, part in slices.items():
            self._undelivered.add_to(name, parameters[name], part)
        flats = [torch.cat([slices[name] for name in names]) for names in self._resumed]
        for place, flat in enumerate(flats):
            with contextlib.suppress(GradsieveError):  # takes part all the same, and finish says it
                self._session.hook.reduce(place, flat.data_ptr(), flat.numel(), dtype_name(flat))
        means = {}
        for bucket in buckets:
            if bucket.is_sparse:
                with contextlib.suppress(GradsieveError):
                    means[bucket.number] = self._sparse.reduce(bucket)
        self._sparse.finish()
        for names, flat in zip(self._resumed, flats):
            parts = torch.split(flat, [slices[name].numel() for name in names])
            for name, part in zip(names, parts):
                slices[name].copy_(part)
        for bucket in buckets:
            bucket.future.set_result(means.get(bucket.number, bucket.buffer))
        self._passes += 1
        return True

    def _close_last_pass(self) -> None:
        """What became of the step before."""
        self._take_back_skipped()
        self._undelivered.settle(self._session.committed)

    def _take_back_skipped(self) -> None:
        """A scaler that has found what we have not skips the step; its scale is lower then."""
        if self._scaler is None:
            return
        scale = float(self._scaler.get_scale())
        if scale < self._scale:
            try:
                self._session.refuse()
            except GradsieveError as error:
                raise self._fail(error) from None
        self._scale = scale

    def _begin(self) -> None:
        self._failed = []
        self._undelivered.begin(self._scale)
        try:
            self._session.begin(self._scale)
            self._sparse.begin()
        except GradsieveError as error:
            raise self._fail(error) from None

    def _start(self, bucket: Bucket, is_last: bool) -> None:
        """Encodes on this thread; the worker waits for the exchange."""
        place = self._layout.index(bucket.layout)
        event = None
        error: GradsieveError | None = None
        if not bucket.is_sparse:
            for name, parameter, part in zip(bucket.names, bucket.parameters, bucket.slices()):
                self._undelivered.add_to(name, parameter, part)
            try:
                event = self._session.hook.reduce(
                    place,
                    bucket.buffer.data_ptr(),
                    bucket.buffer.numel(),
                    dtype_name(bucket.buffer),
                )
            except GradsieveError as raised:
                error = raised  # a bucket that failed still takes part

        def result_of() -> Any:
            if error is not None and not is_last:
                raise error
            result: Any = bucket.buffer
            if event is not None:
                self._session.hook.wait(event)
            elif error is None:
                result = self._sparse.reduce(bucket)
            if is_last:
                self._sparse.finish()
            return result

        known = threading.Event()

        def complete() -> None:
            with self._device.scope():
                told = [bucket.future]
                try:
                    result = result_of()
                except Exception as raised:
                    self._failed.append(bucket.future)
                    result = self._finish_failed(raised, is_last)
                    told = self._failed if is_last else []
                if is_last:
                    known.set()
                for future in told:
                    future.set_result(result)

        if self._is_ordered:
            complete()
            return
        if is_last:
            self._outcome_known = known
        self._worker.submit(complete)

    def _finish_failed(self, error: Exception, is_last: bool) -> GradsieveError:
        """The last bucket votes whatever has happened, so that all ranks know.

        DDP is told after the vote, which knows best who is missing: a rank that leaves before it
        would be missing, too.
        """
        if not isinstance(error, GradsieveError):
            error = GradsieveError(f"{type(error).__name__}: {error}", "internal")
            if self._session.in_step:
                self._session.veto(error)
        if is_last and self._session.in_step:
            try:
                self._session.finish()
            except GradsieveError as voted:
                error = voted
        if is_last:
            self._failure = None
        return self._fail(error)

    def _fail(self, error: GradsieveError) -> GradsieveError:
        """No other pass begins. This one goes on: the others wait for our buckets and our vote."""
        if self._failure is None:
            self._failure = error
        return error

    def _reduce_dense(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """What DDP does without a hook."""
        buffer.mul_(1.0 / dist.get_world_size(self._group))
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    # --------------------------------------------------------------------------- between steps

    @property
    def step(self) -> int:
        """The number of the next step."""
        return self._session.step

    def refuse(self) -> bool:
        """Takes the last step back, if it was committed: for a trainer that skips its update.

        All ranks, before the next backward pass. A GradScaler given to HookState does it itself.
        """
        self._settle()
        return self._session.refuse()

    def set_rules(self, rules: Rules, at_step: int | None = None) -> None:
        """Other rules from step `at_step` on (None: the next); residuals stay.

        Collective, between steps: the ranks agree at once. Where rules or steps differ, or a rank
        refuses its own, every rank raises and the old rules hold. No part of a checkpoint.
        """
        self._settle()
        self._session.set_rules(rules, at_step)

    def stats(self, of: str = "tensors") -> list[Stats]:
        """Counters per tensor, or per bucket with of="buckets", after a backward pass."""
        self._settle()
        self._take_back_skipped()
        return self._session.hook.stats(of)

    def describe(self) -> str:
        """What is sent how, for people."""
        return self._session.hook.describe()

    def residual(self, name: str) -> torch.Tensor:
        """What of a parameter's gradient was not sent yet, flat."""
        self._settle()
        self._take_back_skipped()
        return torch.frombuffer(self._session.residual(name), dtype=torch.float32).clone()

    def state_dict(self) -> dict[str, Any]:
        """What this rank must keep to resume bit for bit: save one per rank, beside the model."""
        self._settle()
        self._close_last_pass()
        state = self._session.state_dict()
        blob = torch.frombuffer(bytearray(state["state"]), dtype=torch.uint8)
        buckets = [list(names) for _, names, kind, *_ in self._layout if kind != "sparse"]
        return {
            **state,
            "state": blob,
            "scale": self._scale,
            "buckets": buckets or self._resumed,
            "undelivered": self._undelivered.state(),
        }

    def load_state_dict(
        self,
        states: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        on_world_change: str = "error",
    ) -> None:
        """This rank's own dictionary, or a list of all old ranks' for another number of ranks.

        `on_world_change`: "error"; "redistribute", which keeps the sum of the residuals; "reset".
        """
        self._settle()
        given = [states] if isinstance(states, Mapping) else list(states)
        plain = [{**state, "state": bytes(state["state"].numpy())} for state in given]
        self._session.load_state_dict(plain, on_world_change)
        self._scale = float(plain[0].get("scale", 1.0))
        self._resumed = [list(names) for names in plain[0].get("buckets", [])]
        factor = plain[0]["world_size"] / self._session.world_size
        waits = factor == 1 or on_world_change == "redistribute"
        waiting = plain[0].get("undelivered", {}) if waits else {}
        self._undelivered.load(waiting, factor, self._device.device)

    def close(self) -> None:
        """Ends the worker thread, after the exchanges that are under way."""
        self._worker.close()
