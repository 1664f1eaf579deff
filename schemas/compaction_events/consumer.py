"""Findings as they are published: committed ones, each once, from where the last run stopped.

```python
for finding in FindingsConsumer("localhost:9092", group_id="pager"):   # or: async with … as findings: async for …
    page(finding.message)
```
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, cast

from compaction_events.background import Background
from compaction_events.bounded import Bounded
from compaction_events.codec import decode
from compaction_events.errors import ContractError, Fault, Reason
from compaction_events.findings import FINDING_TYPES, Finding
from compaction_events.security import Security, let_in, secured, why_denied

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer, TopicPartition

log = logging.getLogger(__name__)

MISSING = "reading from Kafka needs the extra: pip install 'compaction-monitor[emitter]'"
MAX_RECORDS = 200
POLL_MS = 500
# Read again before the committed position, to know what was published shortly before a restart.
LOOK_BACK = 500


class ConsumerStats(NamedTuple):
    """What was read: findings handed out, repeats dropped, records that hold no finding."""

    received: int
    repeats: int
    undecodable: int


class Place(NamedTuple):
    """Where in the log a finding is, and when it was written there (milliseconds since 1970)."""

    partition: int
    offset: int
    written_ms: int


class _Buffered(NamedTuple):
    partition: TopicPartition
    offset: int
    written_ms: int
    ce_id: str
    traceparent: bytes | None
    finding: Finding


class FindingsConsumer:
    """Findings, one after the other, as an iterator or an asynchronous one; it never ends by itself.

    A finding counts as handled when the next one is asked for, when an `async with` ends without an exception, or when
    `handled` is called; what was handled is committed. So a run that dies in the middle of one gets that one again.
    Repeats are known by their `ce_id`, across restarts too where they are near.

    Args:
        servers: `HOST:PORT`, several with commas between.
        group_id: Several runs with one id share the partitions, and a later run goes on where the last one stopped.
            Without one, every run reads everything from `start`.
        topic: Where findings are published.
        start: Where to begin without a committed position: `latest`, `earliest`, or the next offset by partition.
        remember: How many `ce_id`s are kept.
        commit_every_s: How often at most what was handled is committed.
        keep_from: With a group, for one that keeps what it read in memory alone: says for a partition from which offset on
            a later run must read again; None: only what was not handled. Asked at each commit.
        on_revoked: With a group: called when another member goes on with the partitions.
        security: What is shown to the broker.
        kafka: Arguments of `aiokafka.AIOKafkaConsumer`: time-outs, `group_instance_id`.

    Raises:
        ImportError: The extra `[emitter]` is not installed.
    """

    def __init__(
        self,
        servers: str,
        *,
        group_id: str | None = None,
        topic: str = "compaction.findings",
        start: Literal["latest", "earliest"] | Mapping[int, int] = "latest",
        remember: int = 10_000,
        commit_every_s: float = 1.0,
        keep_from: Callable[[int], int | None] | None = None,
        on_revoked: Callable[[], None] | None = None,
        security: Security | None = None,
        **kafka: Any,
    ) -> None:
        try:
            import aiokafka
        except ImportError as error:
            raise ImportError(MISSING) from error
        self._kafka = aiokafka
        self._topic = topic
        self._group_id = group_id
        self._start_at = start
        self._commit_every_s = commit_every_s
        self._keep_from, self._on_revoked = keep_from, on_revoked
        self._options = {
            "bootstrap_servers": servers,
            "group_id": group_id,
            "isolation_level": "read_committed",
            "enable_auto_commit": False,
            "auto_offset_reset": start if isinstance(start, str) else "earliest",
            **secured(kafka, security),
        }
        self._seen: Bounded[str, None] = Bounded(remember)
        self._buffer: deque[_Buffered] = deque()
        self._next: dict[TopicPartition, int] = {}  # after the last record read
        self._known_before: dict[TopicPartition, int] = {}  # below: handled by an earlier run
        self._handled: dict[TopicPartition, int] = {}
        self._behind: dict[TopicPartition, int] | None = None  # up to there: what was there when the partitions were taken
        self._not_taken: Exception | None = None  # why the partitions could not be looked at when they were taken
        self._uncommitted = False
        self._current: _Buffered | None = None
        self._place: Place | None = None
        self._committed_at = 0.0
        self._received = self._repeats = self._undecodable = 0

    @property
    def stats(self) -> ConsumerStats:
        return ConsumerStats(self._received, self._repeats, self._undecodable)

    @property
    def positions(self) -> dict[int, int]:
        """By partition the offset after the last finding handled: a `start` for a later run without group."""
        return {tp.partition: offset for tp, offset in self._handled.items()}

    @property
    def place(self) -> Place | None:
        """Where the finding is that was handed out last."""
        return self._place

    @property
    def traceparent(self) -> bytes | None:
        """The trace context of the finding that was handed out last."""
        return None if self._current is None else self._current.traceparent

    @property
    def caught_up(self) -> bool:
        """With a group: all was handed out that was there when this member got its partitions; False without any yet."""
        return self._behind is not None and not self._behind

    @property
    def ahead(self) -> Iterator[Finding]:
        """Findings that were read and not yet handed out."""
        return (waiting.finding for waiting in self._buffer)

    async def start(self) -> None:
        """Connect and take the partitions.

        Raises:
            AccessError: The broker does not let us in.
            KafkaError: No broker answers.
        """
        self._consumer: AIOKafkaConsumer = self._kafka.AIOKafkaConsumer(**self._options)
        try:
            if self._group_id is None:
                self._consumer.subscribe([self._topic])
                async with let_in(self._options):
                    await self._consumer.start()
                await self._take_all()
            else:
                self._consumer.subscribe([self._topic], listener=_listener(self._kafka, self))
                async with let_in(self._options):
                    await self._consumer.start()
        except BaseException:
            await self._consumer.stop()
            raise

    async def stop(self) -> None:
        """Commit what was handled and leave."""
        await self._commit()
        await self._consumer.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.handled()
        await self.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Finding:
        self.handled()
        while not self._buffer:
            await self._commit()
            if self._not_taken is not None:
                raise self._not_taken
            await self._see_ends()
            await self._read()
        if time.monotonic() - self._committed_at > self._commit_every_s:
            await self._commit()
        # A rebalance during the commit may have taken what was there.
        if not self._buffer:
            return await self.__anext__()
        self._current = self._buffer.popleft()
        self._place = Place(self._current.partition.partition, self._current.offset, self._current.written_ms)
        self._received += 1
        return self._current.finding

    def __iter__(self) -> Iterator[Finding]:
        # The loop goes on while a finding is worked on, however long, so that a group keeps this member.
        with Background("findings-consumer") as loop:
            loop.run(self.start())
            try:
                while True:
                    yield loop.run(self.__anext__())
            finally:
                loop.run(self.stop())

    def handled(self) -> None:
        """The last finding is dealt with: for one who leaves a bare `for`, where nobody can tell a `break` from a crash."""
        if self._current is not None:
            self._handled[self._current.partition] = self._current.offset + 1
            self._uncommitted = True
            self._current = None

    async def _take_all(self) -> None:
        """Without a group: every partition, from `start`."""
        for tp in self._consumer.assignment():
            if isinstance(self._start_at, Mapping):
                if tp.partition in self._start_at:
                    self._consumer.seek(tp, self._start_at[tp.partition])
            # A position that was asked for is taken now: what is published from now on is read.
            self._next[tp] = await self._consumer.position(tp)

    async def assigned(self, partitions: set[TopicPartition]) -> None:
        """With a group: from the committed position, and a little before it for what must be known."""
        self._not_taken = None
        # The reader is at work meanwhile: from the committed position on it would take for new what was handled before.
        self._consumer.pause(*partitions)
        try:
            await self._look_back(partitions)
        except Exception as error:  # noqa: BLE001 - the client would only log it: the next read raises it instead
            self._not_taken = why_denied(error) or error
        finally:
            self._consumer.resume(*partitions)

    async def _look_back(self, partitions: set[TopicPartition]) -> None:
        first = await self._consumer.beginning_offsets(partitions) if partitions else {}
        behind = dict(await self._consumer.end_offsets(partitions)) if partitions else {}
        for tp in partitions:
            committed = await self._consumer.committed(tp)
            if committed is not None:
                # A log that lost its end is shorter than what was handled; what is written there now is new.
                self._known_before[tp] = min(committed, behind[tp])
                self._consumer.seek(tp, max(first[tp], self._known_before[tp] - LOOK_BACK))
        self._behind = behind

    async def revoked(self) -> None:
        """Another member will go on: tell where."""
        await self._commit()
        for waiting in self._buffer:  # not handed out: should they come back to us, they are no repeats
            self._seen.pop(waiting.ce_id, None)
        self._current = None
        if self._keep_from is not None:  # what was handed out comes again with its partition
            self._seen.clear()
        for state in (self._buffer, self._next, self._known_before, self._handled):
            state.clear()
        self._behind = None
        if self._on_revoked is not None:
            self._on_revoked()

    async def _see_ends(self) -> None:
        """With nothing left to hand out: which partitions are read up to where they ended when they were taken."""
        from aiokafka.errors import IllegalStateError

        behind = self._behind
        for tp, end in list((behind or {}).items()):
            with suppress(IllegalStateError):  # another member has it by now
                # The position, not the last record: markers of transactions come after it.
                if behind is not None and await self._consumer.position(tp) >= end:
                    del behind[tp]

    async def _read(self) -> None:
        from aiokafka.errors import ConsumerStoppedError, CorruptRecordException, KafkaError

        try:
            batches = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_RECORDS)
        except CorruptRecordException:
            await self._step_over()
        except (KafkaError, ConsumerStoppedError) as error:
            if denied := why_denied(error):
                raise denied from error
            raise
        except Exception as error:  # noqa: BLE001 - the client's reader raises whatever the bytes provoke
            log.warning("a record could not be read: %s", type(error).__name__)
            await self._step_over()
        else:
            for tp, records in batches.items():
                for record in records:
                    self._take(tp, record)

    def _take(self, tp: TopicPartition, record: Any) -> None:
        self._next[tp] = record.offset + 1
        known = record.offset < self._known_before.get(tp, 0)
        try:
            event, ce_id, traceparent = decode(record.value, record.headers, record.key)
            if not isinstance(event, FINDING_TYPES):
                raise ContractError(Reason.wrong_topic, [Fault("type", event.type, "a finding")])
        except ContractError as error:
            self._undecodable += not known
            log.warning("partition %d, offset %d holds no finding: %s", tp.partition, record.offset, error.reason)
            return
        repeated = ce_id in self._seen
        self._seen[ce_id] = None
        if known:
            return
        self._repeats += repeated
        if not repeated:
            self._buffer.append(_Buffered(tp, record.offset, record.timestamp, ce_id, traceparent, cast("Finding", event)))

    async def _step_over(self) -> None:
        """Read each partition record by record, up to the one that cannot be read, and go on after that.

        What the failed read had of others is lost with it, and read again here.
        """
        from aiokafka.errors import ConsumerStoppedError

        for tp in self._consumer.assignment():
            at = self._next.get(tp)
            self._consumer.seek(tp, await self._consumer.position(tp) if at is None else at)
            try:
                for _ in range(MAX_RECORDS):
                    records = (await self._consumer.getmany(tp, timeout_ms=POLL_MS, max_records=1)).get(tp)
                    if not records:
                        break
                    self._take(tp, records[0])
            except ConsumerStoppedError:
                raise
            except Exception:  # noqa: BLE001 - as above
                self._undecodable += 1
                self._next[tp] = await self._consumer.position(tp) + 1
                self._consumer.seek(tp, self._next[tp])

    async def _commit(self) -> None:
        from aiokafka.errors import KafkaError

        self._committed_at = time.monotonic()
        if self._group_id is not None and self._uncommitted:
            # A member that was put out meanwhile cannot commit; the finding comes again, and that is allowed.
            with suppress(KafkaError):
                await self._consumer.commit({tp: self._again_from(tp, after) for tp, after in self._handled.items()})
                self._uncommitted = False

    def _again_from(self, tp: TopicPartition, after: int) -> int:
        first = None if self._keep_from is None else self._keep_from(tp.partition)
        return after if first is None else min(first, after)


def _listener(aiokafka: Any, consumer: FindingsConsumer) -> Any:
    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # its base is known only with the extra
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            await consumer.revoked()

        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            await consumer.assigned(assigned)

    return Listener()
