"""What is remembered of a session, bounded, and its form in the table.

A `Session` is a value: `fold` copies it once per fact and replaces what it holds, never changes it in place.
In the table it is a versioned positional JSON array, `[version, due_ms, silent_since_ms, …]`. An older version is
upgraded on read, a newer one stops the worker, because writing it back would lose what this code does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, Self

import orjson

STATE_VERSION = 1
NEVER_MS = 2**53
MAX_OPEN_FINDINGS = 64
MAX_STATE_BYTES = 128 * 1024
UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StateError(RuntimeError):
    """Committed rows cannot be used. No record is to blame: the worker ends before it makes more of them."""


class NewerStateError(StateError):
    """The table holds a state that a newer version wrote; this one must not touch it."""


class CorruptStateError(StateError):
    """A row is not what any version writes."""


# What reading a broken row runs into.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def microseconds(at: datetime) -> int:
    """An aware time as microseconds since 1970, exactly."""
    since = at - UNIX_EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def moment(at_us: int) -> datetime:
    """The inverse of `microseconds`."""
    return UNIX_EPOCH + timedelta(microseconds=at_us)


class Round(NamedTuple):
    """One known round, after the pass. `full_ratio`: tokens left per token of budget, where the budget is known."""

    number: int
    at_us: int
    compaction: bool
    manual: bool
    measured: bool
    raw_tokens: int
    summary_tokens: int
    spans: int | None
    cosine: float | None
    depth: int | None
    full_ratio: float | None

    @property
    def raw_ratio(self) -> float:
        """Raw tokens per retained token; 0 for an empty set, as in the reference."""
        total = self.raw_tokens + self.summary_tokens
        return self.raw_tokens / total if total else 0.0


class OpenAlert(NamedTuple):
    """An alert that fires. `subjects` are those published, at most 20."""

    check: str
    id: str
    severity: str
    subjects: tuple[str, ...]
    started_at_us: int
    attempt: int
    remediation_id: str | None
    basis: str


class OpenOrder(NamedTuple):
    """An order that has not ended, or whose effect is still watched.

    Attributes:
        status: `waiting` (held back), `sent`, `deferred`, `accepted`, or `completed` (watched until its alert ends).
        alert_id: The alert it answers.
        attempt: How often it was published; 0 while it waits.
        requested_at_us: Event time of its first publication.
        base_ms: Append time of the record that opened it: what ticks count from.
        due_ms: When the next tick has something to do with it.
        valid_through_round: None where rounds do not bound it.
        done_round: Compaction rounds known when `completed` was said.
        expands: Summaries its plan expands.
        payload: The order as published, kept only while it can be sent again.
        exempt: Neither cool-down nor breaker hold it back; `at_once`: the breaker only.
    """

    id: str
    action: str
    check: str
    alert_id: str
    subject: str
    status: str
    attempt: int
    requested_at_us: int
    base_ms: int
    due_ms: int
    valid_through_round: int | None
    done_round: int | None
    expands: tuple[str, ...]
    payload: str
    exempt: bool = False
    at_once: bool = False


@dataclass(slots=True)
class Session:
    """One session. Times in microseconds of event time; `appended_ms` is the append time of its last record.

    Attributes:
        complete: Its start was seen.
        window: The last rounds of this life, oldest first, at most `WINDOW_ROUNDS`.
        compactions: Compaction rounds known, over all lives: the clock of cool-down and relapse.
        gap: The last round did not follow the one before.
        below_half: raw_ratio has been below the risk threshold since it was last above its end.
        pinned: Consecutive rounds at the deepest level; `deepest`: the deepest level seen.
        failed: Summaries that failed in a row.
        commits: Checkpoints committed; `has_tree`: something of it is in the checkpoints table.
        clock_us: The latest event time of a round or an end; `active_us`: of any other fact, a repeated start apart.
        answered: A controller answered at least once.
        relapse_from: `compactions` when an inversion last resolved.
        cooling: (check, `compactions` at its last order).
        ordered_us: Event times of orders that count against the breaker.
    """

    agent: str
    agent_version: str | None = None
    started_at_us: int | None = None
    topology: str | None = None
    max_depth: int | None = None
    token_budget: int | None = None
    source_spans: int | None = None
    scorer: str | None = None
    depth_penalty: float | None = None
    recency_decay: float | None = None
    eviction: str | None = None
    controller: str | None = None
    complete: bool = False
    window: tuple[Round, ...] = ()
    compactions: int = 0
    gap: bool = False
    below_half: bool = False
    pinned: int = 0
    deepest: int = 0
    failed: int = 0
    commits: int = 0
    has_tree: bool = False
    clock_us: int = 0
    active_us: int = 0
    ended_at_us: int | None = None
    ended: bool = False
    appended_ms: int = 0
    answered: bool = False
    relapse_from: int | None = None
    alerts: tuple[OpenAlert, ...] = ()
    orders: tuple[OpenOrder, ...] = ()
    cooling: tuple[tuple[str, int], ...] = ()
    ordered_us: tuple[int, ...] = ()

    def copy(self) -> Self:
        """A copy that can be changed: everything held is immutable, so one level is enough."""
        return type(self)(*_values(self))

    @property
    def expects_answers(self) -> bool:
        """Somebody answers orders here: the session said so, or it has happened."""
        return self.controller == "expected" or self.answered

    @property
    def last_us(self) -> int:
        """The latest thing known to have happened, its start included; 0 if nothing has a time."""
        return max(self.clock_us, self.active_us)

    @property
    def silent_since_ms(self) -> int:
        """The later of its own last time and the append time of its last record, epoch ms."""
        return max(self.last_us // 1_000, self.appended_ms)

    @property
    def due_ms(self) -> int:
        """When a tick has something to do with its orders, epoch ms; `NEVER_MS` if never."""
        return min([order.due_ms for order in self.orders], default=NEVER_MS) if self.orders else NEVER_MS

    def alert(self, check: str) -> OpenAlert | None:
        """The open alert of a check."""
        return next((alert for alert in self.alerts if alert.check == check), None)

    def to_bytes(self) -> bytes:
        """The row in the table."""
        # A named tuple is no tuple to orjson: those held in sequences become plain ones.
        return orjson.dumps([STATE_VERSION, self.due_ms, self.silent_since_ms, *_values(self)], default=tuple)

    @classmethod
    def from_bytes(cls, row: bytes) -> Self:
        """Read a row of this or an older version.

        Raises:
            NewerStateError: the row is of a newer version.
            CorruptStateError: it is none that was ever written, as far as its shape tells; types are for `unsound`.
        """
        try:
            values = _versioned(row)
            if len(values) != _COLUMNS:
                raise ValueError(f"{len(values)} columns, not {_COLUMNS}")
            new = cls(*values[3:])
            new.window = tuple(map(_round, new.window))
            new.alerts = tuple(OpenAlert(*_plain(entry)) for entry in new.alerts)
            new.orders = tuple(OpenOrder(*_plain(entry)) for entry in new.orders)
            new.cooling = tuple((check, count) for check, count in new.cooling)
            new.ordered_us = tuple(new.ordered_us)
        except UNREADABLE as error:
            raise CorruptStateError(f"a session's state cannot be read: {error!r}") from error
        return new


def peek(row: bytes) -> tuple[int, int]:
    """`due_ms` and `silent_since_ms` of a row, for the sweep, without reading the rest."""
    try:
        version, due_ms, silent_since_ms, _ = row.split(b",", 3)
        _check_version(int(version[1:]))
        return int(due_ms), int(silent_since_ms)
    except UNREADABLE as error:
        raise CorruptStateError(f"a session's state cannot be read: {error!r}") from error


def standing_fields(row: bytes) -> tuple[str, list[Any], bool, list[Any]]:
    """`agent`, `window`, `ended` and `alerts` of a row, their entries as lists; without making a session of it."""
    try:
        found: tuple[str, list[Any], bool, list[Any]] = _standing(_versioned(row))
    except UNREADABLE as error:
        raise CorruptStateError(f"a session's state cannot be read: {error!r}") from error
    return found


def _versioned(row: bytes) -> list[Any]:
    found: list[Any] = orjson.loads(row)
    _check_version(found[0])
    return found


def _check_version(version: int) -> None:
    if version > STATE_VERSION:
        raise NewerStateError(f"a session's state has version {version}, this code knows {STATE_VERSION}")
    if version < 1:
        raise ValueError("no version")


# What `Round._make` does, without a call into Python for each.
_round = partial(tuple.__new__, Round)
_NAMES = [field.name for field in fields(Session)]
_COLUMNS = 3 + len(_NAMES)
_values = attrgetter(*_NAMES)
_standing = itemgetter(*(3 + _NAMES.index(name) for name in ("agent", "window", "ended", "alerts")))


def _plain(entry: Iterable[Any]) -> Iterator[Any]:
    return (tuple(value) if isinstance(value, list) else value for value in entry)
