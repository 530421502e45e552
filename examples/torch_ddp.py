# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on Fashion-MNIST over several processes, a hundredth of the bytes sent.

torchrun --nproc-per-node 2 examples/torch_ddp.py --steps 200
"""

import argparse
import gzip
import os
import pathlib
import sys

import gradsieve.torch as gt
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DATA = "/usr/share/datasets/fashion-mnist"  # Debian's package dataset-fashion-mnist
BATCH = 64


def load(folder: str, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    def numbers(name: str, skip: int) -> np.ndarray:
        with gzip.open(pathlib.Path(folder) / f"{part}-{name}-ubyte.gz") as file:
            return np.frombuffer(file.read(), np.uint8)[skip:]

    images = torch.from_numpy(numbers("images-idx3", 16).copy()).view(-1, 1, 28, 28)
    labels = torch.from_numpy(numbers("labels-idx1", 8).copy())
    return images.float() / 255.0 - 0.2861, labels.long()


def network() -> nn.Module:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2)]
    return nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(800, 10))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--spec", default="topk(density=0.01) | int8 ; feedback=residual")
    options.add_argument("--data", default=DATA)
    given = options.parse_args()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    images, labels = load(given.data, "train")

    ddp = DistributedDataParallel(network())
    # [tag: hook]
    rules = [("*.bias", "none"), ("*", given.spec)]
    state = gt.HookState(rules, None, ddp.module.named_parameters())
    ddp.register_comm_hook(state, gt.hook)
    # [end: hook]

    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02, momentum=0.9)
    draws = torch.Generator().manual_seed(1 + rank)
    for step in range(given.steps):
        chosen = torch.randint(len(images), (BATCH,), generator=draws)
        loss = nn.functional.cross_entropy(ddp(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    if rank == 0:
        test_images, test_labels = load(given.data, "t10k")
        with torch.no_grad():
            right = (ddp.module(test_images).argmax(1) == test_labels).float().mean().item()
        sent = sum(stats.total_wire_bytes for stats in state.stats())
        dense = sum(stats.dense_bytes for stats in state.stats()) * given.steps
        print(f"accuracy {100 * right:.1f} %, {sent} bytes sent by rank 0 of {size}; dense {dense}")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
