"""Files as facts: sessions that agents left on disk (by an adapter), and recorded events (one JSON event a line).

What a file is, its content decides. Facts of recorded events come in the order of the log; a line that breaks the
contract is reported and passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from compaction_events.codec import TYPE_PREFIX, TYPES, Decoded
from compaction_events.errors import ContractError, Fault, Reason
from compaction_events.facts import Fact, RoundCompleted
from compaction_events.findings import FINDING_TYPES
from compaction_events.recorded import read_lines
from compaction_monitor.cli.exits import Code, Problem, extra
from compaction_monitor.report.document import SessionReport
from compaction_monitor.rules import Rules

if TYPE_CHECKING:
    from compaction_events.adapters import Session, Warned

EVENTS = "events"
_HEAD_LINES = 20
_SHOWN_FAULTS = 5
_SHOWN_CHARS = 42
_TROUBLE: Final = {
    "torn_line": "the last line has no end; passed over",
    "not_json": "not JSON; passed over",
    "line_too_long": "a line too long for a record; passed over",
    "not_utf8": "not UTF-8; read with replacement characters",
    "foreign_line": "no record of this session; passed over",
    "foreign_file": "no session of a known agent, and no recorded events",
    "subagent_file": "a subagent's context, no part of the session's; passed over",
    "unreadable_file": "cannot be read",
    "no_time": "a record without a time; passed over",
}


class Item(NamedTuple):
    """One fact and where it came from. `source` is an adapter's name or `events`; `files` those of the session.

    `quoted`: of a round, (still quoted, typed) for the user's messages of each stretch between passes, oldest first.
    """

    fact: Fact
    ce_id: str | None
    source: str
    files: tuple[str, ...]
    quoted: tuple[tuple[int, int], ...] | None = None


class BadLine(NamedTuple):
    """A line that breaks the contract."""

    path: Path
    line: int
    error: ContractError


class Sources:
    """Reads what the paths hold; what was passed over is in `warnings` and `bad_lines` afterwards.

    Args:
        paths: Files and folders (of these, the files named like sessions); none: where the known agents keep theirs.

    Raises:
        Problem: A path does not exist.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        for path in paths:
            if not path.exists():
                raise Problem(Code.not_found, f"No such file or folder: {path}", todo="Check the path.")
        self.bad_lines: list[BadLine] = []
        self._adapter_warnings: list[str] = []
        self.events, self.sessions = self._find(paths)
        self.size = sum(path.stat().st_size for path in self.files)

    @property
    def files(self) -> list[Path]:
        """Every file that is read, in reading order."""
        return [*self.events, *(path for session in self.sessions for path in session.paths)]

    @property
    def warnings(self) -> list[str]:
        """One line for each kind of trouble in each file."""
        first: dict[tuple[Path, str], tuple[BadLine, int]] = {}
        for bad in self.bad_lines:
            key = (bad.path, bad.error.reason.value)
            known, count = first.get(key, (bad, 0))
            first[key] = (known, count + 1)
        lines = [
            f"{bad.path}:{bad.line}: {bad.error.reason}: {told(bad.error)}" + (f" ({count} such lines)" if count > 1 else "")
            for bad, count in first.values()
        ]
        return [*lines, *self._adapter_warnings]

    def read(self, advance: Callable[[int], None] = lambda _: None) -> Iterator[Item]:
        """Every fact, file by file and session by session.

        Args:
            advance: Told how many bytes were read since the last call.
        """
        yield from self.read_events(advance)
        for session in self.sessions:
            items, warnings = read_session(session)
            yield from items
            self.warn(warnings())
            advance(sum(path.stat().st_size for path in session.paths))

    def read_events(self, advance: Callable[[int], None] = lambda _: None) -> Iterator[Item]:
        """The facts of files of recorded events alone."""
        for path in self.events:
            yield from self._read_events(path, advance)

    def warn(self, warnings: Iterable[str]) -> None:
        """What was passed over in a session's files."""
        self._adapter_warnings.extend(warnings)

    def _find(self, paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Session, ...]]:
        with extra("adapters"):
            from compaction_events import adapters
        files = list(adapters.files(paths))
        recorded = [path for path in files if _holds_events(path)]
        events = frozenset(recorded)
        rest = [path for path in files if path not in events]
        warnings = adapters.Warnings()
        # Without paths the adapters know where to look; with nothing left to look at, they must not.
        sessions = adapters.find(rest, warnings) if rest or not paths else []
        self.warn(map(_words, warnings))
        return tuple(recorded), tuple(sessions)

    def _read_events(self, path: Path, advance: Callable[[int], None]) -> Iterator[Item]:
        files = (str(path),)
        try:
            for number, size, found in read_lines(path):
                advance(size)
                read = _no_finding(found)
                if isinstance(read, ContractError):
                    self.bad_lines.append(BadLine(path, number, read))
                else:
                    yield Item(read.event, read.ce_id, EVENTS, files)
        except OSError as error:
            raise Problem(Code.failed, f"Cannot read {path}", error.strerror or "", "Check its permissions.") from None


def read_session(session: Session) -> tuple[Iterator[Item], Callable[[], Iterator[str]]]:
    """The facts of one session, and (once these were read) what was passed over."""
    with extra("adapters"):
        from compaction_events import adapters
    reading = adapters.read_session(session)
    files = tuple(map(str, session.paths))

    def items() -> Iterator[Item]:
        with extra("adapters"):
            for fact in reading:
                quoted = reading.quoted.get(fact.round) if isinstance(fact, RoundCompleted) else None
                yield Item(fact, None, session.adapter, files, quoted)

    return items(), lambda: map(_words, reading.warnings)


def shown(value: str) -> str:
    """The value of a fault, unless it may be text of a session: whatever is long, or has spaces in it.

    >>> shown("'round.complete'"), shown("-3"), shown("'please fix the parser'")
    ("'round.complete'", '-3', '(not shown)')
    """
    is_literal = value.startswith(("'", '"', "b'", 'b"', "{", "[", "("))
    return "(not shown)" if is_literal and (len(value) > _SHOWN_CHARS or " " in value) else value


def told(error: ContractError) -> str:
    """The faults of a line, without the session's text."""
    faults = [f"{fault.field}: {shown(fault.value)} (allowed: {fault.allowed})" for fault in error.faults[:_SHOWN_FAULTS]]
    more = len(error.faults) - _SHOWN_FAULTS
    return "; ".join(faults) + (f"; and {more} more" if more > 0 else "")


def _words(warned: Warned) -> str:
    place = f"{warned.path}:{warned.line}" if warned.line else str(warned.path)
    words = _TROUBLE.get(warned.trouble.value, warned.trouble.value.replace("_", " "))
    return f"{place}: {words}" + (f" ({warned.times} times)" if warned.times > 1 else "")


def _no_finding(read: Decoded | ContractError) -> Decoded | ContractError:
    if isinstance(read, Decoded) and isinstance(read.event, FINDING_TYPES):
        fault = Fault("type", read.event.type, "an event of an agent or an answer of a controller")
        return ContractError(Reason.wrong_topic, [fault])
    return read


def reports(items: Iterable[Item], rules: Rules) -> list[SessionReport]:
    """Fold every fact into its session's report, in log order; sessions in the order in which they begin."""
    found: dict[tuple[str, str], SessionReport] = {}
    for item in items:
        key = (item.source, item.fact.session_id)
        report = found.get(key)
        if report is None:
            report = found[key] = SessionReport(item.fact.session_id, item.source, item.files)
        report.files += [file for file in item.files if file not in report.files]
        report.add(item.fact, rules, item.ce_id, item.quoted)
    return list(found.values())


def _holds_events(path: Path) -> bool:
    """Whether one of the first lines names a type of ours; a bad line before it does not hide it."""
    if not path.is_file():  # a pipe would block
        return False
    try:
        with path.open("rb") as file:
            return any(_names_our_type(line) for line, _ in zip(file, range(_HEAD_LINES), strict=False))
    except OSError:
        return False


def _names_our_type(line: bytes) -> bool:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    kind = found.get("type") if isinstance(found, dict) else None
    return isinstance(kind, str) and (kind in TYPES or kind.startswith(TYPE_PREFIX))
