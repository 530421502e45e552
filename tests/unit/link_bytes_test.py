# SPDX-License-Identifier: Apache-2.0
"""tools/link_bytes on hosts that only count: argument 1 is the script."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

LINK_BYTES = sys.argv.pop(1)

# A step sends 1000 bytes from each host and `PERCENT` more go over the link; a job costs 7000 beside.
LAB = """#!{python}
import json, pathlib, sys
sent = pathlib.Path("{folder}", "sent")
verb, rest = sys.argv[1], sys.argv[2:]
with open("{folder}/calls", "a") as calls:
    print(verb, file=calls)
if verb == "create":
    sent.write_text("500000")
elif verb == "exec":
    print(sent.read_text())
elif verb == "mpi":
    steps = int(rest[rest.index("-n") + 1])
    sent.write_text(str(int(sent.read_text()) + 7000 + round(steps * 1000 * (1 + {percent} / 100))))
    row = {{"wire_bytes": 990}}
    told = {{"sent_bytes": 2 * (1000 * steps + 300), "rows": [row]}}
    pathlib.Path(rest[rest.index("--json") + 1]).write_text(json.dumps(told))
    sys.exit({status})
"""


class LinkBytesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_tool(self, percent, *arguments, status=0):
        lab = self.folder / "lab"
        lab.write_text(LAB.format(python=sys.executable, folder=self.folder, percent=percent, status=status))
        lab.chmod(0o755)
        out = self.folder / "out.json"
        done = subprocess.run([sys.executable, LINK_BYTES, "--lab", lab, "--hosts", "2", "--spec", "none", "--short", "2", "--long", "102",
                               "--out", out, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=60)
        self.assertEqual((self.folder / "calls").read_text().split()[-1], "destroy", "hosts are left behind")
        return done, json.loads(out.read_text())["rows"] if out.exists() else None

    def test_what_runs_have_in_common_drops_out(self):
        done, (row,) = self.run_tool(0)

        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual((row["payloads"], row["sent"], row["on_links"], row["percent"]), (1980, 2000, 2000, 0))

    def test_two_percent_are_the_limit_in_both_directions(self):
        for percent, status in ((1.9, 0), (-1.9, 0), (2.1, 1), (-2.1, 1)):
            done, (row,) = self.run_tool(percent)
            self.assertEqual(done.returncode, status, percent)
            self.assertAlmostEqual(row["percent"], percent)
            self.assertEqual("'none' is off by more than 2.0 %" in done.stderr, status == 1)

    def test_a_run_that_fails_is_told(self):
        done, rows = self.run_tool(0, status=3)

        self.assertEqual((done.returncode, rows), (1, None))
        self.assertIn("ended with 3", done.stderr)


if __name__ == "__main__":
    unittest.main()
