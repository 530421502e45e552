# SPDX-License-Identifier: Apache-2.0
"""The function that DDP calls."""

# DDP compares the annotations with the types themselves: they must not be text.
import torch
from torch._C._distributed_c10d import GradBucket

from gradsieve.torch._hook_state import HookState


def hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For `ddp.register_comm_hook(state, hook)`."""
    return state.reduce(bucket)
