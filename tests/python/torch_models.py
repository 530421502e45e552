# SPDX-License-Identifier: Apache-2.0
"""Small models and data that differ by rank and element."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable
from typing import Any

import gradsieve.torch as gt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TOPK = "topk(density=0.1) | int8 ; feedback=residual"
EVERYTHING = "topk(density=1) ; feedback=residual"


def ranks(*counts: int) -> Callable[[Any], Any]:
    """Says with how many ranks a check runs; 2 where nothing is said."""

    def mark(check: Any) -> Any:
        check.ranks = counts
        return check

    return mark


def mlp(seed: int = 7) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(31, 33), nn.Tanh(), nn.Linear(33, 65), nn.Tanh(), nn.Linear(65, 5)
    )


def batch(step: int, rank: int | None = None, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 31, generator=generator)
    return x, torch.tanh(x[:, :5] * (rank + 1)) + 0.1 * torch.randn(size, 5, generator=generator)


def wrapped(
    model: nn.Module, rules: Any | None, *, bucket_mb: float = 0.008, **options: Any
) -> tuple[DistributedDataParallel, gt.HookState | None]:
    """The model in DDP with several buckets, with our hook unless `rules` is None."""
    ddp_options = {
        key: options.pop(key)
        for key in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
        if key in options
    }
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, **ddp_options)
    if rules is None:
        return ddp, None
    state = gt.HookState(rules, None, model.named_parameters(), **options)
    ddp.register_comm_hook(state, gt.hook)
    return ddp, state


def train(
    ddp: nn.Module,
    steps: Iterable[int],
    lr: float = 0.1,
    each: Callable[[int], None] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> torch.optim.Optimizer:
    """Plain SGD with momentum; `each(step)` after backward, before the update."""
    optimizer = optimizer or torch.optim.SGD(ddp.parameters(), lr=lr, momentum=0.9)
    for step in steps:
        x, y = batch(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(x), y).backward()
        if each is not None:
            each(step)
        optimizer.step()
    return optimizer


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """A hash of the bits."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint does it; nothing but tensors and numbers passes."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def gathered(value: Any) -> list[Any]:
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, value)
    return answers


def assert_same_on_all_ranks(tensors: Iterable[torch.Tensor], what: str) -> None:
    digests = gathered(digest(tensors))
    assert len(set(digests)) == 1, f"{what} differs between ranks: {digests}"


def assert_equal_bits(ours: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    assert ours.shape == expected.shape, what
    differ = (ours.view(torch.int32) != expected.view(torch.int32)).nonzero().reshape(-1)
    assert len(differ) == 0, (
        f"{what}: {len(differ)} of {ours.numel()} elements differ, first {int(differ[0])}: "
        f"{float(ours[differ[0]])!r}, expected {float(expected[differ[0]])!r}"
    )
