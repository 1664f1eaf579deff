"""What every contender's process shares: its task as one JSON argument, and its marks on stdout.

A mark is a line `name nanoseconds` with the monotonic clock, which is one for all processes of the machine.
`started`: the first record, or the fetch that it comes with, is in the hands of the job. `handled`: the last one has been.
`committed`: everything is durable, from those contenders that know; for the others the broker is asked.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Task:
    """One run of one contender.

    Attributes:
        app: Its application id, consumer group and the prefix of its topics.
        topic: The preloaded input.
        findings: Where findings go.
        records: How many the input holds.
        folder: Its own, empty.
        gc_objects: Python's collector looks when there are so many new objects, as in our worker.
    """

    broker: str
    app: str
    topic: str
    findings: str
    partitions: int
    records: int
    folder: str
    gc_objects: int

    @classmethod
    def given(cls) -> Self:
        """The task of this process, its garbage collector set as our worker sets its own."""
        task = cls(**json.loads(sys.argv[1]))
        gc.freeze()
        gc.set_threshold(task.gc_objects, 20, 20)
        return task


def mark(name: str, at_ns: int | None = None) -> None:
    # Not by `print`: a framework may have taken stdout for its log.
    os.write(1, b"%s %d\n" % (name.encode(), at_ns or time.monotonic_ns()))


class Marks:
    """Counts records, and marks the first and the last."""

    def __init__(self, records: int) -> None:
        self._left = records
        self._records = records

    def before(self, at_ns: int | None = None) -> None:
        """Call it before each record, or each batch. `at_ns`: when a whole batch was asked for, before it was there."""
        if self._left == self._records:
            mark("started", at_ns)

    def after(self, count: int = 1) -> bool:
        """Call it after each record or batch; True when there is no further one."""
        self._left -= count
        if self._left <= 0:
            mark("handled")
            return True
        return False
