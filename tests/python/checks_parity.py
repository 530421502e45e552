# SPDX-License-Identifier: Apache-2.0
"""With nothing or little to compress, the hook does what DDP does."""

from __future__ import annotations

import os

import gradsieve.torch as gt
import torch
import torch.distributed as dist
from gradsieve.torch._group_transport import GroupTransport
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch_models import (
    TOPK,
    assert_equal_bits,
    assert_same_on_all_ranks,
    batch,
    flat,
    mlp,
    ranks,
    train,
    wrapped,
)

STEPS = range(10)


def weights_after(rules, **options) -> torch.Tensor:
    model = mlp()
    ddp, state = wrapped(model, rules, **options)
    train(ddp, STEPS)
    if state is not None:
        state.close()
    return flat(model.parameters())


def check_none_equals_ddp_bit_for_bit_C53() -> None:
    assert_equal_bits(weights_after("none"), weights_after(None), "weights after 10 steps")


def check_topk_of_everything_equals_ddp_C53() -> None:
    everything = "topk(density=1) ; feedback=residual"
    assert_equal_bits(weights_after(everything), weights_after(None), "weights after 10 steps")


def check_a_view_of_the_bucket_changes_nothing_C62() -> None:
    expected = weights_after(TOPK)
    as_views = weights_after(TOPK, gradient_as_bucket_view=True)
    assert_equal_bits(as_views, expected, "gradients as views of the bucket")


def check_compression_is_not_vacuous() -> None:
    assert not torch.equal(weights_after(TOPK), weights_after(None))


@ranks(2, 3, 4)
def check_disabled_equals_ddp_bit_for_bit() -> None:
    expected = weights_after(None)
    os.environ["GRADSIEVE_DISABLE"] = "1"
    try:
        disabled = weights_after(TOPK)
    finally:
        del os.environ["GRADSIEVE_DISABLE"]
    assert_equal_bits(disabled, expected, "weights after 10 steps")


@ranks(4)
def check_the_tables_dense_sum_equals_ddp_at_four() -> None:
    """The same bucket, divided before as DDP does it, summed by the table's own function."""
    transport = GroupTransport(dist.group.WORLD, 20.0)

    def dense(_, bucket):
        buffer = bucket.buffer()
        buffer.mul_(1.0 / dist.get_world_size())
        transport.dense_all_reduce(buffer.data_ptr(), buffer.numel(), 0)
        future = torch.futures.Future()
        future.set_result(buffer)
        return future

    model = mlp()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.008)
    ddp.register_comm_hook(None, dense)
    train(ddp, STEPS)
    assert_equal_bits(flat(model.parameters()), weights_after(None), "weights after 10 steps")


def first_gradients(register) -> torch.Tensor:
    """What the first three backward passes of one model give, with the weights left alone."""
    model = mlp()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.008)
    register(ddp, model)
    found = []
    for step in range(3):
        x, y = batch(step)
        ddp.zero_grad()
        torch.nn.functional.mse_loss(ddp(x), y).backward()
        found.append(flat(p.grad for p in model.parameters()))
    return torch.cat(found)


def in_double(of) -> torch.Tensor:
    """The mean over ranks of `of` the gradients that first_gradients() starts from."""
    model = mlp()
    found = []
    for step in range(3):
        sums = torch.zeros_like(flat(model.parameters()), dtype=torch.float64)
        for rank in range(dist.get_world_size()):
            x, y = batch(step, rank)
            model.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            sums += of(flat(p.grad for p in model.parameters()).double())
        found.append(sums / dist.get_world_size())
    return torch.cat(found)


def assert_accurate(spec: str, torch_hook, unit: float, subnormal: float, of_norm: float) -> None:
    """`unit`: the most that one rounding is off, of what it rounds; `subnormal`: of tiny numbers.

    A two-shot rounds twice: each rank its gradient, and the owner of a shard the mean that it sends
    back. So an element is off by no more than unit (mean of |g|) and unit of what comes of that.
    """

    def ours(ddp, model):
        ddp.register_comm_hook(gt.HookState(spec, None, model.named_parameters()), gt.hook)

    mean, magnitude = in_double(lambda gradient: gradient), in_double(torch.abs)
    mine = (first_gradients(ours).double() - mean).abs()
    theirs = first_gradients(lambda ddp, _: ddp.register_comm_hook(None, torch_hook))
    sums = (dist.get_world_size() + 1) * 2.0**-24  # the owner adds in f32
    bound = (2 * unit + unit**2 + sums) * magnitude + 2 * subnormal
    assert (mine <= bound).all(), (mine / bound).max()
    assert (mine > 0.5 * unit * magnitude).any()  # it did round, and the bound is not idle
    assert mine.norm() <= of_norm * mean.norm(), (mine.norm(), mean.norm())
    assert mine.norm() <= (theirs.double() - mean).norm()


@ranks(2, 4)
def check_fp16_is_within_2_to_minus_9_and_no_worse_than_torchs_own() -> None:
    assert_accurate("fp16", default_hooks.fp16_compress_hook, 2.0**-11, 2.0**-25, 2.0**-9)


@ranks(2, 4)
def check_bf16_is_within_2_to_minus_8_and_no_worse_than_torchs_own() -> None:
    # Eight bits of mantissa: one rounding is off by up to 2^-8, and by 0.42 of that on average
    # (root of the mean square over mantissas). Two are 0.6 of it: above 2^-9 and below 2^-8.
    assert_accurate("bf16", default_hooks.bf16_compress_hook, 2.0**-8, 2.0**-134, 2.0**-8)


@ranks(2, 4)
def check_all_ranks_hold_the_same_bits_after_every_step() -> None:
    model = mlp()
    ddp, state = wrapped(model, TOPK)

    def same(step: int) -> None:
        assert_same_on_all_ranks((p.grad for p in model.parameters()), f"gradient of step {step}")

    train(ddp, STEPS, each=same)
    assert_same_on_all_ranks(model.parameters(), "weights")
    state.close()
