"""The worker's own command, with a mark at its first record; settings come from the environment."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.jobs.marks import mark
from compaction_monitor.cli import main
from compaction_monitor.core import MonitorPartition
from compaction_monitor.effects import Effects, Record

_apply = MonitorPartition.apply


def _first(self: MonitorPartition, records: Sequence[Record]) -> Effects:
    MonitorPartition.apply = _apply  # type: ignore[method-assign]
    mark("started")
    return self.apply(records)


if __name__ == "__main__":
    MonitorPartition.apply = _first  # type: ignore[method-assign]
    sys.argv = ["compaction-monitor", "worker", "--log-level", "WARNING"]
    main()
