# SPDX-License-Identifier: Apache-2.0
"""Where gradients are, and how our work is ordered with torch's there. Nothing else knows of CUDA.

On CUDA all our work hangs on one stream of our own. `fork` puts it behind what torch's current
stream holds, `join` puts what comes on that stream behind ours, and a future that is completed
`with device.scope()` does the same for whoever waits for it. No call of these waits on the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, ContextManager, Union

import torch

from gradsieve.errors import GradsieveError


class Host:
    """Gradients in host memory: what is there is there, and nothing has to be ordered."""

    backend = "cpu"
    stream: int | None = None

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def fork(self) -> None:
        pass

    def join(self) -> None:
        pass

    def is_capturing(self) -> bool:
        return False

    def scope(self) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def future(self) -> torch.futures.Future[Any]:
        return torch.futures.Future()


class Cuda:
    """Gradients on one CUDA device."""

    backend = "cuda"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._own = torch.cuda.Stream(device)  # type: ignore[no-untyped-call,unused-ignore]
        self.stream: int | None = self._own.cuda_stream

    def fork(self) -> None:
        """Our work from here on comes after what torch's current stream holds."""
        self._own.wait_stream(torch.cuda.current_stream(self.device))

    def join(self) -> None:
        """What comes on torch's current stream waits for our work so far."""
        torch.cuda.current_stream(self.device).wait_stream(self._own)

    def is_capturing(self) -> bool:
        """Whether torch's current stream goes into a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()

    def scope(self) -> ContextManager[Any]:
        """Makes our device and stream torch's current ones in this thread."""
        return torch.cuda.stream(self._own)

    def future(self) -> torch.futures.Future[Any]:
        """One that is complete in stream order."""
        return torch.futures.Future(devices=[self.device])


Device = Union[Host, Cuda]


def device_of(parameters: Iterable[torch.Tensor]) -> Device:
    """The one device that all parameters are on."""
    devices = {parameter.device for parameter in parameters}
    if len(devices) > 1:
        raise GradsieveError(
            f"the parameters are on {', '.join(sorted(str(device) for device in devices))}; "
            "expected all on one device: a part of the model on each is another state for each",
            "unsupported",
        )
    device = devices.pop()
    if device.type not in ("cpu", "cuda"):
        raise GradsieveError(
            f"the parameters are on {device}; expected cpu or cuda", "not_implemented"
        )
    return Cuda(device) if device.type == "cuda" else Host(device)


def check_device(tensor: torch.Tensor, device: Device) -> None:
    if tensor.device != device.device:
        raise GradsieveError(
            f"a gradient is on {tensor.device} and the parameters were on {device.device}; move "
            "the model before its state is made",
            "invalid_usage",
        )
