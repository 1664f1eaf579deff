"""Whose fault it is, in one tree.

```
CompactionEventsError
├── ContractError   the sender's: the record breaks the contract; never retried, dead-lettered with its reason
├── AccessError     the operator's: the broker does not let this client in, or not do this; retried in vain
└── EmitError       the broker's: the record could not be delivered; can be retried
```
`compaction_monitor` adds `SettingsError` (the operator's) and the two errors that only the in-process guard raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

_SHOWN_FAULTS = 10


class Reason(StrEnum):
    """Why a record was dead-lettered: the closed set of `x-reason`. `internal_error` is the monitor's own fault."""

    empty_value = "empty_value"
    record_too_large = "record_too_large"
    not_json = "not_json"
    bad_headers = "bad_headers"
    unknown_type = "unknown_type"
    unknown_version = "unknown_version"
    invalid_field = "invalid_field"
    wrong_key = "wrong_key"
    wrong_topic = "wrong_topic"
    wrong_partition = "wrong_partition"
    undecodable_record = "undecodable_record"
    internal_error = "internal_error"


class Fault(NamedTuple):
    """One thing wrong with a record: the field, the value found there (shortened), and what is allowed."""

    field: str
    value: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.field}: {self.value} (allowed: {self.allowed})"


class CompactionEventsError(Exception):
    """The root of what this package raises."""


class ContractError(CompactionEventsError):
    """A record that breaks the contract. Carries its `reason` and every fault found, not only the first.

    The message names the first ten: it travels in a header, and must not be as long as a bad record can make it.
    """

    def __init__(self, reason: Reason, faults: Sequence[Fault]) -> None:
        self.reason = reason
        self.faults = tuple(faults)
        more = f"; and {len(self.faults) - _SHOWN_FAULTS} more" if len(self.faults) > _SHOWN_FAULTS else ""
        super().__init__(f"{reason}: " + "; ".join(map(str, self.faults[:_SHOWN_FAULTS])) + more)


class AccessError(CompactionEventsError):
    """A broker answers, but does not let this client in, or does not let it do this. No secret is in its text.

    Args:
        what: What was refused, and to whom.
        todo: What to do next.
    """

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(f"{what}. {todo}")
        self.what, self.todo = what, todo


class EmitError(CompactionEventsError):
    """An event could not be delivered to the broker in time. Retriable: the event itself is sound."""


def shown(value: object, limit: int = 80) -> str:
    """`repr` of a value, cut to `limit` characters, for a message."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
