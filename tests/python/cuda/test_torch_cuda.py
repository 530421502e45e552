# SPDX-License-Identifier: Apache-2.0
"""The hook with gradients on devices gives the bits of the hook on the CPU: cuda_rank.py."""

import json
import os
import pathlib

import pytest
from rank_launcher import spawn_ranks

SCRIPT = str(pathlib.Path(__file__).with_name("cuda_rank.py"))
EMULATED = "GRADSIEVE_TEST_CUDART" in os.environ
CHECKS = [
    "hook_over_nccl",
    "hook_through_pinned_memory",
    "what_comes_after_backward_needs_no_future",
    "hook_without_overlap",
    "stop_and_resume",
    "other_rules_at_a_step",
    "infinity_and_a_scaler",
    "exchange",
    "a_graph_that_is_replayed",
    "a_communicator_made_by_an_id",
]


def run(check: str, folder: pathlib.Path, **extra: str) -> None:
    if not EMULATED:
        import torch

        if torch.cuda.device_count() < 2:
            pytest.skip("needs 2 devices")
    stub = os.environ.get("GRADSIEVE_TEST_DRIVER_DIR")
    if stub:
        extra["LD_LIBRARY_PATH"] = f"{stub}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    statuses = spawn_ranks(2, SCRIPT, check, str(folder), timeout=120, **extra)
    problems = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert problems == ["", ""] and statuses == [0, 0], (statuses, *problems)


@pytest.mark.parametrize("streams", ["eager", "lazy"] if EMULATED else ["real"])
@pytest.mark.parametrize("check", CHECKS)
def test_on_devices(check, streams, tmp_path):
    """With lazy streams nothing runs before somebody waits: a wait that is missing shows."""
    run(check, tmp_path, **({"CUDASIM_STREAMS": streams} if EMULATED else {}))


def test_a_rank_that_does_not_come_is_an_exception_in_time(tmp_path):
    run("a_rank_that_does_not_come", tmp_path, CUDASIM_STREAMS="async")
