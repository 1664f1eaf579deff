"""One session's checkpoint tree on its way through one fact: the committed rows, and over them what the fact changes.

Nodes name their children, so what a sender builds may be any graph: walks go once through every node, and a fact has
a budget of steps for all of them. Where it runs out, what was found is marked `complete: false`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from compaction_events.facts import ChildVersion
from compaction_monitor.state.nodes import MAX_CHILDREN, Ledger, Node, TrackedSet, node_name

__all__ = ["NO_TREE", "Ledger", "NoTree", "Node", "NodeRows", "Tree", "kept_children", "rewritten"]

MAX_STEPS: Final = 16_384  # a tree of 4,096 nodes takes 4,095


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


NO_TREE: Final = NoTree()


@dataclass(slots=True)
class Tree:
    """The rows as this fact has made them so far.

    Attributes:
        changed: Nodes written (or, None, forgotten) by this fact.
        ledger_changed: The ledger is to be written.
    """

    rows: NodeRows
    changed: dict[str, Node | None] = field(default_factory=dict)
    ledger_changed: bool = False
    _ledger: Ledger | None = None
    _read: dict[str, Node | None] = field(default_factory=dict)
    _steps: int = 0

    @property
    def ledger(self) -> Ledger:
        """What is tracked, and what is known of the tree as a whole."""
        if self._ledger is None:
            self._ledger = self.rows.ledger()
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.ledger_changed = True

    @property
    def tracked(self) -> TrackedSet:
        """The tracked propositions."""
        return self.ledger.tracked

    @property
    def complete(self) -> bool:
        """Nothing was left out: not for want of room, and no walk was cut short."""
        return self.ledger.complete and self._steps < MAX_STEPS

    def node(self, name: str) -> Node | None:
        """A node, by its name as it is kept."""
        if name in self.changed:
            return self.changed[name]
        if name not in self._read:
            self._read[name] = self.rows.node(name)
        return self._read[name]

    def nodes(self) -> dict[str, Node]:
        """Every node: reads them all."""
        known: dict[str, Node | None] = {**dict(self.rows.nodes()), **self.changed}
        return {name: node for name, node in known.items() if node is not None}

    def retained(self, node: Node) -> frozenset[str]:
        """What a node retains."""
        return frozenset(self.tracked.names(node.retained))

    def children(self, node: Node) -> list[tuple[str, Node | None]]:
        """A node's children as they are now; None for one that is not known (any more)."""
        return [(child, self.node(child)) for child, _ in node.children]

    def descendants(self, name: str, node: Node) -> Iterator[tuple[str, Node]]:
        """Every known descendant once, nearest first, never the node itself."""
        seen = {name}
        row = node.children
        while row:
            below: list[tuple[str, int | None]] = []
            for child, _ in row:
                if self._steps >= MAX_STEPS:
                    return
                self._steps += 1
                found = None if child in seen else self.node(child)
                seen.add(child)
                if found is not None:
                    yield child, found
                    below += found.children
            row = tuple(below)


def kept_children(children: Iterable[ChildVersion]) -> tuple[tuple[str, int | None], ...]:
    """A node's children as they are kept."""
    return tuple([(node_name(child.node_id), child.version) for child in children])[:MAX_CHILDREN]


def rewritten(tree: Tree, node: Node, read_now: Iterable[ChildVersion] = ()) -> bool | None:
    """Whether a child is newer than the one this node was written from; None when versions do not tell.

    Args:
        read_now: Children as a regeneration read them, which may be newer than those reported.
    """
    read = dict(node.children)
    current = {child: found.version if found else None for child, found in tree.children(node)}
    for child, version in kept_children(read_now):
        if child not in read:
            return True
        current[child] = current[child] if version is None else version
    pairs = [(version, current[child]) for child, version in node.children]
    if any(was is not None and now is not None and now != was for was, now in pairs):
        return True
    return None if not pairs or any(was is None or now is None for was, now in pairs) else False
