# SPDX-License-Identifier: Apache-2.0
"""What the library has to know of torch's tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gradsieve._hook import Tensor
from gradsieve.errors import GradsieveError

_NAMES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float64: "f64",
}


def dtype_name(tensor: torch.Tensor) -> str:
    if tensor.dtype not in _NAMES:
        known = ", ".join(str(dtype) for dtype in _NAMES)
        raise TypeError(f"a gradient is {tensor.dtype}; expected one of {known}")
    return _NAMES[tensor.dtype]


def desc_of(name: str, parameter: torch.Tensor, dtype: str) -> Tensor:
    rows = parameter.shape[0] if parameter.dim() > 1 else 1
    return Tensor(name, parameter.numel(), dtype, max(1, rows))


class Names:
    """Parameters by identity: the name is the key of what a parameter remembers."""

    def __init__(self, named_parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.parameters = {
            name.removeprefix("module."): parameter
            for name, parameter in named_parameters
            if parameter.requires_grad
        }
        if not self.parameters:
            raise ValueError(
                "named_parameters has no parameter with requires_grad; expected "
                "model.named_parameters()"
            )
        self._names = {id(parameter): name for name, parameter in self.parameters.items()}

    def __len__(self) -> int:
        return len(self.parameters)

    def of(self, parameter: torch.Tensor) -> str:
        name = self._names.get(id(parameter))
        if name is None:
            raise GradsieveError(
                f"a bucket holds a parameter of shape {list(parameter.shape)} that "
                "named_parameters did not name; expected the parameters of the very model that "
                "DDP wraps",
                "invalid_usage",
            )
        return name
