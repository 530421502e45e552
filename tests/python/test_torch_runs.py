# SPDX-License-Identifier: Apache-2.0
"""Whole runs: a slow network, a resume, exits, and what runs write down."""

import json

import pytest
from rank_launcher import FOLDER, torchrun
from timeline import overlaps, steps_of

SCRIPT = str(FOLDER / "train_rank.py")
TOPK = "topk(density=0.1) | int8 ; feedback=residual"


def test_encoding_goes_on_while_a_bucket_travels(tmp_path):
    """The link makes each exchange longer than what backward needs to fill the next bucket."""
    torchrun(
        2,
        SCRIPT,
        "24",
        "spec=int8 ; feedback=residual",
        "width=384",
        "bucket_mb=0.3",
        "link=4e7",
        timeout=120,
        GRADSIEVE_TIMELINE=str(tmp_path / "trace-%r.json"),
    )

    for rank in range(2):
        steps = steps_of(tmp_path / f"trace-{rank}.json")
        assert len(steps) == 24
        # Buckets are collected in the first two passes, until their layout is known.
        overlapping = sum(all(overlaps(step)) for step in steps[2:])
        assert overlapping >= 0.9 * len(steps[2:]), f"{overlapping} of {len(steps[2:])} steps"


def test_metrics_and_debug_lines_are_written_where_asked(tmp_path):
    torchrun(
        2,
        SCRIPT,
        "6",
        f"spec={TOPK}",
        f"out={tmp_path}",
        timeout=90,
        GRADSIEVE_METRICS=str(tmp_path / "metrics-%r.jsonl"),
        GRADSIEVE_DEBUG="INFO",
        GRADSIEVE_DEBUG_FILE=str(tmp_path / "debug-%p.log"),
    )

    for rank in range(2):
        lines = (tmp_path / f"metrics-{rank}.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        assert [record["step"] for record in records] == list(range(6))
        for record in records:
            assert record["committed"] and record["rank"] == rank
            assert 0 < record["wire_bytes"] < record["dense_bytes"]
    logs = list(tmp_path.glob("debug-*.log"))
    assert len(logs) == 2 and all("GRADSIEVE INFO" in log.read_text() for log in logs)


def test_writing_things_down_changes_no_bit(tmp_path):
    hashes = set()
    for number, extra in enumerate(
        [
            {},
            {
                "GRADSIEVE_TIMELINE": str(tmp_path / "t-%r"),
                "GRADSIEVE_METRICS": str(tmp_path / "m-%r"),
            },
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        torchrun(2, SCRIPT, "6", f"spec={TOPK}", f"out={folder}", timeout=90, **extra)
        for rank in range(2):
            hashes.add(json.loads((folder / f"rank{rank}.json").read_text())["weights"])
    assert len(hashes) == 1


@pytest.mark.parametrize("way", ["ddp", "exchange"])
def test_fresh_processes_resume_bit_for_bit_C66(tmp_path, way):
    def run(steps, *more):
        torchrun(2, SCRIPT, steps, f"spec={TOPK}", f"{way}=1", f"out={tmp_path}", *more, timeout=90)
        results = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
        assert not any(result["error"] for result in results), results
        return {result["weights"] for result in results}

    whole = run("10")
    early = run("5", f"keep={tmp_path}")
    again = run("10", f"from={tmp_path}")

    assert len(whole) == 1 and again == whole and early != whole


@pytest.mark.parametrize("run", range(4))
def test_runs_end_clean_with_the_guides_exit(run):
    output = torchrun(4, SCRIPT, "4", f"spec={TOPK}", timeout=90)

    assert "terminate called" not in output and "Traceback" not in output, output
