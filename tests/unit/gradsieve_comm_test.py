#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `gradsieve-comm`: its table, CSV and JSON say the same, and what was not found out is said to be so.

usage: gradsieve_comm_test.py PATH_OF_GRADSIEVE_COMM [LAUNCHER ...]   with a launcher of MPI: the row of its all-reduce
"""
import csv
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

COMM = ""
LAUNCHER = []
LIBRARY = "library all-reduce"
# A column of the table and its name in the files, where that is another.
IN_CSV = {"predicted": "predicted_bytes", "#wrong": "wrong"}
IN_JSON = {**IN_CSV, "type": "dtype"}


def rows_of(text):
    """The table: a dictionary for each row."""
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("# ") and "size" in line)
    names = lines[head][1:].split()
    rows = []
    for line in lines[head + 1:]:
        fields = re.split(r"\s{2,}|(?<=\d) (?=\S)|(?<=N/A) ", line.strip())
        assert len(fields) == len(names), line
        rows.append(dict(zip(names, fields)))
    return names, rows


class CommTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_comm(self, *arguments):
        """Output, names and rows of the table, rows of the CSV, rows of the JSON."""
        files = {"--csv": self.folder / "rows.csv", "--json": self.folder / "rows.json"}
        command = [*LAUNCHER, COMM, "-b", "4K", "-e", "4K", "-n", "2", "-w", "0", *arguments]
        for option, path in files.items():
            command += [option, str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(files["--csv"], newline="") as lines:
            in_csv = list(csv.DictReader(lines))
        in_json = json.loads(files["--json"].read_text())["rows"]
        return done.stdout, *rows_of(done.stdout), in_csv, in_json


class Table(CommTest):
    def test_one_rank_says_that_nothing_is_sent_and_claims_no_speed_up(self):  # case C-85
        text, _, rows, in_csv, in_json = self.run_comm("--ranks", "1", "--spec", "int8")

        self.assertIn("no communication takes place", text.splitlines()[0])
        for row, line, entry in zip(rows, in_csv, in_json):
            self.assertEqual(row["wire_bytes"], "0")
            self.assertGreater(float(row["encode_us"]) + float(row["decode_us"]), 0.0)
            for name in ("ratio", "vs_dense"):
                self.assertEqual((row[name], line[name], entry[name]), ("N/A", "", None))

    def test_two_ranks_do_not_say_so(self):
        text, _, rows, _, _ = self.run_comm("--ranks", "2")

        self.assertNotIn("no communication", text)
        self.assertGreater(float(rows[0]["wire_bytes"]), 0.0)

    def test_files_have_every_column_of_the_table(self):
        _, names, rows, in_csv, in_json = self.run_comm("--ranks", "2", "--spec", "topk(density=0.1)")

        self.assertEqual([IN_CSV.get(name, name) for name in names], list(in_csv[0]))
        self.assertEqual({IN_JSON.get(name, name) for name in names}, set(in_json[0]))
        self.assertEqual(len(rows), 3)
        for row, line, entry in zip(rows, in_csv, in_json):
            for name, text in row.items():
                if name in ("type", "spec", "exchange"):
                    self.assertEqual((text, text), (line[name], entry[IN_JSON.get(name, name)]))
                    continue
                # To the digits that the table has: a hundredth, and three figures of an error.
                near = max(0.051, 0.006 * float(text))
                self.assertAlmostEqual(float(line[IN_CSV.get(name, name)]), float(text), delta=near, msg=name)
                self.assertAlmostEqual(entry[IN_JSON.get(name, name)], float(text), delta=near, msg=name)

    def test_what_is_not_checked_is_not_zero(self):
        _, _, rows, in_csv, in_json = self.run_comm("--ranks", "2", "-c", "0")

        for row, line, entry in zip(rows, in_csv, in_json):
            self.assertEqual((row["rel_err"], row["#wrong"]), ("N/A", "N/A"))
            self.assertEqual((line["rel_err"], line["wrong"]), ("", ""))
            self.assertEqual((entry["rel_err"], entry["wrong"]), (None, None))

    def test_dense_fp32_is_the_first_row_whatever_the_type(self):
        for dtype in ("f16", "bf16"):
            _, _, rows, _, in_json = self.run_comm("--ranks", "2", "-d", dtype)

            first = rows[0]
            self.assertEqual((first["spec"], first["type"], first["ratio"]), ("none", "f32", "1.0"))
            self.assertLess(float(first["rel_err"]), 1e-6)
            self.assertEqual({row["type"] for row in rows[1:]}, {dtype})
            self.assertEqual({row["count"] for row in rows}, {"2048"})
            for entry in in_json:
                self.assertAlmostEqual(entry["ratio"] * entry["wire_bytes"], in_json[0]["wire_bytes"], delta=0.5)
                self.assertAlmostEqual(entry["vs_dense"] * entry["total_us"], in_json[0]["total_us"], delta=0.1)

    def test_alone_it_compares_with_nothing_and_counts_what_is_sent(self):
        text, _, rows, _, _ = self.run_comm("--ranks", "2", "--alone", "--spec", "int8", "-c", "0")
        sent = json.loads((self.folder / "rows.json").read_text())["sent_bytes"]

        self.assertEqual([(row["spec"], row["ratio"], row["vs_dense"]) for row in rows], [("int8", "N/A", "N/A")], text)
        payloads = 2 * 2 * float(rows[0]["wire_bytes"])  # ranks and steps
        self.assertTrue(payloads < sent < payloads + 2 * 4096, sent)

    def test_doubles_are_summed_as_doubles(self):
        _, _, rows, _, _ = self.run_comm("--ranks", "3", "-d", "f64")

        self.assertEqual([(row["spec"], row["type"]) for row in rows], [("none", "f64")])
        self.assertLess(float(rows[0]["rel_err"]), 1e-14)
        self.assertAlmostEqual(float(rows[0]["wire_bytes"]), float(rows[0]["predicted"]), delta=100)


    def test_buckets_are_the_same_gradient_in_parts(self):
        spec = "topk(density=0.1) | int8"
        _, _, (whole,), _, _ = self.run_comm("--ranks", "3", "--alone", "--spec", spec)
        _, _, (parts,), _, _ = self.run_comm("--ranks", "3", "--alone", "--spec", spec, "--bucket-bytes", "1000")

        self.assertEqual((parts["count"], parts["#wrong"]), (whole["count"], "0"))
        # Five buckets, the last of 96 bytes: four headers more to two ranks, and at most as much of fields and padding.
        more = float(parts["wire_bytes"]) - float(whole["wire_bytes"])
        self.assertTrue(2 * 4 * 64 <= more <= 2 * 2 * 4 * 64, more)
        self.assertEqual(parts["wire_bytes"], parts["predicted"])
        _, _, (dense,), _, _ = self.run_comm("--ranks", "3", "--alone", "--spec", "none", "--bucket-bytes", "1000")
        self.assertLess(float(dense["rel_err"]), 1e-6)

    def test_buckets_without_an_element_are_refused(self):
        done = subprocess.run([COMM, "--bucket-bytes", "4"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        self.assertEqual(done.returncode, 2)
        self.assertIn("--bucket-bytes", done.stderr)


class LibraryRow(CommTest):
    def test_is_checked_as_the_others_are(self):
        _, _, rows, _, _ = self.run_comm("--transport", "mpi")

        (library,) = [row for row in rows if row["spec"] == LIBRARY]
        self.assertEqual(library["#wrong"], "0")
        self.assertTrue(0.0 < float(library["rel_err"]) < 1e-6, library["rel_err"])  # a sum of floats is rounded

    def test_is_not_checked_where_nothing_is(self):
        _, _, rows, _, in_json = self.run_comm("--transport", "mpi", "-c", "0")

        self.assertEqual({row["rel_err"] for row in rows}, {"N/A"})
        self.assertEqual([entry["wrong"] for entry in in_json if entry["spec"] == LIBRARY], [None])


if __name__ == "__main__":
    COMM, *LAUNCHER = sys.argv[1:]
    unittest.main(argv=[sys.argv[0], "LibraryRow" if LAUNCHER else "Table"])
