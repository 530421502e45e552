# SPDX-License-Identifier: Apache-2.0
"""The short form of bench/convergence/torch_convergence.py: real data, equal steps, three seeds."""

import json
import pathlib
import shutil

import pytest
from rank_launcher import ROOT, torchrun

SCRIPT = str(ROOT / "bench" / "convergence" / "torch_convergence.py")
TOPK = "topk(density=0.01) | int8 ; feedback=residual"


def summaries(*arguments):
    output = torchrun(2, SCRIPT, *arguments, timeout=380)
    records = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    runs = [record for record in records if "seed" in record]
    return runs, {record["summary"]: record for record in records if "summary" in record}


@pytest.mark.skipif(
    not pathlib.Path("/usr/share/datasets/fashion-mnist").is_dir(),
    reason="Debian's package dataset-fashion-mnist is missing",
)
def test_a_cnn_ends_within_two_points_of_dense():
    runs, by_spec = summaries("--steps", "2000", "--seeds", "3")

    assert by_spec["ddp"]["median"] > 80.0, by_spec  # it learns, or the gap says nothing
    assert by_spec[TOPK]["gap"] <= 2.0, by_spec
    for run in runs:
        if run["spec"] == TOPK:
            assert run["bytes_per_step"] < 0.02 * run["dense_bytes"], run


@pytest.mark.skipif(shutil.which("bible") is None, reason="Debian's package bible-kjv is missing")
def test_a_transformer_ends_within_a_tenth_of_a_nat():
    """The full form, two seeds, ended at a gap of 0.027 (README)."""
    arguments = ["--model", "transformer", "--steps", "300", "--seeds", "1"]
    runs, by_spec = summaries(*arguments)

    assert by_spec["ddp"]["median"] < 2.6, by_spec  # it learns, or the gap says nothing
    assert by_spec[TOPK]["gap"] <= 0.1, by_spec
    assert all(run["bytes_per_step"] <= run["dense_bytes"] for run in runs)
