# SPDX-License-Identifier: Apache-2.0
"""Gradients compressed, exchanged and summed between ranks.

    gradsieve.torch   a communication hook for DistributedDataParallel, and Exchange for any trainer
    gradsieve.numpy   encode and decode arrays; Exchange on an mpi4py communicator

Neither torch, NumPy nor mpi4py is needed until the module that uses it is imported.
"""

from __future__ import annotations

from gradsieve._library import library
from gradsieve.errors import GradsieveError, SpecError
from gradsieve.spec import SpecInfo, canonical, info, plugins

__all__ = [
    "GradsieveError",
    "SpecError",
    "SpecInfo",
    "__version__",
    "canonical",
    "info",
    "plugins",
]

__version__: str = library().gsvGetVersionText().decode()
