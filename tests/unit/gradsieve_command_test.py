#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `gradsieve` as a user does: results, exit codes, and a sentence for every mistake.

usage: gradsieve_command_test.py PATH_OF_GRADSIEVE
"""
import json
import math
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

GRADSIEVE = ""
FORMATS = {"<f4": "f", "<f8": "d", "<f2": "e", "<u2": "H"}


def write_npy(path, values, descr="<f4", shape=None):
    sizes = shape or (len(values),)
    text = "{'descr': '%s', 'fortran_order': False, 'shape': (%s,), }" % (
        descr, ", ".join(map(str, sizes)))
    text += " " * (-(10 + len(text) + 1) % 64) + "\n"
    data = struct.pack(f"<{len(values)}{FORMATS[descr]}", *values)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data)


def read_npy(path):
    """Values, type and shape."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<H", raw, 8)
    header = eval(raw[10:10 + length].decode())  # our own file
    count = math.prod(header["shape"])
    values = struct.unpack_from(f"<{count}{FORMATS[header['descr']]}", raw, 10 + length)
    return list(values), header["descr"], header["shape"]


def gradient(count, seed=1):
    rng = random.Random(seed)
    f32 = struct.Struct("<f")
    return [f32.unpack(f32.pack(rng.gauss(0, 1) * 10 ** rng.uniform(-3, 1)))[0] for _ in range(count)]


class Command(unittest.TestCase):
    def setUp(self):
        self.folder_guard = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder_guard.cleanup)
        self.folder = pathlib.Path(self.folder_guard.name)
        self.input = self.folder / "in.npy"
        self.file = self.folder / "out.gsv"
        self.back = self.folder / "back.npy"

    def run_command(self, *arguments, environment=None):
        return subprocess.run([GRADSIEVE, *map(str, arguments)], capture_output=True, text=True,
                              timeout=120, env={**os.environ, **(environment or {})})

    def ok(self, *arguments, **options):
        done = self.run_command(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def fails(self, code, sentence, *arguments, **options):
        done = self.run_command(*arguments, **options)
        said = done.stderr + done.stdout
        self.assertEqual(done.returncode, code, said)
        self.assertIn(sentence, said)
        self.assertNotIn("terminate called", said)
        return said

    def encode(self, spec, *more):
        return self.ok("encode", "--spec", spec, *more, self.input, self.file)

    def round_trip(self, spec, *more):
        self.encode(spec, *more)
        self.ok("decode", self.file, self.back)
        return read_npy(self.back)[0]

    def leftovers(self):
        return sorted(path.name for path in self.folder.iterdir())


class InfoAndList(Command):
    def test_info_names_the_build(self):
        said = self.ok("info")
        for part in ("gradsieve ", "compiler", "simd", "portable", "threads", "MPI", "topk"):
            self.assertIn(part, said)

    def test_info_explains_a_spec(self):
        said = self.ok("info", "--spec", "topk(0.01)|int8;feedback=residual", "--elements", 100000)
        self.assertIn("topk(density=0.01", said)
        self.assertIn("contraction", said)
        self.assertIn("gather", said)
        lines = {line.split("  ")[1].strip(): line.split() for line in said.splitlines() if "rollback=" in line}
        self.assertEqual(lines["state, rollback=merge"][-2:], ["400000", "4.0000"])
        self.assertEqual(lines["state, rollback=exact"][-2:], ["800000", "8.0000"])

    def test_info_shows_both_rounds_of_a_leader(self):
        said = self.ok("info", "--spec", "cltk(0.01)")
        self.assertIn("  0  gather", said)
        self.assertIn("  1  sum", said)

    def test_list_documents_every_plugin(self):
        plugins = json.loads(self.ok("list", "--json"))["plugins"]
        names = [plugin["name"] for plugin in plugins]
        text = self.ok("list")
        for name in ("topk", "int8", "none", "index", "zstd"):
            self.assertIn(name, names)
            self.assertIn(f"\n{name} (", text)
        for plugin in plugins:
            self.assertTrue(plugin["summary"], plugin["name"])
            self.assertEqual(plugin["claims"] is not None, plugin["kind"] in ("compressor", "sparsifier"))
            for param in plugin["params"]:
                self.assertTrue(param["accepts"] and param["default"], (plugin["name"], param["name"]))

    def test_help_and_version_are_no_errors(self):
        self.assertIn("encode", self.ok("--help"))
        self.assertIn("--residual-out", self.ok("encode", "--help"))
        self.assertRegex(self.ok("--version"), r"gradsieve \d+\.\d+\.\d+")


class Log(Command):
    def said(self, **environment):
        return self.run_command("info", environment=environment).stderr

    def test_it_is_silent_unless_asked(self):
        self.assertEqual(self.said(), "")
        self.assertEqual(self.said(GRADSIEVE_DEBUG="", GRADSIEVE_DEBUG_FILE=str(self.folder / "log")), "")
        self.assertEqual(self.leftovers(), [])

    def test_a_line_names_host_process_thread_and_level(self):
        self.assertRegex(self.said(GRADSIEVE_DEBUG="VERSION"), r"\A[^:\s]+:\d+:\d+ GRADSIEVE VERSION gradsieve \d.*\n\Z")

    def test_higher_levels_include_lower_ones(self):
        for level in ("warn", "INFO", "TRACE"):
            self.assertIn("VERSION", self.said(GRADSIEVE_DEBUG=level))

    def test_subsystems_are_chosen_or_left_out(self):
        for subsystems, is_said in (("INIT", True), ("COMM,INIT", True), ("COMM", False), ("^INIT", False), ("^COMM", True)):
            said = self.said(GRADSIEVE_DEBUG="INFO", GRADSIEVE_DEBUG_SUBSYS=subsystems)
            self.assertEqual("VERSION" in said, is_said, subsystems)

    def test_a_file_of_each_process_may_take_the_lines(self):
        self.assertEqual(self.said(GRADSIEVE_DEBUG="INFO", GRADSIEVE_DEBUG_FILE=str(self.folder / "log.%h.%p")), "")
        (name,) = self.leftovers()
        self.assertRegex(name, r"\Alog\.[^%]+\.\d+\Z")
        self.assertIn("GRADSIEVE VERSION", (self.folder / name).read_text())


class RoundTrips(Command):
    def test_none_is_bit_exact(self):
        values = gradient(1000)
        write_npy(self.input, values)
        self.assertEqual(self.round_trip("none"), values)

    def test_none_keeps_f64_and_the_shape(self):
        values = [math.pi * i for i in range(6)]
        write_npy(self.input, values, "<f8", (2, 3))
        self.encode("none")
        self.ok("decode", self.file, self.back)
        self.assertEqual(read_npy(self.back), (values, "<f8", (2, 3)))

    def test_narrow_types_come_back_as_they_were(self):
        for descr, values in (("<f2", [0.5, -2.0, 1024.0]), ("<u2", [0x3f80, 0xbf80, 0x0000])):
            write_npy(self.input, values, descr)
            self.encode("none")
            self.ok("decode", self.file, self.back)
            self.assertEqual(read_npy(self.back), (values, descr, (3,)))

    def test_topk_keeps_the_largest(self):
        values = gradient(1000)
        write_npy(self.input, values)
        kept = set(sorted(range(1000), key=lambda i: (-abs(values[i]), i))[:50])
        self.assertEqual(self.round_trip("topk(density=0.05)"),
                         [value if i in kept else 0.0 for i, value in enumerate(values)])

    def test_every_chain_gives_back_what_it_sent(self):
        # sent + residual = gradient: to rounding for quantizers, to the bit for f32 values.
        values = gradient(5000)
        write_npy(self.input, values)
        largest = max(map(abs, values))
        for spec in ("topk(0.1)", "topk(0.1) | int8", "randomk(0.1)", "cltk(0.1)", "cltk(0.1) | zstd",
                     "blocktopk", "threshold", "int8", "int4", "sign", "bf16", "fp16", "int8 | zstd"):
            with self.subTest(spec):
                rest = self.folder / "rest.npy"
                got = self.round_trip(spec + " ; feedback=residual", "--residual-out", rest,
                                      "--seed", 7, "--step", 3, "--rank", 2)
                total = [a + b for a, b in zip(got, read_npy(rest)[0])]
                worst = max(abs(a - b) for a, b in zip(total, values))
                self.assertLessEqual(worst, largest * 2 ** -20)

    def test_a_residual_is_added_first(self):
        write_npy(self.input, [1.0, 2.0, 3.0, 4.0])
        rest, next_rest = self.folder / "rest.npy", self.folder / "next.npy"
        write_npy(rest, [10.0, 0.0, 0.0, 0.0])
        got = self.round_trip("topk(density=0.25) ; feedback=residual", "--residual", rest,
                              "--residual-out", next_rest)
        self.assertEqual(got, [11.0, 0.0, 0.0, 0.0])
        self.assertEqual(read_npy(next_rest)[0], [0.0, 2.0, 3.0, 4.0])

    def test_seed_and_step_choose_the_random_elements(self):
        write_npy(self.input, [1.0] * 1000)
        sets = []
        for more in (("--seed", 1), ("--seed", 2), ("--seed", 1, "--step", 1), ("--seed", 1)):
            got = self.round_trip("randomk(0.1) ; feedback=residual", *more)
            sets.append(tuple(i for i, value in enumerate(got) if value != 0.0))
        self.assertEqual(len({len(chosen) for chosen in sets}), 1)
        self.assertEqual(sets[0], sets[3])
        self.assertEqual(len(set(sets)), 3)

    def test_the_thread_count_and_the_instruction_set_do_not_matter(self):
        write_npy(self.input, gradient(70000))
        files = set()
        for threads, target in ((1, "portable"), (3, "portable"), (2, "")):
            self.ok("encode", "--spec", "topk(0.01) | int8", "--threads", threads, self.input, self.file,
                    environment={"GRADSIEVE_SIMD": target})
            files.add(self.file.read_bytes())
        self.assertEqual(len(files), 1)

    def test_small_and_empty_arrays(self):
        for count in (0, 1, 7):
            for spec in ("none", "topk(0.5) | int4", "cltk(0.5)", "randomk(0.5)", "sign | zstd"):
                with self.subTest(spec=spec, count=count):
                    write_npy(self.input, gradient(count))
                    self.assertEqual(len(self.round_trip(spec)), count)

    def test_below_dense_below_the_file_holds_the_array(self):
        values = gradient(100)
        write_npy(self.input, values)
        self.assertEqual(self.round_trip("topk(0.01) ; dense_below=1000"), values)


class Mistakes(Command):
    def setUp(self):
        super().setUp()
        write_npy(self.input, gradient(300))

    def encode_fails(self, code, sentence, spec, *more, source=None):
        before = self.leftovers()
        self.fails(code, sentence, "encode", "--spec", spec, *more, source or self.input, self.file)
        self.assertEqual(self.leftovers(), before, "a failed encode left something behind")

    def test_usage(self):
        self.fails(2, "subcommand", )
        self.fails(2, "no subcommand 'encoed'; did you mean 'encode'?", "encoed", "x")
        self.fails(2, "expected one of: info, list, encode, decode", "bananas")
        self.fails(2, "--spec", "encode", self.input, self.file)
        self.fails(2, "--threads", "encode", "--spec", "none", "--threads", "0", self.input, self.file)
        self.fails(2, "--seed", "encode", "--spec", "none", "--seed", "-1", self.input, self.file)
        self.fails(2, "--rank", "encode", "--spec", "none", "--rank", 2 ** 32, self.input, self.file)
        self.fails(2, "--step", "encode", "--spec", "none", "--step", "1.5", self.input, self.file)
        self.ok("encode", "--spec", "none", "--seed", 2 ** 64 - 1, self.input, self.file)
        self.fails(2, "GRADSIEVE_SIMD is 'sse9'; expected one of", "info",
                   environment={"GRADSIEVE_SIMD": "sse9"})

    def test_a_wrong_spec_is_explained(self):
        self.encode_fails(2, "no compressor 'topkk'; did you mean 'topk'?", "topkk")
        self.encode_fails(2, "did you mean 'density'?", "topk(densty=0.1)")
        self.encode_fails(2, "density=1.5 is out of range: expected a fraction in (0, 1]", "topk(1.5)")
        self.encode_fails(2, "^", "topk(0.1")
        self.fails(2, "did you mean 'int8'?", "info", "--spec", "in8")

    def test_a_missing_file_is_named(self):
        missing = self.folder / "missing.npy"
        self.encode_fails(2, "missing.npy", "none", source=missing)
        self.fails(2, "missing.gsv", "decode", self.folder / "missing.gsv", self.back)
        self.fails(2, "cannot be written", "encode", "--spec", "none", self.input, self.folder / "no" / "out.gsv")

    def test_a_file_of_another_kind_is_refused(self):
        other = self.folder / "other.npy"
        other.write_bytes(b"not an array at all")
        self.encode_fails(1, "is no .npy file", "none", source=other)
        self.fails(1, "does not begin with GSVFILE1", "decode", other, self.back)
        self.fails(1, "does not begin with GSVFILE1", "decode", self.input, self.back)
        other.write_bytes(b"")
        self.fails(1, "does not begin with GSVFILE1", "decode", other, self.back)
        self.fails(2, "cannot be read", "decode", self.folder, self.back)
        self.assertFalse(self.back.exists())

    def test_input_and_output_differ(self):
        before = self.input.read_bytes()
        self.fails(2, "is the file that is read", "encode", "--spec", "none", self.input, self.input)
        self.assertEqual(self.input.read_bytes(), before)

    def test_what_is_not_finite_is_refused(self):
        for value in (math.nan, math.inf):
            write_npy(self.input, [1.0, value, 2.0])
            self.encode_fails(1, "NaN or infinite", "topk(0.5)")

    def test_f64_goes_with_none_only(self):
        write_npy(self.input, [1.0, 2.0], "<f8")
        self.encode_fails(2, "does not take f64", "topk(0.5)")

    def test_a_residual_needs_feedback_and_the_same_length(self):
        rest = self.folder / "rest.npy"
        self.encode_fails(2, "expected ; feedback=residual in it", "topk(0.1)", "--residual-out", rest)
        write_npy(rest, [1.0, 2.0])
        self.encode_fails(2, "has 2 elements; expected 300", "topk(0.1) ; feedback=residual", "--residual", rest)

    def test_when_one_output_fails_neither_appears(self):
        spec = "topk(0.1) ; feedback=residual"
        self.encode_fails(2, "cannot be written", spec, "--residual-out", self.folder / "no" / "rest.npy")
        before = self.leftovers()
        self.fails(2, "cannot be written", "encode", "--spec", spec, "--residual-out", self.folder / "rest.npy",
                   self.input, self.folder / "no" / "out.gsv")
        self.assertEqual(self.leftovers(), before)


class Damage(Command):
    SPECS = ("topk(0.1) | int8 | zstd ; feedback=residual", "randomk(0.1)", "cltk(0.1)")

    def replace(self, content):
        self.file.unlink()  # some file systems flush a file that is written over
        self.file.write_bytes(content)

    # gsv_file_test goes through all places; here a few of them go through the program.
    def test_a_truncated_file_is_noticed(self):
        write_npy(self.input, gradient(300))
        self.encode(self.SPECS[0])
        good = self.file.read_bytes()
        for content in (good[:20], good[:100], good[:-9], good[:-1], good + b"\0"):
            self.replace(content)
            self.fails(1, "out.gsv", "decode", self.file, self.back)
        self.assertFalse(self.back.exists())

    def test_a_flipped_bit_is_noticed(self):
        for spec in self.SPECS:
            write_npy(self.input, gradient(300))
            self.encode(spec)
            good = self.file.read_bytes()
            for position in (3, 9, 13, 17, 25, 41, 50, len(good) // 2, len(good) - 12, len(good) - 1):
                damaged = bytearray(good)
                damaged[position] ^= 4
                self.replace(damaged)
                self.fails(1, "out.gsv", "decode", self.file, self.back)
            self.assertFalse(self.back.exists())


if __name__ == "__main__":
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    GRADSIEVE = sys.argv.pop(1)
    unittest.main()
