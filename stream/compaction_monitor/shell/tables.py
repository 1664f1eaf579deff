"""Faust's tables over our stores: its changelogs, assignment and recovery, with whole fetches instead of single records.

Rows are never written through Faust's table API: a worker's transaction carries the changelog records (`lanes`), and
the stores are written after it. What is used of Faust here: which changelog partitions are ours, from where to where
they are to be read, and when the streams may go on.

Rests on Faust 0.15.3; the fact is next to the line that needs it, with the number of the report to faust-streaming/faust
(or robinhood/faust, where it says so) that describes it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from faust.stores.memory import Store as MemoryStore
from faust.tables import Table, TableManager
from faust.tables.recovery import Recovery
from faust.types import TP
from mode import Service

from compaction_monitor.effects import TABLES
from compaction_monitor.shell.store import Stores

log = logging.getLogger(__name__)

VERSION = "v1"
IDLE_S = 1.0


def table_name(table: str) -> str:
    return f"{table}-{VERSION}"


class Store(MemoryStore):  # type: ignore[misc]  # faust is partly untyped
    """One table's view of the partition stores. Of Faust's memory store only the shape is used."""

    table_key: str
    stores: Stores

    def persisted_offset(self, tp: TP) -> int | None:
        return self.stores[tp.partition].offset(self.table_key)

    def apply(self, tp: TP, records: list[Any], offset: int) -> None:
        self.stores[tp.partition].apply(self.table_key, records, offset)

    async def on_rebalance(self, assigned: set[TP], revoked: set[TP], newly: set[TP], generation_id: int = 0) -> None:
        # Closed at once: the next owner may be on this machine, and ours would go stale.
        self.stores.keep({tp.partition for tp in assigned})


class StoredTable(Table):  # type: ignore[misc]  # faust is partly untyped
    """A plain Faust table of bytes, kept in `Stores`."""

    def __init__(self, app: Any, *, table_key: str, stores: Stores, **kwargs: Any) -> None:
        super().__init__(app, name=table_name(table_key), **kwargs)
        self._table_key = table_key
        self._stores = stores
        # Set by hand: with `value_type=bytes` Faust would convert the batches that our transport delivers.
        self.key_serializer = self.value_serializer = "raw"

    def _new_store(self) -> Store:
        store = Store("memory://", self.app, self, table_name=self.name, loop=self.loop)
        store.table_key, store.stores = self._table_key, self._stores
        return store


class BatchRecovery(Recovery):  # type: ignore[misc]  # faust is partly untyped
    """Recovery by whole fetches (Faust's takes a record at a time, 6,800 a second) that ends at a transaction marker."""

    async def on_rebalance(self, assigned: set[TP], revoked: set[TP], newly: set[TP], generation_id: int = 0) -> None:
        # Here, and not when recovery begins: by then the next rebalance may have.
        self.app.owned.assigned()
        await super().on_rebalance(assigned, revoked, newly, generation_id)

    async def _build_highwaters(self, consumer: Any, tps: set[TP], destination: Any, title: str) -> None:
        if title == "active":
            self.signal_recovery_end.clear()
            # Before the ends are read: see `transactions`. They are asked of the broker: what the consumer itself knows of
            # them is None during a rebalance (robinhood/faust #658), which reads as a store ahead of its changelog (#158).
            await self.app.owned.claim(frozenset(tps))
        await super()._build_highwaters(consumer, tps, destination, title)

    async def _wait(self, coro: Any, timeout: Any = None) -> None:
        # In Faust a step that takes longer than `broker_request_timeout` is dropped and recovery ends for good, without a
        # word: the worker would stay unready for ever. Ours end by themselves or raise (no upstream report known).
        await super()._wait(coro)

    @Service.task  # type: ignore[untyped-decorator]  # mode is partly untyped
    async def _slurp_changelogs(self) -> None:
        # In place of Faust's, which counts on the offset of the last record: a changelog ends in a marker, whose offset
        # no record has, and it waits for ever (#47, and #176 where compaction took the last one). A batch's offset is the
        # position it reaches, less one.
        queue = self.tables.changelog_queue
        while not self.should_stop:
            try:
                async with asyncio.timeout(IDLE_S):
                    event = await queue.get()
            except TimeoutError:
                await self._look_for_holes()
                continue
            await self._apply(event.message.tp, event.message.value, event.message.offset)
            await asyncio.sleep(0)  # a full queue never waits, and the web server should answer

    async def _apply(self, tp: TP, batch: Any, offset: int) -> None:
        consumer = self.app.consumer
        reached = self.active_offsets.get(tp)
        if tp not in self.active_tps or reached is None or batch.lineage != consumer.lineage(tp):
            return  # fetched before a rebalance
        if batch.start > reached + 1 and batch.start > (await consumer.earliest_offsets(tp))[tp]:
            log.warning("%s: a changelog batch before %d was lost on the way, reading it again", tp, batch.start)
            await consumer.rewind({tp: reached + 1})
            return
        if offset > reached:
            self.tp_to_table[tp].data.apply(tp, batch.records, offset)
            self.active_offsets[tp] = offset
            self.app.metrics.recovered(len(batch.records))
        if self.in_recovery and not self.need_recovery():
            self._set_recovery_ended()
            self.signal_recovery_end.set()

    async def _look_for_holes(self) -> None:
        """A batch lost at the end of a changelog has no next one that would show the hole."""
        if not self.in_recovery:
            return
        for tp, left in self.active_remaining().items():
            reading = self.app.consumer.reading(tp)
            if left > 0 and reading is not None and reading[0] > self.active_offsets[tp] + 1:
                log.warning("%s: the last changelog batches were lost on the way, reading them again", tp)
                await self.app.consumer.rewind({tp: self.active_offsets[tp] + 1})

    async def _seek_offsets(self, consumer: Any, tps: set[TP], offsets: Any, title: str) -> None:
        # To a new lineage, so that what was fetched before is not taken for the first batch. Where compaction or retention
        # has taken the position itself, the consumer begins at the earliest that is left (`app`: #176, #651), and an empty
        # changelog is at its end already (#597).
        await consumer.rewind({tp: max(offsets[tp], 0) for tp in tps})

    async def on_recovery_completed(self, generation_id: int = 0) -> None:
        if await self.app.owned.open():
            await super().on_recovery_completed(generation_id)


class Tables(TableManager):  # type: ignore[misc]  # faust is partly untyped
    """Faust's table manager with our recovery."""

    _recovery: BatchRecovery | None = None

    async def on_start(self) -> None:
        # Faust waits a second here for tables that are declared late; ours are declared with the app.
        await self._update_channels()
        await self.recovery.start()

    @property
    def recovery(self) -> BatchRecovery:
        if self._recovery is None:
            self._recovery = BatchRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery


def add_tables(app: Any, stores: Stores, partitions: int) -> dict[str, str]:
    """Give the app its tables.

    Returns:
        The changelog topic of each table.
    """
    changelogs = {}
    for table in TABLES:
        stored = app.tables.add(StoredTable(app, table_key=table, stores=stores, partitions=partitions))
        changelogs[table] = stored.changelog_topic_name
    return changelogs
