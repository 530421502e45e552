# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys

import pytest
from rank_launcher import FOLDER, run

MODULE = os.environ.get("GRADSIEVE_TEST_MPI_MODULE", "")
MPIEXEC = os.environ.get("GRADSIEVE_TEST_MPIEXEC", "mpirun")
SOURCE = (FOLDER / "checks_numpy.py").read_text().splitlines()
CHECKS = [line.split("(")[0][4:] for line in SOURCE if line.startswith("def check_")]
WAYS = ["mpi4py", *(["module"] if MODULE else [])]
RUNS = [(way, count, "multiple") for way in WAYS for count in (2, 3)]
RUNS += [(way, 2, level) for way in WAYS for level in ("single", "funneled")]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    found = {}
    for way, count, level in RUNS:
        folder = tmp_path_factory.mktemp(f"{way}{count}{level}")
        command = [MPIEXEC, "-n", str(count), sys.executable, str(FOLDER / "checks_numpy.py")]
        done = run(
            [*command, str(folder), way],
            120,
            GRADSIEVE_MPI_MODULE=MODULE if way == "module" else "/nowhere/libgsv_mpi.so",
            MPI4PY_RC_THREAD_LEVEL=level,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        found[way, count, level] = [
            json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(count)
        ]
    return found


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("which", RUNS, ids=lambda which: "-".join(map(str, which)))
def test_exchange(results, which, check):
    for rank, result in enumerate(results[which]):
        assert check in result, f"rank {rank} did not come to it"
        assert result[check] == "", f"rank {rank}: {result[check]}"
