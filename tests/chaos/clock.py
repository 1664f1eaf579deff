"""The monitor on a machine whose wall clock is off: `python -m tests.chaos.clock worker`.

By how many seconds the file says that `CHAOS_CLOCK` names, looked at once a second. All wall time in the worker, its Kafka
client and Faust included, is `time.time` or `time.time_ns`; the monotonic clock goes on as a real one does. Debian's
libfaketime is no way: threads that wait with a deadline (for Python's lock, too) then wait for the wrong one.
"""

from __future__ import annotations

import os
import runpy
import time
from pathlib import Path

LOOK_S = 1.0


class Clock:
    """The system's wall clock, and how far ours is from it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._system_ns = time.time_ns
        self._off_ns = 0
        self._look_at = 0.0

    def time_ns(self) -> int:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._off_ns = int(self._path.read_text()) * 10**9
        return self._system_ns() + self._off_ns

    def time(self) -> float:
        return self.time_ns() / 1e9


if __name__ == "__main__":
    clock = Clock(Path(os.environ["CHAOS_CLOCK"]))
    time.time, time.time_ns = clock.time, clock.time_ns
    runpy.run_module("compaction_monitor", run_name="__main__", alter_sys=True)
