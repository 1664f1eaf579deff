"""The monitor without a broker: rows in memory, facts in, findings out. For tests of the checks, ours and yours.

The same core as in the worker, partitions, tables and ids included; only Kafka is missing, so time is what the facts
say, and ticks come when they are asked for.

>>> from compaction_events.builders import completed, started
>>> monitor = Offline()
>>> _ = monitor.feed([started(source_spans=100)])
>>> [found.finding.type for found in monitor.feed([completed(1, distinct_source_spans=9, summary_depth_max=2)])]
['alert.raised', 'remediation.requested']
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import NamedTuple, cast

from compaction_events import topics
from compaction_events.builders import EPOCH
from compaction_events.codec import decode, encode
from compaction_events.facts import Fact, RemediationAcknowledged
from compaction_events.findings import Finding
from compaction_monitor.core import MonitorCore, MonitorPartition
from compaction_monitor.effects import CHECKPOINTS, SESSIONS, Effects, Headers, Outgoing, Record, pairs
from compaction_monitor.partitioner import partition_of
from compaction_monitor.rules import Rules
from compaction_monitor.state.cache import row_key
from compaction_monitor.state.session import Session, microseconds

EVENTS = topics.EVENTS.name
OUTCOMES = topics.OUTCOMES.name


class Rows:
    """The committed rows of one partition, in memory (a `Reader`)."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {SESSIONS: {}, CHECKPOINTS: {}}

    def get(self, table: str, key: bytes) -> bytes | None:
        """One row."""
        return self.tables[table].get(key)

    def scan(self, table: str, after: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
        """Rows in key order, from the first key greater than `after`."""
        rows = self.tables[table]
        keys = sorted(rows)
        start = bisect_right(keys, after)
        return [(key, rows[key]) for key in keys[start : start + limit]]

    def write(self, effects: Effects) -> None:
        """What the store does with one batch."""
        for table, key, value in pairs(effects.writes):
            if value is None:
                self.tables[table].pop(key, None)
            else:
                self.tables[table][key] = value


class LogRecord(NamedTuple):
    """A record as a consumer would hand it over (a `Record`)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Published(NamedTuple):
    """One publication of a finding, and the `ce_id` by which consumers know a repeat of it."""

    finding: Finding
    ce_id: str


class Offline:
    """A whole monitor, all its partitions, in memory.

    Args:
        rules: The operator's settings.
        partitions: Of every topic.
        since: When the log begins: the append time of what has no time of its own, until something has.

    Attributes:
        published: Every finding so far, in order.
        dead_letters: Every record that was refused.
        counts: What the metrics would show.
    """

    def __init__(self, rules: Rules | None = None, partitions: int = 1, since: datetime = EPOCH) -> None:
        self.rows = [Rows() for _ in range(partitions)]
        self.published: list[Published] = []
        self.dead_letters: list[Outgoing] = []
        self.counts: Counter[tuple[str, ...]] = Counter()
        self._core = MonitorCore(rules or Rules(), partitions, OUTCOMES)
        self._open: dict[int, MonitorPartition] = {}
        self._offset = 0
        self._appended_ms = milliseconds(since)

    def records(self, facts: Iterable[Fact]) -> Iterator[LogRecord]:
        """Facts as they would stand in the log: keyed and placed as a producer does, appended when they say they were."""
        for fact in facts:
            encoded = encode(fact)
            if (at := fact.occurred_at) is not None:
                self._appended_ms = max(self._appended_ms, milliseconds(at))
            topic = OUTCOMES if isinstance(fact, RemediationAcknowledged) else EVENTS
            partition = partition_of(encoded.key, len(self.rows))
            yield LogRecord(topic, partition, self._offset, self._appended_ms, *encoded)
            self._offset += 1

    def feed(self, facts: Iterable[Fact], batch: int = 1) -> list[Published]:
        """Fold facts in order, so many at once; return what was published for them."""
        return self.feed_records(self.records(facts), batch)

    def feed_records(self, records: Iterable[Record], batch: int = 1) -> list[Published]:
        """Fold records in order, so many at once (of all partitions together); return what was published for them."""
        found: list[Published] = []
        left = iter(records)
        while together := list(islice(left, batch)):
            for number in sorted({record.partition for record in together}):
                partition = self._partition(number)
                found += self._commit(number, partition.apply([r for r in together if r.partition == number]))
        return found

    def tick(self, now: datetime) -> list[Published]:
        """The wall clock strikes in every partition: order deadlines, expiry."""
        found: list[Published] = []
        for number in range(len(self.rows)):
            found += self._commit(number, self._partition(number).tick(milliseconds(now)))
        return found

    def restart(self) -> None:
        """As if the worker was killed: only the rows are left."""
        self._open.clear()

    def session(self, session_id: str) -> Session | None:
        """What is remembered of a session."""
        key = row_key(session_id)
        row = self.rows[partition_of(session_id.encode(), len(self.rows))].get(SESSIONS, key)
        return None if row is None else Session.from_bytes(row)

    def _partition(self, number: int) -> MonitorPartition:
        if number not in self._open:
            self._open[number] = self._core.open(number, self.rows[number])
        return self._open[number]

    def _commit(self, number: int, effects: Effects) -> list[Published]:
        self.rows[number].write(effects)
        self._open[number].committed(effects)
        self.dead_letters += effects.dead_letters
        self.counts.update(effects.counts)
        found = [_published(outgoing) for outgoing in effects.findings]
        self.published += found
        return found


def milliseconds(at: datetime) -> int:
    """A time as epoch milliseconds, the unit of append times."""
    return microseconds(at) // 1_000


def _published(outgoing: Outgoing) -> Published:
    event, ce_id, _ = decode(outgoing.value, outgoing.headers, outgoing.key)
    return Published(cast(Finding, event), ce_id)
