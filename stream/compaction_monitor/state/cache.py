"""The checkpoints table as one batch works on it: rows decoded once, encoded once, and kept while they are in use.

A session's ledger is under the session's key, its tracked propositions and its nodes under that key and a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from compaction_monitor.effects import CHECKPOINTS, Reader
from compaction_monitor.state.nodes import NOTHING_TRACKED, Ledger, Node, TrackedSet

Row = Ledger | TrackedSet | Node
CACHED_BYTES: Final = 1024 * 1024  # as rows; as objects some fifteen times as much, and once for each partition
SCAN_ROWS: Final = 512


def row_key(*parts: str) -> bytes:
    """A table key: every part with its length before it, so that no two different keys meet.

    >>> row_key("a", "b") != row_key("ab")
    True
    """
    return b"".join([len(raw).to_bytes(2, "big") + raw for raw in [part.encode() for part in parts]])


TRACKED: Final = row_key("")
"""What follows a session's key for its tracked propositions: no node is named so."""


@dataclass(slots=True)
class RowCache:
    """Committed rows of one partition, decoded; the longest unused by a write goes first."""

    _rows: dict[bytes, tuple[Row, int]] = field(default_factory=dict)
    _bytes: int = 0

    def get(self, key: bytes) -> Row | None:
        """A row, if it is here."""
        found = self._rows.get(key)
        return None if found is None else found[0]

    def put(self, key: bytes, row: Row, size: int) -> None:
        """Keep a row as it is committed; `size`: of its bytes in the table."""
        self.drop(key)
        self._rows[key] = (row, size)
        self._bytes += size
        while self._bytes > CACHED_BYTES:
            self.drop(next(iter(self._rows)))

    def drop(self, key: bytes) -> None:
        """A row is not there any more."""
        if (old := self._rows.pop(key, None)) is not None:
            self._bytes -= old[1]

    def committed(self, rows: Mapping[bytes, Row | None], writes: Mapping[bytes, bytes | None]) -> None:
        """What a batch made of its rows is durable."""
        for key, row in rows.items():
            value = writes[key]
            if row is None or value is None:
                self.drop(key)
            else:
                self.put(key, row, len(value))


@dataclass(slots=True)
class SessionRows:
    """One session's checkpoints: what the batch has made of them, over what is committed.

    Attributes:
        written: The rows that the batch has changed, of this session alone; None: deleted.
        key: The session's.
    """

    committed: Reader
    cache: RowCache
    written: dict[bytes, Row | None]
    key: bytes

    def ledger(self) -> Ledger:
        """What is tracked, and what is known of the tree as a whole."""
        found = self._row(self.key, Ledger)
        ledger = found if isinstance(found, Ledger) else Ledger()
        if ledger.tracked is not NOTHING_TRACKED:
            return ledger
        tracked = self._row(self.key + TRACKED, TrackedSet)
        return ledger._replace(tracked=tracked) if isinstance(tracked, TrackedSet) else ledger

    def node(self, node_id: str) -> Node | None:
        """A node, by its name as it is kept."""
        found = self._row(self._key_of(node_id), Node)
        return found if isinstance(found, Node) else None

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """Every node; reads them all."""
        for key, value in self._stored():
            if key not in self.written and key[len(self.key) :] != TRACKED:
                known = self.cache.get(key)
                yield self._name(key), known if isinstance(known, Node) else Node.from_bytes(value)
        for key, row in list(self.written.items()):
            if isinstance(row, Node):
                yield self._name(key), row

    def keep(self, nodes: Mapping[str, Node | None], ledger: Ledger | None, *, gone: bool) -> None:
        """Take over what a fact has changed; `gone`: the ledger is deleted, unless there is a new one."""
        for name, node in nodes.items():
            self.written[self._key_of(name)] = node
        if gone:
            self.written[self.key] = self.written[self.key + TRACKED] = None
        if ledger is not None:
            if gone or ledger.tracked is not self.ledger().tracked:
                self.written[self.key + TRACKED] = ledger.tracked
            self.written[self.key] = ledger

    def _row(self, key: bytes, kind: type[Row]) -> Row | None:
        if key in self.written:
            return self.written[key]
        found = self.cache.get(key)
        if found is None:
            value = self.committed.get(CHECKPOINTS, key)
            if value is None:
                return None
            found = kind.from_bytes(value)
            self.cache.put(key, found, len(value))
        return found

    def _stored(self) -> Iterator[tuple[bytes, bytes]]:
        after = self.key
        while rows := self.committed.scan(CHECKPOINTS, after, SCAN_ROWS):
            for key, row in rows:
                if not key.startswith(self.key):
                    return
                yield key, row
            after = rows[-1][0]

    def _key_of(self, name: str) -> bytes:
        raw = name.encode()
        return self.key + len(raw).to_bytes(2, "big") + raw

    def _name(self, key: bytes) -> str:
        return key[len(self.key) + 2 :].decode()
