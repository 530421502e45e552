# SPDX-License-Identifier: Apache-2.0
"""The library's hook: plan once, then per step begin, reduce per bucket, finish, update."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from gradsieve import _abi
from gradsieve._comm import Comm
from gradsieve._library import library
from gradsieve.errors import GradsieveError, check, code_name, code_number, error_of
from gradsieve.spec import Context, Rules, dtype_number, read_text, rule_pairs

_CHOICES = {
    "op": ("mean", "sum"),
    "rollback": ("merge", "exact"),
    "on_nonfinite": ("propagate", "skip", "error"),
    "on_world_change": ("error", "redistribute", "reset"),
}


def choice(name: str, value: str) -> int:
    """The number of an enumerator that is given by its name."""
    names = _CHOICES[name]
    if value not in names:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(names)}")
    return names.index(value)


class Tensor(NamedTuple):
    """One parameter: the same list in the same order on every rank."""

    name: str
    num_elements: int
    dtype: str = "f32"
    num_rows: int = 1


class StepResult(NamedTuple):
    """`committed`: the results may be used. `found_nonfinite`: on some rank; rolled back.

    `pending`: neither is known yet, the outcome is on its way on the device.
    """

    committed: bool
    found_nonfinite: bool
    pending: bool = False


@dataclasses.dataclass(frozen=True)
class Stats:
    """Counters of one tensor or bucket, of the last step and in all."""

    name: str
    spec: str  #: canonical, as it ran
    exchange: str  #: "gather", "two_shot", "all_reduce" or "none"
    num_elements: int
    dense_bytes: int  #: of the gradient, per step
    wire_bytes: int  #: handed to the transport, headers included, last step
    total_wire_bytes: int
    kept_elements: int
    overflowed_elements: int
    encode_seconds: float  #: last step; on the clock on the wall
    exchange_seconds: float
    decode_seconds: float
    total_encode_seconds: float
    total_exchange_seconds: float
    total_decode_seconds: float
    residual_norm: float  #: 2-norm after the last committed step; tensors only
    dropped_norm: float  #: without feedback: 2-norm of what was not sent in the last step
    encode_cpu_seconds: float  #: as encode_seconds: CPU time of the thread that did it
    decode_cpu_seconds: float
    total_encode_cpu_seconds: float
    total_decode_cpu_seconds: float


def _c_rules(rules: Rules) -> Any:
    pairs = rule_pairs(rules)
    made = (_abi.Rule * len(pairs))()
    for rule, (match, spec) in zip(made, pairs):
        rule.struct_size = ctypes.sizeof(_abi.Rule)
        rule.match = match.encode()
        rule.spec = spec.encode()
    return made


class Hook:
    """Gradient exchange for one model on one rank; every call in the same order on all ranks."""

    def __init__(
        self,
        comm: Comm,
        rules: Rules,
        *,
        op: str = "mean",
        rollback: str = "merge",
        on_nonfinite: str = "propagate",
        num_threads: int = 1,
        predivide: float = 1.0,
        seed: int = 0,
        epoch: int = 0,
        timeout: float = 30.0,
        progress_thread: bool = True,
        strict: bool = False,
        backend: str = "cpu",
        stream: int | None = None,
    ) -> None:
        c_rules = _c_rules(rules)
        options = _abi.HookOptions(
            num_rules=len(c_rules),
            rules=c_rules,
            op=choice("op", op),
            rollback=choice("rollback", rollback),
            on_nonfinite=choice("on_nonfinite", on_nonfinite),
            num_threads=num_threads,
            predivide=predivide,
            seed=seed,
            epoch=epoch,
            exchange_deadline_ms=max(1, round(timeout * 1000)),
            no_progress_thread=0 if progress_thread else 1,
            strict=1 if strict else 0,
            stream=stream,
        )
        self._comm = comm
        self._stream = stream
        self._context = Context(seed=seed, num_threads=num_threads, backend=backend)
        self.handle = _abi.Handle()
        self._check(
            library().gsvHookCreate(
                ctypes.byref(self.handle), comm.handle, ctypes.byref(options), self._context.handle
            )
        )

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            library().gsvHookDestroy(self.handle)

    def _check(self, result: int) -> None:
        """As check(), with the rank, tensor and field that the hook knows."""
        if result == _abi.SUCCESS:
            return
        error = error_of(result)
        known = self.failure() if self.handle else None
        if known is not None and known.code == error.code:
            error = type(error)(
                _sentence(str(error), known), error.code, known.rank, known.tensor, known.field
            )
        raise error

    def failure(self) -> GradsieveError | None:
        """What went wrong last: code, rank, tensor, field. None if nothing did."""
        answer = _abi.Failure()
        check(library().gsvHookGetFailure(self.handle, ctypes.byref(answer)))
        if answer.code == _abi.SUCCESS:
            return None
        return GradsieveError(
            answer.message.decode(),
            code_name(answer.code),
            answer.rank if answer.rank >= 0 else None,
            answer.tensor.decode(),
            answer.field.decode(),
        )

    def plan(self, tensors: Sequence[Tensor], buckets: Sequence[Sequence[int]]) -> None:
        """Agrees with all ranks; `buckets` are lists of positions in `tensors`."""
        c_tensors = (_abi.TensorDesc * len(tensors))()
        for desc, tensor in zip(c_tensors, tensors):
            desc.struct_size = ctypes.sizeof(_abi.TensorDesc)
            desc.name = tensor.name.encode()
            desc.num_elements = tensor.num_elements
            desc.num_rows = tensor.num_rows
            desc.dtype = dtype_number(tensor.dtype)
        c_buckets = (_abi.BucketDesc * len(buckets))()
        for bucket, positions in zip(c_buckets, buckets):
            bucket.struct_size = ctypes.sizeof(_abi.BucketDesc)
            bucket.num_tensors = len(positions)
            bucket.tensors = (ctypes.c_uint32 * len(positions))(*positions)
        self._check(
            library().gsvHookPlan(self.handle, c_tensors, len(tensors), c_buckets, len(buckets))
        )

    def set_rules(self, rules: Rules, at_step: int) -> None:
        """Other rules from a step on: all ranks agree now. Collective, between finish and begin."""
        c_rules = _c_rules(rules)
        self._check(library().gsvHookSetRulesAt(self.handle, c_rules, len(c_rules), at_step))

    def begin(self, step: int, loss_scale: float = 1.0) -> None:
        self._check(library().gsvHookBegin(self.handle, step, loss_scale))

    def reduce(self, bucket: int, address: int, num_elements: int, dtype: str) -> _abi.Event:
        """Starts a bucket, in place; the memory stays untouched until wait has returned.

        With backend "cuda" it is device memory, complete in the order of the hook's stream, and
        wait and finish put the results into that order.
        """
        event = _abi.Event()
        self._check(
            library().gsvHookReduce(
                self.handle,
                bucket,
                address,
                num_elements,
                dtype_number(dtype),
                self._stream,
                ctypes.byref(event),
            )
        )
        return event

    def wait(self, event: _abi.Event) -> None:
        self._check(library().gsvHookWait(self.handle, ctypes.byref(event)))

    def veto(self, code: str) -> None:
        """Makes finish vote against this step and raise: what goes beside the hook has failed."""
        self._check(library().gsvHookVeto(self.handle, code_number(code)))

    def finish(self) -> StepResult:
        return self._outcome(library().gsvHookFinish)

    def synchronize(self) -> StepResult:
        """Waits for the outcome of the last finished step, where that was pending."""
        return self._outcome(library().gsvHookSynchronize)

    def _outcome(self, function: Any) -> StepResult:
        result = _abi.StepResult()
        self._check(function(self.handle, ctypes.byref(result)))
        return StepResult(
            bool(result.committed), bool(result.found_nonfinite), bool(result.pending)
        )

    def replay(self, step: int, loss_scale: float = 1.0) -> None:
        """Before each launch of a CUDA graph that a step was captured in: it is this one then."""
        self._check(library().gsvHookReplay(self.handle, step, loss_scale))

    def committed_word(self) -> int | None:
        """Address of a device word: 1, in stream order, if the last finished step is committed."""
        word = ctypes.c_void_p()
        self._check(library().gsvHookCommittedWord(self.handle, ctypes.byref(word)))
        return word.value

    def refuse(self) -> None:
        """Undoes a committed step before the next begin. All ranks."""
        self._check(library().gsvHookRefuse(self.handle))

    def stats(self, of: str = "tensors") -> list[Stats]:
        """Counters per tensor or per bucket. Between finish and begin."""
        which = ("tensors", "buckets").index(of)
        count = ctypes.c_uint32()
        function = library().gsvHookGetStats
        self._check(function(self.handle, which, None, 0, ctypes.byref(count)))
        answers = (_abi.Stats * count.value)()
        if count.value:
            answers[0].struct_size = ctypes.sizeof(_abi.Stats)
            self._check(function(self.handle, which, answers, count.value, ctypes.byref(count)))
        names = [field.name for field in dataclasses.fields(Stats)]
        return [Stats(*(_decoded(getattr(answer, name)) for name in names)) for answer in answers]

    def residual(self, tensor: str, num_elements: int) -> Any:
        """The committed residual, in units of the true gradient, as a ctypes array of f32."""
        values = (ctypes.c_float * num_elements)()
        self._check(
            library().gsvHookGetResidual(self.handle, tensor.encode(), values, num_elements)
        )
        return values

    def describe(self) -> str:
        """Parcels, capacities and memory, as planned, for people."""
        return read_text(library().gsvHookDescribe, self.handle)

    def memory(self) -> tuple[int, int]:
        """Bytes of state, and of workspace and payloads."""
        state, workspace = ctypes.c_uint64(), ctypes.c_uint64()
        check(library().gsvHookGetMemory(self.handle, ctypes.byref(state), ctypes.byref(workspace)))
        return state.value, workspace.value

    def save_state(self) -> bytes:
        """Everything this rank must keep to resume bit for bit. Between finish and begin."""
        num_bytes = ctypes.c_uint64()
        function = library().gsvHookSaveState
        self._check(function(self.handle, None, 0, ctypes.byref(num_bytes)))
        state = ctypes.create_string_buffer(num_bytes.value)
        self._check(function(self.handle, state, num_bytes.value, ctypes.byref(num_bytes)))
        return state.raw[: num_bytes.value]

    def load_state(self, states: Sequence[bytes], on_world_change: str = "error") -> None:
        """After plan: this rank's own state, or those of all old ranks in rank order."""
        kept = [ctypes.create_string_buffer(state, len(state)) for state in states]
        pointers = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(state) for state in kept))
        sizes = (ctypes.c_uint64 * len(kept))(*(len(state) for state in kept))
        self._check(
            library().gsvHookLoadState(
                self.handle, pointers, sizes, len(kept), choice("on_world_change", on_world_change)
            )
        )


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _sentence(message: str, failure: GradsieveError) -> str:
    """The message, with whom and what it is about where it does not say so itself."""
    about = []
    if failure.rank is not None and f"rank {failure.rank}" not in message:
        about.append(f"rank {failure.rank}")
    if failure.tensor and failure.tensor not in message:
        about.append(f"tensor {failure.tensor}")
    if failure.field and failure.field not in message:
        about.append(f"field {failure.field}")
    detail = str(failure)
    if detail and detail not in message:
        about.append(detail)
    return f"{message} ({', '.join(about)})" if about else message
