# SPDX-License-Identifier: Apache-2.0
"""Checkpoints, changes of world size, tries to start. Case numbers are those of CASES.md."""

from __future__ import annotations

import time

import gradsieve
import gradsieve.torch as gt
import torch
import torch.distributed as dist
from checks_state import COUNT, Scaled, numbers, one_tensor, residuals
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_models import (
    TOPK,
    assert_equal_bits,
    assert_same_on_all_ranks,
    flat,
    gathered,
    mlp,
    ranks,
    through_a_file,
    train,
    wrapped,
)


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
