# SPDX-License-Identifier: Apache-2.0
"""Embeddings with sparse gradients: their mean, their part in the vote, their checkpoints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import gradsieve.torch as gt
import torch
import torch.distributed as dist
from gradsieve.torch import _sparse
from torch import nn
from torch_models import (
    EVERYTHING,
    assert_equal_bits,
    assert_same_on_all_ranks,
    flat,
    gathered,
    ranks,
    through_a_file,
    wrapped,
)


class TwoTables(nn.Module):
    """Two sparse embeddings; the second is used where `both` says so."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Embedding(10, 4, sparse=True)
        self.second = nn.Embedding(10, 4, sparse=True)
        self.head = nn.Linear(4, 3)

    def forward(self, rows: torch.Tensor, both: bool) -> torch.Tensor:
        found = self.first(rows)
        return self.head(found + self.second(rows + 1) if both else found).square().sum()


def rows_of(step: int) -> torch.Tensor:
    return torch.tensor([[1, 2, step % 9], [7, 7, 8], [0, 2, 7]][dist.get_rank()])


def last_rank() -> int:
    return dist.get_world_size() - 1


def train(ddp: nn.Module, steps: range, optimizer: torch.optim.Optimizer | None = None) -> Any:
    optimizer = optimizer or torch.optim.SGD(ddp.parameters(), lr=0.01)
    for step in steps:
        optimizer.zero_grad()
        ddp(rows_of(step), True).backward()
        optimizer.step()
    return optimizer


def raised(call: Callable[[], Any], *parts: str) -> None:
    try:
        call()
    except RuntimeError as error:
        assert all(part in str(error) for part in parts), error
    else:
        raise AssertionError("nothing was raised")


def all_residuals(state: gt.HookState, model: nn.Module) -> torch.Tensor:
    dense = (name for name, _ in model.named_parameters() if "head" in name or "body" in name)
    return torch.cat([state.residual(name) for name in dense])


@ranks(2, 3)
def check_sparse_embeddings_are_the_mean() -> None:
    """Against plain sums: DDP without a hook divides sparse gradients twice (torch 2.15)."""
    model = TwoTables()
    ddp, _ = wrapped(model, EVERYTHING)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(6):
        alone = TwoTables()
        alone.load_state_dict(model.state_dict())
        alone(rows_of(step), True).backward()
        optimizer.zero_grad()
        ddp(rows_of(step), True).backward()
        for table, own in ((model.first, alone.first), (model.second, alone.second)):
            assert table.weight.grad.is_sparse
            every = gathered(own.weight.grad.to_dense().double())
            mean = sum(every) / len(every)
            torch.testing.assert_close(table.weight.grad.to_dense().double(), mean)
        optimizer.step()
    assert_same_on_all_ranks(model.parameters(), "weights")


def check_unused_sparse_embeddings_C59() -> None:
    """Where DDP itself gives up on an unused sparse embedding, Exchange goes on."""
    model = TwoTables()
    exchange = gt.Exchange(model.named_parameters(), EVERYTHING)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        model(rows_of(step), False).backward()
        exchange.reduce()
        optimizer.step()
    assert torch.equal(model.second.weight, TwoTables().second.weight)
    assert not torch.equal(model.first.weight, TwoTables().first.weight)
    assert_same_on_all_ranks(model.parameters(), "weights")


@contextlib.contextmanager
def after_each_exchange(then: Callable[[int], None]) -> Iterator[None]:
    """Calls then(number of the exchange) on this rank, once it has taken part."""
    original = _sparse.reduce_sparse
    calls = iter(range(1 << 30))

    def patched(*arguments: Any) -> Any:
        mean = original(*arguments)
        then(next(calls))
        return mean

    _sparse.reduce_sparse = patched
    try:
        yield
    finally:
        _sparse.reduce_sparse = original


@ranks(2, 3)
def check_what_fails_on_one_rank_commits_nowhere() -> None:
    """In the last bucket of the pass or before it, when all others have what they waited for."""
    for failing in (0, 1):
        for first in (range(1), range(5)):  # the first pass, whose buckets are collected; later
            model = TwoTables()
            ddp, state = wrapped(model, EVERYTHING, rollback="exact", timeout=20.0)
            train(ddp, range(first.stop - 1))
            before = all_residuals(state, model) if first.stop > 1 else None

            def fail(number: int, failing: int = failing) -> None:
                if dist.get_rank() == last_rank() and number == failing:
                    raise MemoryError("no memory for the rows")

            own = "no memory for the rows"
            said = own if dist.get_rank() == last_rank() else f"rank {last_rank()}"
            begun = time.monotonic()
            with after_each_exchange(fail):
                raised(lambda: train(ddp, first[-1:]), said)
            assert not state._session.in_step, "raised before the vote"
            raised(lambda: train(ddp, range(1)), said)  # there is no going on
            assert time.monotonic() - begun < 10
            assert not state._session.committed
            if before is not None:
                assert_equal_bits(all_residuals(state, model), before, "residuals")


def check_rows_that_are_late_are_a_timeout() -> None:
    """`timeout` holds for sparse buckets, too."""
    ddp, _ = wrapped(TwoTables(), EVERYTHING, timeout=2.0)
    train(ddp, range(3))
    late = dist.get_rank() == 1

    def wait(number: int) -> None:
        if late and number == 0:
            time.sleep(7)

    begun = time.monotonic()
    with after_each_exchange(wait):
        raised(lambda: train(ddp, range(3, 4)), *([] if late else ["rank 1"]))
    assert late or time.monotonic() - begun < 6.5


def check_f64_rows_are_refused_with_what_to_do() -> None:
    ddp, _ = wrapped(TwoTables().double(), "none")
    raised(lambda: train(ddp, range(1)), ".weight' is f64", "sparse=False")


@ranks(2, 3)
def check_rows_that_are_not_finite_roll_the_step_back() -> None:
    for option in ("propagate", "skip"):
        model = TwoTables()
        ddp, state = wrapped(model, TOPK_HEAD, rollback="exact", on_nonfinite=option)
        spoil_last_rank(model, at_step=4)
        for step in range(6):
            before = all_residuals(state, model) if step > 0 else None
            ddp.zero_grad()
            ddp(rows_of(step), True).backward()
            values = model.first.weight.grad.coalesce().values()
            assert state._session.committed == (step != 4)
            if step == 4:
                assert values.isnan().all() if option == "propagate" else not values.any()
                assert model.second.weight.grad.coalesce().values().isfinite().all()
                assert_equal_bits(all_residuals(state, model), before, "residuals")
                assert before.any()
            else:
                assert values.isfinite().all() and values.any()


def check_rows_that_are_not_finite_are_an_error_where_asked() -> None:
    model = TwoTables()
    ddp, state = wrapped(model, TOPK_HEAD, on_nonfinite="error")
    spoil_last_rank(model, at_step=4)
    train(ddp, range(4))
    raised(lambda: train(ddp, range(4, 5)), "first.weight", "NaN or infinite")
    assert all_residuals(state, model).isfinite().all()
    assert not state._session.committed


@ranks(2, 3)
def check_a_scaler_skips_rows_that_are_not_finite_on_all_ranks() -> None:
    model = TwoTables()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    ddp, state = wrapped(model, TOPK_HEAD, grad_scaler=scaler)
    spoil_last_rank(model, at_step=4)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for step in range(7):
        weights = flat(model.parameters()).clone()
        before = all_residuals(state, model) if step > 0 else None
        optimizer.zero_grad()
        scaler.scale(ddp(rows_of(step), True)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (1024.0 if step < 4 else 512.0), step
        assert torch.equal(weights, flat(model.parameters())) == (step == 4)
        if step == 4:
            assert_equal_bits(all_residuals(state, model), before, "residuals")
    assert_same_on_all_ranks(model.parameters(), "weights")


TOPK_HEAD = "topk(density=0.3) ; feedback=residual"


def spoil_last_rank(model: TwoTables, at_step: int) -> None:
    """The gradient of the first table is infinite in that step, before DDP takes it."""
    steps = iter(range(1 << 30))

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("inf") if next(steps) == at_step else gradient

    if dist.get_rank() == last_rank():
        model.first.weight.register_hook(spoil)


class TableAndLayers(nn.Module):
    """Dense layers in several buckets, which DDP lays anew after the first pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(10, 31, sparse=True)
        self.body = nn.Sequential(nn.Linear(31, 33), nn.Tanh(), nn.Linear(33, 65), nn.Tanh())
        self.head = nn.Linear(65, 5)

    def forward(self, rows: torch.Tensor, _: bool) -> torch.Tensor:
        return self.head(self.body(self.table(rows))).square().sum()


@ranks(2, 3)
def check_stop_and_resume_is_bit_for_bit_beside_a_table_C66() -> None:
    """Shards are cut where the buckets end, so the buckets are part of the checkpoint."""
    rules = "int8 ; feedback=residual ; exchange=two_shot"
    whole = TableAndLayers()
    whole_ddp, whole_state = wrapped(whole, rules)
    optimizer = train(whole_ddp, range(5))
    kept = {"model": whole.state_dict(), "gradsieve": whole_state.state_dict()}
    saved = through_a_file(kept)
    train(whole_ddp, range(5, 10), optimizer)

    again = TableAndLayers()
    again.load_state_dict(saved["model"])
    again_ddp, again_state = wrapped(again, rules)
    again_state.load_state_dict(saved["gradsieve"])
    train(again_ddp, range(5, 10))
    assert_equal_bits(flat(again.parameters()), flat(whole.parameters()), "weights")
    rest = all_residuals(whole_state, whole)
    assert rest.any()
    assert_equal_bits(all_residuals(again_state, again), rest, "residuals")
