"""What one line of a Claude Code transcript says. Every field may be absent or of another type: files outlive versions.

Source: formats §2.2; recordings README (what counts as typed by the user).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from compaction_events.facts import MAX_ID_CHARS
from compaction_events.recorder import Message

Record = dict[str, Any]

# What the tool itself writes in the user's name.
_NOT_TYPED = (
    "<command-",
    "<local-command",
    "Caveat:",
    "[Request interrupted",
    "<system-reminder",
    "<task-notification",
    "<bash-",
    "This session is being continued",
    "Stop hook",
    "Base directory",
)
# The lines of a summary record that are there whatever the summariser returned.
_FRAME = (
    "This session is being continued",
    "If you need specific details",
    "Please continue the conversation",
    "Continue the conversation from where",
)
_EARLIEST, _LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


def id_of(record: Record, field: str) -> str | None:
    """A field's text where it can be an id in the contract, or None."""
    value = text_of(record, field)
    return value if value is not None and len(value) <= MAX_ID_CHARS else None


def text_of(record: Record, field: str) -> str | None:
    """A field's non-empty text, or None."""
    value = record.get(field)
    return value if isinstance(value, str) and value else None


def mapping(record: Record, field: str) -> Record:
    """A field's object; an empty one where there is none."""
    value = record.get(field)
    return value if isinstance(value, dict) else {}


def time_of(record: Record) -> datetime | None:
    """When the record was written, or None."""
    try:
        at = datetime.fromisoformat(record.get("timestamp") or "")
    except (TypeError, ValueError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return at if _EARLIEST <= at < _LATEST else None


def is_boundary(record: Record) -> bool:
    """Whether a compaction pass ended here."""
    return record.get("type") == "system" and record.get("subtype") == "compact_boundary"


def is_summary(record: Record) -> bool:
    """Whether the record holds what the summariser wrote."""
    return record.get("type") == "user" and record.get("isCompactSummary") is True


def is_said(record: Record) -> bool:
    """Whether the record is part of the conversation."""
    return record.get("type") in ("user", "assistant")


def count(record: Record, field: str) -> int | None:
    """A field's count, or None. Far below the contract's limit, so that sums of counts stay in it too."""
    value = record.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**48 else None


def context_tokens(record: Record) -> int | None:
    """The size of the context a reply was made from, system prompt and tools included; None where there is no usage.

    The tool's own replies (errors, notices) carry a usage of nothing but zeros, and none was made.
    """
    if record.get("type") != "assistant":
        return None
    usage = mapping(mapping(record, "message"), "usage")
    fields = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(count(usage, field) or 0 for field in fields) or None


def blocks(record: Record) -> list[Record]:
    """The content of a record's message, block by block."""
    content = mapping(record, "message").get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def said(record: Record) -> str:
    """The text blocks of a record."""
    return "\n".join(text for block in blocks(record) if block.get("type") == "text" and (text := text_of(block, "text")))


def is_typed(record: Record) -> bool:
    """Whether the user typed this."""
    if record.get("type") != "user" or any(record.get(flag) for flag in ("isMeta", "isSidechain", "isCompactSummary")):
        return False
    content = blocks(record)
    if not content or any(block.get("type") == "tool_result" for block in content):
        return False
    return not said(record).startswith(_NOT_TYPED)


def summary_of(record: Record) -> str:
    """What the summariser returned; empty if there is nothing but the frame around it."""
    text = said(record)
    lines = [line for line in text.splitlines() if not line.strip().startswith(_FRAME)]
    # A heading alone ("Summary:") is frame too.
    substance = any(not line.strip().endswith(":") and any(map(str.isalnum, line)) for line in lines)
    return text if substance else ""


def message_of(record: Record, uuid: str) -> Message | None:
    """The record as a message of the working set; None if it brings no words.

    Thinking is left out: it is dropped from the context with the turn it belongs to.
    """
    if record.get("type") == "attachment":
        attached = mapping(record, "attachment")
        # Others tell of tools, agents and hooks: overhead.
        bulk = "\n".join(_strings(attached.get("content"))) if attached.get("type") == "file" else ""
        return Message(uuid, "", bulk) if bulk else None
    if not is_said(record):
        return None
    typed = is_typed(record)
    text = said(record)
    tools = [string for block in blocks(record) for string in _tool_strings(block)]
    if record.get("type") == "assistant":
        text, bulk = "\n".join(filter(None, [text, *tools])), ""
    else:
        text, bulk = (text, "") if typed else ("", "\n".join(filter(None, [text, *tools])))
    return Message(uuid, text, bulk, typed) if typed or text or bulk else None


def _tool_strings(block: Record) -> Iterator[str]:
    if block.get("type") == "tool_use":
        yield from _strings(block.get("input"))
    elif block.get("type") == "tool_result":
        yield from _strings(block.get("content"))


def _strings(value: object) -> Iterator[str]:
    """Every text inside a JSON value, in order, but no binary content."""
    # A list of what is left instead of recursion: a tool's arguments may nest deeper than Python's stack.
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            left.extend(reversed(item))
        elif isinstance(item, dict) and item.get("type") not in ("image", "document"):
            left.extend(reversed(list(item.values())))
