# SPDX-License-Identifier: Apache-2.0
"""Fits a linear model over several MPI ranks with NumPy: no framework.

mpirun -n 2 python examples/numpy_mpi.py
"""

import gradsieve.numpy as gn
import numpy as np
from mpi4py import MPI

FEATURES, BATCH, STEPS, RATE = 4000, 64, 60, 0.02


def main() -> None:
    comm = MPI.COMM_WORLD
    rank = comm.Get_rank()
    truth = np.random.default_rng(0).standard_normal(FEATURES).astype(np.float32)
    draws = np.random.default_rng(1 + rank)
    weights = np.zeros(FEATURES, np.float32)

    spec = "topk(density=0.02) | int8 ; feedback=residual"
    exchange = gn.Exchange(comm, {"weights": weights}, spec)
    first = last = 0.0
    for step in range(STEPS):
        inputs = draws.standard_normal((BATCH, FEATURES)).astype(np.float32)
        errors = inputs @ (weights - truth)
        gradient = inputs.T @ errors / BATCH
        exchange.reduce({"weights": gradient})  # the mean over all ranks, in place
        weights -= RATE * gradient
        last = float(comm.allreduce(np.linalg.norm(weights - truth)) / comm.Get_size())
        first = first or last

    if rank == 0:
        stats = exchange.stats()[0]
        print(f"distance to the truth: {first:.1f} at first, {last:.1f} after {STEPS} steps")
        print(f"bytes sent per step: {stats.wire_bytes}; dense: {stats.dense_bytes}")
    assert last < 0.7 * first, "it does not learn"


if __name__ == "__main__":
    main()
