# SPDX-License-Identifier: Apache-2.0
"""Compressed gradient exchange for PyTorch.

    state = HookState("topk(density=0.01) | int8", None, ddp.module.named_parameters())
    ddp.register_comm_hook(state, hook)

or, for a trainer without DistributedDataParallel, between backward and step:

    exchange = Exchange(model.named_parameters(), spec)
    exchange.reduce()
"""

from __future__ import annotations

try:
    import torch.distributed as _dist
except ImportError as _error:
    raise ImportError(
        f"gradsieve.torch needs PyTorch 2 ({_error}); the rest of gradsieve works without"
    ) from None

if not _dist.is_available():
    raise ImportError("gradsieve.torch needs a PyTorch that was built with torch.distributed")

from gradsieve.torch._comm_hook import hook
from gradsieve.torch._exchange import Exchange
from gradsieve.torch._hook_state import HookState

__all__ = ["Exchange", "HookState", "hook"]
