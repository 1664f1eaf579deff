"""Recorded events: a file with one plain JSON object a line, as the emitter writes it to `file:events.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from compaction_events.codec import Decoded, decode
from compaction_events.errors import ContractError


class Line(NamedTuple):
    """One line of a file: its number (from 1), its size in bytes, and the event it holds or what is wrong with it."""

    number: int
    size: int
    read: Decoded | ContractError


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file, in its order. Empty ones are passed over; plain and structured JSON are both read.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if line := raw.strip():
                yield Line(number, len(raw), _decoded(line))


def read_events(path: Path, on_fault: Callable[[int, ContractError], None] | None = None) -> Iterator[Decoded]:
    """The events of a file, in its order; see `read_lines`.

    Args:
        path: The file.
        on_fault: Gets the number (from 1) and the error of each line that holds no event; reading goes on.

    Raises:
        ContractError: A line holds no event and there is no `on_fault`; its faults name the line.
        OSError: The file cannot be read.
    """
    for number, _, read in read_lines(path):
        if not isinstance(read, ContractError):
            yield read
        elif on_fault is not None:
            on_fault(number, read)
        else:
            faults = [fault._replace(field=f"line {number}, {fault.field}") for fault in read.faults]
            raise ContractError(read.reason, faults)


def _decoded(line: bytes) -> Decoded | ContractError:
    try:
        return decode(line, check_key=False)
    except ContractError as error:
        return error
