# SPDX-License-Identifier: Apache-2.0
"""The function that DDP calls."""

# DDP compares the annotations with the types themselves: they must not be text.
import torch
import torch.distributed as dist

from gradsieve.torch._hook_state import HookState


def hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For `ddp.register_comm_hook(state, hook)`."""
    return state.reduce(bucket)
