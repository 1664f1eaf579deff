"""opencode sessions: the tables session, message and part of `opencode.db`, SQLite, read-only.

What is exact: `before` and `after` (the usage of the last reply before a pass and of the first after it), and what stays
(`tail_start_id`). Each pass hands the last summary to the summariser: a chain. Results of tools that were pruned are out of
the set, but nothing says since when: they are taken as gone from their own time on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from compaction_events.adapters.chain import ChainReading, Cut, kind_of
from compaction_events.adapters.databases import columns, is_database, opened, rows
from compaction_events.adapters.fields import Record, count, id_of, joined, mapping, moment, strings, text_of
from compaction_events.adapters.lines import Head, Line, Trouble
from compaction_events.facts import MAX_ID_CHARS, Fact, SummaryKind, Trigger
from compaction_events.recorder import Message, Pass

NAME: Final = "opencode"
PATTERNS: Final = ("*.db",)
_NEEDS: Final = {
    "session": frozenset({"id", "version", "time_created"}),
    "message": frozenset({"id", "session_id", "time_created", "data"}),
    "part": frozenset({"id", "message_id", "session_id", "data"}),
}


def known_folders() -> Sequence[Path]:
    """Where opencode keeps its sessions."""
    return (Path.home() / ".local" / "share" / "opencode" / "opencode.db",)


def heads(path: Path) -> Sequence[Head]:
    """The sessions in a database; none if it is not opencode's."""
    if not is_database(path):
        return ()
    try:
        with opened(path) as store:
            if any(not needed <= columns(store, table) for table, needed in _NEEDS.items()):
                return ()
            found = [(row["id"], row["time_created"]) for row in rows(store, "SELECT id, time_created FROM session")]
    except sqlite3.Error:
        return ()
    return tuple(
        Head(name, at.isoformat() if (at := moment(created)) else "")
        for name, created in found
        if isinstance(name, str) and 0 < len(name) <= MAX_ID_CHARS
    )


def reading(paths: Sequence[Path], session_id: str) -> OpencodeReading:
    """Read one session."""
    return OpencodeReading(paths, session_id, NAME)


class OpencodeReading(ChainReading):
    """One session. Iterate over it once."""

    counted = ("usage", "usage")

    def __init__(self, paths: Sequence[Path], session_id: str, agent: str) -> None:
        super().__init__(paths, session_id, agent)
        self._session_id = session_id
        self._last_usage: int | None = None
        self._asked: dict[str, Record] = {}

    def read(self) -> Iterator[Fact]:
        path = self._paths[0]
        try:
            with opened(path) as store:
                store.execute("BEGIN")
                version = [row["version"] for row in rows(store, "SELECT version FROM session WHERE id = ?", self._session_id)]
                told = version[0] if version and isinstance(version[0], str) and 0 < len(version[0]) <= MAX_ID_CHARS else None
                query = "SELECT id, time_created AS at, data FROM message WHERE session_id = ? ORDER BY time_created, id"
                for number, row in enumerate(rows(store, query, self._session_id), 1):
                    data = _object(row["data"])
                    yield from self.seen(moment(row["at"]), told)
                    parts = [
                        _object(part["data"])
                        for part in rows(store, "SELECT data FROM part WHERE message_id = ? ORDER BY id", row["id"])
                    ]
                    yield from self.take(Line(path, number, {**data, "id": row["id"], "at": row["at"], "parts": parts}))
        except sqlite3.Error:
            self.warnings.add(path, Trouble.unreadable_file)

    def take(self, line: Line) -> Iterator[Fact]:
        message = line.record
        parts: list[Record] = message["parts"]
        asked = next((part for part in parts if part.get("type") == "compaction"), None)
        if asked is not None:
            self._asked[str(message["id"])] = asked
            return
        if message.get("summary") is True and text_of(message, "parentID") in self._asked:
            yield from self._compacted(line, message, parts, self._asked[str(message["parentID"])])
            return
        if message.get("role") == "assistant":
            usage = _context_tokens(message)
            self._last_usage = usage or self._last_usage
            yield from self.chain.usage(usage)
        self.chain.add(_message(message, parts))

    def _compacted(self, line: Line, message: Record, parts: Sequence[Record], asked: Record) -> Iterator[Fact]:
        at = moment(message["at"]) or self.last_at
        if at is None:
            self.warnings.add(line.path, Trouble.no_time, line.number)
            return
        text = joined(*(text_of(part, "text") for part in parts if part.get("type") == "text"))
        if message.get("error"):
            # Nothing was replaced: the request is made again.
            return
        tail, raw = id_of(asked, "tail_start_id"), [known for known in self.chain.messages if not known.depth]
        names = [known.id for known in raw]
        kept = raw[names.index(tail) :] if tail in names else []
        number, last = self.chain.passes + 1, self.chain.summary
        children = () if last is None else (last.id,)
        summary = Message(str(message["id"]), text, depth=number, children=children)
        this = Pass(
            number,
            at,
            trigger=Trigger.budget if asked.get("auto") is True else Trigger.manual,
            summary_kind=SummaryKind(kind_of(text)),
        )
        before, self._last_usage = self._last_usage, None
        yield from self.chain.cut(Cut(this, before, None, summary, kept))


def _object(value: Any) -> Record:
    try:
        found = orjson.loads(value)
    except (orjson.JSONDecodeError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _context_tokens(message: Record) -> int | None:
    """The context a reply was made from; None where there is no usage, or none but zeros."""
    tokens = mapping(message, "tokens")
    cache = mapping(tokens, "cache")
    return sum(filter(None, (count(tokens, "input"), count(cache, "read"), count(cache, "write")))) or None


def _message(message: Record, parts: Sequence[Record]) -> Message | None:
    # `synthetic`: written in the user's name by the tool.
    texts = [part for part in parts if part.get("type") == "text" and not part.get("ignored")]
    typed = [part for part in texts if not part.get("synthetic")]
    name = str(message["id"])
    if message.get("role") == "user":
        bulk = joined(*(text_of(part, "text") for part in texts if part.get("synthetic")))
        return Message(name, joined(*(text_of(part, "text") for part in typed)), bulk, typed=bool(typed)) if texts else None
    tools = [mapping(part, "state") for part in parts if part.get("type") == "tool"]
    text = joined(
        *(text_of(part, "text") for part in typed), *(string for tool in tools for string in strings(tool.get("input")))
    )
    pruned = (tool for tool in tools if not mapping(tool, "time").get("compacted"))
    bulk = joined(*(text_of(tool, "output") or text_of(tool, "error") for tool in pruned))
    return Message(name, text, bulk) if text or bulk else None
