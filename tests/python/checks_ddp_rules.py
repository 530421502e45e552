# SPDX-License-Identifier: Apache-2.0
"""Element types, rules, bytes, wrappers and refusals of the hook; Exchange for any trainer."""

from __future__ import annotations

import time

import gradsieve
import gradsieve.torch as gt
import torch
import torch.distributed as dist
from checks_ddp import local_gradient
from gradsieve.torch._device import check_device, device_of
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch_models import (
    TOPK,
    assert_same_on_all_ranks,
    batch,
    flat,
    gathered,
    mlp,
    ranks,
    train,
    wrapped,
)


def check_mixed_types_in_one_model() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.parts = nn.ModuleList(
                nn.Linear(31, 33).to(kind)
                for kind in (torch.float32, torch.bfloat16, torch.float16, torch.float64)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sum(
                part(x.to(part.weight.dtype)).double().square().mean() for part in self.parts
            )

    model = Mixed()
    ddp, state = wrapped(model, [("parts.3.*", "none"), ("*", TOPK)])
    for step in range(6):
        ddp.zero_grad()
        ddp(batch(step)[0]).backward()
        assert_same_on_all_ranks((p.grad for p in model.parameters()), f"gradient of step {step}")
    kinds = {stats.name: stats.dense_bytes // stats.num_elements for stats in state.stats()}
    assert kinds["parts.0.weight"] == 4 and kinds["parts.1.weight"] == 2
    assert kinds["parts.2.weight"] == 2 and kinds["parts.3.weight"] == 8


def check_f64_with_a_lossy_spec_says_what_to_do() -> None:
    model = nn.Linear(4, 4).double()
    ddp, _ = wrapped(model, TOPK)
    try:
        ddp(torch.ones(2, 4).double()).sum().backward()
    except RuntimeError as error:
        assert "f64" in str(error) and "none" in str(error), error
    else:
        raise AssertionError("accepted")


@ranks(2, 4)
def check_torchs_wrappers_around_our_hook() -> None:
    for wrapper in (default_hooks.fp16_compress_wrapper, default_hooks.bf16_compress_wrapper):
        model = mlp()
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.008)
        state = gt.HookState(TOPK, None, model.named_parameters())
        ddp.register_comm_hook(state, wrapper(gt.hook))
        train(ddp, range(6))
        assert_same_on_all_ranks(model.parameters(), "weights")
        assert {stats.dense_bytes // stats.num_elements for stats in state.stats()} == {2}


def check_other_rules_at_an_agreed_step() -> None:
    model = mlp()
    ddp, state = wrapped(model, "none")
    state.set_rules(TOPK, at_step=5)
    seen = {}

    def note(step: int) -> None:
        seen[step] = {stats.spec.split("(")[0].split(" ")[0] for stats in state.stats()}

    train(ddp, range(8), each=note)
    assert seen[4] == {"none"} and seen[5] == {"topk"} and seen[7] == {"topk"}, seen
    for wrong, sentence in [
        ((TOPK, 3), "expected 8, the next step"),
        (("topq", 9), "no compressor"),
    ]:
        try:
            state.set_rules(*wrong)
        except ValueError as error:
            assert sentence in str(error), error
        else:
            raise AssertionError(f"{wrong} was accepted")


def check_other_rules_that_ranks_disagree_on_are_refused() -> None:
    ddp, state = wrapped(mlp(), "none", timeout=3.0)
    rank = dist.get_rank()
    for rules, at_step, field, sentence in [
        (TOPK, 3 + rank, "at_step", "rank 0 has '3', rank 1 has '4'"),
        (TOPK if rank == 0 else "int8", 3, "spec", "ranks disagree on spec"),
        ([("*", "topq")] if rank == 1 else TOPK, 3, "spec", "topq"),
    ]:
        try:
            state.set_rules(rules, at_step)
        except gradsieve.GradsieveError as error:
            assert sentence in str(error), error
            # A rank that refuses its own rules says why; the others, who that is.
            own = error.code == "unknown_name" and rank == 1
            assert own or (error.code, error.rank, error.field) == ("mismatch", 1, field), error
        else:
            raise AssertionError("accepted")
    train(ddp, range(6))
    assert all(stats.spec.startswith("none") for stats in state.stats())
    if rank == 0:  # the other one does not call
        begun = time.monotonic()
        try:
            state.set_rules(TOPK)
        except gradsieve.GradsieveError as error:
            assert error.code == "timeout" and error.rank == 1, error
            assert time.monotonic() - begun < 10, error
        else:
            raise AssertionError("accepted")


@ranks(2, 4)
def check_bytes_are_as_promised_and_counted() -> None:
    model = mlp()
    spec = "topk(density=0.01) | int8 ; feedback=residual"
    ddp, state = wrapped(model, [("*.bias", "none"), ("*", spec)], strict=True)
    train(ddp, range(4))
    before = state._comm.counters()[0]
    train(ddp, [4])
    handed_over = state._comm.counters()[0] - before
    counted = sum(stats.wire_bytes for stats in state.stats("buckets"))
    others = dist.get_world_size() - 1
    assert counted <= handed_over <= counted + 16 * others * (len(state.stats("buckets")) + 1)
    for stats in state.stats():
        if "bias" in stats.name:
            continue
        promised = gradsieve.info(spec, stats.num_elements).settled_bytes
        assert 0 < stats.wire_bytes <= others * (promised + 80), stats
        assert stats.kept_elements == max(1, round(0.01 * stats.num_elements)), stats


def check_ranks_with_other_rules_are_named() -> None:
    model = mlp()
    ddp, _ = wrapped(model, TOPK if dist.get_rank() == 0 else "int8")
    try:
        train(ddp, [0])
    except RuntimeError as error:
        assert "spec" in str(error) and "disagree" in str(error), error
    else:
        raise AssertionError("accepted")


def check_parameters_that_were_not_named_are_an_error() -> None:
    model = mlp()
    ddp = DistributedDataParallel(model)
    state = gt.HookState("none", None, [("only", model[0].weight)])
    ddp.register_comm_hook(state, gt.hook)
    try:
        train(ddp, [0])
    except RuntimeError as error:
        assert "did not name" in str(error), error
    else:
        raise AssertionError("accepted")


def check_tensors_elsewhere_are_an_error() -> None:
    class On:
        def __init__(self, *place: object) -> None:
            self.device = torch.device(*place)

    here = device_of([On("cpu"), On("cpu")])
    for wrong, sentence in [
        (lambda: check_device(On("cuda", 1), here), "on cuda:1 and the parameters were on cpu"),
        (lambda: device_of([On("cpu"), On("cuda", 0)]), "on cpu, cuda:0; expected all on one"),
        (lambda: device_of([On("meta")]), "expected cpu or cuda"),
    ]:
        try:
            wrong()
        except gradsieve.GradsieveError as error:
            assert sentence in str(error), error
        else:
            raise AssertionError("accepted")


@ranks(2, 4)
def check_exchange_is_the_mean_for_any_trainer() -> None:
    model = mlp()
    exchange = gt.Exchange(model.named_parameters(), "none", bucket_bytes=9000)
    for step in range(6):
        size = dist.get_world_size()
        mean = sum(local_gradient(mlp(), step, rank).double() for rank in range(size)) / size
        x, y = batch(step)
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        assert exchange.reduce().committed
        ours = flat(p.grad for p in model.parameters())
        torch.testing.assert_close(ours.double(), mean, rtol=1e-5, atol=1e-7)
    exchange = gt.Exchange(model.named_parameters(), TOPK)
    digests = set()
    for step in range(6):
        local = local_gradient(model, step, dist.get_rank())
        exchange.reduce()
        ours = flat(p.grad for p in model.parameters())
        assert not torch.equal(ours, local)
        digests.add(gathered(float(ours.double().sum()))[0])
        assert_same_on_all_ranks([ours], "gradient")
    assert len(digests) == 6
