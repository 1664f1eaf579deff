"""The Faust transport: each fetched partition batch becomes one event, and no batch is ever passed over unseen.

Stock Faust hands a stream one record at a time (about 3,000 a second) and, around a rebalance, can drop a batch it has
fetched and go on with the next. Here a `Batch` carries the consumer positions it spans. Its reader compares `start`
with what it expects; if the start lies behind a hole it calls `rewind`, which drops everything fetched later, raises the
lineage of that partition and seeks back. Batches of an older lineage are discarded unseen.

The positions, not the offsets of records, tell a hole: transaction markers and compaction leave gaps between offsets.

Rests on Faust 0.15.3 and aiokafka 0.14.0; the fact is next to the line that needs it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from aiokafka.errors import ConsumerStoppedError, IllegalStateError, KafkaError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage
from mode.utils.futures import notify

from compaction_monitor.undecodable import reread

log = logging.getLogger(__name__)

# Records of one topic and partition handed out and not yet acknowledged; further ones stay with aiokafka, which then
# also fetches less often from the other partitions. A count of batches would do that under many small ones already.
MAX_OUTSTANDING = 20_000


@dataclass(slots=True)
class Batch:
    """What one fetch of one topic and partition holds.

    Attributes:
        records: aiokafka's `ConsumerRecord`s in log order; empty where only transaction markers were read.
        start: The consumer position before the fetch.
        end: The position after it: everything below has been read.
        lineage: Which run of consecutive fetches it belongs to; see `Consumer.rewind`.
        faults: What is wrong with which offset, for records the client library could not read.
    """

    records: list[Any]
    start: int
    end: int
    lineage: int
    faults: dict[int, str] = field(default_factory=dict)


class ConsumerThread(driver.AIOKafkaConsumerThread):  # type: ignore[misc]  # faust is partly untyped
    """aiokafka's consumer in a thread of its own, read for whole fetches."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # Faust hard-codes fetch_max_wait_ms=1500 and reads uncommitted records unless it makes transactions itself.
        # aiokafka hands both to its fetcher at start, so they can still be set here.
        consumer._fetch_max_wait_ms = self.transport.fetch_wait_ms
        consumer._isolation_level = "read_committed"
        return consumer

    async def fetch(self, wanted: frozenset[TP], timeout_s: float) -> dict[TP, Batch]:
        """At most one batch for each wanted partition; empty when nothing arrives in time."""
        return await self.call_thread(self._fetch, wanted, timeout_s)  # type: ignore[no-any-return]  # faust

    async def _fetch(self, wanted: frozenset[TP], timeout_s: float) -> dict[TP, Batch]:
        consumer = self._ensure_consumer()
        fetcher = consumer._fetcher
        if consumer._closed or fetcher._closed:
            raise ConsumerStoppedError
        if fetcher._subscriptions.reassignment_in_progress:
            await asyncio.sleep(0.05)  # nothing may be handed out meanwhile, and the caller asks again at once
            return {}
        # Tells aiokafka that its user is alive (max.poll.interval).
        with fetcher._subscriptions.fetch_context():
            batches = await self._take(fetcher, wanted)
            if not batches:
                waiter = fetcher._create_fetch_waiter()
                done, _ = await asyncio.wait([waiter], timeout=timeout_s)
                if not done:
                    waiter.cancel()
                    return {}
                waiter.result()  # raises what the coordinator found, e.g. a refused authorization
                batches = await self._take(fetcher, wanted)
            return batches

    async def _take(self, fetcher: Any, wanted: frozenset[TP]) -> dict[TP, Batch]:
        batches = {}
        for tp in list(fetcher._records):
            if tp not in wanted:
                # A result of a partition that is no longer ours would wait there for ever.
                if not fetcher._subscriptions.is_assigned(tp):
                    del fetcher._records[tp]
                continue
            result = fetcher._records.pop(tp)
            fetcher._notify(fetcher._wait_consume_future)  # room for the next fetch
            batch = await self._read(tp, result)
            if batch is not None:
                batches[TP(tp.topic, tp.partition)] = batch
        return batches

    async def _read(self, tp: Any, result: Any) -> Batch | None:
        """Everything in one fetch result, with the positions before and after it."""
        if not hasattr(result, "getall"):
            result.check_raise()  # an error the broker gave for this partition
        state = self._state(tp)
        if state is None or not state.has_valid_position:
            return None
        start, lineage = state.position, self.consumer.lineage(tp)
        try:
            # Not a single await from `start` to `state.position`: a seek cannot come between.
            records = result.getall()
        except Exception as exc:  # noqa: BLE001 - the reader raises whatever the codec or the bytes provoke
            log.warning("%s at %d: aiokafka cannot read the fetch, reading it tolerantly: %r", tp, start, exc)
            return await self._reread(tp, start, lineage)
        # Also with no record: a marker alone moves the position, and recovery waits for exactly that.
        return Batch(records, start, state.position, lineage) if state.position > start else None

    async def _reread(self, tp: Any, start: int, lineage: int) -> Batch | None:
        consumer = self._ensure_consumer()
        try:
            records, faults, end = await reread(consumer, tp, start)
        except KafkaError as exc:
            log.warning("%s at %d: fetching again failed: %r", tp, start, exc)
            return None
        state = self._state(tp)
        if end == start or state is None or lineage != self.consumer.lineage(tp) or state.position != start:
            return None  # rewound or revoked meanwhile
        state.consumed_to(end)
        return Batch(records, start, end, lineage, faults)

    def _state(self, tp: Any) -> Any:
        subscription = self._ensure_consumer()._subscription.subscription
        assignment = subscription.assignment if subscription is not None else None
        return assignment.state_value(tp) if assignment is not None else None

    async def seek_all(self, positions: Mapping[TP, int]) -> None:
        """Seek, each partition to a new lineage."""
        await self.call_thread(self._seek_all, positions)

    async def _seek_all(self, positions: Mapping[TP, int]) -> None:
        # In the consumer's thread, where lineages are read: a fetch is before both or after both.
        for tp, offset in positions.items():
            self.consumer.lineages[tp] = self.consumer.lineage(tp) + 1
            self._ensure_consumer().seek(tp, offset)
            self._ensure_consumer().resume(driver.ensure_aiokafka_TP(tp))

    async def pause(self, tps: Iterable[TP]) -> None:
        """Fetch no more from these, until they are sought."""
        await self.call_thread(self._pause, list(tps))

    async def _pause(self, tps: list[TP]) -> None:
        self._ensure_consumer().pause(*driver.ensure_aiokafka_TPset(tps))

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        # Faust crashes the app when a commit fails, e.g. during a broker's restart. Ours is only a hint: the truth is
        # the progress table.
        try:
            await self._ensure_consumer().commit({driver.ensure_aiokafka_TP(tp): at for tp, at in offsets.items()})
        except (KafkaError, IllegalStateError) as exc:
            log.info("Group offsets not committed, trying again with the next: %r", exc)
            return False
        return True

    async def rejoin(self) -> None:
        """Ask the group for a new assignment."""
        await self.call_thread(self._rejoin)

    async def _rejoin(self) -> None:
        self._ensure_consumer()._coordinator.request_rejoin()

    def reading(self, tp: TP) -> tuple[int, int] | None:
        """Position and end of a partition as last seen; None before the first fetch (any thread, for measuring)."""
        state = self._state(tp)
        if state is None or not state.has_valid_position or state.lso is None:
            return None
        return state.position, max(state.lso, state.position)


class Consumer(driver.Consumer):  # type: ignore[misc]  # faust is partly untyped
    """Faust's consumer over whole batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.lineages: dict[TP, int] = {}
        self._outstanding: dict[TP, list[ConsumerMessage]] = {}
        self._acknowledged: dict[TP, int] = {}
        self._room = asyncio.Event()
        super().__init__(*args, **kwargs)

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon, thread_loop=self.transport.new_loop())

    async def subscribe(self, topics: Iterable[str]) -> None:
        # A Faust app that is stopped while it starts subscribes to the topics it has so far. The group's leader then
        # gives it inputs without their changelogs, and as a static member it would find the same after its restart.
        if not self.app.should_stop:
            await super().subscribe(topics)

    async def rejoin(self) -> None:
        """Ask the group for a new assignment."""
        await self._thread.rejoin()

    def lineage(self, tp: Any) -> int:
        return self.lineages.get(tp, 0)

    async def rewind(self, positions: Mapping[TP, int]) -> None:
        """Read these partitions from here, forgetting everything fetched from them and not yet acknowledged."""
        for tp in positions:
            self.drop(tp)
        await self._thread.seek_all(positions)

    def drop(self, tp: TP) -> None:
        """Forget what was handed out: a message left in `_unacked_messages` is what `wait_empty` waits for."""
        for message in self._outstanding.pop(tp, ()):
            self._unacked_messages.discard(message)
        self._room.set()

    def outstanding(self, tp: TP) -> int:
        """Records handed out and not yet acknowledged."""
        return sum(len(message.value.records) for message in self._outstanding.get(tp, ()))

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, ConsumerMessage]]:
        """Each fetched partition batch as one message, its `offset` the last one read."""
        if not self.flow_active:
            await self.wait(self.can_resume_flow)
        active = self._get_active_partitions()
        wanted = frozenset(tp for tp in active if self.outstanding(tp) < MAX_OUTSTANDING)
        if not wanted:
            # Faust sleeps a whole second here.
            await self._wait_for_room(timeout)
            return
        # A partition that gets room meanwhile is only looked at in the next call.
        batches = await self._thread.fetch(wanted, timeout if len(wanted) == len(active) else 0.02)
        for tp, batch in batches.items():
            # Faust seeks to the committed offsets when the flow stopped meanwhile; that is a rewind of its own. What is
            # not handed out here is a hole that the reader of the next batch sees.
            if not self.flow_active or self.should_stop:
                return
            yield tp, self._message(tp, batch)

    def _message(self, tp: TP, batch: Batch) -> ConsumerMessage:
        message = ConsumerMessage(
            tp.topic, tp.partition, batch.end - 1, 0.0, 1, None, None, batch, None, 0, 0, tp,
            generation_id=self.app.consumer_generation_id,
        )  # fmt: skip
        if not self._is_changelog_tp(tp):
            self._outstanding.setdefault(tp, []).append(message)
        return message

    async def _wait_for_room(self, timeout: float) -> None:
        self._room.clear()
        try:
            async with asyncio.timeout(min(timeout, 0.1)):  # partitions can also be resumed, which sets no event
                await self._room.wait()
        except TimeoutError:
            pass

    async def _drain_messages(self, fetcher: Any) -> None:
        # Faust's own keeps a read offset per partition and silently drops messages below it, which a rewind races with.
        try:
            while not (self.should_stop or fetcher.should_stop):
                async for _, message in self.getmany(timeout=1.0):
                    await self.wait_first(self.callback(message), self.suspend_flow.wait())
                await asyncio.sleep(0)
        except (*self.consumer_stopped_errors, asyncio.CancelledError):
            if not self.app.should_stop:
                raise

    def ack(self, message: ConsumerMessage) -> bool:
        """Everything up to this message is durable. Batches of one partition are acknowledged in order."""
        if message.acked:
            return False
        message.acked = True
        self._unacked_messages.discard(message)
        waiting = self._outstanding.get(message.tp)
        if waiting is not None and message in waiting:
            waiting.remove(message)
            self._acknowledged[message.tp] = message.offset + 1
            self._room.set()
        notify(self._waiting_for_ack)
        return True

    async def force_commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        # Faust's own can commit past an unacknowledged record and counts a failed commit as done.
        assigned = self.assignment()
        offsets = {
            tp: offset for tp, offset in self._acknowledged.items() if tp in assigned and offset != self._committed_offset[tp]
        }
        if not offsets or not await self._commit(offsets):
            return False
        self._committed_offset.update(offsets)
        return True

    async def perform_seek(self) -> None:
        # Faust only ignores the changelogs from here on; aiokafka would go on fetching what we write to them.
        await self._thread.pause(tp for tp in self.assignment() if self._is_changelog_tp(tp))
        # Faust seeks to the group's committed offsets. Where to go on is the progress table's to say.
        await self.rewind(self.transport.positions())

    async def wait_empty(self) -> None:
        # Without a limit in Faust. By now the worker has ended the transactions under way, within its own limit, and
        # nothing else may be waited for: what is not acknowledged is read again.
        for tp in list(self._outstanding):
            self.drop(tp)
        self._unacked_messages.clear()
        try:
            async with asyncio.timeout(2.0):
                await self.commit()
        except TimeoutError:
            log.info("Group offsets not committed in time; they are only a hint")

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        await super().on_partitions_revoked(revoked)
        for tp in revoked:
            self.drop(tp)
            self._acknowledged.pop(tp, None)

    async def verify_all_partitions_active(self) -> None:
        # Faust's livelock detector measures its own per-record path, which is not used.
        return

    def reading(self, tp: TP) -> tuple[int, int] | None:
        return self._thread.reading(tp)  # type: ignore[no-any-return]  # faust


class Transport(driver.Transport):  # type: ignore[misc]  # faust is partly untyped
    """The transport of the worker.

    Attributes:
        fetch_wait_ms: How long the broker may hold back a fetch that finds nothing.
        positions: Says where every assigned input is to be read from, once recovery has ended.
        new_loop: Makes the event loop of the consumer's thread.
    """

    Consumer: ClassVar[type[Consumer]] = Consumer

    fetch_wait_ms: int
    positions: Any
    new_loop: Any

    def __init__(self, url: Iterable[Any], app: Any, *, fetch_wait_ms: int, positions: Any, new_loop: Any) -> None:
        super().__init__(url, app)
        self.fetch_wait_ms = fetch_wait_ms
        self.positions = positions
        self.new_loop = new_loop
