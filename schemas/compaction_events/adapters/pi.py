"""pi and OpenClaw sessions: JSON Lines, one session a file.

What is exact: `before` (`tokensBefore`), `after` (the next reply's usage: input and cache), and what stays verbatim (all from
`firstKeptEntryId`, in older files `firstKeptEntryIndex`, on). Entries point to their parent: what the user left by going
back is not in the set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from compaction_events.adapters.chain import ChainReading, Cut, kind_of
from compaction_events.adapters.fields import Record, count, id_of, joined, mapping, records, said, strings, text_of, time_of
from compaction_events.adapters.lines import Head, Line, Trouble, Warnings, read_lines
from compaction_events.facts import Fact
from compaction_events.recorder import Message, Pass

NAME: Final = "pi"
PATTERNS: Final = ("*.jsonl*",)
_MARKS: Final = frozenset(
    {"thinking_level_change", "model_change", "custom", "label", "session_info", "leaf", "active_tools_change"}
)


def known_folders() -> Sequence[Path]:
    """Where pi and OpenClaw keep their sessions."""
    return (Path.home() / ".pi" / "agent" / "sessions", Path.home() / ".openclaw" / "agents")


def heads(path: Path) -> Sequence[Head]:
    """Whose file this is; nobody's if it does not begin with the header of such a session."""
    for line in read_lines(path, Warnings()):
        record = line.record
        session_id = id_of(record, "id")
        if record.get("type") == "session" and session_id and text_of(record, "timestamp") and "cwd" in record:
            return (Head(session_id, text_of(record, "timestamp") or ""),)
        break
    return ()


def reading(paths: Sequence[Path], session_id: str) -> PiReading:
    """Read one session."""
    return PiReading(paths, session_id, NAME)


class PiReading(ChainReading):
    """One session. Iterate over it once.

    Attributes:
        kept_entries: By round, how many entries stayed verbatim.
    """

    counted = ("tokensBefore", "usage")

    def __init__(self, paths: Sequence[Path], session_id: str, agent: str) -> None:
        super().__init__(paths, session_id, agent)
        self.kept_entries: dict[int, int] = {}
        self._path: list[tuple[str, int, Message | None]] = []
        self._index = -1

    def take(self, line: Line) -> Iterator[Fact]:
        record, kind = line.record, text_of(line.record, "type")
        self._index += 1
        entry = id_of(record, "id") or f"entry-{self._index}"
        if kind == "session":
            # Its time is that of this file: what it was branched from is older.
            return
        if kind not in _MARKS | {"message", "compaction", "branch_summary", "custom_message"}:
            self.warnings.add(line.path, Trouble.foreign_line, line.number)
            return
        yield from self.seen(time_of(record))
        if "parentId" in record:
            self._go_to(record["parentId"])
        if kind == "compaction":
            yield from self._compacted(line, entry)
            return
        if kind == "message":
            yield from self.chain.usage(_context_tokens(mapping(record, "message")))
        message = _message(record, entry)
        self._path.append((entry, self._index, message))
        self.chain.add(message)

    def _go_to(self, parent: object) -> None:
        """The user went back: what came after the parent is out of the set. It may lie behind the last pass."""
        if self._path and self._path[-1][0] != parent:
            known = [entry for entry, _, _ in self._path]
            self._path = self._path[: known.index(parent) + 1] if parent in known else []
            self.chain.messages = [message for _, _, message in self._path if message is not None]

    def _compacted(self, line: Line, entry: str) -> Iterator[Fact]:
        at = time_of(line.record) or self.last_at
        if at is None:
            self.warnings.add(line.path, Trouble.no_time, line.number)
            return
        first_id, first_index = line.record.get("firstKeptEntryId"), count(line.record, "firstKeptEntryIndex")
        start = next(
            (
                place
                for place, (known, index, _) in enumerate(self._path)
                if known == first_id or (first_index is not None and index >= first_index)
            ),
            len(self._path),
        )
        # The last summary stands in the path like any other entry; it never stays.
        kept = [entry for entry in self._path[start:] if entry[2] is None or not entry[2].depth]
        number = self.chain.passes + 1
        last = self.chain.summary
        found = line.record.get("summary")
        text = found if isinstance(found, str) else None
        summary = None if text is None else Message(entry, text, depth=number, children=() if last is None else (last.id,))
        self.kept_entries[number] = len(kept)
        this = Pass(number, at, summary_kind=kind_of(text))
        messages = [message for _, _, message in kept if message is not None]
        self._path = [(entry, self._index, summary), *kept]
        # What follows hangs on the pass, not on the last entry that stays.
        self._path.append((entry, self._index, None))
        yield from self.chain.cut(Cut(this, count(line.record, "tokensBefore"), None, summary, messages))


def _context_tokens(message: Record) -> int | None:
    """The context a reply was made from; None where there is no usage, or none but zeros."""
    usage = mapping(message, "usage") if message.get("role") == "assistant" else {}
    return sum(count(usage, field) or 0 for field in ("input", "cacheRead", "cacheWrite")) or None


def _message(entry: Record, name: str) -> Message | None:
    if entry.get("type") == "branch_summary":
        text = text_of(entry, "summary")
        return Message(name, text, depth=1) if text else None
    if entry.get("type") == "custom_message":
        bulk = said(entry.get("content"))
        return Message(name, "", bulk) if bulk else None
    message = mapping(entry, "message")
    role, text = message.get("role"), said(message.get("content"))
    if role == "user":
        return Message(name, text, typed=True)
    if role == "assistant":
        calls = (string for block in records(message, "content") for string in strings(block.get("arguments")))
        text = joined(text, *calls)
        return Message(name, text) if text else None
    bulk = joined(text, text_of(message, "command"), text_of(message, "output"))
    return Message(name, "", bulk) if bulk else None
