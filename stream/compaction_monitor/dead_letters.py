"""What becomes of a record that breaks the contract: its key, value and headers as they came, and why."""

from __future__ import annotations

from compaction_events.errors import ContractError, Fault, Reason
from compaction_monitor.effects import Outgoing, Record

MAX_VALUE_BYTES = 512 * 1024
MAX_HEADERS = 64
_CONNECT = "__connect.errors."


def dead_letter(record: Record, error: ContractError) -> Outgoing:
    """The record for the dead-letter topic.

    Headers of the original come first, then Kafka Connect's names for where it came from and what was wrong, then
    `x-reason`. A value above 512 KiB is cut and marked `x-truncated`. The message names fields and what is allowed;
    values are shortened, the whole record is there.
    """
    value = record.value
    headers: list[tuple[str, bytes | None]] = list(record.headers)[:MAX_HEADERS]
    told = {
        f"{_CONNECT}topic": record.topic,
        f"{_CONNECT}partition": str(record.partition),
        f"{_CONNECT}offset": str(record.offset),
        f"{_CONNECT}stage": "VALUE_CONVERTER",
        f"{_CONNECT}exception.class.name": f"{type(error).__module__}.{type(error).__qualname__}",
        f"{_CONNECT}exception.message": str(error)[:2_000],
        "x-reason": error.reason.value,
    }
    headers += [(name, text.encode(errors="backslashreplace")) for name, text in told.items()]
    if value is not None and len(value) > MAX_VALUE_BYTES:
        value = value[:MAX_VALUE_BYTES]
        headers.append(("x-truncated", b"true"))
    return Outgoing(record.key, value, headers)


def fault(reason: Reason, field: str, value: str, allowed: str) -> ContractError:
    """A `ContractError` with one fault."""
    return ContractError(reason, [Fault(field, value, allowed)])
