# SPDX-License-Identifier: Apache-2.0
"""The one thread that waits for exchanges while backward goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Worker:
    """Runs jobs one after another, in the order given. A job catches what it raises."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def close(self) -> None:
        """Ends the thread after the jobs that are there."""
        self._jobs.put(None)
        self._thread.join()
