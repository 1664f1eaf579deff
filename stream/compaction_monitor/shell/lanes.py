"""All work of one partition number, in one task: its input topics and its ticks, a transaction at a time.

The order that loses and doubles nothing:
compute the effects → one transaction (changelog rows, findings, dead letters, progress) → local store → acknowledge.
Until the transaction is committed nothing has changed, so a failed one is computed again. The progress row says up to
where each input was read; it is recovered with the state, and the group's offset is only a hint.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import groupby
from time import perf_counter
from typing import Any

import orjson
from aiokafka.errors import KafkaError
from faust.types import TP

from compaction_monitor.effects import PROGRESS, Effects, Partition, Standing
from compaction_monitor.shell.metrics import Metrics
from compaction_monitor.shell.settings import Settings
from compaction_monitor.shell.store import PartitionStore, StoreError
from compaction_monitor.shell.tracing import BatchSpans
from compaction_monitor.shell.transactions import Aborted, Fenced, Transactor
from compaction_monitor.state.session import UNREADABLE, CorruptStateError, NewerStateError, StateError

log = logging.getLogger(__name__)

EX_SOFTWARE = 70
EX_FENCED = 75
EX_CONFIG = 78
PROGRESS_VERSION = 1
# Waiting batches are merged up to this many records: one transaction for many small batches. They are computed without
# a pause, so it is fewer where they take longer: the heartbeat, the web server and the other partitions wait meanwhile.
MAX_MERGED_RECORDS = 5_000
MIN_MERGED_RECORDS = 50
COMPUTED_S = 0.2
RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)
STALLED_S = 5.0
SILENT_S = 5.0  # since a broker last answered


def encode_progress(offset: int) -> bytes:
    """The next offset to read of one input topic, as a row's value."""
    return orjson.dumps((PROGRESS_VERSION, offset))


def decode_progress(value: bytes) -> int:
    """The offset in a progress row.

    Raises:
        NewerStateError: A newer release wrote it.
        CorruptStateError: No release did.
    """
    try:
        version, *rest = orjson.loads(value)
        if version > PROGRESS_VERSION:
            raise NewerStateError(f"progress has version {version}, this release knows {PROGRESS_VERSION}: start the newer one")
        (offset,) = rest
        if version < 1 or type(offset) is not int or offset < 0:
            raise ValueError("no version, or no offset")
    except UNREADABLE as exc:
        raise CorruptStateError(f"progress cannot be read: {value[:80]!r}") from exc
    return int(offset)


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where effects go: the changelog topic of each table, and the topics of findings and dead letters."""

    changelogs: Mapping[str, str]
    findings: str
    dead_letters: str


class Turns:
    """Of all lanes of the process one computes at a time.

    Attributes:
        taken: How many turns there have been.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        self.taken += 1

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class Lane:
    """One owned partition number, from the end of its recovery to its revocation.

    Args:
        core: The pure middle's view of it.
        expected: Per input topic the position to go on from.
        ticks_from: Per input topic the position that must be reached before ticks start: what was already in the log
            at assignment could answer an order whose deadline has passed, or be of a session that seems silent.
        turns: One is taken to compute; all lanes of the process share them.
        end_process: Called with an exit code and a reason.

    Attributes:
        watermark_ms: Append time of the latest record committed since the assignment; 0 if there was none.
    """

    def __init__(
        self,
        partition: int,
        *,
        core: Partition,
        store: PartitionStore,
        transactor: Transactor,
        consumer: Any,
        outlets: Outlets,
        settings: Settings,
        metrics: Metrics,
        expected: Mapping[str, int],
        ticks_from: Mapping[str, int],
        turns: Turns,
        end_process: Callable[[int, str], None],
    ) -> None:
        self.partition = partition
        self.expected = dict(expected)
        self.open = True
        self.watermark_ms = 0
        self._core, self._store, self._transactor, self._consumer = core, store, transactor, consumer
        self._outlets, self._settings, self._metrics = outlets, settings, metrics
        self._ticks_from, self._turns, self._end_process = dict(ticks_from), turns, end_process
        self._spans = BatchSpans(settings.app_id)
        self._waiting: deque[Any] = deque()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tick_at = self._loop.time()
        self._suspected: dict[str, int] = {}
        self._failures = 0
        self._record_s = COMPUTED_S / MIN_MERGED_RECORDS / 4  # at first everything is read from the store
        self._busy_since: float | None = None
        self._queued = False
        self._task = asyncio.create_task(self._run(), name=f"partition-{partition}")

    def deliver(self, message: Any) -> None:
        """Queue a message of the transport; never blocks (the transport hands out a few batches at most)."""
        self._waiting.append(message)
        self._wake.set()

    @property
    def standing(self) -> Standing:
        """How its sessions stand."""
        return self._core.standing

    def unready(self) -> str | None:
        """Why this partition does not get on, None when it does."""
        if self._failures:
            return f"partition {self.partition}: transactions fail ({self._failures} in a row)"
        if self._busy_since is not None and self._loop.time() - self._busy_since > STALLED_S:
            return f"partition {self.partition}: a transaction has been under way for more than {STALLED_S:g} s"
        return None

    def mark(self) -> Hashable:
        """What changes when work gets on here, an aborted transaction included; None when there is none.

        While others have their turn before it, theirs are what gets on.
        """
        if self._queued:
            return self._turns.taken
        behind = any(
            (reading := self._consumer.reading(TP(topic, self.partition))) is not None and reading[1] > at
            for topic, at in self.expected.items()
        )
        if not (behind or self._waiting or self._busy_since is not None):
            return None
        return tuple(self.expected.items()), self._failures, self._busy_since

    async def close(self, timeout_s: float) -> None:
        """Drop what waits, let the transaction under way end; after `timeout_s` it is left to the next owner to abort."""
        self.open = False
        self._waiting.clear()
        self._wake.set()
        done, _ = await asyncio.wait([self._task], timeout=timeout_s)
        if not done:
            log.warning("partition %d: closed in the middle of a transaction", self.partition)
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self.open:
                if self._loop.time() >= self._tick_at:
                    await self._tick()
                # After a tick too: one that takes longer than the time to the next would hold up the records for ever.
                if self._waiting:
                    await self._step()
                elif self.open:
                    await self._sleep()
        except asyncio.CancelledError:
            raise
        except Fenced as exc:
            self._end_process(EX_FENCED, str(exc))
        except StoreError as exc:
            # All of it is in the changelog, from which the next start builds what is missing.
            self._end_process(EX_FENCED, f"partition {self.partition}: {exc}")
        except StateError as exc:
            self._end_process(EX_CONFIG, f"partition {self.partition}: {exc}")
        except Exception as exc:
            log.exception("partition %d failed", self.partition)
            self._end_process(EX_SOFTWARE, f"partition {self.partition}: {exc!r}")

    async def _sleep(self) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout_at(self._tick_at):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _step(self) -> None:
        """Take what waits, as far as it follows on without a hole, and commit it."""
        messages, records, ends = self._merge(round(COMPUTED_S / self._record_s))
        if messages or records:
            await self._process(messages, records, ends)
        elif self._waiting:
            await self._process_alone(self._waiting.popleft())

    def _merge(self, limit: int) -> tuple[list[Any], list[Any], dict[str, int]]:
        """The messages that are read to their end, and at most so many records; what is left of a message waits."""
        limit = min(MAX_MERGED_RECORDS, max(MIN_MERGED_RECORDS, limit))
        messages: list[Any] = []
        records: list[Any] = []
        ends: dict[str, int] = {}
        while self._waiting and len(records) < limit:
            message = self._waiting[0]
            batch, topic = message.value, message.topic
            at = ends.get(topic, self.expected[topic])
            if batch.lineage != self._consumer.lineage(message.tp):
                self._consumer.discard(self._waiting.popleft())  # rewound since
                continue
            if batch.start > at or batch.faults:
                break
            unseen = batch.records if batch.start == at else [r for r in batch.records if r.offset >= at]
            room = limit - len(records)
            if len(unseen) > room:
                records += unseen[:room]
                ends[topic] = unseen[room - 1].offset + 1
                break
            self._waiting.popleft()
            messages.append(message)
            records += unseen
            ends[topic] = max(at, batch.end)
        return messages, records, ends

    async def _process_alone(self, message: Any) -> None:
        batch, topic = message.value, message.topic
        if batch.start > self.expected[topic]:
            await self._find(message.tp)
            return
        unseen = [record for record in batch.records if record.offset >= self.expected[topic]]
        # One transaction for each run of good records and for each bad one: a run is computed on what is committed.
        for fault, run in groupby(unseen, key=lambda record: batch.faults.get(record.offset)):
            records = list(run)
            await self._process([], records, {topic: records[-1].offset + 1}, fault)
            if not self.open:
                return
        await self._process([message], [], {topic: batch.end})

    async def _find(self, tp: TP) -> None:
        """Batches between the expected position and this one were dropped, or retention has deleted them."""
        try:
            start = await self._consumer.earliest_offsets(tp)
        except KafkaError as exc:
            # Whatever is read next shows the same hole.
            log.warning("%s: where the log starts cannot be asked now: %r", tp, exc)
            return
        if not self.open:
            return
        if start[tp] > self.expected[tp.topic]:
            self._count_lost(tp, start[tp])
        self._metrics.rewound(tp.topic)
        log.info("%s: going back to %d", tp, self.expected[tp.topic])
        await self._consumer.rewind({tp: self.expected[tp.topic]})

    def _count_lost(self, tp: TP, start: int) -> None:
        lost = start - self.expected[tp.topic]
        log.error("%s: %d records were deleted by retention before they were read; going on at %d", tp, lost, start)
        self._metrics.lost(tp.topic, lost)
        self.expected[tp.topic] = start

    async def _process(self, messages: list[Any], records: list[Any], ends: dict[str, int], fault: str | None = None) -> None:
        """Compute and commit until it is committed or the partition is no longer ours."""
        if records and not await self._apply(records, ends, fault):
            return
        self.expected.update(ends)
        for message in messages:
            self._consumer.ack(message)

    async def _apply(self, records: list[Any], ends: dict[str, int], fault: str | None) -> bool:
        begun = self._loop.time()
        while self.open:
            effects = await self._in_turn(lambda: self._compute(records, fault))
            if effects is not None and await self._commit(effects, ends):
                self._measure(records, effects, begun, fault)
                return True
        return False

    async def _in_turn(self, compute: Callable[[], Effects]) -> Effects | None:
        """Compute when no other lane does; None when the lane was closed meanwhile."""
        self._queued = True
        async with self._turns:
            self._queued = False
            effects = compute() if self.open else None
            await asyncio.sleep(0)  # still its turn: of all lanes one computes, then everything else has a turn
        return effects

    def _compute(self, records: list[Any], fault: str | None) -> Effects:
        begun = perf_counter()  # the loop's clock may have whole milliseconds, and many a batch takes less
        effects = self._core.apply(records) if fault is None else self._core.undecodable(records, fault)
        self._record_s += ((perf_counter() - begun) / len(records) - self._record_s) / 2
        return effects

    def _measure(self, records: list[Any], effects: Effects, begun: float, fault: str | None) -> None:
        took_s = self._loop.time() - begun
        self._metrics.processed(self.partition, len(records), took_s)
        self._spans.committed(self.partition, records, effects, took_s)
        self.watermark_ms = max(self.watermark_ms, records[-1].timestamp)
        if fault is not None:
            self._metrics.undecodable(records[0].topic, len(records))
        if effects.findings:
            oldest_ms = min(record.timestamp for record in records)
            self._metrics.detected(len(effects.findings), max(0.0, time.time() - oldest_ms / 1000))

    async def _commit(self, effects: Effects, ends: Mapping[str, int]) -> bool:
        """Make the effects durable.

        Returns:
            Whether they are; if not, they must be computed again.
        """
        writes: dict[str, Mapping[bytes, bytes | None]] = {table: rows for table, rows in effects.writes.items() if rows}
        if ends:
            writes[PROGRESS] = {topic.encode(): encode_progress(end) for topic, end in ends.items()}
        outlets = self._outlets
        outgoing = {outlets.findings: effects.findings, outlets.dead_letters: effects.dead_letters}
        self._busy_since = self._loop.time()
        try:
            reached = await self._transactor.publish(
                {outlets.changelogs[table]: rows.items() for table, rows in writes.items()},
                {topic: records for topic, records in outgoing.items() if records},
            )
        except Aborted:
            await self._back_off()
            return False
        finally:
            self._busy_since = None
        self._failures = 0
        self._metrics.committed()
        # Still ours: whoever closes this lane waits for its task, and cancels it before the store is closed.
        self._store.write(writes, {table: reached[outlets.changelogs[table]] for table in writes})
        self._core.committed(effects)
        self._metrics.add(effects)
        return True

    async def _back_off(self) -> None:
        self._metrics.aborted()
        self._failures += 1
        delay = RETRY_S[min(self._failures, len(RETRY_S)) - 1]
        self._wake.clear()
        try:
            async with asyncio.timeout(delay):
                while self.open:
                    await self._wake.wait()
                    self._wake.clear()
        except TimeoutError:
            pass

    async def _tick(self) -> None:
        self._tick_at = self._loop.time() + self._settings.tick_s
        if self._consumer.silent_s() < SILENT_S:  # cut off from the brokers it would not know of another owner
            self._store.keep_young()
        await self._look_for_holes()
        if not self.open or any(self.expected[topic] < end for topic, end in self._ticks_from.items()):
            return
        effects = await self._in_turn(lambda: self._core.tick(time.time_ns() // 1_000_000))
        if effects is None:
            return
        moved = self._moved()
        if effects or moved:
            await self._commit(effects, moved)  # when aborted, the next tick computes it again
        else:
            self._core.committed(effects)
            self._metrics.add(effects)

    def _moved(self) -> dict[str, int]:
        """Where to go on, of the inputs whose rows do not say so: nothing but markers was read, or the log begins later.

        Without it what was lost would be counted again by the next owner, and a log that was accepted while it was empty
        would be read from the old one's position.
        """
        get = self._store.get
        return {topic: at for topic, at in self.expected.items() if get(PROGRESS, topic.encode()) != encode_progress(at)}

    async def _look_for_holes(self) -> None:
        """A batch dropped at the end of a log has no next one that would show the hole: the position shows it."""
        for topic in self.expected:
            tp = TP(topic, self.partition)
            reading = self._consumer.reading(tp)
            stuck = reading is not None and reading[0] > self.expected[topic] and not self._waiting
            # Twice in a row, because a batch is in flight for a moment between the consumer's thread and this one.
            if stuck and self._suspected.get(topic) == self.expected[topic]:
                await self._find(tp)
            self._suspected[topic] = self.expected[topic] if stuck else -1
