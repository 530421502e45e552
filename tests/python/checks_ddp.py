# SPDX-License-Identifier: Apache-2.0
"""The hook under all that DDP may do with its buckets. Case numbers are those of CASES.md."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

import gradsieve.torch as gt
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch_models import (
    EVERYTHING,
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


def local_gradient(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    x, y = batch(step, rank)
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    return flat(p.grad for p in model.parameters())


def conserves(
    model: nn.Module, ddp: nn.Module, state: gt.HookState, each: Callable[[int], None]
) -> None:
    """What was sent in 12 steps and what waits after them is what was given, on all ranks."""
    reference = mlp()
    size = dist.get_world_size()
    sent = torch.zeros(len(flat(model.parameters())), dtype=torch.float64)
    given = torch.zeros_like(sent)

    def add(step: int) -> None:
        sent.add_(flat(p.grad for p in model.parameters()))
        each(step)

    for step in range(12):
        with torch.no_grad():
            for p, q in zip(reference.parameters(), model.parameters()):
                p.copy_(q)
        for rank in range(size):
            given.add_(local_gradient(reference, step, rank), alpha=1 / size)
        train(ddp, [step], each=add)
    rest = torch.cat([state.residual(name) for name, _ in model.named_parameters()]).double()
    dist.all_reduce(rest)
    assert rest.norm() > 0.1 * given.norm(), "nothing waits in the residual: the test is vacuous"
    lost = sent + rest / size - given
    assert lost.abs().max() <= 12 * 2.0**-20 * given.abs().max(), lost.abs().max()
    assert len(state.stats("buckets")) > 1, "one bucket only"
    assert len(state.stats()) == len(list(model.parameters()))  # one residual per parameter


@ranks(2, 4)
def check_nothing_is_lost_across_bucket_rebuilds_C54() -> None:
    model = mlp()
    conserves(model, *wrapped(model, TOPK), each=lambda _: None)


@ranks(2, 4)
def check_compression_may_start_before_or_after_buckets_are_rebuilt_C55() -> None:
    for first in (0, 1, 2, 3):
        model = mlp()
        ddp, state = wrapped(model, "none")
        state.set_rules(TOPK, at_step=first)
        seen: list[str] = []

        def note(_: int, state: gt.HookState = state, seen: list[str] = seen) -> None:
            seen.append(" ".join({re.match(r"\w+", stats.spec)[0] for stats in state.stats()}))

        conserves(model, ddp, state, each=note)
        assert seen == ["none"] * first + ["topk"] * (12 - first), seen


def check_no_sync_exchanges_once_a_window_C60() -> None:
    parameter = nn.Linear(1, 1, bias=False)
    ddp, state = wrapped(parameter, EVERYTHING)
    values = [(2.0, 4.0), (6.0, 10.0)][dist.get_rank()]
    for _ in range(6):
        ddp.zero_grad()
        with ddp.no_sync():
            (ddp(torch.ones(1, 1)) * values[0]).sum().backward()
        (ddp(torch.ones(1, 1)) * values[1]).sum().backward()
        assert float(parameter.weight.grad) == 11.0
    assert state.step == 6


def check_accumulation_over_odd_windows_equals_ddp_C53() -> None:
    def weights(rules) -> torch.Tensor:
        model = mlp()
        ddp, _ = wrapped(model, rules)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
        step = 0
        for window in (1, 3, 2, 1, 4, 2, 1, 2, 3, 1):
            optimizer.zero_grad()
            for micro in range(window):
                last = micro == window - 1
                x, y = batch(step)
                step += 1
                with contextlib.nullcontext() if last else ddp.no_sync():
                    nn.functional.mse_loss(ddp(x), y).backward()
            optimizer.step()
        return flat(model.parameters())

    expected = weights(None)
    for rules in ("none", EVERYTHING):
        assert_equal_bits(weights(rules), expected, f"weights after 10 windows with {rules}")


def check_1x1_convolutions_and_channels_last_C56() -> None:
    def gradients(rules, memory_format) -> torch.Tensor:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 1), nn.Conv2d(8, 2, 3))
        model = model.to(memory_format=memory_format)
        ddp, _ = wrapped(model, rules)
        for step in range(4):
            generator = torch.Generator().manual_seed(step * 10 + dist.get_rank())
            x = torch.randn(2, 3, 9, 9, generator=generator).to(memory_format=memory_format)
            ddp.zero_grad()
            ddp(x).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad.stride() == parameter.stride()
        return flat(p.grad for p in model.parameters())

    for memory_format in (torch.contiguous_format, torch.channels_last):
        expected = gradients(None, memory_format)
        assert_equal_bits(gradients(EVERYTHING, memory_format), expected, str(memory_format))


def check_gradients_that_are_strided_views_C57() -> None:
    rank = dist.get_rank()
    weight = nn.Parameter(torch.zeros(2))
    exchange = gt.Exchange([("w", weight)], "none")
    base = torch.tensor([[rank, 99.0], [rank + 10.0, 99.0]])
    weight.grad = base[:, 0]  # stride 2
    exchange.reduce()
    assert weight.grad.tolist() == [0.5, 10.5]
    assert base[:, 1].tolist() == [99.0, 99.0]


class TwoHeads(nn.Module):
    """A: never used. B: used where `use_b` says so. C: always."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.full((40,), 3.0))
        self.b = nn.Parameter(torch.ones(50))
        self.c = nn.Parameter(torch.ones(60))

    def forward(self, use_b: bool) -> torch.Tensor:
        used = self.c.sum()
        return used + 4.0 * self.b.sum() if use_b else used


def check_unused_everywhere_stays_unused_C58() -> None:
    model = TwoHeads()
    ddp, state = wrapped(model, EVERYTHING, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        ddp(dist.get_rank() == 0).backward()
        assert model.a.grad is None
        assert model.b.grad.tolist() == [2.0] * 50  # 4 on one rank, nothing on the other
        optimizer.step()
    assert model.a.tolist() == [3.0] * 40
    assert state.residual("a").abs().max() == 0.0


def given_to(b: nn.Parameter, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(b.shape, generator=generator) ** 3


def uses_b(step: int) -> bool:
    """On rank 0 in the first steps and the last ones, on nobody in between."""
    return dist.get_rank() == 0 and not 3 <= step < 7


class Given(TwoHeads):
    """Gradients of b are what given_to() says."""

    def forward(self, step: int) -> torch.Tensor:
        used = self.c.sum()
        return used + (self.b * given_to(self.b, step)).sum() if uses_b(step) else used


def with_unused(spec: str, **options) -> tuple[Given, nn.Module, gt.HookState]:
    model = Given()
    ddp, state = wrapped(model, spec, find_unused_parameters=True, **options)
    return model, ddp, state


@ranks(2, 3)
def check_what_ddp_drops_is_sent_later_C58() -> None:
    """What waits for a parameter is also sent in steps without it, and DDP drops what comes."""
    size = dist.get_world_size()
    for as_view in (False, True):
        for set_to_none in (True, False):
            model, ddp, state = with_unused(TOPK, gradient_as_bucket_view=as_view)
            given, taken = torch.zeros(50).double(), torch.zeros(50).double()
            most_dropped = 0.0
            for step in range(10):
                ddp.zero_grad(set_to_none=set_to_none)
                ddp(step).backward()
                if uses_b(step):
                    given += given_to(model.b, step)
                if model.b.grad is not None:
                    taken += model.b.grad
                dropped = state.state_dict()["undelivered"].get("b", torch.zeros(50))
                most_dropped = max(most_dropped, float(dropped.abs().max()))
                if set_to_none and 3 <= step < 7:
                    assert model.b.grad is None
                assert_same_on_all_ranks([dropped], "what DDP has dropped")
            rest = state.residual("b").double() + dropped
            dist.all_reduce(given)
            dist.all_reduce(rest)
            lost = size * taken + rest - given
            assert lost.abs().max() <= 10 * 2.0**-20 * given.abs().max(), lost.abs().max()
            is_dropped = set_to_none or not as_view  # a view of the bucket has what comes
            assert (most_dropped > 0.1) == is_dropped, "nothing was dropped: the test is vacuous"


@ranks(2, 3)
def check_what_ddp_drops_is_whole_with_a_rank_that_has_joined_C58() -> None:
    """It brings zeros and sees no gradient; its share of what was dropped is sent all the same."""
    size = dist.get_world_size()
    has_joined = dist.get_rank() == size - 1
    for last in (6, 10):  # what was dropped waits, or has been sent
        model, ddp, state = with_unused(TOPK)
        given, taken = torch.zeros(50).double(), torch.zeros(50).double()
        with Join([ddp]):
            for step in range(4 if has_joined else last):
                ddp.zero_grad()
                ddp(step).backward()
                if uses_b(step):
                    given += given_to(model.b, step)
                if model.b.grad is not None:
                    taken += model.b.grad
        dropped = state.state_dict()["undelivered"].get("b", torch.zeros(50))
        assert_same_on_all_ranks([dropped], "what DDP has dropped")
        assert dropped.any() == (last == 6)
        rest = state.residual("b").double() + dropped
        dist.all_reduce(given)
        dist.all_reduce(rest)
        taken = gathered(taken)[0]  # of a rank that has not joined
        lost = size * taken + rest - given
        assert lost.abs().max() <= 10 * 2.0**-20 * given.abs().max(), lost.abs().max()


def check_what_ddp_drops_survives_a_checkpoint_C66() -> None:
    whole, whole_ddp, whole_state = with_unused(TOPK)
    again, again_ddp, again_state = with_unused(TOPK)
    results = []
    for step in range(10):
        whole_ddp.zero_grad()
        whole_ddp(step).backward()
        if step == 4:
            saved = whole_state.state_dict()
            assert saved["undelivered"]["b"].any()
            again_state.load_state_dict(saved)
        if step > 4:
            again_ddp.zero_grad()
            again_ddp(step).backward()
            if whole.b.grad is not None:
                results.append(whole.b.grad.clone())
                assert_equal_bits(again.b.grad, results[-1], f"step {step}")
    assert results and any(result.any() for result in results)
    assert_equal_bits(again_state.residual("b"), whole_state.residual("b"), "residual")


def check_exchange_leaves_what_nobody_used_C58() -> None:
    model = TwoHeads()
    exchange = gt.Exchange(model.named_parameters(), "topk(density=0.1) ; feedback=residual")
    waiting = None
    for step in range(6):
        model.zero_grad()
        with_b = step < 3 and dist.get_rank() == 0
        model(with_b).backward()
        exchange.reduce()
        assert model.a.grad is None
        if step == 2:
            waiting = exchange.residual("b")
            assert (waiting.abs().max() > 0) == (dist.get_rank() == 0)
        assert (model.b.grad is None) == (step >= 3)
    model.zero_grad()
    (0.0 * model.b.sum()).backward()  # used again
    model.c.grad = torch.zeros(60)
    exchange.reduce()
    after = exchange.residual("b")
    total = model.b.grad * dist.get_world_size()
    dist.all_reduce(waiting)
    dist.all_reduce(after)
    assert torch.allclose(total + after, waiting), "what waited for b was lost"


def check_other_collectives_are_left_alone_C61() -> None:
    model = mlp()
    rules = [("*.bias", "none"), ("*", "int4 ; feedback=residual")]
    ddp, state = wrapped(model, rules)
    metric = torch.tensor([1e-3 * (dist.get_rank() + 1), 1e6])
    expected = torch.tensor([1e-3, 1e6]) + torch.tensor([2e-3, 1e6])

    def reduce_metric(_: int) -> None:
        answer = metric.clone()
        dist.all_reduce(answer)
        assert torch.equal(answer, expected)

    train(ddp, range(6), each=reduce_metric)
    for stats in state.stats():
        assert stats.spec.startswith("none" if "bias" in stats.name else "int4"), stats


def check_100_steps_keep_their_memory_C62() -> None:
    """A tenth of a gradient that is kept in each step is more than what is allowed."""
    for as_view in (False, True):
        for set_to_none in (False, True):
            torch.manual_seed(7)
            model = nn.Sequential(nn.Linear(31, 400), nn.Tanh(), nn.Linear(400, 400))
            model.append(nn.Linear(400, 5))
            ddp, state = wrapped(model, TOPK, bucket_mb=0.1, gradient_as_bucket_view=as_view)
            used = []
            for step in range(100):
                x, y = batch(step)
                ddp.zero_grad(set_to_none=set_to_none)
                nn.functional.mse_loss(ddp(x), y).backward()
                if step in (19, 99):
                    used.append(resident_kib())
                    transport = state._comm._keeps[1]
                    assert len(transport._frames) <= 16
            assert used[1] - used[0] < 0.1 * 80 * model_kib(model), used
            state.close()


def model_kib(model: nn.Module) -> float:
    return sum(parameter.numel() for parameter in model.parameters()) * 4 / 1024


def resident_kib() -> int:
    with open("/proc/self/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])


def check_static_graph_equals_ddp() -> None:
    def weights(rules) -> torch.Tensor:
        model = mlp()
        ddp, _ = wrapped(model, rules, static_graph=True)
        train(ddp, range(8))
        return flat(model.parameters())

    assert_equal_bits(weights(EVERYTHING), weights(None), "weights after 8 steps")


def check_find_unused_equals_ddp() -> None:
    def weights(rules) -> torch.Tensor:
        model = mlp()
        ddp, _ = wrapped(model, rules, find_unused_parameters=True)
        train(ddp, range(8))
        return flat(model.parameters())

    assert_equal_bits(weights(EVERYTHING), weights(None), "weights after 8 steps")


@ranks(2, 3)
def check_uneven_inputs_under_join() -> None:
    def weights(rules) -> torch.Tensor:
        model = mlp()
        ddp, _ = wrapped(model, rules)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        with Join([ddp]):
            for step in range(5 + 3 * dist.get_rank()):
                x, y = batch(step)
                optimizer.zero_grad()
                nn.functional.mse_loss(ddp(x), y).backward()
                optimizer.step()
        return flat(model.parameters())

    exact = dist.get_world_size() == 2  # the sums of three are in another order
    ours, expected = weights(EVERYTHING), weights(None)
    if exact:
        assert_equal_bits(ours, expected, "weights")
    else:
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    weights(TOPK)
    assert_same_on_all_ranks([weights(TOPK)], "weights")
