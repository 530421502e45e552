# SPDX-License-Identifier: Apache-2.0
"""One rank whose gradients are on a device: the hook there against the hook on the CPU.

Arguments: what is checked, a folder for rankR.json. torch takes the emulator's CUDA runtime, which
has to be loaded before it; tensors are made and copied by it, but none of torch's kernels run.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import json
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

EMULATED_RUNTIME = os.environ.get("GRADSIEVE_TEST_CUDART")
if EMULATED_RUNTIME:
    ctypes.CDLL(EMULATED_RUNTIME, ctypes.RTLD_GLOBAL)

import gradsieve  # noqa: E402: after the runtime
import gradsieve.torch as gt  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from gradsieve._comm import Comm, nccl_id  # noqa: E402
from gradsieve.torch import _exchange, _hook_state  # noqa: E402
from torch import nn  # noqa: E402

TOPK = "topk(density=0.05) | int8 ; feedback=residual"
SHAPES = {"a.weight": (33, 31), "a.bias": (33,), "b.weight": (70, 33), "b.bias": (70,)}
BUCKETS = (("b.bias", "b.weight"), ("a.bias", "a.weight"))
STEPS = 8


class Bucket:
    """What DDP hands a hook."""

    def __init__(self, number: int, buffer: torch.Tensor, parameters: list[nn.Parameter]) -> None:
        self._parts = number, buffer, parameters

    def index(self) -> int:
        return self._parts[0]

    def buffer(self) -> torch.Tensor:
        return self._parts[1]

    def parameters(self) -> list[nn.Parameter]:
        return self._parts[2]

    def is_last(self) -> bool:
        return self._parts[0] == len(BUCKETS) - 1


class Trainer:
    """Backward passes of a model on one device, as DDP makes them."""

    def __init__(self, device: torch.device, rules: Any = TOPK, **options: Any) -> None:
        self.reader = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.kept: list[torch.Tensor] = []
        self.parameters = {
            name: nn.Parameter(torch.empty(shape, device=device)) for name, shape in SHAPES.items()
        }
        self.state = gt.HookState(rules, None, self.parameters.items(), **options)
        self.buffers = [
            torch.empty(sum(self.parameters[name].numel() for name in names), device=device)
            for names in BUCKETS
        ]

    def backward(
        self, step: int, spoil: bool = False, without_futures: bool = False
    ) -> list[torch.Tensor]:
        """The means, in host memory."""
        futures = []
        for number, (names, buffer) in enumerate(zip(BUCKETS, self.buffers)):
            generator = torch.Generator().manual_seed(100 * step + 10 * number + dist.get_rank())
            gradient = torch.randn(buffer.numel(), generator=generator) ** 3
            if spoil and dist.get_rank() == 1:
                gradient[5] = float("inf")
            self.keep(gradient, buffer)
            bucket = Bucket(number, buffer, [self.parameters[name] for name in names])
            futures.append(gt.hook(self.state, bucket))
        if without_futures:
            return [buffer.to("cpu", copy=True) for buffer in self.buffers]
        # On a stream that nothing but the futures orders after our work.
        with torch.cuda.stream(self.reader) if self.reader else contextlib.nullcontext():
            return [future.wait().to("cpu", copy=True) for future in futures]

    def keep(self, gradient: torch.Tensor, buffer: torch.Tensor) -> None:
        """The gradient is in the buffer, in the order of the current stream."""
        if self.reader:  # from pageable memory the host would wait
            self.kept.append(gradient.pin_memory())
            gradient = self.kept[-1]
        buffer.copy_(gradient, non_blocking=True)

    def residuals(self) -> torch.Tensor:
        return torch.cat([self.state.residual(name) for name in SHAPES])


def on_device() -> torch.device:
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.cuda.set_stream(torch.cuda.Stream(device))  # the default stream waits for much by itself
    return device


def assert_same(ours: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    differ = (ours.view(torch.int32) != expected.view(torch.int32)).nonzero().reshape(-1)
    assert len(differ) == 0, (
        f"{what}: {len(differ)} of {len(ours)} differ, first {int(differ[0])}: "
        f"{float(ours[differ[0]])!r}, expected {float(expected[differ[0]])!r}"
    )


def compare(device: Trainer, host: Trainer, steps: range, without_futures: bool = False) -> None:
    for step in steps:
        ours = device.backward(step, without_futures=without_futures)
        pairs = zip(ours, host.backward(step))
        for number, (ours, expected) in enumerate(pairs):
            assert expected.abs().max() > 0
            assert_same(ours, expected, f"step {step}, bucket {number}")
    assert_same(device.residuals(), host.residuals(), "residuals")
    assert device.state.step == host.state.step


def by_nccl() -> None:
    """As on a process group that moves CUDA tensors by NCCL; the group here is gloo's."""
    for module in (_hook_state, _exchange):
        module.comm_for = lambda host, _, device: host.nccl() if device.backend == "cuda" else host


def check_hook_over_nccl() -> None:
    by_nccl()
    compare(Trainer(on_device()), Trainer(torch.device("cpu")), range(STEPS))


def check_hook_through_pinned_memory() -> None:
    compare(Trainer(on_device()), Trainer(torch.device("cpu")), range(STEPS))


def check_what_comes_after_backward_needs_no_future() -> None:
    """The current stream waits for our exchanges after the last bucket."""
    by_nccl()
    compare(Trainer(on_device()), Trainer(torch.device("cpu")), range(STEPS), without_futures=True)


def check_hook_without_overlap() -> None:
    by_nccl()
    device = Trainer(on_device(), [("*.bias", "none"), ("*", "int8")], overlap=False)
    host = Trainer(torch.device("cpu"), [("*.bias", "none"), ("*", "int8")])
    compare(device, host, range(STEPS))


def check_stop_and_resume() -> None:
    by_nccl()
    first, host = Trainer(on_device()), Trainer(torch.device("cpu"))
    compare(first, host, range(4))
    again = Trainer(on_device())
    again.state.load_state_dict(first.state.state_dict())
    compare(again, host, range(4, STEPS))


def check_other_rules_at_a_step() -> None:
    by_nccl()
    device, host = Trainer(on_device()), Trainer(torch.device("cpu"))
    for trainer in (device, host):
        trainer.state.set_rules([("*.bias", "none"), ("*", "int4 ; feedback=residual")], at_step=3)
    compare(device, host, range(STEPS))
    specs = {stats.spec for stats in device.state.stats()}
    assert any(spec.startswith("int4") for spec in specs), specs
    assert any(spec.startswith("none") for spec in specs), specs


class Scaler:
    """What HookState asks of a torch.amp.GradScaler."""

    scale = 1024.0

    def get_scale(self) -> float:
        return self.scale


def check_infinity_and_a_scaler() -> None:
    by_nccl()
    scalers = Scaler(), Scaler()
    device = Trainer(on_device(), grad_scaler=scalers[0])
    host = Trainer(torch.device("cpu"), grad_scaler=scalers[1])
    compare(device, host, range(4))
    before = device.residuals()
    for trainer in (device, host):
        results = trainer.backward(4, spoil=True)
        assert all(result.isnan().any() for result in results)  # on every rank
        assert_same(trainer.residuals(), before, "residuals after a skipped step")
    compare(device, host, range(5, 7))
    for scaler in scalers:
        scaler.scale /= 2  # as after a step that the scaler alone has skipped: it is taken back
    compare(device, host, range(7, STEPS + 1))


def check_exchange() -> None:
    by_nccl()
    weights = [nn.Parameter(torch.empty(3000, device=place)) for place in (on_device(), "cpu")]
    ours, expected = (gt.Exchange([("w", weight)], TOPK) for weight in weights)
    flats: list[torch.Tensor] = []
    pinned: list[torch.Tensor] = []
    ours._flatten = lambda _: flats[-1]  # torch.cat is a kernel
    ours._scatter = lambda _, flat: None
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        gradient = torch.randn(3000, generator=generator) ** 3
        weights[0].grad = torch.empty(3000, device=weights[0].device)
        pinned.append(gradient.pin_memory())
        weights[0].grad.copy_(pinned[-1], non_blocking=True)
        flats.append(weights[0].grad)
        weights[1].grad = gradient
        result = ours.reduce(wait=step % 2 == 0)
        assert result.pending == (step % 2 == 1) and result.committed == (step % 2 == 0)
        assert expected.reduce().committed
        assert_same(weights[0].grad.cpu(), weights[1].grad, f"step {step}")
    assert ours.refuse() and expected.refuse()
    assert_same(ours.residual("w"), expected.residual("w"), "residual")


class Runtime:
    """The CUDA runtime's own functions: torch's graphs launch kernels of torch's."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(EMULATED_RUNTIME or "libcudart.so.13")

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self.library, name)

        def call(*arguments: Any) -> None:
            status = function(*arguments)
            assert status == 0, f"{name}: {status}"

        return call

    def word(self, address: int) -> int:
        value = ctypes.c_uint32()
        self.cudaMemcpy(ctypes.byref(value), ctypes.c_void_p(address), ctypes.c_size_t(4), 2)
        return value.value


def check_a_graph_that_is_replayed() -> None:
    by_nccl()
    runtime = Runtime()
    place = on_device()
    weight, other = (nn.Parameter(torch.empty(3000, device=where)) for where in (place, "cpu"))
    weight.grad = torch.empty(3000, device=place)
    ours, expected = (gt.Exchange([("w", w)], TOPK) for w in (weight, other))
    ours._flatten = lambda _: weight.grad
    ours._scatter = lambda _, flat: None
    stream = torch.cuda.current_stream().cuda_stream
    handle, graph, executable = ctypes.c_void_p(stream), ctypes.c_void_p(), ctypes.c_void_p()
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        gradient = (torch.randn(3000, generator=generator) ** 3).pin_memory()
        other.grad = gradient.clone()
        if step == 1:
            runtime.cudaStreamBeginCapture(handle, 1)  # thread-local
            assert ours.reduce(wait=False).pending
            runtime.cudaStreamEndCapture(handle, ctypes.byref(graph))
            runtime.cudaGraphInstantiate(ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        weight.grad.copy_(gradient, non_blocking=True)
        if step == 0:
            assert ours.reduce().committed
        else:
            ours.replay()
            runtime.cudaGraphLaunch(executable, handle)
        assert expected.reduce().committed and ours.step == expected.step == step + 1
        assert_same(weight.grad.cpu(), other.grad, f"step {step}")
    assert ours.synchronize().committed and runtime.word(ours.committed_word()) == 1
    assert_same(ours.residual("w"), expected.residual("w"), "residual")
    assert expected.committed_word() is None
    runtime.cudaGraphExecDestroy(executable)
    runtime.cudaGraphDestroy(graph)


def check_a_communicator_made_by_an_id() -> None:
    """What the store brings is enough."""
    ids = [nccl_id() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(ids)
    device = on_device()
    comm = Comm.of_nccl_id(2, ids[0], dist.get_rank())
    assert comm.rank == dist.get_rank() and comm.world_size == 2
    for module in (_hook_state, _exchange):
        module.comm_for = lambda host, _, device: comm if device.backend == "cuda" else host
    compare(Trainer(device), Trainer(torch.device("cpu")), range(3))


def check_a_rank_that_does_not_come() -> None:
    """Rank 1 stops before its step; rank 0 is told by the next backward, and its stream goes on."""
    by_nccl()
    device = Trainer(on_device(), timeout=2.0)
    device.backward(0)
    device.backward(1)
    if dist.get_rank() == 1:
        time.sleep(12)
        return
    begun = time.monotonic()
    try:
        for step in (2, 3):
            device.backward(step)
    except gradsieve.GradsieveError as error:
        assert error.code == "timeout" and error.rank == 1, error
        assert str(error).startswith("rank 1 does not answer"), error
    else:
        raise AssertionError("nobody noticed")
    assert time.monotonic() - begun < 12


def main(check: str, folder: str) -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    checks: dict[str, Callable[[], None]] = {
        name.removeprefix("check_"): value
        for name, value in globals().items()
        if name.startswith("check_")
    }
    try:
        checks[check]()
        problem = ""
    except BaseException:
        problem = traceback.format_exc()
    (pathlib.Path(folder) / f"rank{dist.get_rank()}.json").write_text(json.dumps(problem))
    if not problem:
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
