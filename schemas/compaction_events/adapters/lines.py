"""Reading JSON Lines that another program writes, may be writing now, or has damaged.

One line is in memory at a time. What cannot be used is reported and passed over, never fatal.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import orjson

# Far above any message: a line that long is no transcript, and must not fill the memory.
MAX_LINE_BYTES = 64 * 1024 * 1024


class Trouble(StrEnum):
    """Why a line or a file was passed over, or not read as it stands."""

    torn_line = "torn_line"  # the last line has no end: the writer was stopped, or is still at it
    not_json = "not_json"
    line_too_long = "line_too_long"
    not_utf8 = "not_utf8"  # read all the same, with replacement characters
    foreign_line = "foreign_line"  # JSON, but no record of this session
    foreign_file = "foreign_file"
    subagent_file = "subagent_file"  # its context is its own, and no part of the session's
    unreadable_file = "unreadable_file"
    no_time = "no_time"


class Warned(NamedTuple):
    """One kind of trouble in one file: the first line it was met at (from 1; 0 = the file itself), how often."""

    path: Path
    trouble: Trouble
    line: int
    times: int

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{place}: {self.trouble}" + (f", {self.times} times" if self.times > 1 else "")


class Warnings:
    """Trouble met so far, one entry per file and kind, so that a file of rubbish takes no memory."""

    def __init__(self) -> None:
        self._met: dict[tuple[Path, Trouble], tuple[int, int]] = {}

    def add(self, path: Path, trouble: Trouble, line: int = 0) -> None:
        """One more."""
        first, times = self._met.get((path, trouble), (line, 0))
        self._met[path, trouble] = (first, times + 1)

    def __iter__(self) -> Iterator[Warned]:
        return (Warned(*key, *value) for key, value in self._met.items())


class Head(NamedTuple):
    """What the first lines of a file tell. `first_at` (ISO 8601) orders the files of one session."""

    session_id: str
    first_at: str
    subagent: bool = False


class Line(NamedTuple):
    """One JSON object and where it stands."""

    path: Path
    number: int
    record: dict[str, Any]


def read_lines(path: Path, warnings: Warnings) -> Iterator[Line]:
    """The JSON objects of a file, in order."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1):
                if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
                    warnings.add(path, Trouble.line_too_long, number)
                    while (raw := file.readline(MAX_LINE_BYTES)) and not raw.endswith(b"\n"):
                        pass
                elif raw.strip():
                    record = _record(raw, path, number, warnings)
                    if record is not None:
                        yield Line(path, number, record)
    except OSError:
        warnings.add(path, Trouble.unreadable_file)


def _record(raw: bytes, path: Path, number: int, warnings: Warnings) -> dict[str, Any] | None:
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        found = _repaired(raw)
        if found is None:
            # Only the last line of a file can lack its end.
            warnings.add(path, Trouble.not_json if raw.endswith(b"\n") else Trouble.torn_line, number)
            return None
        warnings.add(path, Trouble.not_utf8, number)
    if not isinstance(found, dict):
        warnings.add(path, Trouble.foreign_line, number)
        return None
    return found


def _repaired(raw: bytes) -> Any:
    """A line whose only fault is its encoding, or None."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        try:
            return orjson.loads(raw.decode(errors="replace"))
        except orjson.JSONDecodeError:
            return None
    return None
