# SPDX-License-Identifier: Apache-2.0
"""One rank: runs the checks of a module one after another and writes down how each ended."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import pathlib
import sys
import traceback

import torch.distributed as dist


def names_of(module: str, num_ranks: int) -> list[str]:
    """The checks of a module for this many ranks, in the order of the file."""
    content = vars(importlib.import_module(module))
    checks = [
        name
        for name, check in content.items()
        if name.startswith("check_") and check.__module__ == module
    ]
    return [name for name in checks if num_ranks in getattr(content[name], "ranks", (2,))]


def main(module: str, folder: str, only: str = "") -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    rank = dist.get_rank()
    content = vars(importlib.import_module(module))
    results = {}
    path = pathlib.Path(folder) / f"rank{rank}.json"
    for name in names_of(module, dist.get_world_size()):
        if only and only not in name:
            continue
        try:
            content[name]()
            results[name] = ""
        except BaseException:
            results[name] = traceback.format_exc()
        path.write_text(json.dumps(results))
        if only:
            print(rank, name, results[name] or "ok", flush=True)
        # Ranks that disagree about a failure must not run into each other's next check.
        answers = [None] * dist.get_world_size()
        dist.all_gather_object(answers, bool(results[name]))
        if any(answers) and not all(answers):
            break
    # The way out that docs/guide_torch.md recommends.
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
