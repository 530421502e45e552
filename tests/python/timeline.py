# SPDX-License-Identifier: Apache-2.0
"""Reads the Chrome trace that a rank writes."""

from __future__ import annotations

import json
import pathlib

Ranges = dict[int, tuple[float, float]]


def steps_of(path: pathlib.Path) -> list[dict[str, Ranges]]:
    """Per step: begin and end, in microseconds, of every bucket's encode and exchange."""
    steps: list[dict[str, Ranges]] = [{"encode": {}, "exchange": {}}]
    for event in json.loads(path.read_text().rstrip().rstrip("]") + "]"):
        if event["ph"] != "X":
            continue
        if event["name"] == "vote":
            steps.append({"encode": {}, "exchange": {}})
        elif event["name"] in steps[-1]:
            begin = event["ts"]
            steps[-1][event["name"]][event["tid"]] = (begin, begin + event["dur"])
    return steps[:-1]


def overlaps(step: dict[str, Ranges]) -> list[bool]:
    """For each bucket but the first: whether its encode starts before the last exchange ends."""
    buckets = sorted(step["exchange"])
    assert len(buckets) > 2 and buckets == sorted(step["encode"])
    return [
        step["encode"][later][0] < step["exchange"][earlier][1]
        for earlier, later in zip(buckets, buckets[1:])
    ]
