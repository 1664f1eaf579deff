"""Which records a Claude Code pass evicted as covered, and which of them its summariser really read.

Every record points to its parent; what the summariser reads is the chain from the boundary back. A resume can break
that chain, and then everything behind the break is evicted unread.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

# Kinds beside the chain that always count as covered. Later versions write many more (progress, titles, modes): those
# only accompany what is said, and would drown the ratio; they count only where what is said was lost with them.
_COUNTED = frozenset({"user", "assistant", "system", "file-history-snapshot", "summary"})
_SAID = frozenset({"user", "assistant"})


class Node(NamedTuple):
    """What the chain needs of one record."""

    uuid: str | None
    parent: str | None
    kind: str
    typed: bool


@dataclass(frozen=True)
class Coverage:
    """Records a pass claims to cover, those it read, and the ids of those the user had taken back before."""

    claimed: int
    read: int
    taken_back: frozenset[str]


def segment(since: Collection[Node], head: str | None, tail: str | None) -> frozenset[str]:
    """The records from `tail` back to `head`, both included; none where the chain between them is not on disk."""
    parents = {node.uuid: node.parent for node in since if node.uuid}
    chain: list[str] = []
    at = tail
    while at is not None and at in parents and len(chain) <= len(parents):
        chain.append(at)
        if at == head:
            return frozenset(chain)
        at = parents[at]
    return frozenset()


def relinked(kept: Collection[Node], anchor: str | None) -> list[Node]:
    """Records a pass kept, as they stand after it: the first of each chain hangs below the summary.

    On disk they keep their old parents; without this the next chain would run past the boundary.
    """
    uuids = {node.uuid for node in kept}
    return [node if node.parent in uuids else node._replace(parent=anchor) for node in kept]


def coverage(
    since: Collection[Node], start: str | None, boundary: str | None, known: Collection[str], kept: Collection[str]
) -> Coverage:
    """Follow the parent chain through the records since the last boundary.

    Args:
        since: The records since then, in file order.
        start: The boundary's `logicalParentUuid`. Not always on disk: then the last thing said.
        boundary: The last boundary's uuid.
        known: Uuids of all records so far, those before it among them.
        kept: Uuids that the pass keeps verbatim: neither evicted nor in need of being read.
    """
    parents = {node.uuid: node.parent for node in since if node.uuid}
    if start not in parents:
        start = next((node.uuid for node in reversed(list(since)) if node.uuid and node.kind in _SAID), None)
    chain, end = _walk(parents, start)
    taken_back = _taken_back(since, chain, end, boundary, known)
    covered = [node for node in since if node.uuid not in taken_back and node.uuid not in kept]
    read = [node for node in covered if node.uuid in chain]
    if 2 * _said(read) >= _said(covered):
        covered = [node for node in covered if node.kind in _COUNTED or node.uuid in chain]
    return Coverage(len(covered), len(read), taken_back)


def _said(nodes: Collection[Node]) -> int:
    return sum(node.kind in _SAID for node in nodes)


def _walk(parents: dict[str, str | None], start: str | None) -> tuple[frozenset[str], str | None]:
    """The chain back from `start`, and the first parent that is not among these records."""
    chain: set[str] = set()
    at = start
    while at is not None and at in parents and at not in chain:
        chain.add(at)
        at = parents[at]
    return frozenset(chain), at


def _taken_back(
    since: Collection[Node], chain: Collection[str], end: str | None, boundary: str | None, known: Collection[str]
) -> frozenset[str]:
    """Branches that the user left by rewinding: out of the set before the pass, so the pass did not evict them.

    A message typed beside the chain, with a parent on it, begins one; what hangs below belongs to it. If the user went
    back behind the last boundary, all that hangs below that boundary is one.
    """
    joints = chain if end is None or (end != boundary and end not in known) else {*chain, end}
    left = {boundary} if boundary is not None and end != boundary and end in known else set()
    for node in since:
        if node.uuid is None or node.uuid in chain:
            continue
        if node.parent in left or (node.typed and node.parent in joints):
            left.add(node.uuid)
    return frozenset(left)
