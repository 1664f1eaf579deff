"""What is remembered of a session's checkpoints, as rows: one a node, one for the tracked propositions, one for the rest.

A node keeps sets of propositions as bit masks over the tracked list, so that a node with a thousand retained
propositions and three trials is a row of two kilobytes. The tracked list is a row of its own because it is long and
seldom changes, while the rest changes with every new node.
Rows are versioned positional arrays, and bounded whatever is sent: ids that are longer than their place are kept as
`#` and their hash. None exceeds 128 KiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import orjson

from compaction_events.ids import text_hash
from compaction_monitor.state.retention import Before, effective_entropy_bits, exact
from compaction_monitor.state.session import UNREADABLE, CorruptStateError, NewerStateError

TREE_VERSION: Final = 1
MAX_TRACKED: Final = 1_000
MAX_UNSTATED: Final = 500  # of these: what is only retained must not take the room of what was stated
MAX_ID_BYTES: Final = 40  # of a proposition or a span: they are hashes or UUIDs
MAX_NODE_BYTES: Final = 128
MAX_CHILDREN: Final = 512
_SURELY_EQUAL: Final = 1e-9


def kept_id(name: str, limit: int = MAX_ID_BYTES) -> str:
    """An id as it is kept: itself, or `#` and its hash if it takes more than `limit` bytes of JSON.

    >>> kept_id("p1"), kept_id("x" * 41)
    ('p1', '#3164596df4fdd018')
    """
    if len(name) <= limit and len(orjson.dumps(name)) <= limit + 2:
        return name
    return f"#{text_hash(name)}"


def node_name(node_id: str) -> str:
    """A node's id as it is kept."""
    return kept_id(node_id, MAX_NODE_BYTES)


class Tracked(NamedTuple):
    """A proposition that must not get lost; its place in the list is its bit. Not `stated`: only retained so far."""

    proposition: str
    turn: int
    span_id: str
    pinned: bool
    stated: bool


class TrackedSet:
    """The tracked propositions of a session, in the order in which they were first seen; never changed in place."""

    __slots__ = ("entries", "places", "unstated")

    def __init__(self, entries: Iterable[Tracked] = ()) -> None:
        self.entries: Final = tuple(entries)
        self.places: Final[Mapping[str, int]] = {entry.proposition: place for place, entry in enumerate(self.entries)}
        self.unstated: Final = sum(not entry.stated for entry in self.entries)

    def place(self, proposition: str) -> int | None:
        """The bit of a proposition, None if it is not tracked."""
        found = self.places.get(proposition)
        if found is None and len(proposition) * 6 > MAX_ID_BYTES:  # at most six bytes of JSON a character
            found = self.places.get(kept_id(proposition))
        return found

    def mask(self, propositions: Iterable[str]) -> int:
        """Those of the propositions that are tracked, as a bit mask."""
        mask, places = 0, self.places
        for proposition in propositions:
            place = places.get(proposition)
            if place is None:
                place = self.place(proposition)
            if place is not None:
                mask |= 1 << place
        return mask

    def names(self, mask: int) -> Iterator[str]:
        """The propositions of a mask, in the order in which they were first seen."""
        return (entry.proposition for place, entry in enumerate(self.entries) if mask >> place & 1)

    def to_bytes(self) -> bytes:
        """The row in the table."""
        return orjson.dumps([TREE_VERSION, self.entries], default=tuple)

    @classmethod
    def from_bytes(cls, row: bytes) -> Self:
        """Read a row of this or an older version; a `StateError` for a newer or a broken one."""
        try:
            _, entries = _versioned(row)
            return cls(Tracked(*entry) for entry in entries)
        except UNREADABLE as error:
            raise CorruptStateError(f"tracked propositions cannot be read: {error!r}") from error


NOTHING_TRACKED: Final = TrackedSet()


class Room(NamedTuple):
    """What a node must hold and what it lacks, in bits; None where that is not known.

    Attributes:
        entropy_bits: Effective entropy of its children.
        deficit_bits: What of it the budget cannot hold, 0 if it can.
    """

    entropy_bits: float | None
    deficit_bits: float | None

    @classmethod
    def of(cls, joint: float | None, redundancy: float | None, budget_tokens: int | None, bits_per_token: float | None) -> Self:
        """Exact where it decides: a need that equals its budget in decimals has no deficit.

        >>> Room.of(1000.0, 0.7, 300, 1.0).deficit_bits, Room.of(1000.0, 0.75, 249, 1.0).deficit_bits
        (0.0, 1.0)
        """
        if joint is None or redundancy is None:
            return cls(None, None)
        need = joint * (1.0 - redundancy)
        have = None if budget_tokens is None or bits_per_token is None else budget_tokens * bits_per_token
        if have is not None and abs(have - need) > _SURELY_EQUAL * (joint + have):
            return cls(need, max(0.0, need - have))
        entropy = effective_entropy_bits(joint, redundancy)
        assert entropy is not None
        if budget_tokens is None or bits_per_token is None:
            return cls(need, None)
        lack = max(entropy - budget_tokens * exact(bits_per_token), exact(0))
        return cls(float(entropy), float(lack))


class TrialSeen(NamedTuple):
    """A trial regeneration that was reported: what it retained, and whether it was measured."""

    number: int
    retained: int
    measured: bool


class Node(NamedTuple):
    """A checkpoint as last committed, and what is under way about it. Sets are bit masks; times µs since 1970.

    Attributes:
        children: (node, version read or None).
        trials: Reported since the last commit and not judged to the end yet.
        trialled_at_us: The latest time of a trial; `judged_at_us`: of one that was judged to the end, or of an older
            version. What is reported from before then is a repeat.
        judged: Its trials came to a verdict since it was committed.
        missed_at_us: The latest time something was missed here; `missed_then`: what.
        unrecovered: Committed regenerations without recovery since the last rebalance.
        flipped: Propositions that changed membership in those; `flipped_back`: twice.
        orders: Orders given about this node; `trials_spent`: summariser calls for trials.
    """

    level: int
    version: int
    at_us: int
    parent_id: str | None = None
    children: tuple[tuple[str, int | None], ...] = ()
    retained: int = 0
    from_raw: bool = False
    measured: bool = True
    budget_tokens: int | None = None
    joint_bits: float | None = None
    redundancy: float | None = None
    bits_per_token: float | None = None
    room: Room = Room(None, None)
    turns: tuple[int, int] | None = None
    trials: tuple[TrialSeen, ...] = ()
    trialled_at_us: int = 0
    judged_at_us: int = 0
    judged: bool = False
    missed_at_us: int = 0
    missed_then: int = 0
    unrecovered: int = 0
    flipped: int = 0
    flipped_back: int = 0
    orders: int = 0
    trials_spent: int = 0

    def before(self, retained: frozenset[str]) -> Before:
        """This node as the verdicts see it."""
        return Before(
            retained=retained,
            budget_tokens=self.budget_tokens,
            child_joint_entropy_bits=self.joint_bits,
            child_redundancy=self.redundancy,
            bits_per_token=self.bits_per_token,
            from_raw=self.from_raw,
            inferred=not self.measured,
        )

    def to_bytes(self) -> bytes:
        """The row in the table: masks are hexadecimal, JSON has no large integers."""
        values: list[Any] = list(self)
        for at in _MASKS:
            values[at] = f"{values[at]:x}"
        values[_ROOM] = list(self.room)
        values[_TRIALS] = [(number, f"{retained:x}", measured) for number, retained, measured in self.trials]
        return orjson.dumps([TREE_VERSION, *values])

    @classmethod
    def from_bytes(cls, row: bytes) -> Self:
        """Read a row of this or an older version; a `StateError` for a newer or a broken one."""
        try:
            _, *values = _versioned(row)
            for at in _MASKS:
                values[at] = int(values[at], 16)
            values[_CHILDREN] = tuple([(child, version) for child, version in values[_CHILDREN]])
            values[_ROOM] = Room(*values[_ROOM])
            values[_TURNS] = None if values[_TURNS] is None else tuple(values[_TURNS])
            values[_TRIALS] = tuple([TrialSeen(number, int(mask, 16), measured) for number, mask, measured in values[_TRIALS]])
            if len(values) != len(cls._fields):
                raise ValueError(f"{len(values)} columns, not {len(cls._fields)}")
            return cls(*values)
        except UNREADABLE as error:
            raise CorruptStateError(f"a checkpoint's state cannot be read: {error!r}") from error


_MASKS: Final = tuple(map(Node._fields.index, ("retained", "missed_then", "flipped", "flipped_back")))
_CHILDREN, _ROOM, _TURNS, _TRIALS = map(Node._fields.index, ("children", "room", "turns", "trials"))


class Ledger(NamedTuple):
    """What a session tracks, and what is known of its tree as a whole.

    Attributes:
        tracked: Kept in a row of its own.
        nodes: How many there are; `forgotten`: how many were dropped for room, none of them later than `horizon_us`.
        dropped: A proposition was not tracked for want of room.
        root: The latest node of the highest level seen, `root_level`.
        missing: Of propositions whose loss is open, the node where they were missed.
    """

    tracked: TrackedSet = NOTHING_TRACKED
    nodes: int = 0
    forgotten: int = 0
    horizon_us: int = 0
    dropped: bool = False
    root: str | None = None
    root_level: int = 0
    missing: Mapping[str, str] = MappingProxyType({})

    @property
    def complete(self) -> bool:
        """Nothing was left out for want of room."""
        return not self.forgotten and not self.dropped

    def to_bytes(self) -> bytes:
        """The row in the table, without the tracked propositions."""
        _, *whole, missing = self
        return orjson.dumps([TREE_VERSION, whole, list(missing.items())])

    @classmethod
    def from_bytes(cls, row: bytes, tracked: TrackedSet = NOTHING_TRACKED) -> Self:
        """Read a row of this or an older version; a `StateError` for a newer or a broken one."""
        try:
            _, whole, missing = _versioned(row)
            nodes, forgotten, horizon_us, dropped, root, root_level = whole
            return cls(tracked, nodes, forgotten, horizon_us, dropped, root, root_level, dict(missing))
        except UNREADABLE as error:
            raise CorruptStateError(f"a session's ledger cannot be read: {error!r}") from error


def _versioned(row: bytes) -> list[Any]:
    found: list[Any] = orjson.loads(row)
    if found[0] > TREE_VERSION:
        raise NewerStateError(f"a checkpoint's state has version {found[0]}, this code knows {TREE_VERSION}")
    if found[0] < 1:
        raise ValueError("no version")
    return found
