# SPDX-License-Identifier: Apache-2.0
"""Point-to-point messages of torch process groups as a transport."""

from __future__ import annotations

import ctypes
import datetime
import json
import math
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from gradsieve import _abi
from gradsieve._comm import Comm
from gradsieve._transport import CONTROL, Transport, TransportError
from gradsieve.errors import GradsieveError
from gradsieve.torch._device import Device

# A message's first frame: its length, then as much of it as fits. gloo ends the process when more
# comes than was asked for; a receive of a whole frame can never be too small, and what follows is
# asked for once its length is known.
_LENGTH_BYTES = 8
_FRAME_BYTES = 1 << 16
_FIRST_BYTES = _FRAME_BYTES - _LENGTH_BYTES

_LARGEST_TAG = 0x30000000  # beyond those of the library
_ROLL_CALL_SECONDS = 5.0
_made: Counter[str] = Counter()  # transports, by their ranks

_DTYPES = {0: torch.float32, 1: torch.float16, 2: torch.bfloat16, 3: torch.float64}


class _Send:
    def __init__(self, works: list[Any], frame: torch.Tensor, num_bytes: int) -> None:
        self.works = works
        self.frame = frame
        self.num_bytes = num_bytes


class _Receive:
    def __init__(
        self, work: Any, frame: torch.Tensor, place: tuple[int, int, int], at: tuple[int, int]
    ) -> None:
        self.work = work
        self.frame = frame
        self.place = place  # channel, peer, tag
        self.at = at  # address, capacity


class GroupTransport(Transport):
    """Two groups of gloo, made for this transport alone: one for each channel.

    After a deadline has passed gloo closes its connections: the transport is over, and so is the
    run. The control group is another, so that the vote can still name the rank that is gone.
    """

    name = "torch"

    def __init__(self, process_group: Any, timeout: float) -> None:
        ranks = dist.get_process_group_ranks(process_group)
        super().__init__(dist.get_rank(process_group), len(ranks))
        self._timeout = timeout
        self._frames: list[torch.Tensor] = []
        self._aborted = False
        # The same on all ranks: they make what they have in common in one order, and count only
        # what all of them have come to.
        members = ",".join(str(rank) for rank in ranks)
        self._roll = f"gradsieve/roll/{members}/{_made[members] + 1}"
        store = self._meet()
        # Our own deadlines come first; gloo's is for what nobody waits for.
        limit = datetime.timedelta(seconds=4 * timeout + 60)
        self._groups: list[Any]
        if len(ranks) == dist.get_world_size():
            self._groups = [dist.new_group(timeout=limit, backend="gloo") for _ in range(2)]
        else:
            self._groups = _groups_of_some(process_group, limit)
        _made[members] += 1
        store.delete_key(str(self.rank))  # all are past it

    def _frame(self) -> torch.Tensor:
        return self._frames.pop() if self._frames else torch.empty(_FRAME_BYTES, dtype=torch.uint8)

    def _group(self, channel: int) -> Any:
        if self._aborted:
            raise TransportError("this rank has aborted", _abi.ABORTED)
        return self._groups[channel]

    def send(self, channel: int, peer: int, tag: int, address: int, num_bytes: int) -> _Send:
        group = self._group(channel)
        frame = self._frame()
        first = min(num_bytes, _FIRST_BYTES)
        start = frame.data_ptr()
        ctypes.c_uint64.from_address(start).value = num_bytes
        ctypes.memmove(start + _LENGTH_BYTES, address, first)
        works = [group.send([frame[: _LENGTH_BYTES + first]], peer, 2 * tag)]
        if first < num_bytes:
            rest = _memory(address + first, num_bytes - first)
            works.append(group.send([rest], peer, 2 * tag + 1))
        return _Send(works, frame, num_bytes)

    def receive(self, channel: int, peer: int, tag: int, address: int, capacity: int) -> _Receive:
        frame = self._frame()
        work = self._group(channel).recv([frame], peer, 2 * tag)
        return _Receive(work, frame, (channel, peer, tag), (address, capacity))

    def wait(self, operation: _Send | _Receive, timeout: float) -> int:
        # gloo takes 0 for ever.
        limit = datetime.timedelta(milliseconds=max(1, math.ceil(timeout * 1000)))
        try:
            if isinstance(operation, _Send):
                for work in operation.works:
                    work.wait(limit)
                num_bytes = operation.num_bytes
            else:
                num_bytes = self._finish_receive(operation, limit)
        except RuntimeError as error:
            raise self._error(error) from None
        self._frames.append(operation.frame)
        return num_bytes

    def _finish_receive(self, operation: _Receive, limit: datetime.timedelta) -> int:
        operation.work.wait(limit)
        start = operation.frame.data_ptr()
        num_bytes = ctypes.c_uint64.from_address(start).value
        address, capacity = operation.at
        if num_bytes > capacity:
            raise TransportError(
                f"a message of {num_bytes} bytes came where {capacity} were expected",
                _abi.CAPACITY_EXCEEDED,
            )
        first = min(num_bytes, _FIRST_BYTES)
        ctypes.memmove(address, start + _LENGTH_BYTES, first)
        if first < num_bytes:
            channel, peer, tag = operation.place
            rest = _memory(address + first, num_bytes - first)
            self._group(channel).recv([rest], peer, 2 * tag + 1).wait(limit)
        return num_bytes

    def _error(self, error: RuntimeError) -> Exception:
        if self._aborted:
            return TransportError("this rank has aborted", _abi.ABORTED)
        text = str(error).partition("] ")[2] or str(error)
        text = text.partition(". This is typically")[0]
        if "Timed out" in text:
            return TimeoutError(text)
        return TransportError(text)

    def abort(self) -> None:
        self._aborted = True

    def with_rank(self, error: GradsieveError, number: int) -> GradsieveError:
        """The same error, about the rank that is missing, where it does not say which.

        A device does not see who is missing, only that the time is over. All other ranks come to
        that, and then here.
        """
        if error.rank is not None or error.code not in ("timeout", "in_doubt"):
            return error
        missing = self._absent(number)
        if not missing:
            return error
        sentence = f"rank {missing[0]} does not answer: {error}"
        return GradsieveError(sentence, error.code, missing[0], error.tensor, error.field)

    def notices(self) -> StoreNotices:
        return StoreNotices(f"{self._roll}/dropped")

    def _meet(self) -> PrefixStore:
        """Waits for all ranks before torch counts a group that one of them has not come to."""
        store = self._store("made")
        missing = self._call_roll(store, 2 * self._timeout)
        if missing:
            store.delete_key(str(self.rank))  # the next try begins anew
            raise GradsieveError(
                f"rank {missing[0]} has not come to make its HookState or Exchange, within "
                f"{2 * self._timeout:g} s",
                "timeout",
                missing[0],
            )
        return store

    def _absent(self, number: int) -> list[int]:
        """Ranks that do not say in time that they are here, when the groups of gloo are closed."""
        try:
            seconds = min(self._timeout, _ROLL_CALL_SECONDS)
            return self._call_roll(self._store(str(number)), seconds)
        except RuntimeError:
            return []  # the store went with the rank that kept it

    def _store(self, name: str) -> PrefixStore:
        return PrefixStore(f"{self._roll}/{name}", dist.distributed_c10d._get_default_store())

    def _call_roll(self, store: PrefixStore, seconds: float) -> list[int]:
        """Says by torch's store that this rank is here; the ranks that do not in time."""
        end = time.monotonic() + seconds
        store.set(str(self.rank), "here")
        missing = [rank for rank in range(self.world_size) if rank != self.rank]
        while missing:
            missing = [rank for rank in missing if not store.check([str(rank)])]
            if not missing or time.monotonic() > end:
                break
            time.sleep(0.005)
        return missing

    def largest(self, numbers: torch.Tensor) -> None:
        """The largest of all ranks, element by element and in place. Between two steps.

        Each rank sends to each, so that all that are there see who is not.
        """
        end = time.monotonic() + self._timeout
        own = numbers.clone()
        size = own.numel() * own.element_size()
        theirs = {rank: torch.empty_like(own) for rank in range(self.world_size)}
        del theirs[self.rank]
        failures: dict[int, Exception] = {}
        started: list[tuple[int, _Send | _Receive]] = []
        for start, kept in [(self.receive, theirs), (self.send, dict.fromkeys(theirs, own))]:
            for rank, tensor in kept.items():
                try:
                    operation = start(CONTROL, rank, _LARGEST_TAG, tensor.data_ptr(), size)
                except RuntimeError as error:  # the connection is closed
                    failures.setdefault(rank, self._error(error))
                else:
                    started.append((rank, operation))
        # Whoever has found one missing waits for the others all the same: they get what it sends.
        for rank, operation in started:
            try:
                self.wait(operation, max(0.0, end - time.monotonic()))
            except (TransportError, TimeoutError) as error:
                failures.setdefault(rank, error)
        for rank, error in failures.items():
            code = "timeout" if isinstance(error, TimeoutError) else "transport_error"
            raise GradsieveError(f"rank {rank} does not answer: {error}", code, rank)
        for other in theirs.values():
            torch.maximum(numbers, other, out=numbers)

    def dense_all_reduce(self, address: int, num_elements: int, dtype: int) -> None:
        memory = _memory(address, num_elements * _DTYPES[dtype].itemsize).view(_DTYPES[dtype])
        self._group(0).allreduce([memory]).wait()


class StoreNotices:
    """Notices in torch's store, a key for each backward pass that has one."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._left: list[str] = []

    def leave(self, number: int, names: Iterable[str]) -> None:
        store = self._store()
        key = str(number)
        store.set(key, json.dumps(sorted(names)))
        store.get(key)  # an answer: it is there before this rank meets another
        self._left.append(key)
        while len(self._left) > 2:  # the ranks that have joined have come past it
            store.delete_key(self._left.pop(0))

    def find(self, number: int) -> list[str]:
        store = self._store()
        key = str(number)
        return list(json.loads(store.get(key))) if store.check([key]) else []

    def _store(self) -> PrefixStore:
        return PrefixStore(self._prefix, dist.distributed_c10d._get_default_store())


def comm_for(host: Comm, process_group: Any, device: Device) -> Comm:
    """Where payloads travel: over NCCL if that is how the group moves what is on this device."""
    uses_nccl = device.backend == "cuda" and "nccl" in dist.get_backend_config(process_group)
    return host.nccl() if uses_nccl else host


def _groups_of_some(process_group: Any, limit: datetime.timedelta) -> list[Any]:
    """Two groups over the ranks of another, without those that are not in it.

    new_group names a group by how many there have been before, which ranks count differently as
    soon as one of them is in fewer groups.
    """
    names = [f"gradsieve/{uuid.uuid4()}"]
    dist.broadcast_object_list(names, group=process_group, group_src=0)
    store = dist.distributed_c10d._get_default_store()
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    return [
        dist.ProcessGroupGloo(PrefixStore(f"{names[0]}/{channel}", store), rank, size, limit)
        for channel in range(2)
    ]


def _memory(address: int, num_bytes: int) -> torch.Tensor:
    """The library's bytes as a tensor, without a copy."""
    return torch.frombuffer((ctypes.c_uint8 * num_bytes).from_address(address), dtype=torch.uint8)
