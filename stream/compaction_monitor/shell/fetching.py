"""aiokafka's consumer in the thread that Faust gives it, read for whole fetches with the positions around them.

Rests on Faust 0.15.3 and aiokafka 0.14.0; the fact is next to the line that needs it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import ConsumerStoppedError, IllegalStateError, KafkaError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from compaction_monitor.shell.undecodable import reread

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Batch:
    """What one fetch of one topic and partition holds.

    Attributes:
        records: aiokafka's `ConsumerRecord`s in log order; empty where only transaction markers were read.
        start: The consumer position before the fetch.
        end: The position after it: everything below has been read.
        lineage: Which run of consecutive fetches it belongs to; see `Consumer.rewind`.
        faults: What is wrong with which offset, for records the client library could not read.
        weight: Its records, or its KiB where these are more: what it takes while it waits.
    """

    records: list[Any]
    start: int
    end: int
    lineage: int
    faults: dict[int, str] = field(default_factory=dict)
    weight: int = field(init=False)

    def __post_init__(self) -> None:
        values = [record.value for record in self.records]
        self.weight = max(len(values), sum([len(value) for value in values if value]) >> 10)


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
            log.warning("%s at %d: aiokafka cannot read the fetch (%s), reading it tolerantly", tp, start, type(exc).__name__)
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

    def silent_s(self) -> float:
        """Seconds since a broker last answered a fetch, also an empty one (any thread, for measuring)."""
        states = [self._state(tp) for tp in self._ensure_consumer().assignment()]
        heard_ms = [state.timestamp for state in states if state is not None and state.timestamp is not None]
        return time.time() - max(heard_ms) / 1000 if heard_ms else 0.0

    def reading(self, tp: TP) -> tuple[int, int] | None:
        """Position and end of a partition as last seen; None before the first fetch (any thread, for measuring)."""
        state = self._state(tp)
        if state is None or not state.has_valid_position or state.lso is None:
            return None
        return state.position, max(state.lso, state.position)
