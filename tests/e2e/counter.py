"""A tiny core for tests of the shell, and a worker process around it: `python -m tests.e2e.counter`.

State is a count per key; every `EVERY`th record of a key is a finding. A value `bad` is a dead letter.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from compaction_monitor.effects import SESSIONS, Effects, Outgoing, Reader, Record
from compaction_monitor.settings import load
from compaction_monitor.worker import run_worker

EVERY = 10


class CounterPartition:
    def __init__(self, partition: int, rows: Reader) -> None:
        self._partition, self._rows = partition, rows

    def apply(self, records: Sequence[Record]) -> Effects:
        effects = Effects()
        counts = effects.writes[SESSIONS]
        for record in records:
            if record.value == b"bad" or record.key is None:
                effects.dead_letters.append(Outgoing(record.key, record.value, [("x-reason", b"bad")]))
                continue
            row = counts.get(record.key) or self._rows.get(SESSIONS, record.key)
            count = int(row or 0) + 1
            counts[record.key] = b"%d" % count
            if count % EVERY == 0:
                effects.findings.append(Outgoing(record.key, b"%s:%d" % (record.key, count), []))
        effects.counts["events", "record"] += len(records)
        return effects

    def undecodable(self, records: Sequence[Record], detail: str) -> Effects:
        effects = Effects()
        headers = [("x-reason", b"undecodable_record"), ("x-detail", detail.encode())]
        effects.dead_letters += [Outgoing(record.key, record.value, headers) for record in records]
        return effects

    def tick(self, now_ms: int) -> Effects:
        return Effects()

    def committed(self, effects: Effects) -> None:
        return


class CounterCore:
    def open(self, partition: int, rows: Reader) -> CounterPartition:
        return CounterPartition(partition, rows)


if __name__ == "__main__":
    logging.basicConfig(level=os.environ.get("LOG", "INFO"), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    sys.exit(run_worker(load(), CounterCore()))
