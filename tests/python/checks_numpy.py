# SPDX-License-Identifier: Apache-2.0
"""One rank of an MPI program in NumPy. Arguments: a folder, and "module" or "mpi4py"."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import traceback
import zlib

import gradsieve
import gradsieve.numpy as gn
import numpy as np
from mpi4py import MPI

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
SPEC = "topk(density=0.1) | int8 ; feedback=residual"
SHAPES = {"w": (40, 50), "b": (7,), "long": (70_000,)}


def gradients(step: int, rank: int = RANK) -> dict[str, np.ndarray]:
    draws = np.random.default_rng(1000 * step + rank)
    return {name: draws.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def made(spec, **options) -> gn.Exchange:
    shapes = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    return gn.Exchange(COMM, shapes, spec, bucket_bytes=9000, timeout=20.0, **options)


def check_the_transport_is_the_one_asked_for() -> None:
    named = made("none").describe().splitlines()[0]
    assert ("mpi4py" in named) == (sys.argv[2] == "mpi4py"), named


def check_none_is_the_mean_in_rank_order() -> None:
    exchange = made("none")
    for step in range(6):
        own = gradients(step)
        assert exchange.reduce(own).committed
        for name in SHAPES:
            total = np.zeros(SHAPES[name], np.float64)
            for rank in range(SIZE):
                total += gradients(step, rank)[name]
            np.testing.assert_allclose(own[name], total / SIZE, rtol=0, atol=SIZE * 2.0**-22)


def check_halves_are_summed_C76() -> None:
    own = np.array([1.0, 2.0], np.float16) + np.float16(2 * RANK)
    for op, divisor in (("sum", 1), ("mean", SIZE)):
        exchange = gn.Exchange(COMM, {"x": own}, "none", op=op, timeout=20.0)
        for _ in range(6):
            array = own.copy()
            exchange.reduce({"x": array})
            total = sum(np.array([1.0, 2.0]) + 2 * rank for rank in range(SIZE))
            np.testing.assert_array_equal(array, (total / divisor).astype(np.float16))


def check_mpi_has_the_thread_level_asked_for_C73() -> None:
    level = {"single": MPI.THREAD_SINGLE, "funneled": MPI.THREAD_FUNNELED}
    wanted = level.get(os.environ.get("MPI4PY_RC_THREAD_LEVEL", ""), MPI.THREAD_MULTIPLE)
    assert MPI.Query_thread() == wanted


def check_nothing_is_lost_and_all_ranks_agree() -> None:
    exchange = made([("b", "none"), ("*", SPEC)])
    sent = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    given = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(8):
        own = gradients(step)
        for name, array in own.items():
            given[name] += array
        exchange.reduce(own)
        sums = COMM.allgather([zlib.crc32(array.tobytes()) for array in own.values()])
        assert all(sum_ == sums[0] for sum_ in sums), f"step {step}: ranks differ"
        for name, array in own.items():
            sent[name] += array
    for name, shape in SHAPES.items():
        rest = exchange.residual(name).reshape(shape) if name != "b" else np.zeros(shape)
        all_given = COMM.allreduce(given[name]) / SIZE
        all_rest = COMM.allreduce(rest.astype(np.float64)) / SIZE
        np.testing.assert_allclose(sent[name] + all_rest, all_given, rtol=0, atol=2e-5)
        assert name == "b" or np.abs(rest).max() > 0.0


def check_bytes_are_as_promised() -> None:
    exchange = made(SPEC)
    for step in range(3):
        exchange.reduce(gradients(step))
    for stats in exchange.stats():
        promised = gradsieve.info(SPEC, stats.num_elements).settled_bytes
        # A gather sends it to each other rank, with a header of the bucket's payload.
        assert stats.wire_bytes <= (SIZE - 1) * (promised + 128), (stats, promised)
        assert stats.wire_bytes > 0 and stats.exchange == "gather"


def check_stop_and_resume_is_bit_for_bit() -> None:
    whole, first = made(SPEC), made(SPEC)
    for step in range(4):
        whole.reduce(gradients(step))
        first.reduce(gradients(step))
    saved = first.state_dict()
    again = made(SPEC)
    again.load_state_dict(saved)
    assert again.step == 4
    for step in range(4, 9):
        expected, resumed = gradients(step), gradients(step)
        whole.reduce(expected)
        again.reduce(resumed)
        for name in SHAPES:
            assert expected[name].tobytes() == resumed[name].tobytes(), (step, name)


def check_nan_on_one_rank_is_nan_on_all() -> None:
    exchange = made(SPEC, rollback="exact")
    exchange.reduce(gradients(0))
    before = exchange.residual("w")
    own = gradients(1)
    if RANK == SIZE - 1:
        own["w"][3, 4] = np.nan
    result = exchange.reduce(own)
    assert not result.committed and result.found_nonfinite
    assert np.isnan(own["w"]).all()
    again = gradients(1)
    assert exchange.reduce(again).committed
    assert before.size and np.isfinite(again["w"]).all()


def check_ranks_that_disagree_are_named() -> None:
    spec = SPEC if RANK != SIZE - 1 else "int8"
    try:
        made(spec)
    except gradsieve.GradsieveError as error:
        assert error.code == "mismatch" and error.field == "spec", error
        assert error.rank == SIZE - 1 or SIZE == 2, error
    else:
        raise AssertionError("different specs were accepted")


def check_other_arrays_are_refused() -> None:
    exchange = made("none")
    own = gradients(0)
    del own["b"]
    for wrong in (own, {**gradients(0), "b": np.zeros(8, np.float32)}):
        try:
            exchange.reduce(wrong)
        except ValueError as error:
            assert "b" in str(error)
        else:
            raise AssertionError("accepted")


def main() -> None:
    results = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                check()
                results[name] = ""
            except BaseException:
                results[name] = traceback.format_exc()
            failed = COMM.allgather(bool(results[name]))
            if any(failed) and not all(failed):
                break
    (pathlib.Path(sys.argv[1]) / f"rank{RANK}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
