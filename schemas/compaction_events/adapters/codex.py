"""Codex CLI rollouts: JSON Lines under `~/.codex/sessions`, one session a file.

What is exact: `before` (the last `token_count` before a pass), `after` (the first one after it), which messages stay
(`replacement_history`), and how windows follow each other (`window_id`, `previous_window_id`). Messages typed by the user
stay verbatim in every pass. A summary written by the provider is encrypted or left out: there is its place in the chain, but
no text; its size is what the next request had beside all that is known of it. Messages of the developer, and those sent in
the user's name that the user did not type, are overhead.

Older files have no `replacement_history`: then the newest of the user's messages stay, up to 20,000 tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from compaction_events.adapters.chain import ChainReading, Cut, kind_of
from compaction_events.adapters.fields import Record, count, id_of, joined, mapping, records, said, strings, text_of, time_of
from compaction_events.adapters.lines import Head, Line, Trouble, Warnings, read_lines
from compaction_events.facts import Fact, SummaryKind
from compaction_events.ids import text_hash
from compaction_events.recorder import Message, Pass

NAME: Final = "codex"
PATTERNS: Final = ("*.jsonl*",)
_HEAD_LINES: Final = 8
_KEPT_TOKENS: Final = 20_000
_TYPES: Final = frozenset(
    {
        "session_meta",
        "response_item",
        "event_msg",
        "turn_context",
        "compacted",
        "world_state",
        "token_usage_record",
        "retained_context",
    }
)
_HIDDEN: Final = frozenset({"compaction", "compaction_summary"})


def known_folders() -> Sequence[Path]:
    """Where Codex keeps its sessions."""
    return (Path.home() / ".codex" / "sessions",)


def heads(path: Path) -> Sequence[Head]:
    """Whose file this is; nobody's if it does not begin with Codex's own header."""
    for line in read_lines(path, Warnings()):
        payload = mapping(line.record, "payload")
        session_id = id_of(payload, "id") or id_of(payload, "session_id")
        if line.record.get("type") == "session_meta" and session_id:
            return (Head(session_id, text_of(line.record, "timestamp") or ""),)
        if line.number >= _HEAD_LINES:
            break
    return ()


def reading(paths: Sequence[Path], session_id: str) -> CodexReading:
    """Read one session."""
    return CodexReading(paths, session_id, NAME)


class CodexReading(ChainReading):
    """One session. Iterate over it once."""

    counted = ("token_count", "token_count")

    def __init__(self, paths: Sequence[Path], session_id: str, agent: str) -> None:
        super().__init__(paths, session_id, agent)
        self._typed: set[str] = set()
        self._copies: Counter[str] = Counter()
        self._asides: list[Message] = []
        self._window: int | None = None
        self._total: int | None = None
        self._after: Cut | None = None
        # What had been said when the request under way was sent; None: none is.
        self._requested: int | None = None

    def take(self, line: Line) -> Iterator[Fact]:
        record, payload = line.record, mapping(line.record, "payload")
        kind = text_of(record, "type")
        if kind not in _TYPES:
            self.warnings.add(line.path, Trouble.foreign_line, line.number)
            return
        self._window = count(payload, "model_context_window") or self._window
        yield from self.seen(time_of(record), id_of(payload, "cli_version"))
        if kind == "response_item":
            self._item(payload)
        elif kind == "compacted":
            yield from self._compacted(line, payload)
        elif kind == "event_msg" and payload.get("type") == "user_message":
            self._typed_by_user(text_of(payload, "message") or "")
        elif kind == "event_msg" and payload.get("type") == "token_count":
            yield from self._counted(mapping(payload, "info"))

    def _item(self, item: Record) -> None:
        """What went into the context, or came out of the model."""
        message = _message(item)
        if message is None:
            return
        if item.get("role") == "user":
            key = message.id
            message = message._replace(id=f"{key}:{self._copies[key]}", typed=key in self._typed)
            self._copies[key] += 1
            # Who sent it, the next event says.
            (self.chain.messages if message.typed else self._asides).append(message)
            return
        if self._requested is None and self.chain.awaits_usage and not item.get("output"):
            self._requested = sum(known.weight for known in self.chain.messages)
        self._copies[message.id] += 1
        self.chain.add(message._replace(id=f"{message.id}:{self._copies[message.id]}"))

    def _typed_by_user(self, text: str) -> None:
        key = text_hash(f"user\n{text}")
        self._typed.add(key)
        for message in self._asides:
            if message.id.startswith(f"{key}:"):
                self.chain.add(message._replace(typed=True))
        self._asides = []

    def _counted(self, info: Record) -> Iterator[Fact]:
        usage = mapping(info, "last_token_usage")
        self._window = count(info, "model_context_window") or self._window
        total, sent = count(usage, "total_tokens"), count(usage, "input_tokens")
        self._total = total or self._total
        if self._after is not None and self._after.after is None:
            self._after.after = total
        if sent:
            self._after = None
            said, self._requested = self._requested, None
            yield from self.chain.usage(sent, said)

    def _compacted(self, line: Line, payload: Record) -> Iterator[Fact]:
        """A pass: user messages stay, all else is replaced by one summary."""
        at = time_of(line.record) or self.last_at
        if at is None:
            self.warnings.add(line.path, Trouble.no_time, line.number)
            return
        text = text_of(payload, "message")
        history = payload.get("replacement_history")
        items = records(payload, "replacement_history")
        sealed = any(item.get("type") in _HIDDEN for item in items)
        kept = self._kept(items, text) if isinstance(history, list) else _newest(self.chain.messages)
        number = self.chain.passes + 1
        last = self.chain.summary
        # What a hidden text retains is not known: it is a link of the chain, but no checkpoint.
        children = None if text is None else () if last is None else (last.id,)
        summary = Message(_window_id(payload.get("window_id"), number), text or "", depth=number, children=children)
        kind = kind_of(text) if text else SummaryKind.ok if sealed else None
        this = Pass(number, at, summary_kind=kind, token_budget=self._window)
        cut = Cut(this, self._total, None, summary, kept, hidden=not text)
        yield from self.chain.cut(cut)
        self._after, self._requested = cut, None

    def _kept(self, items: Sequence[Record], summary: str | None) -> list[Message]:
        """The messages of the user's that stay; they are known by their text."""
        copies: Counter[str] = Counter()
        kept = []
        for item in items:
            message = _message(item)
            if message is None or item.get("role") != "user" or (summary and message.text.endswith(summary)):
                continue
            if message.id in self._typed:
                kept.append(message._replace(id=f"{message.id}:{copies[message.id]}", typed=True))
                copies[message.id] += 1
        return kept


def _window_id(value: Any, number: int) -> str:
    return value if isinstance(value, str) and 0 < len(value) <= 64 else f"window-{number}"


def _newest(messages: Sequence[Message]) -> list[Message]:
    """The user's newest messages, as many as stay in a pass of an older version."""
    kept: list[Message] = []
    for message in reversed([message for message in messages if message.typed]):
        if sum(known.weight for known in kept) + message.weight > _KEPT_TOKENS:
            break
        kept.insert(0, message)
    return kept


def _message(item: Record) -> Message | None:
    """An item of the context, named by its content; None if it brings no words, or is overhead."""
    kind, role = text_of(item, "type"), item.get("role")
    if kind == "message" and role in ("user", "assistant"):
        text = said(item.get("content"))
        return Message(text_hash(f"{role}\n{text}"), text) if text else None
    if kind in ("message", "reasoning", None) or kind in _HIDDEN:
        return None
    called = joined(text_of(item, "name"), *strings(item.get("arguments") or item.get("input") or item.get("action")))
    output = joined(*strings(item.get("output") or item.get("tools")))
    if not called and not output:
        return None
    return Message(text_hash(joined(text_of(item, "call_id"), called, output)), called if not output else "", output)
