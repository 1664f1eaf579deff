"""What sees that a worker is stuck: progress, looked at from outside of what should make it.

A worker that waits for a broker is not stuck, it says why it is not ready. One that makes no progress for `stuck_timeout_s`
although the brokers answer will not make any: it ends with 75, its last line says where it stood, and the restart takes
everything up from the last commit.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Hashable, Mapping

log = logging.getLogger(__name__)

# By what is to be done, a mark that changes whenever some of it is.
Marks = Mapping[str, Hashable]


class Progress:
    """How long each mark has stood still.

    >>> progress = Progress(10)
    >>> [progress.stuck({"partition 0": 7}, now) for now in (0.0, 9.0, 10.0)]
    ['', '', 'partition 0']
    >>> progress.stuck({"partition 0": 8}, 11.0)
    ''
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[str, tuple[Hashable, float]] = {}

    def stuck(self, marks: Marks, now: float) -> str:
        """What has stood still for the limit, empty if all moves. What is not named any more is done."""
        before = self._since
        self._since = {
            what: before[what] if what in before and before[what][0] == mark else (mark, now) for what, mark in marks.items()
        }
        return next((what for what, (_, since) in self._since.items() if now - since >= self._limit_s), "")

    def forgive(self) -> None:
        """Count from now on."""
        self._since = {}


class Watchdog:
    """Looks at the marks, and at the event loop itself from a thread.

    Args:
        limit_s: How long nothing may move.
        marks: What is to be done at the moment.
        brokers_answer: Asked when something is stuck; where they do not, that is why.
        end: Called with the reason, from the loop or, when it is the loop that is stuck, from the thread.
    """

    def __init__(
        self,
        limit_s: float,
        marks: Callable[[], Marks],
        brokers_answer: Callable[[], Awaitable[bool]],
        end: Callable[[str], None],
    ) -> None:
        self._limit_s, self._marks, self._brokers_answer, self._end = limit_s, marks, brokers_answer, end
        self._progress = Progress(limit_s)
        self._beat = time.monotonic()

    async def beat(self, every_s: float) -> None:
        """Say that the loop comes round, until cancelled."""
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(every_s)

    async def run(self, every_s: float) -> None:
        """Look at the marks, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            stuck = self._progress.stuck(self._marks(), time.monotonic())
            if stuck and await self._brokers_answer():
                self._end(f"no progress for {self._limit_s:g} s although the brokers answer: {stuck}")
            elif stuck:
                log.warning("no progress for %g s: %s; no broker answers", self._limit_s, stuck)
                self._progress.forgive()

    def look_at_the_loop(self) -> None:
        """For a thread of its own: end where the loop has not come round."""
        still_s = time.monotonic() - self._beat
        if still_s > self._limit_s:
            self._end(f"the event loop has not come round for {still_s:.0f} s; it is at {_where()}")


def _where() -> str:
    """The line that the main thread is at."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    (entry,) = traceback.extract_stack(frame, 1) or [traceback.FrameSummary("?", 0, "?")]
    return f"{entry.filename}:{entry.lineno}, {entry.name}"
