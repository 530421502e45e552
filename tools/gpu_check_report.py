# SPDX-License-Identifier: Apache-2.0
"""What tools/gpu_check runs and tells: commands with a time limit, and results as they come."""
import json
import os
import signal
import subprocess
import threading
import time


def first_line(text, default=""):
    return next((line.strip() for line in text.splitlines() if line.strip()), default)


def last_line(text, default=""):
    return first_line("\n".join(reversed(text.splitlines())), default)


SANITIZER_FOUND = 99
# How compute-sanitizer's own lines begin where it cannot do its work; what it finds is told by others.
SANITIZER_REFUSES = (
    "Error: Device not supported", "Error: Failed to initialize", "Error: No attachable process found",
    "Error: Target application terminated before first instrumented API call",
    "Internal Sanitizer Error", "Unable to find injection library")


def judgement_of_sanitizer(status, text):
    """`wrong` for a finding, `ok` if all of the program ran and nothing was found."""
    if status is None:
        return "timeout"
    told = [line[10:] for line in text.splitlines() if line.startswith("========= ")]
    refused = [line for line in told if line.startswith(SANITIZER_REFUSES)]
    # Details are indented; the banner, the sum and the status say nothing new.
    found = [line for line in told if line[:1].strip() and line not in refused
             and line not in ("COMPUTE-SANITIZER", "Target application returned an error")
             and "SUMMARY: " not in line]
    # A refusal may end with the status of a finding, but a finding is told as well.
    if status == SANITIZER_FOUND and (found or not refused):
        return "wrong"
    # Some versions end well without having run the program.
    ran = " calls checked, " in text
    return "ok" if status == 0 and ran and not refused else "does not work here"


class Log:
    """Runs commands for a limited time; all that they print goes to log.txt."""

    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8", errors="replace")
        self.lock = threading.Lock()
        self.started = time.monotonic()
        self.box_ends = float("inf")

    def say(self, text):
        with self.lock:
            self.file.write(text + "\n")
            self.file.flush()

    def left(self, seconds):
        """At most `seconds`, and not beyond the running step's box."""
        return max(1.0, min(seconds, self.box_ends - time.monotonic()))

    def run(self, command, seconds, cwd=None, env=None, quiet=False):
        """Exit status (None: stopped by the clock) and output."""
        command = [str(part) for part in command]
        started = time.monotonic()
        try:
            process = subprocess.Popen(command, cwd=cwd, env=env, text=True, errors="replace",
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            self.say(f"$ {' '.join(command)}\n{error}")
            return 127, str(error)
        try:
            text, _ = process.communicate(timeout=self.left(seconds))
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
            status = None
        ended = "stopped by the clock" if status is None else f"status {status}"
        shown = "" if quiet and status == 0 else text
        self.say(f"$ {' '.join(command)}\n{shown}[{ended}, {time.monotonic() - started:.1f} s]")
        return status, text


class Report:
    """gpu_check.json and table.txt, written anew whenever something is known."""

    def __init__(self, folder):
        self.folder = folder
        self.data = {"steps": []}
        self.table = ""

    def write(self):
        scratch = self.folder / "gpu_check.json.new"
        scratch.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        scratch.replace(self.folder / "gpu_check.json")
        text = "".join(f"{step['step']:<12} {step['result']:<8} {step['seconds']:6.1f} s  "
                       f"{step['detail']}\n" for step in self.data["steps"])
        (self.folder / "table.txt").write_text(f"{text}\n{self.table}", encoding="utf-8")

    def add(self, step, result, seconds, detail, more=None):
        self.data["steps"].append({"step": step, "result": result, "seconds": round(seconds, 2),
                                   "detail": detail, **(more or {})})
        self.write()
        print(f"gpu_check: {step}: {result}: {detail}", flush=True)

    def summary(self):
        results = [step["result"] for step in self.data["steps"]]
        return ", ".join(f"{results.count(r)} {r}" for r in dict.fromkeys(results))


def is_yardstick(row):
    """The copy, and then its control."""
    return "cudaMemcpyAsync" in row["row"]


def lines_of(file):
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
        try:
            yield json.loads(line)
        except ValueError:
            continue  # the last line may be cut


def stopped_row(name, data, rounds, about, num_elements):
    """Of the rounds that count, or of round 0 where it came to no other."""
    us = [time for round_, time in rounds if round_ != 0] or [time for _, time in rounds]
    row = {"row": name, "data": data, "median_us": sorted(us)[len(us) // 2], "us": us, **about}
    if about and num_elements:
        row["GBps"] = about["bytes_per_element"] * num_elements / row["median_us"] * 1e-3
    return row


def bench_of_lines(folder):
    """What a benchmark that was stopped has left in its lines: the document and a table."""
    samples, about, run = {}, {}, {}
    for entry in lines_of(folder / "gpu_bench.jsonl"):
        if "sample" in entry:
            found = samples.setdefault((entry["sample"], entry["data"]), [])
            found.append((entry["round"], entry["us"]))
        elif "row" in entry:
            about[entry["row"]] = entry
        run = entry.get("run", run)
    rows = [stopped_row(name, data, rounds, about.get(name, {}), run.get("elements"))
            for (name, data), rounds in samples.items()]
    copy = next((row["GBps"] for row in rows if is_yardstick(row)), None)
    for row in rows if copy else []:
        row["percent_of_copy"] = 100 * row["GBps"] / copy
    rows.sort(key=lambda row: not is_yardstick(row))
    text = "".join(f"{r['median_us']:12.1f} µs {r.get('percent_of_copy', 0):5.0f} % of copy  "
                   f"{r['row']}, {r['data']}\n" for r in rows)
    return {"stopped": True, "run": run, "rows": rows}, text


def judgement_of_bench(bench, num_elements):
    """A sentence, the rows below 70 % of the copy that are longer than a few launches, and whether
    the two copies agree."""
    rows = [row for row in bench["rows"] if row["us"]]
    copies = [r["GBps"] for r in rows if r.get("GBps") and is_yardstick(r)]
    told = f"{len(rows)} of {len(bench['rows'])} rows"
    if len(copies) < 2:
        return told, {}
    least_us = 20  # below this, launches are what is timed
    slow = [f"{r['row']}, {r['data']}: {r['percent_of_copy']:.0f} %" for r in rows
            if (r.get("percent_of_copy") or 100) < 70 and not r["row"].startswith("cub_")
            and r["bytes_per_element"] * num_elements / copies[0] * 1e-3 > least_us]
    told += f"; copy {copies[0]:.0f} GB/s, again {copies[1]:.0f}; {len(slow)} rows below 70 % of it"
    return told, {"copy_GBps": copies[0], "copy_again_GBps": copies[1], "below_70_percent": slow}
