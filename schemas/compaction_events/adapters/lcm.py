"""The hierarchies that lossless-claw and hermes-lcm keep in `lcm.db`: SQLite, read-only, replayed in order of creation.

What is exact: depth, token counts, and what every summary was written from. The store knows only the present, but every
summary it ever wrote, so its past is replayed: at each summary the set is the messages not yet covered and the summaries
not yet condensed. What was deleted since cannot be fetched, and counts as unreachable in every round.

The two differ only in their tables; a further one is one more `Layout`. In lossless-claw a `parent_summary_id` is the source
that a summary was condensed from, our child.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from compaction_events.adapters.databases import columns, is_database, opened, rows
from compaction_events.adapters.fields import moment
from compaction_events.adapters.lcm_replay import Replay, Said, Summed
from compaction_events.adapters.lines import Head, Trouble, Warnings
from compaction_events.facts import MAX_ID_CHARS, Fact

_FALLBACKS: Final = ("[LCM fallback summary", "[...deterministic truncation")


class Layout(NamedTuple):
    """One store's tables. Queries name their columns as the replay does; `?` is the session."""

    name: str
    folder: str
    needs: dict[str, frozenset[str]]
    sessions: str
    messages: str
    summaries: str
    edges: str


LOSSLESS_CLAW: Final = Layout(
    name="lossless-claw",
    folder=".openclaw",
    needs={
        "messages": frozenset({"message_id", "conversation_id", "seq", "role", "content", "token_count"}),
        "summaries": frozenset({"summary_id", "conversation_id", "depth", "content", "token_count", "created_at"}),
        "summary_messages": frozenset({"summary_id", "message_id"}),
        "summary_parents": frozenset({"summary_id", "parent_summary_id"}),
    },
    sessions="""
        SELECT c.conversation_id AS key, c.session_id AS id, min(m.created_at) AS first_at
        FROM conversations c JOIN messages m USING (conversation_id) GROUP BY c.conversation_id""",
    messages="""
        SELECT message_id AS id, role, content AS text, token_count AS tokens, created_at AS at
        FROM messages WHERE conversation_id = ? ORDER BY seq""",
    summaries="""
        SELECT summary_id AS id, depth, content AS text, token_count AS tokens, created_at AS at, NULL AS sources,
               NULL AS source_type, NULL AS earliest_at, NULL AS latest_at
        FROM summaries WHERE conversation_id = ? ORDER BY created_at, rowid""",
    edges="""
        WITH mine AS (SELECT summary_id FROM summaries WHERE conversation_id = ?)
        SELECT e.summary_id AS id, 'nodes' AS type, e.parent_summary_id AS source, e.ordinal FROM summary_parents e
        JOIN mine USING (summary_id)
        UNION ALL
        SELECT e.summary_id, 'messages', e.message_id, e.ordinal FROM summary_messages e JOIN mine USING (summary_id)
        ORDER BY 1, 2, 4""",
)
HERMES_LCM: Final = Layout(
    name="hermes-lcm",
    folder=".hermes",
    needs={
        "messages": frozenset({"store_id", "session_id", "role", "content", "timestamp", "token_estimate"}),
        "summary_nodes": frozenset({"node_id", "session_id", "depth", "summary", "token_count", "source_ids", "source_type"}),
    },
    sessions="""
        SELECT session_id AS key, session_id AS id, min(timestamp) AS first_at FROM messages GROUP BY session_id""",
    messages="""
        SELECT store_id AS id, role, content AS text, token_estimate AS tokens, timestamp AS at
        FROM messages WHERE session_id = ? ORDER BY store_id""",
    summaries="""
        SELECT node_id AS id, depth, summary AS text, token_count AS tokens, created_at AS at, source_ids AS sources,
               source_type, earliest_at, latest_at
        FROM summary_nodes WHERE session_id = ? ORDER BY created_at, node_id""",
    edges="",
)


class LcmAdapter:
    """Reads the stores of one layout."""

    PATTERNS: Final = ("*.db",)

    def __init__(self, layout: Layout) -> None:
        self.NAME = layout.name
        self.layout = layout

    def known_folders(self) -> Sequence[Path]:
        """Where the plugin keeps its store."""
        return (Path.home() / self.layout.folder / "lcm.db",)

    def heads(self, path: Path) -> Sequence[Head]:
        """The sessions in a store; none if the file is no store of this layout."""
        found = ((name, moment(first_at)) for name, _, first_at in self._sessions(path))
        return tuple(Head(name, "" if at is None else at.isoformat()) for name, at in found)

    def reading(self, paths: Sequence[Path], session_id: str) -> LcmReading:
        """Read one session."""
        key = next((key for name, key, _ in self._sessions(paths[0]) if name == session_id), None)
        return LcmReading(self.layout, paths[0], session_id, key)

    def _sessions(self, path: Path) -> list[tuple[str, Any, Any]]:
        """Each session's name, key and first time. A name that several share is told apart by the key."""
        if not is_database(path):
            return []
        try:
            with opened(path) as store:
                if any(not needed <= columns(store, table) for table, needed in self.layout.needs.items()):
                    return []
                found = list(rows(store, self.layout.sessions))
        except sqlite3.Error:
            return []
        names = [row["id"] for row in found]
        told = [(row["id"] if names.count(row["id"]) == 1 else f"{row['id']}#{row['key']}", row) for row in found]
        return [
            (name, row["key"], row["first_at"]) for name, row in told if isinstance(name, str) and 0 < len(name) <= MAX_ID_CHARS
        ]


class LcmReading:
    """One session. Iterate over it once."""

    def __init__(self, layout: Layout, path: Path, session_id: str, key: Any) -> None:
        self.warnings = Warnings()
        self._layout, self._path, self._key = layout, path, key
        self._replay = Replay(session_id, layout.name)

    @property
    def at_end(self) -> bool:
        """What follows is only there because the store ends here."""
        return self._replay.at_end

    @property
    def quoted(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """By round, (still there, typed) for the user's messages of each stretch between passes, oldest first."""
        return self._replay.recorder.quoted

    def __iter__(self) -> Iterator[Fact]:
        try:
            with opened(self._path) as store:
                # One view of the store, whatever its owner writes meanwhile.
                store.execute("BEGIN")
                sources = self._sources(store)
                names = {str(row["id"]) for row in rows(store, self._layout.messages, self._key)}
                messages = (_said(row) for row in rows(store, self._layout.messages, self._key))
                yield from self._replay.run(messages, self._summaries(store, sources), names)
        except sqlite3.Error:
            self.warnings.add(self._path, Trouble.unreadable_file)

    def _sources(self, store: sqlite3.Connection) -> dict[Any, dict[str, list[Any]]]:
        found: dict[Any, dict[str, list[Any]]] = defaultdict(lambda: {"nodes": [], "messages": []})
        if self._layout.edges:
            for row in rows(store, self._layout.edges, self._key):
                found[row["id"]][row["type"]].append(row["source"])
        return found

    def _summaries(self, store: sqlite3.Connection, sources: dict[Any, dict[str, list[Any]]]) -> Iterator[Summed]:
        for row in rows(store, self._layout.summaries, self._key):
            listed = _listed(row["sources"])
            told = {"nodes": [], "messages": [], str(row["source_type"]): listed} if listed is not None else sources[row["id"]]
            text = str(row["text"] or "")
            yield Summed(
                id=str(row["id"]),
                at=moment(row["at"]),
                depth=(_count(row["depth"]) or 0) + 1,
                text=text,
                tokens=_count(row["tokens"]),
                children=tuple(str(source) for source in told["nodes"]),
                messages=tuple(str(source) for source in told["messages"]),
                covers=(moment(row["earliest_at"]), moment(row["latest_at"])),
                fell_back=any(mark in text for mark in _FALLBACKS),
            )


def _said(row: dict[str, Any]) -> Said:
    return Said(str(row["id"]), str(row["role"]), str(row["text"] or ""), _count(row["tokens"]), moment(row["at"]))


def _listed(value: Any) -> list[Any] | None:
    """The ids in a JSON array; None where there is no such column."""
    if value is None:
        return None
    try:
        found = orjson.loads(value)
    except (orjson.JSONDecodeError, TypeError):
        return []
    return [item for item in found if isinstance(item, int | str)] if isinstance(found, list) else []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**48 else None


ADAPTERS: Final = (LcmAdapter(LOSSLESS_CLAW), LcmAdapter(HERMES_LCM))
