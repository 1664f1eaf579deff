"""Partitions at work over rows in memory, without a broker: what is delivered, committed and aborted is said by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from compaction_events.builders import SESSION, at, completed, started
from compaction_events.facts import Fact
from compaction_monitor.core import MonitorCore
from compaction_monitor.effects import PROGRESS, SESSIONS, Core, Effects
from compaction_monitor.harness import EVENTS, OUTCOMES, LogRecord, Offline, milliseconds
from compaction_monitor.rules import Rules
from compaction_monitor.shell import lanes
from compaction_monitor.shell.fetching import Batch
from compaction_monitor.shell.lanes import MAX_MERGED_RECORDS, Lane, Outlets, decode_progress
from compaction_monitor.shell.metrics import Metrics
from compaction_monitor.shell.ownership import Ownership
from compaction_monitor.shell.settings import load
from compaction_monitor.shell.store import Stores
from compaction_monitor.shell.transactions import Aborted
from compaction_monitor.state.cache import row_key
from compaction_monitor.state.session import Session

CHANGELOGS = {table: f"app-{table}" for table in ("sessions", "checkpoints", "progress")}


class Log:
    """Faust's consumer as far as it is asked: where the inputs end, and what has been acknowledged."""

    def __init__(self, partitions: Sequence[int]) -> None:
        self.ends = {TP(topic, partition): 0 for topic in (EVENTS, OUTCOMES) for partition in partitions}
        self.starts = dict.fromkeys(self.ends, 0)
        self.lineages: dict[TP, int] = {}
        self.discarded: list[Any] = []

    def assignment(self) -> set[TP]:
        return set(self.ends)

    async def earliest_offsets(self, *tps: TP) -> dict[TP, int]:
        return {tp: self.starts[tp] for tp in tps}

    async def highwaters(self, *tps: TP) -> dict[TP, int]:
        return {tp: self.ends[tp] for tp in tps}

    def reading(self, tp: TP) -> tuple[int, int] | None:
        return None

    def lineage(self, tp: TP) -> int:
        return self.lineages.get(tp, 0)

    def ack(self, message: Any) -> None:
        return

    def discard(self, message: Any) -> None:
        self.discarded.append(message)

    def silent_s(self) -> float:
        return 0.0


class Broker:
    """A `Transactor` that commits at once, or aborts as often as it is told to, or waits until it may go on."""

    def __init__(self) -> None:
        self.aborts = 0
        self.may_go_on: Callable[[], Awaitable[Any]] | None = None
        self.offset = 0

    async def publish(self, changelogs: dict[str, Any], outgoing: Any) -> dict[str, int]:
        if self.may_go_on is not None:
            await self.may_go_on()
        if self.aborts:
            self.aborts -= 1
            raise Aborted("told to")
        self.offset += 1
        return dict.fromkeys(changelogs, self.offset)

    async def start(self) -> None:
        await asyncio.Event().wait()  # an earlier owner's transaction does not end

    async def stop(self) -> None:
        return


class Shop:
    """What outlives a worker: the log, and the rows of its partitions. `now` is the wall clock of the ticks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, partitions: Sequence[int] = (0,), core: Core | None = None) -> None:
        self.log = Log(partitions)
        self.stores = Stores("memory", None, 8)  # type: ignore[arg-type]  # in memory it needs no folder
        self.broker, self.metrics = Broker(), Metrics((), (EVENTS, OUTCOMES))
        self.now = at(0)
        self.ended: list[tuple[int, str]] = []
        self._core = core or MonitorCore(Rules(), 1, OUTCOMES)
        self._records = Offline()
        clock = SimpleNamespace(time=lambda: self._ms() / 1_000, time_ns=lambda: self._ms() * 1_000_000)
        monkeypatch.setattr(lanes, "time", clock)

    def _ms(self) -> int:
        return milliseconds(self.now)

    def append(self, facts: Iterable[Fact]) -> list[LogRecord]:
        """Facts as they stand in the log; whoever is at work gets them by `hand`."""
        records = list(self._records.records(facts))
        self.log.ends[TP(EVENTS, 0)] = records[-1].offset + 1
        return records

    async def open(self, **settings: Any) -> Ownership:
        """A worker that has claimed and recovered the partitions."""
        wanted = load(**{"tick_s": 60.0, "worker": "one", **settings})
        outlets = Outlets(CHANGELOGS, "findings", "dead-letters")
        end = lambda code, reason: self.ended.append((code, reason))  # noqa: E731
        owned = Ownership(wanted, self._core, self.stores, self.metrics, outlets, lambda: self.log, end)
        owned._transactors = {tp.partition: self.broker for tp in self.log.ends}  # type: ignore[misc]  # as after `claim`
        assert await owned.open()
        for lane in owned.lanes.values():
            await until(partial(self.settled, lane), "its first tick")
        return owned

    def settled(self, lane: Lane) -> bool:
        """It has ticked, and written down where it goes on."""
        rows = [self.stores[lane.partition].get(PROGRESS, topic.encode()) for topic in lane.expected]
        return ticked(lane) and None not in rows and not lane._queued and lane._busy_since is None

    def progress(self, topic: str = EVENTS) -> int:
        return decode_progress(self.stores[0].get(PROGRESS, topic.encode()) or b"")

    async def hand(self, lane: Lane, records: Iterable[LogRecord]) -> None:
        """Deliver records, and wait until they are committed."""
        for topic, run in groupby(records, key=lambda record: record.topic):
            batch = list(run)
            end = batch[-1].offset + 1
            lane.deliver(message(Batch(batch, batch[0].offset, end, 0), topic, lane.partition))
            await until(partial(reached, lane, topic, end), "the commit")

    def session(self, session_id: str) -> Session | None:
        row = self.stores[0].get(SESSIONS, row_key(session_id))
        return None if row is None else Session.from_bytes(row)

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"compaction_{name}_total", labels) or 0.0


def message(batch: Batch, topic: str = EVENTS, partition: int = 0) -> Any:
    """What the transport hands out."""
    return SimpleNamespace(topic=topic, partition=partition, tp=TP(topic, partition), value=batch)


def ticked(lane: Lane) -> bool:
    return lane._tick_at > lane._loop.time()


def reached(lane: Lane, topic: str, end: int) -> bool:
    return lane.expected[topic] == end


def taken(owned: Ownership, turns: int) -> bool:
    return owned._turns.taken == turns


async def until(so: Callable[[], bool], what: str, limit_s: float = 10.0) -> None:
    """Let the lanes work until it is so."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not so():
        assert loop.time() < deadline, what
        await asyncio.sleep(0.001)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(monkeypatch)


def later(hours: float) -> datetime:
    return at(0) + timedelta(hours=hours)


async def test_after_a_long_stop_no_session_is_forgotten_whose_events_wait(shop: Shop) -> None:
    """Two days: a session that went on meanwhile is judged on, because ticks wait for what was in the log by then."""
    owned = await shop.open()
    await shop.hand(owned.lanes[0], shop.append([started(), completed(1)]))
    await owned.close()
    shop.now = later(48)
    waiting = shop.append([completed(2, at=later(20)), completed(3, at=later(40))])
    owned = await shop.open()
    await owned.lanes[0]._tick()
    assert shop.count("sessions_expired") == 0
    await shop.hand(owned.lanes[0], waiting)
    await owned.lanes[0]._tick()
    session = shop.session(SESSION)
    assert session is not None
    assert ([one.number for one in session.window], shop.count("sessions_expired")) == ([1, 2, 3], 0)
    shop.now = later(40 + 48)
    await owned.lanes[0]._tick()
    assert (shop.session(SESSION), shop.count("sessions_expired")) == (None, 1)
    await owned.close()


async def test_transactions_of_ticks_are_counted_like_those_of_records(shop: Shop) -> None:
    """Aborted ones are, so in a quiet fleet most would seem to fail."""
    owned = await shop.open()
    await shop.hand(owned.lanes[0], shop.append([started()]))
    shop.now = later(48)
    shop.broker.aborts = 1
    await owned.lanes[0]._tick()
    await owned.lanes[0]._tick()
    counted = [shop.count("transactions", result=result) for result in ("committed", "aborted")]
    assert (counted, shop.count("records_consumed", partition="0")) == ([3, 1], 1)  # the first: where it goes on
    await owned.close()


async def test_a_rebalance_is_watched_although_it_has_cancelled_a_claim(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim has a limit of its own and is not; what comes after it has none."""
    owned = await shop.open()
    monkeypatch.setattr(owned, "_transactor", lambda _: shop.broker)
    claim = asyncio.create_task(owned.claim({TP("app-sessions", 0)}))
    await until(lambda: bool(owned._held), "the claim under way")
    assert owned.marks() == {}
    await owned.close()
    claim.cancel()
    await asyncio.wait([claim])
    assert owned.marks() == {"the worker is rebalancing": (1, 0)}


async def test_a_partition_that_waits_for_its_turn_gets_on_while_others_have_theirs(shop: Shop) -> None:
    owned = await shop.open()
    others = [asyncio.Event() for _ in range(3)]

    async def computes(done: asyncio.Event) -> None:
        async with owned._turns:
            await done.wait()

    had = owned._turns.taken
    before = [asyncio.create_task(computes(done)) for done in others]
    await until(partial(taken, owned, had + 1), "the first one's turn")
    delivered = asyncio.create_task(shop.hand(owned.lanes[0], shop.append([started()])))
    await until(lambda: bool(owned.marks()), "the partition waits")
    seen = []
    for number, done in enumerate(others, had + 1):
        await until(partial(taken, owned, number), "the next one's turn")
        seen.append(owned.marks())
        done.set()
    await asyncio.gather(delivered, *before)
    assert [*seen, owned.marks()] == [*({"partition 0": had + number} for number in (1, 2, 3)), {}]
    await owned.close()


async def test_where_it_goes_on_is_written_although_nothing_was_read(shop: Shop) -> None:
    """A log that is accepted while it is empty is the one that is read, also by an owner to whom nobody says so again."""
    owned = await shop.open()
    await shop.hand(owned.lanes[0], shop.append([started(), completed(1), completed(2)]))
    await owned.close()
    shop.log.ends[TP(EVENTS, 0)] = 0
    owned = await shop.open(accept_new_log=(EVENTS,))
    await until(lambda: shop.progress() == 0, "the new log's position")
    await owned.close()
    shop.log.ends[TP(EVENTS, 0)] = 9
    owned = await shop.open()
    assert owned.positions()[TP(EVENTS, 0)] == 0
    await owned.close()
    assert shop.ended == []


async def test_what_retention_has_taken_is_counted_once(shop: Shop) -> None:
    owned = await shop.open()
    await shop.hand(owned.lanes[0], shop.append([started()]))
    await owned.close()
    shop.log.starts[TP(EVENTS, 0)] = shop.log.ends[TP(EVENTS, 0)] = 7
    for _ in range(2):
        owned = await shop.open()
        await until(lambda: shop.progress() == 7, "the position after it")
        await owned.close()
    assert shop.count("records_lost", topic=EVENTS) == 6


async def test_markers_alone_move_the_position(shop: Shop) -> None:
    owned = await shop.open(tick_s=0.05)
    owned.lanes[0].deliver(message(Batch([], 0, 3, 0)))
    await until(lambda: shop.progress() == 3, "the markers' end")
    await owned.close()


async def test_a_batch_of_before_a_rewind_makes_room(shop: Shop) -> None:
    """It was handed out after the rewind had emptied what was handed out."""
    owned = await shop.open()
    tp = TP(EVENTS, 0)
    records = shop.append([started(), completed(1)])
    shop.log.lineages[tp] = 1
    old = message(Batch(records, 0, 2, 0))
    owned.lanes[0].deliver(old)
    await until(lambda: bool(shop.log.discarded), "the old batch is gone")
    assert (shop.log.discarded, owned.positions()[tp]) == ([old], 0)
    await owned.close()


async def test_a_closed_partition_computes_nothing_when_its_turn_comes(shop: Shop) -> None:
    owned = await shop.open()
    lane, had = owned.lanes[0], owned._turns.taken
    async with owned._turns:
        lane.deliver(message(Batch(shop.append([started()]), 0, 1, 0)))
        await until(lambda: lane._queued, "it waits for its turn")
        closing = asyncio.create_task(owned.close())
        await until(lambda: not lane.open, "it is closed")
    await closing
    assert (owned._turns.taken, shop.progress(), shop.session(SESSION)) == (had + 2, 0, None)


async def test_lanes_are_not_opened_for_an_assignment_that_is_being_revoked(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two the consumer still says the old one, and nobody would close them. Whether claimed before or since."""
    owned = await shop.open()
    await owned.close()
    assert (await owned.open(), owned.lanes) == (False, {})

    async def lets_go() -> None:
        return

    monkeypatch.setattr(owned, "_release", lets_go)
    await owned.claim([])
    owned._transactors = {0: shop.broker}  # type: ignore[dict-item]  # as it was claimed
    assert (await owned.open(), owned.lanes) == (False, {})
    owned.assigned()
    await owned.claim([])
    owned._transactors = {0: shop.broker}  # type: ignore[dict-item]  # as it was claimed
    assert (await owned.open(), list(owned.lanes)) == (True, [0])
    await owned.close()


async def test_a_partition_that_is_closed_in_a_tick_ends_with_it(shop: Shop) -> None:
    """It does not wait for the next one, and is not cancelled for that."""
    owned = await shop.open()
    lane = owned.lanes[0]
    async with owned._turns:
        lane._tick_at = lane._loop.time()
        lane._wake.set()
        await until(lambda: lane._queued, "the tick waits for its turn")
        closing = asyncio.create_task(owned.close())
        await until(lambda: not lane.open, "it is closed")
    await asyncio.wait_for(closing, 2.0)
    assert (lane._task.cancelled(), shop.ended) == (False, [])


async def test_ticks_that_take_longer_than_their_interval_leave_room_for_records(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = await shop.open(tick_s=0.05)
    lane = owned.lanes[0]
    ticks: list[float] = []

    async def long() -> None:
        lane._tick_at = lane._loop.time()
        ticks.append(lane._tick_at)
        await asyncio.sleep(0)

    monkeypatch.setattr(lane, "_tick", long)
    await until(lambda: bool(ticks), "such a tick")
    await shop.hand(lane, shop.append([started(), completed(1)]))
    await owned.close()


async def test_how_many_records_are_taken_at_once_follows_what_they_cost(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a trickle of cheap ones too: by a clock of whole milliseconds each of them costs nothing."""
    owned = await shop.open()
    lane = owned.lanes[0]
    clock = iter(number * 1e-4 for number in range(10_000))
    monkeypatch.setattr(lanes, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(lane, "_core", SimpleNamespace(apply=lambda records: Effects()))
    for _ in range(100):
        lane._compute([None], None)
    assert round(lanes.COMPUTED_S / lane._record_s) == 2_000 < MAX_MERGED_RECORDS
    await owned.close()
