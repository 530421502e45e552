# SPDX-License-Identifier: Apache-2.0
"""Skipped steps, loss scales, forks, wrong transports. Case numbers are those of CASES.md."""

from __future__ import annotations

import os
from typing import Any

import gradsieve
import gradsieve.torch as gt
import torch
import torch.distributed as dist
from gradsieve.torch._group_transport import GroupTransport
from gradsieve.torch._undelivered import Undelivered
from torch import nn
from torch_models import (
    TOPK,
    assert_equal_bits,
    assert_same_on_all_ranks,
    batch,
    flat,
    gathered,
    mlp,
    ranks,
    train,
    wrapped,
)

COUNT = 200


def numbers(step: int, rank: int | None = None) -> torch.Tensor:
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(COUNT, generator=generator) ** 3


def one_tensor(**options) -> tuple[nn.Parameter, gt.Exchange]:
    weight = nn.Parameter(torch.zeros(COUNT))
    return weight, gt.Exchange([("w", weight)], TOPK, **options)


def residuals(state, model: nn.Module) -> torch.Tensor:
    return torch.cat([state.residual(name) for name, _ in model.named_parameters()])


def window(step: int, broken: bool) -> torch.Tensor:
    """Four micro-batches; the second may hold one infinity, on the last rank."""
    parts = [numbers(10 * step + micro) for micro in range(4)]
    if broken and dist.get_rank() == dist.get_world_size() - 1:
        parts[1][17] = float("inf")
    return sum(parts)


@ranks(2, 4)
def check_a_skipped_window_leaves_no_trace_with_exact_C63() -> None:
    weight, exchange = one_tensor(rollback="exact")
    other_weight, reference = one_tensor(rollback="exact")
    for step in range(6):
        broken = step in (2, 4)
        before = exchange.residual("w") if step > 0 else None
        weight.grad = window(step, broken)
        result = exchange.reduce()
        assert result.committed != broken and result.found_nonfinite == broken
        if broken:
            assert weight.grad.isnan().all()  # on every rank: that is what a loss scaler looks at
            assert_equal_bits(exchange.residual("w"), before, "residual after a skipped step")
            reference._session.step += 1  # the reference never saw this window
            continue
        other_weight.grad = window(step, False)
        reference.reduce()
        assert_equal_bits(weight.grad, other_weight.grad, f"window {step}")


@ranks(2, 4)
def check_a_skipped_window_waits_with_merge_C63() -> None:
    weight, exchange = one_tensor(rollback="merge")
    sent, given = torch.zeros(COUNT, dtype=torch.float64), torch.zeros(COUNT, dtype=torch.float64)
    for step in range(7):
        broken = step in (2, 4)
        weight.grad = window(step, broken)
        given += weight.grad
        if exchange.reduce().committed:
            sent += weight.grad
    dist.all_reduce(given)
    rest = exchange.residual("w").double()
    assert rest.isfinite().all()
    dist.all_reduce(rest)
    size = dist.get_world_size()
    lost = (sent * size + rest - given)[torch.arange(COUNT) != 17]
    assert lost.abs().max() <= 7 * 2.0**-20 * given[given.isfinite()].abs().max(), lost.abs().max()
    assert rest.norm() > 0


class Scaled:
    """A DDP model that is trained with a GradScaler on the CPU."""

    def __init__(self, **options) -> None:
        self.model = mlp()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=10_000)
        self.ddp, self.state = wrapped(self.model, TOPK, grad_scaler=self.scaler, **options)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.02)

    def step(self, step: int, *, inf_on: int | None = None, spoil: bool = False) -> None:
        x, y = batch(step)
        if inf_on == dist.get_rank():
            x[3, 3] = float("inf")
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.ddp(x), y)
        self.scaler.scale(loss).backward()
        if spoil:  # what a broken clip would do, on all ranks alike
            self.model[0].weight.grad[1, 1] = float("inf")
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def parts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scaler": self.scaler,
            "gradsieve": self.state,
        }

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts().items()}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        for name, part in self.parts().items():
            part.load_state_dict(states[name])


@ranks(2, 4)
def check_an_overflow_on_one_rank_skips_once_on_all_C64() -> None:
    run = Scaled()
    for step in range(56):
        weights = flat(run.model.parameters()).clone()
        before = residuals(run.state, run.model) if step > 2 else None
        run.step(step, inf_on=1 if step == 5 else None)
        scales = gathered(run.scaler.get_scale())
        assert scales == [65536.0 if step < 5 else 32768.0] * len(scales), (step, scales)
        moved = not torch.equal(weights, flat(run.model.parameters()))
        assert moved == (step != 5), f"step {step}"
        after = residuals(run.state, run.model)
        assert after.isfinite().all()
        if step == 5:
            assert_equal_bits(after, before, "state after the skipped step")
    assert_same_on_all_ranks(run.model.parameters(), "weights")


def check_a_step_that_the_scaler_alone_skips_is_taken_back() -> None:
    run, reference = Scaled(), Scaled()
    for step in range(8):
        before = residuals(run.state, run.model) if step > 0 else None
        run.step(step, spoil=step == 4)
        if step == 4:
            assert_equal_bits(residuals(run.state, run.model), before, "state")
    assert run.scaler.get_scale() == 32768.0
    assert reference.scaler.get_scale() == 65536.0


def check_a_refused_step_is_taken_back() -> None:
    weight, exchange = one_tensor(rollback="exact")
    again, reference = one_tensor(rollback="exact")
    for step in range(6):
        weight.grad = numbers(step)
        exchange.reduce()
        if step == 3:
            before = exchange.residual("w")
            assert exchange.refuse() and not exchange.refuse()
            reference._session.step += 1
            assert before.norm() > 0
            continue
        again.grad = numbers(step)
        reference.reduce()
        assert_equal_bits(weight.grad, again.grad, f"step {step}")


def check_thresholds_and_residuals_are_in_true_units_C65() -> None:
    weight = nn.Parameter(torch.zeros(2))
    exchange = gt.Exchange([("w", weight)], "topk(density=0.5) ; feedback=residual")
    weight.grad = torch.tensor([1.0, 0.2]) * 1024
    exchange.reduce(loss_scale=1024.0)
    assert weight.grad.tolist() == [1024.0, 0.0]
    assert torch.equal(exchange.residual("w"), torch.tensor([0.0, 0.2]))
    weight.grad = torch.zeros(2)
    exchange.reduce(loss_scale=512.0)
    assert torch.equal(weight.grad, torch.tensor([0.0, 0.2]) * 512)

    results = []
    for scale in (1.0, 1024.0):
        weight, exchange = one_tensor()
        for step in range(6):
            weight.grad = numbers(step) * scale
            exchange.reduce(loss_scale=scale)
        results.append(weight.grad / scale)
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=0)


def check_what_ddp_dropped_is_not_lost_with_a_step() -> None:
    for is_exact in (True, False):
        undelivered = Undelivered(is_exact, GroupTransport(dist.group.WORLD, 20.0).notices())
        undelivered.load({"w": torch.ones(3)}, 1.0, torch.device("cpu"))
        weight = nn.Parameter(torch.zeros(3))
        for committed in (False, True):
            part = torch.zeros(3)
            undelivered.begin(4.0)
            undelivered.add_to("w", weight, part)
            is_there = is_exact or not committed  # merged, it waits in the residual
            assert part.tolist() == ([4.0] * 3 if is_there else [0.0] * 3)
            undelivered.settle(committed)
            assert ("w" in undelivered.state()) == (is_exact and not committed)


def check_forked_children_are_told_and_the_parent_goes_on_C74() -> None:
    model = mlp()
    ddp, state = wrapped(model, TOPK)
    train(ddp, range(4))
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            status = 0
            if number % 2:
                try:
                    state._session.hook.begin(99)
                    status = 3
                except gradsieve.GradsieveError as error:
                    status = 0 if error.code == "forked_child" else 4
            os._exit(status)
        children.append(child)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    train(ddp, range(4, 8))
    assert_same_on_all_ranks(model.parameters(), "weights")


def check_what_runs_is_what_was_asked_for_C86() -> None:
    model = mlp()
    try:
        wrapped(model, "topk(density=0.1) | brotli")
    except ValueError as error:
        assert "brotli" in str(error), error
    else:
        raise AssertionError("an unknown codec was accepted")
    ddp, state = wrapped(model, TOPK, strict=True)
    train(ddp, range(4))
    large = [stats for stats in state.stats() if stats.num_elements > 1000]
    assert large
    for stats in large:
        assert stats.spec.startswith("topk(density=0.1") and stats.exchange == "gather"
        assert 0 < stats.wire_bytes < 0.2 * stats.dense_bytes, stats


def check_a_wrong_transport_is_noticed_C87() -> None:
    """With numbers of their own per rank and element, swapped messages cannot pass."""
    from gradsieve.torch import _group_transport

    def reduced() -> torch.Tensor:
        weight = nn.Parameter(torch.zeros(6))
        exchange = gt.Exchange([("w", weight)], "none")
        weight.grad = 1000.0 * dist.get_rank() + torch.arange(6.0)
        exchange.reduce()
        return weight.grad

    expected = 1000.0 * (dist.get_world_size() - 1) / 2 + torch.arange(6.0)
    assert torch.equal(reduced(), expected)
    original = _group_transport.GroupTransport._finish_receive

    def swapped(self, operation, limit):
        num_bytes = original(self, operation, limit)
        address, _ = operation.at
        if operation.place[0] == 0 and num_bytes >= 8:
            words = (_group_transport.ctypes.c_uint32 * 2).from_address(address)
            words[0], words[1] = words[1], words[0]
        return num_bytes

    _group_transport.GroupTransport._finish_receive = swapped
    try:
        assert not torch.equal(reduced(), expected)
    except gradsieve.GradsieveError:
        pass  # noticed even earlier
    finally:
        _group_transport.GroupTransport._finish_receive = original
