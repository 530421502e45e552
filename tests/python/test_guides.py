# SPDX-License-Identifier: Apache-2.0
"""Every block of the guides runs."""

import os
import pathlib
import re
import sys

import pytest
from rank_launcher import ROOT, run, torchrun

MPIEXEC = os.environ.get("GRADSIEVE_TEST_MPIEXEC", "mpirun")
GUIDES = ["guide_torch", "guide_mpi"]


def blocks(guide: str, language: str) -> list[str]:
    text = (ROOT / "docs" / f"{guide}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.S | re.M)


def test_no_block_is_left_out():
    for guide in GUIDES:
        text = (ROOT / "docs" / f"{guide}.md").read_text()
        languages = re.findall(r"^```(\w*)$", text, re.M)
        assert set(languages[::2]) == {"python", "sh"} and set(languages[1::2]) == {""}


def program(guide: str, folder: pathlib.Path) -> str:
    path = folder / f"{guide}.py"
    path.write_text("\n".join(blocks(guide, "python")))
    return str(path)


def test_the_torch_guide_runs(tmp_path):
    torchrun(2, program("guide_torch", tmp_path), timeout=120)


def test_the_mpi_guide_runs(tmp_path):
    command = [MPIEXEC, "-n", "2", sys.executable, program("guide_mpi", tmp_path)]
    done = run(command, 120)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "did you mean 'density'" in done.stdout


@pytest.mark.parametrize("guide", GUIDES)
def test_the_commands_run(guide):
    for block in blocks(guide, "sh"):
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = run(["sh", "-ec", f"cd '{ROOT}'\n{block}"], 150, PATH=path)
        assert done.returncode == 0, done.stdout[-4000:]
