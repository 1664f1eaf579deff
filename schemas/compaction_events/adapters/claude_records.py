"""What one line of a Claude Code transcript says. Every field may be absent or of another type: files outlive versions."""

from __future__ import annotations

from collections.abc import Iterator

from compaction_events.adapters.fields import Record, count, mapping, records, strings, text_of
from compaction_events.working_set import Message

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


def is_boundary(record: Record) -> bool:
    """Whether a compaction pass ended here."""
    return record.get("type") == "system" and record.get("subtype") == "compact_boundary"


def is_microcompact(record: Record) -> bool:
    """Whether old results of tools were cleared here, without a summary."""
    return record.get("type") == "system" and record.get("subtype") == "microcompact_boundary"


def is_summary(record: Record) -> bool:
    """Whether the record holds what the summariser wrote."""
    return record.get("type") == "user" and record.get("isCompactSummary") is True


def is_said(record: Record) -> bool:
    """Whether the record is part of the conversation."""
    return record.get("type") in ("user", "assistant")


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
    return records(mapping(record, "message"), "content")


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


def tool_ids(record: Record) -> frozenset[str]:
    """The calls whose results a record brings."""
    found = (block for block in blocks(record) if block.get("type") == "tool_result")
    return frozenset(id_ for block in found if (id_ := text_of(block, "tool_use_id")))


def message_of(record: Record, uuid: str) -> Message | None:
    """The record as a message of the working set; None if it brings no words.

    Thinking is left out: it is dropped from the context with the turn it belongs to.
    """
    if record.get("type") == "attachment":
        attached = mapping(record, "attachment")
        # Others tell of tools, agents and hooks: overhead.
        bulk = "\n".join(strings(attached.get("content"))) if attached.get("type") == "file" else ""
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
        yield from strings(block.get("input"))
    elif block.get("type") == "tool_result":
        yield from strings(block.get("content"))
