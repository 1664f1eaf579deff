"""A tiny core for tests of the shell, and a worker process around it: `python -m tests.e2e.counter`.

State is a count per key; every `EVERY`th record of a key is a finding. A value `bad` is a dead letter, `forget`
deletes the key's row.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

from compaction_monitor.effects import SESSIONS, Effects, Outgoing, Reader, Record, Standing
from compaction_monitor.shell.settings import Settings, SettingsError, load
from compaction_monitor.shell.transport import Consumer
from compaction_monitor.shell.worker import run_worker

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
            if record.value == b"forget":
                counts[record.key] = None
                continue
            row = counts[record.key] if record.key in counts else self._rows.get(SESSIONS, record.key)
            count = int(row or 0) + 1
            counts[record.key] = b"%d" % count
            if count % EVERY == 0:
                effects.findings.append(Outgoing(record.key, b"%s:%d" % (record.key, count), []))
        effects.counts["facts", "round.completed", "new"] += len(records)
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

    @property
    def standing(self) -> Standing:
        return Standing({}, True)


class CounterCore:
    def open(self, partition: int, rows: Reader) -> CounterPartition:
        return CounterPartition(partition, rows)


def impatient(settings: Settings) -> Settings:
    """With a limit of the watchdog, from STUCK_S, that is too short for any but a test."""
    limit = os.environ.get("STUCK_S")
    return settings.model_copy(update={"stuck_timeout_s": float(limit)}) if limit else settings


def drop_batches(share: float) -> None:
    """Make the transport lose this share of what it hands out, changelog batches too: what its guard is for."""
    handed_out, chosen = Consumer.getmany, random.Random(0)

    async def getmany(self: Consumer, timeout: float) -> AsyncIterator[tuple[Any, Any]]:  # noqa: ASYNC109 - Faust's signature
        async for tp, message in handed_out(self, timeout):
            if chosen.random() >= share:
                yield tp, message

    Consumer.getmany = getmany  # type: ignore[method-assign]  # the fault under test


if __name__ == "__main__":
    if os.environ.pop("COMPACTION_MONITOR_DROP_BATCHES", None):
        drop_batches(1 / 3)
    logging.basicConfig(level=os.environ.get("LOG", "INFO"), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = impatient(load())
    except SettingsError as exc:
        logging.critical("%s", exc)
        sys.exit(78)
    sys.exit(run_worker(settings, CounterCore()))
