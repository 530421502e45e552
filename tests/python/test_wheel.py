# SPDX-License-Identifier: Apache-2.0
"""The wheel, in a clean virtual environment without torch, and beside torch."""

import os
import pathlib
import subprocess
import sys
import zipfile

import pytest
from rank_launcher import ROOT

SMOKE = str(pathlib.Path(__file__).with_name("wheel_smoke.py"))


def clean_environment() -> dict[str, str]:
    hidden = ("GRADSIEVE_", "PYTHON", "VIRTUAL_ENV")
    return {key: value for key, value in os.environ.items() if not key.startswith(hidden)}


def command(*arguments: object, timeout: float = 240) -> str:
    done = subprocess.run(
        [str(argument) for argument in arguments],
        env=clean_environment(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    library = pathlib.Path(os.environ["GRADSIEVE_LIBRARY"]).resolve()
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    pip += ["-C", f"cmake.define.GRADSIEVE_WHEEL_LIBRARY={library}", "-w", folder]
    command(*pip, ROOT / "bindings" / "python")
    (found,) = folder.glob("*.whl")
    return found


def test_one_wheel_is_for_every_python(wheel):
    version = "0.1.0"
    assert wheel.name.startswith(f"gradsieve-{version}-py3-none-linux_"), wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "__init__.py",
        "py.typed",
        "libgsv.so",
        "LICENSE",
        "torch/_hook_state.py",
        "numpy/_arrays.py",
    ):
        assert f"gradsieve/{name}" in names, sorted(names)
    stray = [name for name in names if not name.startswith(("gradsieve/", "gradsieve-"))]
    assert not stray and not any("__pycache__" in name for name in names)


def test_it_works_in_a_clean_environment_without_torch(wheel, tmp_path):
    place = tmp_path / "venv"
    command(sys.executable, "-m", "venv", place)
    python = place / "bin" / "python"
    command(python, "-m", "pip", "install", "--quiet", "numpy", wheel)
    assert command(python, SMOKE, place).strip() == "without torch"


def test_it_works_beside_torch(wheel, tmp_path):
    place = tmp_path / "packages"
    command(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "-t", place, wheel)
    run = "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[2])"
    assert command(sys.executable, "-c", run, place, SMOKE).strip() == "with torch"
