# SPDX-License-Identifier: Apache-2.0
"""Skipped steps, checkpoints, changes of world size, forks. Case numbers are those of CASES.md."""

from __future__ import annotations

import os
import time
from typing import Any

import gradsieve
import gradsieve.torch as gt
import torch
import torch.distributed as dist
from gradsieve.torch._group_transport import GroupTransport
from gradsieve.torch._undelivered import Undelivered
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_models import (
    TOPK,
    assert_equal_bits,
    assert_same_on_all_ranks,
    batch,
    flat,
    gathered,
    mlp,
    ranks,
    through_a_file,
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


@ranks(2, 4)
def check_a_checkpoint_after_a_step_that_the_scaler_alone_skipped_C66() -> None:
    """Nobody has told us yet that the step was skipped when the state is asked for."""
    whole, saved_from, again = Scaled(), Scaled(), Scaled()
    for step in range(5):
        whole.step(step, spoil=step == 4)
        saved_from.step(step, spoil=step == 4)
    saved = through_a_file(saved_from.state_dict())
    assert saved["scaler"]["scale"] == 32768.0
    with torch.no_grad():
        for parameter in again.model.parameters():
            parameter.fill_(9.0)
    again.load_state_dict(saved)
    for step in range(5, 9):
        whole.step(step)
        again.step(step)
    expected = flat(whole.model.parameters())
    assert_equal_bits(flat(again.model.parameters()), expected, "weights")
    rest = residuals(whole.state, whole.model)
    assert rest.any()
    assert_equal_bits(residuals(again.state, again.model), rest, "residuals")


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


@ranks(2, 4)
def check_stop_and_resume_is_bit_for_bit_C66() -> None:
    for rules in (TOPK, "cltk(density=0.1) ; feedback=residual", "int4(rounding=stochastic)"):
        whole = mlp()
        whole_ddp, whole_state = wrapped(whole, rules, seed=11)
        optimizer = train(whole_ddp, range(5))
        saved = through_a_file(
            {
                "model": whole.state_dict(),
                "optimizer": optimizer.state_dict(),
                "gradsieve": whole_state.state_dict(),
            }
        )
        train(whole_ddp, range(5, 11), optimizer=optimizer)

        again = mlp(seed=99)
        again.load_state_dict(saved["model"])
        again_ddp, again_state = wrapped(again, rules, seed=11)
        again_state.load_state_dict(saved["gradsieve"])
        resumed = torch.optim.SGD(again_ddp.parameters(), lr=0.1, momentum=0.9)
        resumed.load_state_dict(saved["optimizer"])
        train(again_ddp, range(5, 11), optimizer=resumed)
        assert again_state.step == whole_state.step == 11
        expected = flat(whole.parameters())
        assert_equal_bits(flat(again.parameters()), expected, f"weights of {rules}")
        if "feedback" in rules:
            rest = residuals(whole_state, whole)
            assert rest.norm() > 0
            assert_equal_bits(residuals(again_state, again), rest, f"residuals of {rules}")


def check_a_checkpoint_without_the_state_is_noticed() -> None:
    """The test above can fail: without the residual the bits are others."""
    whole = mlp()
    ddp, _ = wrapped(whole, TOPK)
    optimizer = train(ddp, range(5))
    again = mlp(seed=99)
    again.load_state_dict(whole.state_dict())
    again_ddp, _ = wrapped(again, TOPK)
    resumed = torch.optim.SGD(again_ddp.parameters(), lr=0.1, momentum=0.9)
    resumed.load_state_dict(optimizer.state_dict())
    train(ddp, range(5, 8), optimizer=optimizer)
    train(again_ddp, range(5, 8), optimizer=resumed)
    assert not torch.equal(flat(whole.parameters()), flat(again.parameters()))


def sum_of_residuals(exchange: gt.Exchange, group) -> torch.Tensor:
    rest = exchange.residual("w").double()
    dist.all_reduce(rest, group=group)
    return rest


@ranks(4)
def check_4_to_2_to_3_ranks_keep_the_sum_of_residuals_C67() -> None:
    rank = dist.get_rank()
    weight, exchange = one_tensor()
    for step in range(4):
        weight.grad = numbers(step)
        exchange.reduce()
    total = sum_of_residuals(exchange, dist.group.WORLD)
    assert total.norm() > 0
    states = [through_a_file(state) for state in gathered(exchange.state_dict())]
    groups = {size: dist.new_group(list(range(size))) for size in (2, 3)}
    for size in (2, 3):
        group = groups[size]
        if rank < size:
            weight = nn.Parameter(torch.zeros(COUNT))
            exchange = gt.Exchange([("w", weight)], TOPK, group)
            exchange.load_state_dict(states, on_world_change="redistribute")
            first = exchange.step
            sent, given = torch.zeros(COUNT).double(), torch.zeros(COUNT).double()
            for step in range(first, first + 3):
                weight.grad = numbers(step)
                given += weight.grad
                exchange.reduce()
                sent += weight.grad
            dist.all_reduce(given, group=group)
            rest = sum_of_residuals(exchange, group)
            lost = sent * size + rest - given - total
            assert lost.abs().max() < 2.0**-18 * given.abs().max(), (size, lost.abs().max())
            own = exchange.state_dict()
        else:
            own, rest = None, None
        states = [state for state in gathered(own) if state is not None]
        total = gathered(rest)[0]


@ranks(4)
def check_the_divisor_is_the_live_number_of_ranks_C67() -> None:
    rank = dist.get_rank()
    weight = nn.Parameter(torch.zeros(1))
    exchange = gt.Exchange([("w", weight)], "none")
    for _ in range(2):
        weight.grad = torch.tensor([4.0 * rank])
        exchange.reduce()
        assert weight.grad.item() == 6.0
    group = dist.new_group([0, 1, 2])
    if rank < 3:
        exchange = gt.Exchange([("w", weight)], "none", group)
        weight.grad = torch.tensor([3.0 * (rank + 1)])
        exchange.reduce()
        assert weight.grad.item() == 6.0


@ranks(4)
def check_another_number_of_ranks_needs_a_word_C67() -> None:
    weight, exchange = one_tensor()
    for step in range(3):
        weight.grad = numbers(step)
        exchange.reduce()
    state = exchange.state_dict()
    group = dist.new_group([0, 1, 2])
    if dist.get_rank() == 3:
        return
    exchange = gt.Exchange([("w", weight)], TOPK, group)
    for options, expected in (
        ({}, "saved by 4 ranks and there are 3"),
        ({"on_world_change": "redistribute"}, "of all 4 old ranks"),
        ({"on_world_change": "forget"}, "expected one of error, redistribute, reset"),
    ):
        try:
            exchange.load_state_dict(state, **options)
        except ValueError as error:
            assert expected in str(error), error
        else:
            raise AssertionError(f"{options} was accepted")
    exchange.load_state_dict(state, on_world_change="reset")
    weight.grad = torch.zeros(COUNT)
    exchange.reduce()
    assert weight.grad.abs().max() == 0.0 and exchange.step == 4


def check_a_failed_initialisation_leaves_no_trace_C68() -> None:
    """What is wrong on one rank is found before ranks count anything: its next try meets theirs."""
    model = mlp()
    named = list(model.named_parameters())
    if dist.get_rank() == 1:
        for wrong in (
            lambda: gt.HookState("topk(density=2)", None, named),
            lambda: gt.HookState(TOPK, None, named, rollback="never"),
            lambda: gt.Exchange(named, [("*", "brotli")]),
            lambda: gt.HookState(TOPK, None, []),
        ):
            try:
                wrong()
            except ValueError:
                continue
            raise AssertionError("accepted")
    begun = time.monotonic()
    ddp, _ = wrapped(model, TOPK)
    train(ddp, range(4))
    assert_same_on_all_ranks(model.parameters(), "weights")
    assert time.monotonic() - begun < 15  # and not the 30 s of a rendezvous that fails


def check_a_rank_that_is_absent_is_named_and_the_next_try_succeeds_C68() -> None:
    """Five times: absent when the state is made, then, with a state, when the first pass comes."""
    for _ in range(5):
        model = mlp()
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.008)
        named = list(model.named_parameters())
        if dist.get_rank() == 0:
            raised = None
            try:
                gt.HookState(TOPK, None, named, timeout=0.5)
            except gradsieve.GradsieveError as error:
                raised = error
            assert raised is not None and raised.rank == 1 and raised.code == "timeout", raised
            assert "rank 1 has not come" in str(raised), raised
        dist.barrier()
        early, _ = wrapped(mlp(), TOPK, timeout=0.5)
        if dist.get_rank() == 0:
            message = ""
            try:
                train(early, range(1))
            except RuntimeError as error:
                message = str(error)
            assert "rank 1 did not answer" in message, message
        dist.barrier()
        state = gt.HookState(TOPK, None, named)
        ddp.register_comm_hook(state, gt.hook)
        train(ddp, range(4))
        assert_same_on_all_ranks(model.parameters(), "weights")


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
