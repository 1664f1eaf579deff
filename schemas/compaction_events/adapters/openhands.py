"""OpenHands conversations: a folder `events` of JSON files, one event a file.

What is exact: which events a `Condensation` forgot, and which earlier summaries are among them (`<id>-summary`), so the
hierarchy is exact: depth, children, leaves. Tokens are nowhere: all are estimated. The agent has no tool to fetch what was
forgotten, and its summariser sees only the beginning of long events, so what still stands is judged by the texts.

Where each summary is rewritten into the next one it is a chain; where one outlives a later pass, a tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import orjson

from compaction_events.adapters.chain import kind_of
from compaction_events.adapters.fields import Record, id_of, joined, mapping, records, said, strings, text_of, texts, time_of
from compaction_events.adapters.lines import MAX_LINE_BYTES, Head, Trouble, Warnings
from compaction_events.facts import Eviction, Fact, Topology
from compaction_events.measures import estimated_tokens
from compaction_events.recorder import Message, Pass, Recorder, Tokens

NAME: Final = "openhands"
PATTERNS: Final = ("event-00000-*.json",)
_EVENTS: Final = "event-*.json"
_SUMMARY: Final = "-summary"
_METHOD: Final = "utf8_bytes/4"
# Kinds that are sent to the model.
_SAID: Final = frozenset({"MessageEvent", "ActionEvent", "ObservationEvent", "AgentErrorEvent", "UserRejectObservation"})


def known_folders() -> Sequence[Path]:
    """Where OpenHands keeps its conversations."""
    return (Path.home() / ".openhands" / "conversations",)


def heads(path: Path) -> Sequence[Head]:
    """Whose event this is; nobody's if it is none. A conversation is named by its folder."""
    if path.suffix != ".json":
        return ()
    event = _event(path, Warnings())
    folder = path.parent.parent.name if path.parent.name == "events" else path.parent.name
    if event is None or not (id_of(event, "id") and text_of(event, "kind") and "source" in event and 0 < len(folder) <= 256):
        return ()
    return (Head(folder, text_of(event, "timestamp") or ""),)


def reading(paths: Sequence[Path], session_id: str) -> OpenHandsReading:
    """Read one conversation."""
    return OpenHandsReading(paths, session_id)


class View:
    """The set of one conversation, event by event."""

    def __init__(self, session_id: str, topology: Topology, warnings: Warnings, place: Path) -> None:
        self.recorder = Recorder(session_id, NAME, source=NAME, topology=topology, eviction=Eviction.overflow, leaves=True)
        self._warnings, self._place = warnings, place
        self._messages: list[Message] = []
        self._seen: set[str] = set()
        self._overhead: int | None = None
        self._passes = 0
        self._started = False
        self.last_at: datetime | None = None

    def take(self, event: Record) -> Iterator[Fact]:
        """One event; one that was taken before changes nothing: a copy of a conversation repeats its events."""
        name = id_of(event, "id")
        if not name or name in self._seen:
            return
        self._seen.add(name)
        at = time_of(event)
        if at is not None:
            self.last_at = max(at, self.last_at or at)
            if not self._started:
                self._started = True
                yield self.recorder.started(at)
        kind = event.get("kind")
        if kind == "SystemPromptEvent":
            parts = joined(*strings(event.get("system_prompt")), *strings(event.get("tools")))
            self._overhead = estimated_tokens(parts)
        elif kind == "Condensation":
            yield from self._condensed(event)
        elif isinstance(kind, str) and kind in _SAID:
            message = _message(event)
            if message is not None:
                self._messages.append(message)

    def ended(self) -> Iterator[Fact]:
        """The conversation's end, if it had a beginning."""
        if self._started and self.last_at is not None:
            yield self.recorder.ended(self.last_at)

    def _condensed(self, event: Record) -> Iterator[Fact]:
        at = time_of(event) or self.last_at
        if at is None:
            self._warnings.add(self._place, Trouble.no_time)
            return
        forgotten = frozenset(texts(event, "forgotten_event_ids"))
        before = self._messages
        gone = [message for message in before if message.id in forgotten]
        self._passes += 1
        self.recorder.before(before, Tokens(overhead=self._overhead))
        after = [message for message in before if message.id not in forgotten]
        text = event.get("summary") if isinstance(event.get("summary"), str) else None
        offset = event.get("summary_offset")
        if text is not None and isinstance(offset, int):
            after.insert(offset, _summary(event, text, gone))
        self._messages = after
        this = Pass(self._passes, at, claimed=len(gone), summary_kind=kind_of(text), token_method=_METHOD)
        yield from self.recorder.passed(after, this, Tokens(overhead=self._overhead))


class OpenHandsReading:
    """One conversation. Iterate over it once.

    Args:
        paths: One of its events, or several; the others lie beside it.
    """

    def __init__(self, paths: Sequence[Path], session_id: str) -> None:
        self.warnings = Warnings()
        self.at_end = False
        self._folders = tuple(dict.fromkeys(path.parent for path in paths))
        self._view = View(session_id, self._topology(), self.warnings, self._folders[0])

    @property
    def quoted(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """By round, (still there, typed) for the user's messages of each stretch between passes, oldest first."""
        return self._view.recorder.quoted

    def __iter__(self) -> Iterator[Fact]:
        for path in self._files():
            yield from self._view.take(_event(path, self.warnings) or {})
        self.at_end = True
        yield from self._view.ended()

    def _files(self) -> list[Path]:
        return [path for folder in self._folders for path in sorted(folder.glob(_EVENTS), key=_place)]

    def _topology(self) -> Topology:
        """Whether a summary outlives a later pass that wrote one too."""
        living: set[str] = set()
        for path in self._files():
            if b'"Condensation"' not in _bytes(path):
                continue
            event = _event(path, Warnings()) or {}
            living -= set(texts(event, "forgotten_event_ids"))
            if living and event.get("summary") is not None:
                return Topology.tree
            if event.get("summary") is not None:
                living.add(f"{event.get('id')}{_SUMMARY}")
        return Topology.chain


def _summary(event: Record, text: str, gone: Sequence[Message]) -> Message:
    """What a pass wrote out of what it forgot."""
    return Message(
        f"{event['id']}{_SUMMARY}",
        text,
        depth=1 + max((message.depth for message in gone), default=0),
        children=tuple(message.id for message in gone if message.depth),
        leaves=tuple(message.id for message in gone if not message.depth),
    )


def _message(event: Record) -> Message | None:
    name, kind = str(event["id"]), event.get("kind")
    if kind == "MessageEvent":
        told = mapping(event, "llm_message")
        text = said(told.get("content"))
        typed = event.get("source") == "user" and told.get("role") == "user"
        bulk = joined(*(text_of(part, "text") for part in records(event, "extended_content")))
        return Message(name, text, bulk, typed) if text or bulk or typed else None
    if kind == "ActionEvent":
        call = mapping(event, "tool_call")
        text = joined(said(event.get("thought")), *strings(call.get("arguments")))
        return Message(name, text) if text else None
    seen = mapping(event, "observation")
    output = said(seen.get("content")) or joined(*strings(seen))
    bulk = joined(output, text_of(event, "error"), text_of(event, "rejection_reason"))
    return Message(name, "", bulk) if bulk else None


def _place(path: Path) -> tuple[int, str]:
    number = path.name.split("-")[1] if path.name.count("-") > 1 else ""
    return (int(number) if number.isdigit() else 0, path.name)


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_LINE_BYTES)
    except OSError:
        return b""


def _event(path: Path, warnings: Warnings) -> Record | None:
    raw = _bytes(path)
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        warnings.add(path, Trouble.not_json if raw else Trouble.unreadable_file)
        return None
    return found if isinstance(found, dict) else None
