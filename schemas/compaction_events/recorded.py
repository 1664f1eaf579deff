"""Recorded events: a file with one plain JSON object a line, as the emitter writes it to `file:events.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from compaction_events.codec import Decoded, decode
from compaction_events.errors import ContractError


def read_events(path: Path, on_fault: Callable[[int, ContractError], None] | None = None) -> Iterator[Decoded]:
    """The events of a file, in its order. Empty lines are passed over; plain and structured JSON are both read.

    Args:
        path: The file.
        on_fault: Gets the number (from 1) and the error of each line that holds no event; reading goes on.

    Raises:
        ContractError: A line holds no event and there is no `on_fault`; its faults name the line.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                decoded = decode(line.strip(), check_key=False)
            except ContractError as error:
                if on_fault is None:
                    faults = [fault._replace(field=f"line {number}, {fault.field}") for fault in error.faults]
                    raise ContractError(error.reason, faults) from None
                on_fault(number, error)
            else:
                yield decoded
