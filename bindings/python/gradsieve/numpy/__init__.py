# SPDX-License-Identifier: Apache-2.0
"""Arrays as payloads, and gradients exchanged between the ranks of an mpi4py communicator.

payload = encode(gradient, "topk(density=0.01) | int8 ; feedback=residual", residual=rest)
exchange = Exchange(MPI.COMM_WORLD, {"weights": weights}, "topk(density=0.01) | int8")
exchange.reduce({"weights": gradient})    # the mean over all ranks, in place
"""

from __future__ import annotations

from gradsieve.numpy._arrays import decode, encode
from gradsieve.numpy._exchange import Exchange

__all__ = ["Exchange", "decode", "encode"]
