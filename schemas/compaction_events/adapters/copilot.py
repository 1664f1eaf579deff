"""GitHub Copilot CLI sessions: `events.jsonl`, JSON Lines, one session a file.

What is exact: `before` and `after` of every pass (`preCompactionTokens`, `postCompactionTokens`), and the overhead
(`systemTokens`, `toolDefinitionsTokens`). Which messages stay follows from how many were removed. A truncation drops the
oldest messages without a summary: a pass that wrote none. A pass that failed changed nothing, and is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from compaction_events.adapters.chain import ChainReading, Cut, kind_of
from compaction_events.adapters.fields import Record, count, id_of, joined, mapping, records, strings, text_of, time_of
from compaction_events.adapters.lines import Head, Line, Trouble, Warnings, read_lines
from compaction_events.facts import Fact, SummaryKind, Trigger
from compaction_events.recorder import Message, Pass

NAME: Final = "copilot"
PATTERNS: Final = ("*.jsonl*",)
_HEAD_LINES: Final = 4
_TRIGGERS: Final = {
    "threshold": Trigger.budget,
    "context_limit_retry": Trigger.budget,
    "manual": Trigger.manual,
}


def known_folders() -> Sequence[Path]:
    """Where Copilot CLI keeps its sessions."""
    return (Path.home() / ".copilot" / "session-state",)


def heads(path: Path) -> Sequence[Head]:
    """Whose file this is; nobody's if it does not begin with the start of such a session."""
    for line in read_lines(path, Warnings()):
        session_id = id_of(mapping(line.record, "data"), "sessionId")
        if line.record.get("type") == "session.start" and session_id:
            return (Head(session_id, text_of(line.record, "timestamp") or ""),)
        if line.number >= _HEAD_LINES:
            break
    return ()


def reading(paths: Sequence[Path], session_id: str) -> CopilotReading:
    """Read one session."""
    return CopilotReading(paths, session_id, NAME)


class CopilotReading(ChainReading):
    """One session. Iterate over it once."""

    counted = ("event", "event")

    def take(self, line: Line) -> Iterator[Fact]:
        record, data = line.record, mapping(line.record, "data")
        kind, at = text_of(record, "type"), time_of(record)
        if kind is None or "data" not in record:
            self.warnings.add(line.path, Trouble.foreign_line, line.number)
            return
        if record.get("agentId"):
            # A subagent has a context of its own.
            return
        yield from self.seen(at, id_of(data, "copilotVersion"))
        name = id_of(record, "id") or f"line-{line.number}"
        at = at or self.last_at
        if kind == "session.compaction_complete" and data.get("success") is True and at is not None:
            yield from self.chain.cut(self._compacted(name, data, Pass(self.chain.passes + 1, at)))
        elif kind == "session.truncation" and at is not None:
            yield from self.chain.cut(self._truncated(data, Pass(self.chain.passes + 1, at)))
        elif kind == "session.snapshot_rewind":
            known = [message.id for message in self.chain.messages]
            if (until := data.get("upToEventId")) in known:
                self.chain.messages = self.chain.messages[: known.index(until)]
        elif kind == "session.context_cleared":
            self.chain.messages = []
        else:
            self.chain.add(_message(kind, data, name))

    def _compacted(self, name: str, data: Record, this: Pass) -> Cut:
        text = text_of(data, "summaryContent")
        last = self.chain.summary
        summary = None
        if text is not None:
            summary = Message(name, text, depth=this.number, children=() if last is None else (last.id,))
        length, removed = count(data, "preCompactionMessagesLength"), count(data, "messagesRemoved")
        stay = max(0, length - removed) if length is not None and removed is not None else 0
        raw = [message for message in self.chain.messages if not message.depth]
        trigger = text_of(data, "trigger")
        told = Pass(
            this.number,
            this.at,
            trigger=None if trigger is None else _TRIGGERS.get(trigger, Trigger.other),
            claimed=removed,
            summary_kind=kind_of(text),
            token_budget=count(data, "tokenLimit"),
        )
        overhead = [count(data, field) for field in ("systemTokens", "toolDefinitionsTokens")]
        return Cut(
            told,
            count(data, "preCompactionTokens"),
            count(data, "postCompactionTokens"),
            summary,
            raw[len(raw) - stay :] if stay < len(raw) else raw,
            None if None in overhead else sum(filter(None, overhead)),
        )

    def _truncated(self, data: Record, this: Pass) -> Cut:
        removed = count(data, "messagesRemovedDuringTruncation") or 0
        told = Pass(
            this.number,
            this.at,
            trigger=Trigger.budget,
            claimed=removed,
            summary_kind=SummaryKind.none,
            token_budget=count(data, "tokenLimit"),
        )
        raw = [message for message in self.chain.messages if not message.depth]
        before, after = count(data, "preTruncationTokensInMessages"), count(data, "postTruncationTokensInMessages")
        # These counts are of messages alone.
        return Cut(told, before, after, self.chain.summary, raw[removed:], 0)


def _message(kind: str, data: Record, name: str) -> Message | None:
    if kind == "user.message":
        # What is sent in the user's name by the tool itself says so.
        typed = not text_of(data, "source") or data.get("source") == "user"
        text = text_of(data, "content") or ""
        return Message(name, text, typed=True) if typed else Message(name, "", text) if text else None
    if kind == "assistant.message":
        calls = (string for call in records(data, "toolRequests") for string in strings(call.get("arguments")))
        text = joined(text_of(data, "content"), *calls)
        return Message(name, text) if text else None
    if kind == "tool.execution_complete":
        bulk = text_of(mapping(data, "result"), "content") or text_of(mapping(data, "error"), "message")
        return Message(name, "", bulk) if bulk else None
    return None
