# SPDX-License-Identifier: Apache-2.0
"""One rank of tools/torch_speed: DDP on gloo with one thread. Arguments: what, a folder, rounds.

Each writes rankR.json. Variants take turns in one process, in an order drawn anew each round and
the same on all ranks; ratios are taken within a round.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import random
import sys
import time

import gradsieve.torch as gt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ELEMENTS = 1 << 23  # of a bucket: 32 MiB
DENSITY = 0.01
SPEC = f"topk(density={DENSITY}) | int8 ; feedback=residual"
WARM_UP = 3  # passes until DDP's buckets stay and the hook trusts them


class Given(nn.Module):
    """Gradients as gradsieve-bench draws them (`heavy`): the derivative of w·g after w is g."""

    def __init__(self, num_buckets: int, num_elements: int = ELEMENTS) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(dist.get_rank() + 1)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.zeros(num_elements)) for _ in range(num_buckets)
        )
        self.gradients = []
        for _ in range(num_buckets):
            z, spread = (torch.randn(num_elements, generator=generator) for _ in range(2))
            self.gradients.append(z * torch.exp(2 * spread))

    def forward(self) -> torch.Tensor:
        return sum(torch.dot(w, g) for w, g in zip(self.weights, self.gradients))


class TopkHook:
    """The same hook as one writes it with torch: error feedback, torch.topk, all_gather, add up."""

    def __init__(self) -> None:
        self.residuals: dict[tuple[int, int], torch.Tensor] = {}
        self.seconds = 0.0

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        begun = time.thread_time()
        flat = bucket.buffer()
        key = bucket.index(), flat.numel()  # DDP lays its buckets anew after the first pass
        residual = self.residuals.setdefault(key, torch.zeros_like(flat))
        residual.add_(flat)
        k = int(DENSITY * flat.numel())
        _, indices = torch.topk(residual.abs(), k, sorted=False)
        values = residual[indices]
        residual[indices] = 0
        self.seconds += time.thread_time() - begun
        size = dist.get_world_size()
        all_indices = [torch.empty_like(indices) for _ in range(size)]
        all_values = [torch.empty_like(values) for _ in range(size)]
        dist.all_gather(all_indices, indices)
        dist.all_gather(all_values, values)
        begun = time.thread_time()
        flat.zero_()
        for its_indices, its_values in zip(all_indices, all_values):
            flat.index_add_(0, its_indices, its_values, alpha=1 / size)
        self.seconds += time.thread_time() - begun
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(flat)
        return future


class Variant:
    """A model in DDP with our hook, and what a step of it costs."""

    def __init__(self, num_buckets: int, num_elements: int = ELEMENTS, **options: object) -> None:
        self.model = Given(num_buckets, num_elements)
        self.ddp = DistributedDataParallel(self.model)
        named = self.model.named_parameters()
        self.state = gt.HookState(SPEC, None, named, timeout=120.0, **options)
        self.ddp.register_comm_hook(self.state, gt.hook)
        self.reduce_cpu_seconds = 0.0
        hook = self.state._session.hook
        inner = hook.reduce

        def timed(*arguments: object) -> object:
            begun = time.thread_time()
            event = inner(*arguments)
            self.reduce_cpu_seconds += time.thread_time() - begun
            return event

        hook.reduce = timed

    def step(self) -> dict[str, float]:
        self.reduce_cpu_seconds = 0.0
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        self.ddp().backward()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.ddp.zero_grad()
        stats = self.state.stats("buckets")
        return {
            "wall": wall,
            "cpu": cpu,
            "encode": sum(bucket.encode_seconds for bucket in stats),
            "decode": sum(bucket.decode_seconds for bucket in stats),
            "encode_cpu": sum(bucket.encode_cpu_seconds for bucket in stats),
            "decode_cpu": sum(bucket.decode_cpu_seconds for bucket in stats),
            "reduce_call_cpu": self.reduce_cpu_seconds,
        }


def in_turn(variants: dict[str, object], rounds: int) -> dict[str, list[dict[str, float]]]:
    """`variants`: name to a function that makes a step and says what it took."""
    order = list(variants)
    drawn = random.Random(20)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in order}
    for _ in range(rounds):
        drawn.shuffle(order)
        for name in order:
            results[name].append(variants[name]())
    return results


def codec(rounds: int) -> dict[str, object]:
    num_buckets = 2
    ours = Variant(num_buckets)
    theirs = TopkHook()
    ddp = DistributedDataParallel(Given(num_buckets))
    ddp.register_comm_hook(None, lambda _, bucket: theirs.reduce(bucket))

    def step_of_theirs() -> dict[str, float]:
        theirs.seconds = 0.0
        dist.barrier()
        ddp().backward()
        ddp.zero_grad()
        return {"codec": theirs.seconds}

    variants = {"ours": ours.step, "torch_topk": step_of_theirs}
    in_turn(variants, WARM_UP)
    return {"num_buckets": num_buckets, "elements": ELEMENTS, "rounds": in_turn(variants, rounds)}


def watching(rounds: int) -> dict[str, object]:
    folder = sys.argv[2]
    settings = {
        "plain": {},
        "plain again": {},
        "timeline": {"GRADSIEVE_TIMELINE": f"{folder}/watched-%r.trace"},
        "metrics": {"GRADSIEVE_METRICS": f"{folder}/watched-%r.jsonl"},
        "strict": {},
    }
    variants = {}
    for name, environment in settings.items():
        os.environ.update(environment)  # read when a hook plans
        variant = Variant(4, ELEMENTS // 8, strict=name == "strict")
        for _ in range(WARM_UP):
            variant.step()
        for key in environment:
            del os.environ[key]
        variants[name] = variant.step
    return {"num_buckets": 4, "elements": ELEMENTS // 8, "rounds": in_turn(variants, rounds)}


def overlap(rounds: int) -> dict[str, object]:
    """The link is made so slow that a step's exchanges take twice as long as backward alone.

    An exchange that is shorter than the backward of the next bucket has nothing to overlap with.
    """
    width, layers, batch = 2600, 6, 96
    torch.manual_seed(7)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    x = torch.randn(batch, width)

    def backward_seconds(ddp: nn.Module) -> float:
        loss = ddp(x).square().mean()
        begun = time.perf_counter()
        loss.backward()
        return time.perf_counter() - begun

    alone = sorted(backward_seconds(model) for _ in range(5))[2]
    slowest = torch.tensor(alone)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    payload_bytes = layers * width * width  # int8, two-shot between two: half there and half back
    bits_per_second = 8 * payload_bytes / (2 * float(slowest))
    ddp = DistributedDataParallel(model)
    os.environ["GRADSIEVE_TIMELINE"] = f"{sys.argv[2]}/overlap-%r.trace"
    named = model.named_parameters()
    link = (bits_per_second, 0.0)
    state = gt.HookState("int8 ; feedback=residual", None, named, timeout=120.0, link=link)
    ddp.register_comm_hook(state, gt.hook)
    with_hook = []
    for _ in range(WARM_UP + rounds):
        ddp.zero_grad()
        with_hook.append(backward_seconds(ddp))
    return {
        "backward_seconds_alone": float(slowest),
        "backward_seconds_with_hook": with_hook[WARM_UP:],
        "bits_per_second": bits_per_second,
        "wire_bytes": sum(bucket.wire_bytes for bucket in state.stats("buckets")),
        "passes_until_trusted": 2,
    }


def main() -> None:
    what, folder, rounds = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
    found = {"codec": codec, "watching": watching, "overlap": overlap}[what](rounds)
    found["torch"] = torch.__version__
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
