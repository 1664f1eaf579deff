"""Faults of Faust that need no broker to be shown: stock Faust has them, ours has not.

Those that need one: batches skipped after a rebalance (#216, #221), recovery behind a marker (#47), of a compacted
changelog (#176), a shutdown that waits for ever (robinhood/faust #402), a store ahead of its changelog (#158): tests/e2e,
test_worker.py and test_log_cleanup.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from faust.tables.recovery import Recovery, ServiceStopped
from faust.transport.consumer import Consumer as StockConsumer
from faust.types import TP

from compaction_monitor.core import MonitorCore
from compaction_monitor.rules import Rules
from compaction_monitor.shell.app import WorkerApp, make_app
from compaction_monitor.shell.settings import Settings
from compaction_monitor.shell.tables import BatchRecovery
from compaction_monitor.shell.transport import Consumer

INPUT = TP("compaction.events", 0)
CHANGELOG = TP("compaction-monitor-sessions-v1-changelog", 0)


@pytest.fixture
async def app(tmp_path: Path) -> WorkerApp:
    """Never started."""
    settings = Settings(datadir=tmp_path, store="memory")
    return make_app(settings, MonitorCore(Rules(), settings.partitions, settings.outcomes_topic), end_process=lambda *_: None)


@pytest.fixture
def recovery(app: WorkerApp) -> BatchRecovery:
    found = app.tables.recovery
    assert isinstance(found, BatchRecovery)
    return found


class Committing(Consumer):
    """Commits go where `answers` says: done, or failed."""

    def __init__(self, *answers: bool) -> None:
        self._acknowledged, self._committed_offset = {}, {INPUT: None}
        self._outstanding, self._waiting_for_ack = {}, None
        self._unacked_messages: set[Any] = set()
        self._room = asyncio.Event()
        self._answers = list(answers)
        self.committed: list[Mapping[TP, int]] = []

    def assignment(self) -> set[TP]:
        return {INPUT}

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        self.committed.append(offsets)
        return self._answers.pop(0)


async def test_a_failed_commit_is_made_again() -> None:
    consumer = Committing(False, True)
    consumer._acknowledged[INPUT] = 7
    assert not await consumer.force_commit()
    assert await consumer.force_commit()
    assert not await consumer.force_commit(), "nothing new"
    assert consumer.committed == [{INPUT: 7}, {INPUT: 7}]


class Acknowledged:
    """What stock Faust's `_new_offset` looks at once 5 and 6 are acknowledged, 0 to 4 are not and nothing is committed."""

    _acked: ClassVar = {INPUT: [5, 6]}
    _acked_index: ClassVar = {INPUT: {5, 6}}
    _gap: ClassVar[dict[TP, list[Any]]] = {INPUT: []}
    _committed_offset: ClassVar = {INPUT: None}


class Message:
    """A batch that was handed out."""

    def __init__(self, offset: int) -> None:
        self.tp, self.offset, self.acked = INPUT, offset, False


async def test_nothing_is_committed_past_what_is_not_acknowledged() -> None:
    """#606: stock Faust takes the first that is acknowledged for the first there is."""
    assert StockConsumer._new_offset(Acknowledged(), INPUT) == 7
    first, second = Message(4), Message(6)
    consumer = Committing(True, True)
    consumer._outstanding[INPUT] = [first, second]
    assert not await consumer.force_commit()
    assert consumer.ack(first)
    assert await consumer.force_commit()
    assert consumer.committed == [{INPUT: 5}]
    consumer.drop(INPUT)  # as at a revocation
    assert consumer.ack(second), "it counts, but not as read: its partition is another's"
    assert not await consumer.force_commit()


async def test_what_is_handed_out_after_a_rewind_can_still_be_taken_back() -> None:
    """The rewind has found nothing to drop, and its reader does not want it: it must not count as under way for ever."""
    consumer = Committing(True)
    consumer.drop(INPUT)
    old = Message(4)
    consumer._outstanding[INPUT] = [old]
    consumer._unacked_messages.add(old)
    consumer._room.clear()
    assert consumer.discard(old)
    assert (consumer._outstanding, consumer._unacked_messages, consumer._room.is_set()) == ({INPUT: []}, set(), True)
    assert not consumer.discard(old)
    assert not await consumer.force_commit()


async def test_no_step_of_recovery_is_dropped_for_taking_long(recovery: BatchRecovery) -> None:
    """In stock Faust it is, and recovery ends for good without a word."""
    done = asyncio.Event()

    async def step() -> None:
        await asyncio.sleep(0.05)
        done.set()

    with pytest.raises(ServiceStopped):
        await Recovery._wait(recovery, step(), timeout=0.01)
    assert not done.is_set()
    await recovery._wait(step(), timeout=0.01)
    assert done.is_set()


class Log:
    """A changelog as a consumer sees it: the first offset that is left, and the next that will be written."""

    def __init__(self, first: int, end: int) -> None:
        self._first, self._end = first, end

    async def earliest_offsets(self, *tps: TP) -> dict[TP, int]:
        return dict.fromkeys(tps, self._first)

    async def highwaters(self, *tps: TP) -> dict[TP, int]:
        return dict.fromkeys(tps, self._end)


@pytest.mark.parametrize(
    ("first", "end", "left"),
    [(0, 0, 0), (50, 50, 0), (0, 50, 50), (30, 50, 20)],
    ids=["new", "emptied by retention (#597)", "whole", "its beginning compacted away (#176)"],
)
async def test_where_recovery_begins_and_ends(recovery: BatchRecovery, first: int, end: int, left: int) -> None:
    recovery.active_offsets = Counter({CHANGELOG: None})  # as Faust does for an empty store
    await recovery._build_offsets(Log(first, end), {CHANGELOG}, recovery.active_offsets, "active")
    await Recovery._build_highwaters(recovery, Log(first, end), {CHANGELOG}, recovery.active_highwaters, "active")
    assert recovery.active_remaining() == {CHANGELOG: left}
    assert recovery.need_recovery() is (left > 0)


async def test_the_ends_of_changelogs_are_asked_of_the_broker(app: WorkerApp) -> None:
    """robinhood/faust #658: where Faust makes transactions itself it takes the consumer's word, None in a rebalance."""
    assert not app.in_transaction
