"""The worker's own command, with a mark at its first fetch that found something; settings come from the environment."""

from __future__ import annotations

import sys
from typing import Any

from bench.jobs.marks import mark
from compaction_monitor.cli import main
from compaction_monitor.shell.fetching import Batch, ConsumerThread

_read = ConsumerThread._read


async def _first(self: ConsumerThread, tp: Any, result: Any) -> Batch | None:
    """Before the records of the fetch are made: that is part of the job."""
    ConsumerThread._read = _read  # type: ignore[method-assign]
    mark("started")
    return await self._read(tp, result)


if __name__ == "__main__":
    ConsumerThread._read = _first  # type: ignore[method-assign]
    sys.argv = ["compaction-monitor", "worker", "--log-level", "WARNING"]
    main()
