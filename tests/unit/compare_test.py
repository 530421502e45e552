# SPDX-License-Identifier: Apache-2.0
"""bench/compare on result files made by hand: argument 1 is the script."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

COMPARE = sys.argv.pop(1)


def row(name, median, spread=0.01, control=1.0, figure="x_update"):
    return {
        "name": f"{name}/iterations:21/manual_time",
        figure: median,
        f"{figure}_low": median - spread,
        f"{figure}_high": median + spread,
        "a_a": control,
    }


class CompareTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name, rows):
        path = pathlib.Path(self.folder.name, name)
        path.write_text(json.dumps({"context": {}, "benchmarks": rows}), encoding="utf-8")
        return str(path)

    def compare(self, *paths):
        return subprocess.run([sys.executable, COMPARE, *paths], capture_output=True, text=True)

    def verdict_of(self, old, new):
        done = self.compare(self.write("old.json", [old]), self.write("new.json", [new]))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()[-1]

    def test_intervals_apart_are_faster_or_slower(self):
        self.assertEqual(self.verdict_of(row("a", 2.0), row("a", 1.5)), "1 faster")
        self.assertEqual(self.verdict_of(row("a", 1.5), row("a", 2.0)), "1 slower")
        self.assertEqual(
            self.verdict_of(row("i", 3.0, figure="x_memcpy"), row("i", 2.0, figure="x_memcpy")),
            "1 faster",
        )

    def test_intervals_that_touch_are_the_same(self):
        self.assertEqual(self.verdict_of(row("a", 2.0, 0.3), row("a", 1.5, 0.3)), "1 same")

    def test_a_change_below_three_percent_is_the_same(self):
        self.assertEqual(self.verdict_of(row("a", 1.00, 0.001), row("a", 1.02, 0.001)), "1 same")

    def test_a_control_that_is_off_gives_no_verdict(self):
        self.assertEqual(
            self.verdict_of(row("a", 2.0), row("a", 1.0, control=1.2)), "1 too noisy"
        )

    def test_rows_of_one_file_are_counted(self):
        done = self.compare(
            self.write("old.json", [row("a", 1.0), row("b", 1.0)]),
            self.write("new.json", [row("a", 1.0), row("c", 1.0), row("d", 1.0)]),
        )
        self.assertIn("only in old: 1 rows", done.stdout)
        self.assertIn("only in new: 2 rows", done.stdout)

    def test_bad_files_are_named(self):
        good = self.write("good.json", [row("a", 1.0)])
        broken = pathlib.Path(self.folder.name, "broken.json")
        broken.write_text("{", encoding="utf-8")
        for bad in ("/nowhere.json", str(broken), self.write("empty.json", [])):
            done = self.compare(good, bad)
            self.assertEqual(done.returncode, 2)
            self.assertIn(bad, done.stderr)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
