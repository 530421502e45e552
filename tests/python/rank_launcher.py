# SPDX-License-Identifier: Apache-2.0
"""Starts ranks as processes, waits for them with a time-out, and leaves none behind."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PACKAGE = ROOT / "bindings" / "python"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**extra: str) -> dict[str, str]:
    paths = [str(PACKAGE), str(FOLDER), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        **extra,
    }


def stop(process: subprocess.Popen[str]) -> None:
    """Ends a process and all that it started: it leads a session of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run(command: list[str], timeout: float, **extra: str) -> subprocess.CompletedProcess[str]:
    """Runs a command; after `timeout` seconds it and its children are killed."""
    process = subprocess.Popen(
        command,
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        stop(process)
        output = process.stdout.read() if process.stdout and not process.stdout.closed else ""
        raise AssertionError(f"{command} took longer than {timeout} s\n{output[-4000:]}") from None
    finally:
        stop(process)
    return subprocess.CompletedProcess(command, process.returncode, output)


def torchrun(num_ranks: int, script: str, *arguments: str, timeout: float, **extra: str) -> str:
    """Runs a script under torchrun; its output. An exit status other than 0 fails the test."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--max-restarts=0"]
    command += [f"--nproc-per-node={num_ranks}", "--master-addr=127.0.0.1"]
    command += [f"--master-port={free_port()}", script, *arguments]
    done = run(command, timeout, **extra)
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def run_checks(
    module: str, num_ranks: int, folder: pathlib.Path, timeout: float, **extra: str
) -> list[dict[str, str]]:
    """Runs all checks of a module on `num_ranks` ranks; per rank the failure of each, or ""."""
    main = str(FOLDER / "rank_main.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--max-restarts=0"]
    command += [f"--nproc-per-node={num_ranks}", "--master-addr=127.0.0.1"]
    command += [f"--master-port={free_port()}", main, module, str(folder)]
    done = run(command, timeout, **extra)
    results = []
    for rank in range(num_ranks):
        path = folder / f"rank{rank}.json"
        assert path.is_file(), f"rank {rank} wrote no results\n{done.stdout[-6000:]}"
        results.append(json.loads(path.read_text()))
    assert done.returncode == 0, done.stdout[-6000:]
    return results


def spawn_ranks(
    num_ranks: int,
    script: str,
    *arguments: str,
    timeout: float,
    never_ends: int | None = None,
    **extra: str,
) -> list[int]:
    """Runs ranks as processes of their own, without torchrun, which ends all when one ends.

    `never_ends` is killed after all others have ended.
    """
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = []
    try:
        for rank in range(num_ranks):
            numbers = {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_RANK": str(rank)}
            ranks.append(
                subprocess.Popen(
                    [sys.executable, script, *arguments],
                    env=environment(**place, **numbers, **extra),
                    start_new_session=True,
                )
            )
        for number, rank in enumerate(ranks):
            if number != never_ends:
                rank.wait(timeout)
        if never_ends is not None:
            stop(ranks[never_ends])
        return [rank.wait(timeout) for rank in ranks]
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{script} took longer than {timeout} s") from None
    finally:
        for rank in ranks:
            stop(rank)
