"""What one partition batch does: the seam between the pure middle and the Faust shell.

The shell hands a `Partition` the records of one partition number, in log order, and gets `Effects` back.
It puts them into one Kafka transaction, then into the local store, and only then calls `Partition.committed`.
Until that call a `Partition` changes nothing, so the same batch can be computed again after a failed transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from compaction_monitor.state.session import Round

SESSIONS = "sessions"
CHECKPOINTS = "checkpoints"
PROGRESS = "progress"
TABLES = (SESSIONS, CHECKPOINTS, PROGRESS)

Headers = Sequence[tuple[str, bytes | None]]


class Record(Protocol):
    """One consumed record (aiokafka's `ConsumerRecord` is one). `timestamp` is the append time in epoch ms."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class Outgoing(NamedTuple):
    """One record to produce, to the partition number of the batch that caused it."""

    key: bytes | None
    value: bytes | None
    headers: Headers


# The agent, the round, and the spans that the floor compares with: at session start, in a chain before the pass.
JudgedRound = tuple[str, Round, int | None]


class Standing(NamedTuple):
    """How things are in a partition: counts as in `Effects.counts`, and whether everything in it has been counted."""

    counts: Mapping[tuple[str, ...], int]
    complete: bool


class Reader(Protocol):
    """The committed rows of this partition: what `Partition` reads, never writes."""

    def get(self, table: str, key: bytes) -> bytes | None: ...
    def scan(self, table: str, after: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
        """At most `limit` rows with a key greater than `after`, in key order (`b""` starts at the first)."""
        ...


@dataclass(slots=True)
class Effects:
    """Everything one batch or tick leads to. `writes[table][key] is None` deletes the row (a tombstone).

    The last three are for the metrics: what was counted, the rounds that were judged, and for what led to findings a
    session in which it did.
    """

    writes: dict[str, dict[bytes, bytes | None]] = field(default_factory=lambda: {SESSIONS: {}, CHECKPOINTS: {}})
    findings: list[Outgoing] = field(default_factory=list)
    dead_letters: list[Outgoing] = field(default_factory=list)
    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    rounds: list[JudgedRound] = field(default_factory=list)
    examples: dict[tuple[str, ...], str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.findings or self.dead_letters or any(self.writes.values()))


class Partition(Protocol):
    """The pure middle's view of one owned partition number; built at each assignment, after recovery."""

    def apply(self, records: Sequence[Record]) -> Effects:
        """Compute what these records (not seen before, in log order) lead to. Never raises on bad input."""
        ...

    def undecodable(self, records: Sequence[Record], detail: str) -> Effects:
        """Dead-letter records that the client library could not even read (`undecodable_record`)."""
        ...

    def tick(self, now_ms: int) -> Effects:
        """An empty batch with the time: order deadlines and the sweep for expired sessions."""
        ...

    def committed(self, effects: Effects) -> None:
        """The transaction that carried these effects is durable and the local store has them."""
        ...

    @property
    def standing(self) -> Standing:
        """How the sessions stand after what was committed."""
        ...


class Core(Protocol):
    """Makes the `Partition` of a number; the shell has one `Core`."""

    def open(self, partition: int, rows: Reader) -> Partition: ...


def pairs(writes: dict[str, dict[bytes, bytes | None]]) -> Iterator[tuple[str, bytes, bytes | None]]:
    """The writes as (table, key, value), table by table in a fixed order."""
    for table in TABLES:
        for key, value in writes.get(table, {}).items():
            yield table, key, value
