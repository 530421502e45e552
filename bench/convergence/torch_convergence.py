# SPDX-License-Identifier: Apache-2.0
"""Dense against compressed training under DDP, on real data, at equal steps.

torchrun --nproc-per-node 2 bench/convergence/torch_convergence.py --model cnn --seeds 3

Trains every spec with every seed and prints one JSON line for each run and one for each spec: the
median and range of the result over seeds, and its gap to the first spec. Ranks that do not hold the
same bits after every step end the program. cnn: Fashion-MNIST, test accuracy in percent.
transformer: characters of the King James text, loss in nats on held-out text.
"""

import argparse
import datetime
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import zlib

import gradsieve.torch as gt
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

IMAGES = pathlib.Path("/usr/share/datasets/fashion-mnist")
CONTEXT = 64


def image_data() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    def numbers(name: str, skip: int) -> torch.Tensor:
        with gzip.open(IMAGES / f"{name}-ubyte.gz") as file:
            return torch.from_numpy(np.frombuffer(file.read(), np.uint8)[skip:].copy())

    def part(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = numbers(f"{name}-images-idx3", 16).view(-1, 1, 28, 28).float()
        return (pixels / 255.0 - 0.2861) / 0.353, numbers(f"{name}-labels-idx1", 8).long()

    return {"train": part("train"), "test": part("t10k")}


class Cnn:
    batch, rate, unit, more_is_better = 64, 0.02, "% accuracy", True

    def __init__(self) -> None:
        self.data = image_data()

    def network(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(800, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def loss(self, model: nn.Module, draws: torch.Generator) -> torch.Tensor:
        images, labels = self.data["train"]
        chosen = torch.randint(len(images), (self.batch,), generator=draws)
        return functional.cross_entropy(model(images[chosen]), labels[chosen])

    def result(self, model: nn.Module) -> float:
        images, labels = self.data["test"]
        right = sum(
            (model(x).argmax(1) == y).sum().item()
            for x, y in zip(images.split(1000), labels.split(1000))
        )
        return 100.0 * right / len(images)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.project(self.before(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Language(nn.Module):
    def __init__(self, symbols: int, width: int = 96, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(symbols, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embed(x) + self.place.weight)))


class Transformer:
    batch, rate, unit, more_is_better = 16, 0.1, "nats", False

    def __init__(self) -> None:
        command = ["bible", "-f", "-l", "100000", "Gen1:1-Rev22:21"]
        text = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
        symbols, numbers = np.unique(np.frombuffer(text, np.uint8), return_inverse=True)
        self.symbols = len(symbols)
        held_out = len(numbers) // 20
        whole = torch.from_numpy(numbers.astype(np.int64))
        self.train, self.test = whole[:-held_out], whole[-held_out:]

    def network(self) -> nn.Module:
        return Language(self.symbols)

    def loss(
        self, model: nn.Module, draws: torch.Generator, text: torch.Tensor | None = None
    ) -> torch.Tensor:
        text = self.train if text is None else text
        starts = torch.randint(len(text) - CONTEXT - 1, (self.batch,), generator=draws)
        windows = text[starts.unsqueeze(1) + torch.arange(CONTEXT + 1)]
        scores = model(windows[:, :-1])
        return functional.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())

    def result(self, model: nn.Module) -> float:
        draws = torch.Generator().manual_seed(12345)
        return statistics.fmean(self.loss(model, draws, self.test).item() for _ in range(20))


def digest(model: nn.Module) -> int:
    """Of all bits of the gradients."""
    value = 0
    for parameter in model.parameters():
        value = zlib.crc32(parameter.grad.contiguous().numpy().tobytes(), value)
    return value


def run(task: Cnn | Transformer, spec: str, seed: int, steps: int) -> dict[str, object]:
    torch.manual_seed(seed)
    ddp = DistributedDataParallel(task.network())
    state = None
    if spec != "ddp":
        rules = [("*.bias", "none"), ("*", spec)]
        state = gt.HookState(rules, None, ddp.module.named_parameters(), seed=seed)
        ddp.register_comm_hook(state, gt.hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=task.rate, momentum=0.9)
    draws = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    digests = []  # of what each step gave, to compare with the other ranks'
    begun = time.monotonic()
    for _ in range(steps):
        loss = task.loss(ddp, draws)
        optimizer.zero_grad()
        loss.backward()
        digests.append(digest(ddp))
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
    seconds = time.monotonic() - begun
    with torch.no_grad():
        result = task.result(ddp.module)
    dense = sum(4 * parameter.numel() for parameter in ddp.parameters())
    sent = dense
    if state is not None:
        sent = sum(stats.total_wire_bytes for stats in state.stats()) // steps
        state.close()
    everywhere = [digests] * dist.get_world_size()
    dist.all_gather_object(everywhere, digests)
    for step, of_ranks in enumerate(zip(*everywhere)):
        if len(set(of_ranks)) > 1:
            raise SystemExit(f"{spec}, seed {seed}: ranks hold different bits after step {step}")
    record = {"spec": spec, "seed": seed, "steps": steps, "result": round(result, 4)}
    return {**record, "bytes_per_step": sent, "dense_bytes": dense, "seconds": round(seconds, 1)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", choices=["cnn", "transformer"], default="cnn")
    options.add_argument("--steps", type=int, default=2000)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--rate", type=float, help="learning rate; default: the model's own")
    options.add_argument("--spec", action="append", help="ddp: without our hook; may be repeated")
    given = options.parse_args()
    specs = given.spec or ["ddp", "topk(density=0.01) | int8 ; feedback=residual"]
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    torch.set_num_threads(1)
    task = Cnn() if given.model == "cnn" else Transformer()
    if given.rate is not None:
        task.rate = given.rate
    medians = []
    for spec in specs:
        records = [run(task, spec, seed, given.steps) for seed in range(given.seeds)]
        results = sorted(record["result"] for record in records)
        medians.append(statistics.median(results))
        gap = medians[0] - medians[-1] if task.more_is_better else medians[-1] - medians[0]
        summary = {"summary": spec, "unit": task.unit, "median": medians[-1], "range": results}
        if dist.get_rank() == 0:
            for record in [*records, {**summary, "gap": round(gap, 4)}]:
                print(json.dumps(record), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
