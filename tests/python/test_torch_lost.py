# SPDX-License-Identifier: Apache-2.0
"""Whole runs with a rank that dies or stops in the middle."""

import json
import signal

import pytest
from rank_launcher import FOLDER, spawn_ranks

SCRIPT = str(FOLDER / "train_rank.py")
TOPK = "topk(density=0.1) | int8 ; feedback=residual"


@pytest.mark.parametrize(("count", "dead"), [(2, 1), (4, 2), (4, 0)])
@pytest.mark.parametrize("way", ["ddp", "exchange"])
def test_a_killed_rank_is_named_to_all_others_in_time(tmp_path, way, count, dead):
    arguments = ["12", f"spec={TOPK}", f"die={dead}", f"out={tmp_path}", f"{way}=1"]
    statuses = spawn_ranks(count, SCRIPT, *arguments, timeout=90)

    assert statuses[dead] == -signal.SIGKILL
    for rank in set(range(count)) - {dead}:
        result = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert f"rank {dead}" in result["error"], result
        assert way == "ddp" or result["kind"] == "GradsieveError", result
        assert result["seconds"] < 20, result  # the time-out of the exchange


@pytest.mark.parametrize(("count", "stopped"), [(2, 0), (4, 1)])
@pytest.mark.parametrize("way", ["ddp", "exchange"])
def test_a_stopped_rank_is_named_to_all_others_in_time(tmp_path, way, count, stopped):
    arguments = ["12", f"spec={TOPK}", f"stop={stopped}", f"out={tmp_path}", f"{way}=1"]
    spawn_ranks(count, SCRIPT, *arguments, "timeout=4", timeout=90, never_ends=stopped)

    for rank in set(range(count)) - {stopped}:
        result = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert f"rank {stopped}" in result["error"], result
        assert way == "ddp" or result["kind"] == "GradsieveError", result
        assert result["seconds"] < 20, result  # the exchange's time-out, then the vote's
