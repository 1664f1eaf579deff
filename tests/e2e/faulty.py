"""The counter's worker with one part that hangs, once a record says `hang`: `python -m tests.e2e.faulty`.

The environment's FAULT says which: the `loop`, a `delivery`, a `partition`, or, without any record, the `rejoin`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from compaction_monitor.effects import Effects, Record
from compaction_monitor.shell.lanes import Lane
from compaction_monitor.shell.ownership import Ownership
from compaction_monitor.shell.settings import load
from compaction_monitor.shell.transactions import Transactor
from compaction_monitor.shell.worker import run_worker
from tests.e2e.counter import CounterCore, CounterPartition, impatient

apply, process, produce = CounterPartition.apply, Lane._process, Transactor._produce


def hangs(records: Sequence[Record]) -> bool:
    return any(record.value == b"hang" for record in records)


def stand_still(self: CounterPartition, records: Sequence[Record]) -> Effects:
    if hangs(records):
        time.sleep(3_600)
    return apply(self, records)


async def never_answered(self: Transactor, changelogs: Any, outgoing: Any) -> dict[str, int]:
    found = await produce(self, changelogs, outgoing)
    if any(b"hang" in dict(rows) for rows in changelogs.values()):
        await asyncio.get_running_loop().create_future()
    return found


async def never_done(self: Lane, messages: Any, records: list[Any], *rest: Any) -> None:
    if hangs(records):
        await asyncio.Event().wait()
    await process(self, messages, records, *rest)


async def never_open(_: Ownership) -> bool:
    await asyncio.Event().wait()
    return False


FAULTS = {
    "loop": (CounterPartition, "apply", stand_still),
    "delivery": (Transactor, "_produce", never_answered),
    "partition": (Lane, "_process", never_done),
    "rejoin": (Ownership, "open", never_open),
}

if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s %(message)s")
    setattr(*FAULTS[os.environ["FAULT"]])
    sys.exit(run_worker(impatient(load()), CounterCore()))
