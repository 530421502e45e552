#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of docs/plugin_abi.md as they stand there: plugin_guide_test.py GRADSIEVE."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main(gradsieve):
    text = (ROOT / "docs" / "plugin_abi.md").read_text(encoding="utf-8")
    languages = re.findall(r"^```(\w*)$", text, re.M)
    if languages != ["c", "", "sh", ""]:
        sys.exit(f"the guide has blocks of {languages[::2]}; this test knows of c, which is cut, and sh")
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", text, re.S | re.M)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("include", "examples"):
            os.symlink(ROOT / name, pathlib.Path(folder) / name)
        path = f"{pathlib.Path(gradsieve).resolve().parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(["sh", "-ec", commands], cwd=folder, env={**os.environ, "PATH": path},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode or "[  PASSED  ]" not in done.stdout:
        sys.exit(f"the commands ended with {done.returncode}:\n{done.stdout[-4000:]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
