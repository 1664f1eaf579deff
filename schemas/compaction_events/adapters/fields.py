"""Fields of records that other programs wrote. Every field may be absent or of another type: files outlive versions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from compaction_events.facts import MAX_ID_CHARS

Record = dict[str, Any]

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


def records(record: Record, field: str) -> list[Record]:
    """The objects in a field's list; none where it is no list."""
    value = record.get(field)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts(record: Record, field: str) -> tuple[str, ...]:
    """The texts in a field's list; none where it is no list."""
    value = record.get(field)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def count(record: Record, field: str) -> int | None:
    """A field's count, or None. Far below the contract's limit, so that sums of counts stay in it too."""
    value = record.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**48 else None


def time_of(record: Record, field: str = "timestamp") -> datetime | None:
    """When the record was written, or None; a time without a zone is UTC."""
    return moment(record.get(field))


def moment(value: object) -> datetime | None:
    """A time as ISO 8601 text, or as seconds or milliseconds since 1970; None where it is none.

    >>> moment("2026-05-04 09:00:00") == moment(1777885200) == moment(1777885200000)
    True
    """
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            at = datetime.fromtimestamp(value / 1_000 if abs(value) >= 1e11 else value, UTC)
        else:
            at = datetime.fromisoformat(value if isinstance(value, str) else "")
    except (ValueError, OverflowError, OSError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return at if _EARLIEST <= at < _LATEST else None


def strings(value: object) -> Iterator[str]:
    """Every text inside a JSON value, in order, but no binary content."""
    # A list of what is left instead of recursion: a tool's arguments may nest deeper than Python's stack.
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            left.extend(reversed(item))
        elif isinstance(item, dict) and item.get("type") not in ("image", "document", "input_image"):
            left.extend(reversed(list(item.values())))


def joined(*parts: str | None) -> str:
    """Those parts that are there, one a line."""
    return "\n".join(part for part in parts if part)


def said(content: object) -> str:
    """A message's content: text, or blocks of which some are text."""
    if isinstance(content, str):
        return content
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    return joined(*(text_of(block, "text") for block in blocks))
