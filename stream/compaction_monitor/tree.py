"""What is remembered of a session's checkpoints: a row for the tracked propositions, a row for each node.

A node keeps sets of propositions as bit masks over the session's tracked list, so that a node with a thousand
retained propositions and three trials is a row of a kilobyte or two. Bounds: 1,000 tracked propositions and 4,096
nodes a session; of the nodes the oldest leaves are forgotten first, in portions. What is forgotten is counted, and
what rested on it is marked `complete: false`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

import orjson

from compaction_events.facts import ChildVersion
from compaction_events.ids import text_hash
from compaction_monitor.retention import Before, effective_entropy_bits, exact
from compaction_monitor.state import NewerStateError

TREE_VERSION = 1
MAX_TRACKED = 1_000
MAX_NODES = 4_096
FORGET_NODES = 256  # at once: finding the oldest leaves reads every node
MAX_NAME_CHARS = 32
MAX_CHILDREN = 512


def short(name: str) -> str:
    """An id as it is kept: itself, or `#` and its hash if it is long. Ids on the wire are hashes already.

    >>> short("p1"), short("x" * 40)
    ('p1', '#bd913ff68243d41b')
    """
    return name if len(name) <= MAX_NAME_CHARS else f"#{text_hash(name)}"


class Tracked(NamedTuple):
    """A proposition that must not get lost; its place in the list is its bit."""

    proposition: str
    turn: int
    span_id: str
    pinned: bool
    stated: bool


class TrialSeen(NamedTuple):
    """A trial regeneration that was reported: what it retained, and whether it was measured."""

    number: int
    retained: int
    measured: bool


@dataclass(frozen=True, slots=True)
class Node:
    """A checkpoint as last committed, and what is under way about it. Sets are bit masks; times µs since 1970.

    Attributes:
        children: (node, version read or None).
        trials: Reported since the suspicion that asked for them.
        trialled_at_us: The latest time of a trial, so that a repeat is known as one.
        unrecovered: Committed regenerations without recovery since the last rebalance.
        flipped: Propositions that changed membership in those; `flipped_back`: twice.
        orders: Orders given about this node; `trials_spent`: summariser calls for trials.
        trials_asked: The number of the last trial that was asked for.
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
    turns: tuple[int, int] | None = None
    trials: tuple[TrialSeen, ...] = ()
    trialled_at_us: int = 0
    trials_asked: int = 0
    unrecovered: int = 0
    flipped: int = 0
    flipped_back: int = 0
    orders: int = 0
    trials_spent: int = 0

    @property
    def entropy_bits(self) -> float | None:
        """Effective entropy of its children, bits."""
        bits = effective_entropy_bits(self.joint_bits, self.redundancy)
        return None if bits is None else float(bits)

    @property
    def deficit_bits(self) -> float | None:
        """Bits of its children that its budget cannot hold, 0 if it can; None when not known."""
        if self.entropy_bits is None or self.budget_tokens is None or self.bits_per_token is None:
            return None
        need = effective_entropy_bits(self.joint_bits, self.redundancy)
        assert need is not None
        return float(max(need - self.budget_tokens * exact(self.bits_per_token), exact(0)))

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
        masks = [f"{self.retained:x}", f"{self.flipped:x}", f"{self.flipped_back:x}"]
        trials = [(trial.number, f"{trial.retained:x}", trial.measured) for trial in self.trials]
        plain = [getattr(self, name) for name in _PLAIN]
        return orjson.dumps([TREE_VERSION, masks, trials, *plain], default=tuple)

    @classmethod
    def from_bytes(cls, row: bytes) -> Self:
        """Read a row of this or an older version; `NewerStateError` for a newer one."""
        _, masks, trials, *plain = _versioned(row)
        values: dict[str, Any] = dict(zip(_PLAIN, plain, strict=True))
        values["children"] = tuple((node, version) for node, version in values["children"])
        values["turns"] = None if values["turns"] is None else tuple(values["turns"])
        values |= {name: int(mask, 16) for name, mask in zip(("retained", "flipped", "flipped_back"), masks, strict=True)}
        return cls(**values, trials=tuple(TrialSeen(number, int(mask, 16), measured) for number, mask, measured in trials))


_PLAIN = (
    "level",
    "version",
    "at_us",
    "parent_id",
    "children",
    "from_raw",
    "measured",
    "budget_tokens",
    "joint_bits",
    "redundancy",
    "bits_per_token",
    "turns",
    "trialled_at_us",
    "trials_asked",
    "unrecovered",
    "orders",
    "trials_spent",
)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a session tracks, and what is known of its tree as a whole.

    Attributes:
        nodes: How many there are; `forgotten`: how many were dropped for room.
        root: The latest node of the highest level seen, `root_level`.
        missing: (proposition, node) of open losses.
    """

    tracked: tuple[Tracked, ...] = ()
    nodes: int = 0
    forgotten: int = 0
    root: str | None = None
    root_level: int = 0
    missing: tuple[tuple[str, str], ...] = ()

    def to_bytes(self) -> bytes:
        """The row in the table."""
        whole = (self.nodes, self.forgotten, self.root, self.root_level)
        return orjson.dumps([TREE_VERSION, whole, self.missing, self.tracked], default=tuple)

    @classmethod
    def from_bytes(cls, row: bytes) -> Self:
        """Read a row of this or an older version; `NewerStateError` for a newer one."""
        _, whole, missing, tracked = _versioned(row)
        entries = tuple(Tracked(*entry) for entry in tracked)
        nodes, forgotten, root, root_level = whole
        losses = tuple((proposition, node) for proposition, node in missing)
        return cls(entries, nodes, forgotten, root, root_level, losses)


def _versioned(row: bytes) -> list[Any]:
    found: list[Any] = orjson.loads(row)
    if found[0] > TREE_VERSION:
        raise NewerStateError(f"a checkpoint's state has version {found[0]}, this code knows {TREE_VERSION}")
    return found


class NodeRows(Protocol):
    """The committed rows of one session's tree."""

    def ledger(self) -> Ledger: ...
    def node(self, node_id: str) -> Node | None: ...
    def nodes(self) -> Iterable[tuple[str, Node]]:
        """Every node, in any order: only for forgetting and for expiry."""
        ...


class NoTree:
    """A session without checkpoints."""

    def ledger(self) -> Ledger:
        """Nothing is tracked."""
        return Ledger()

    def node(self, _: str) -> Node | None:
        """No node is known."""
        return None

    def nodes(self) -> Iterable[tuple[str, Node]]:
        """No nodes."""
        return ()


@dataclass(slots=True)
class Tree:
    """One session's tree on its way through one fact: committed rows under what this fact changes.

    Attributes:
        changed: Nodes written (or, None, forgotten) by this fact.
        ledger_changed: The ledger is to be written.
    """

    rows: NodeRows
    changed: dict[str, Node | None] = field(default_factory=dict)
    ledger_changed: bool = False
    _ledger: Ledger | None = None
    _bits: dict[str, int] | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger as this fact has made it so far."""
        if self._ledger is None:
            self._ledger = self.rows.ledger()
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        if ledger.tracked is not self.ledger.tracked:
            self._bits = None
        self._ledger = ledger
        self.ledger_changed = True

    def node(self, node_id: str) -> Node | None:
        """A node as this fact has made it so far."""
        return self.changed[node_id] if node_id in self.changed else self.rows.node(node_id)

    def bit(self, proposition: str) -> int | None:
        """The place of a tracked proposition."""
        if self._bits is None:
            self._bits = {entry.proposition: place for place, entry in enumerate(self.ledger.tracked)}
        return self._bits.get(short(proposition))

    def mask(self, propositions: Iterable[str]) -> int:
        """The bit mask of those of the propositions that are tracked."""
        mask = 0
        for proposition in propositions:
            if (place := self.bit(proposition)) is not None:
                mask |= 1 << place
        return mask

    def names(self, mask: int) -> Iterator[str]:
        """The propositions of a mask, in the order in which they were first seen."""
        return (entry.proposition for place, entry in enumerate(self.ledger.tracked) if mask >> place & 1)

    def children(self, node: Node) -> list[tuple[str, Node | None]]:
        """A node's children as they are now; None for one that is not known (any more)."""
        return [(child, self.node(child)) for child, _ in node.children]

    def descendants(self, node: Node, limit: int = MAX_NODES) -> Iterator[tuple[str, Node]]:
        """Every known descendant once, nearest first."""
        seen: set[str] = set()
        row = [child for child, _ in node.children]
        while row and len(seen) < limit:
            below: list[str] = []
            for child in row:
                found = None if child in seen else self.node(child)
                seen.add(child)
                if found is not None:
                    yield child, found
                    below += [grandchild for grandchild, _ in found.children]
            row = below


def kept_children(children: Iterable[ChildVersion]) -> tuple[tuple[str, int | None], ...]:
    """A node's children as they are kept."""
    return tuple((short(child.node_id), child.version) for child in children)[:MAX_CHILDREN]
