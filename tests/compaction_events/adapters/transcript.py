"""Hand-made Claude Code transcripts: each call writes one line as the tool would. All text is made up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from compaction_events import adapters
from compaction_events.facts import Composition, Fact, RoundCompleted

START = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
SESSION = "session-a"


def minute(number: int) -> datetime:
    return START + timedelta(minutes=number)


class Transcript:
    """Lines of one file. A record's parent is the one before it unless told; record n has uuid `u<n>` and minute n."""

    def __init__(self, session_id: str = SESSION, *, first: int = 1, parent: str | None = None) -> None:
        self.session_id = session_id
        self.next = first
        self.parent = parent
        self.lines: list[bytes] = []

    def record(self, kind: str, **fields: Any) -> str:
        uuid = f"u{self.next}"
        at = minute(self.next).isoformat().replace("+00:00", "Z")
        record = {
            "parentUuid": self.parent,
            "isSidechain": False,
            "sessionId": self.session_id,
            "version": "2.1.29",
            "type": kind,
            "uuid": uuid,
            "timestamp": at,
            **fields,
        }
        self.next += 1
        self.lines.append(orjson.dumps(record) + b"\n")
        if not record["isSidechain"]:
            self.parent = uuid
        return uuid

    def beside(self, kind: str, **fields: Any) -> str:
        """A record that hangs on the chain without being on it."""
        parent = self.parent
        uuid = self.record(kind, **fields)
        self.parent = parent
        return uuid

    def state(self, kind: str, **fields: Any) -> None:
        """A line without an id, like titles and snapshots."""
        self.lines.append(orjson.dumps({"type": kind, **fields}) + b"\n")

    def raw(self, line: bytes) -> None:
        self.lines.append(line)

    def user(self, content: Any, **fields: Any) -> str:
        return self.record("user", message={"role": "user", "content": content}, **fields)

    def reply(self, text: str, usage: int | None = None, **fields: Any) -> str:
        return self.answer([{"type": "text", "text": text}], usage, **fields)

    def answer(self, content: Sequence[Any], usage: int | None = None, **fields: Any) -> str:
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if usage is not None:
            cached = usage // 2
            message["usage"] = {
                "input_tokens": 3,
                "cache_creation_input_tokens": usage - cached - 3,
                "cache_read_input_tokens": cached,
                "output_tokens": 99,
            }
        return self.record("assistant", message=message, **fields)

    def boundary(self, tokens: int = 2_000, trigger: str = "auto", *, logical: str | None = "", **metadata: Any) -> str:
        """`logical`: the logicalParentUuid; the last record unless told."""
        logical = self.parent if logical == "" else logical
        self.parent = None
        return self.record(
            "system",
            subtype="compact_boundary",
            logicalParentUuid=logical,
            compactMetadata={"trigger": trigger, "preTokens": tokens, **metadata},
        )

    def summary(self, text: str) -> str:
        return self.user(text, isCompactSummary=True, isVisibleInTranscriptOnly=True)

    def write(self, path: Path) -> Path:
        path.write_bytes(b"".join(self.lines))
        return path


def facts(*paths: Path) -> list[Fact]:
    return list(adapters.read(paths))


def rounds(*paths: Path) -> list[RoundCompleted]:
    return [fact for fact in facts(*paths) if isinstance(fact, RoundCompleted)]


def without_cosine(composition: Composition) -> Composition:
    return composition.model_copy(update={"query_cosine_retained": None})
