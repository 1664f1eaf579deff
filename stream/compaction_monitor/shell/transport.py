"""The Faust transport: each fetched partition batch becomes one event, and no batch is ever passed over unseen.

Stock Faust hands a stream one record at a time (about 3,000 a second) and, around a rebalance, can drop a batch it has
fetched and go on with the next. Here a `Batch` carries the consumer positions it spans. Its reader compares `start`
with what it expects; if the start lies behind a hole it calls `rewind`, which drops everything fetched later, raises the
lineage of that partition and seeks back. Batches of an older lineage are discarded unseen.

The positions, not the offsets of records, tell a hole: transaction markers and compaction leave gaps between offsets.

Rests on Faust 0.15.3 and aiokafka 0.14.0; the fact is next to the line that needs it, with the number of the report to
faust-streaming/faust (or robinhood/faust, where it says so) that describes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, ClassVar

from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage
from mode.utils.futures import notify

from compaction_monitor.shell.fetching import Batch, ConsumerThread

log = logging.getLogger(__name__)

# Records (or KiB, where these are more) of one topic and partition handed out and not yet acknowledged; further ones stay
# with aiokafka, which then also fetches less often from the other partitions. A count of batches would do that under many
# small ones already.
MAX_OUTSTANDING = 5_000


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
        """What is handed out and not yet acknowledged weighs."""
        return sum(message.value.weight for message in self._outstanding.get(tp, ()))

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
            # not handed out here is a hole that the reader of the next batch sees. Stock Faust goes on behind it: #216,
            # #221 (events skipped after a rebalance).
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
        # Faust's own keeps a read offset per partition and silently drops messages below it, which a rewind races with
        # (#318: nothing is committed any more after two rebalances).
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
        if self.discard(message):
            self._acknowledged[message.tp] = message.offset + 1
        notify(self._waiting_for_ack)
        return True

    def discard(self, message: ConsumerMessage) -> bool:
        """Forget one message, as if it had not been handed out; `drop` cannot where a rewind came before that.

        Returns:
            Whether it was still known.
        """
        self._unacked_messages.discard(message)
        waiting = self._outstanding.get(message.tp, [])
        if message not in waiting:
            return False
        waiting.remove(message)
        self._room.set()
        return True

    async def force_commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        # Faust's own can commit past an unacknowledged record (#312, again since #378: #606) and counts a failed commit as
        # done.
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
        # Without a limit in Faust (robinhood/faust #402, #133). By now the worker has ended the transactions under way,
        # within its own limit, and nothing else may be waited for: what is not acknowledged is read again.
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

    def silent_s(self) -> float:
        """Seconds since a broker last answered."""
        return self._thread.silent_s()  # type: ignore[no-any-return]  # faust

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
