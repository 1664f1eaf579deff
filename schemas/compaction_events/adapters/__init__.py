"""Sessions that agents left on disk, as facts. No agent framework is needed, and nothing is written.

`find` says which sessions are there, `read_session` gives the facts of one with what else was learned on the way, and
`read` does both. What a file is, its content decides, never its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from compaction_events.adapters import claude_code, codex, copilot, lcm, opencode, openhands, pi
from compaction_events.adapters.lines import Head, Trouble, Warned, Warnings
from compaction_events.facts import Fact

__all__ = ["ADAPTERS", "Adapter", "Head", "Reading", "Session", "Trouble", "Warned", "Warnings", "find", "read", "read_session"]


class Session(NamedTuple):
    """One session: its files in the order in which they were written, and the adapter that reads them."""

    paths: tuple[Path, ...]
    session_id: str
    adapter: str


class Reading(Protocol):
    """One session being read: iterate over it once for its facts; the rest is complete after that.

    `quoted`: by round, (still quoted, typed) for the user's messages of each stretch between passes, oldest first.
    `at_end`: what comes now is only told because the files end here; with more of them it may be told otherwise.
    """

    @property
    def at_end(self) -> bool: ...
    @property
    def warnings(self) -> Warnings: ...
    @property
    def quoted(self) -> dict[int, tuple[tuple[int, int], ...]]: ...

    def __iter__(self) -> Iterator[Fact]: ...


class Adapter(Protocol):
    """One format. `heads`: the sessions in a file, none for one of another format. `PATTERNS`: names to look at in folders."""

    @property
    def NAME(self) -> str: ...  # noqa: N802 - a constant of the modules that are adapters
    @property
    def PATTERNS(self) -> Sequence[str]: ...  # noqa: N802
    def heads(self, path: Path) -> Sequence[Head]: ...
    def known_folders(self) -> Sequence[Path]: ...
    def reading(self, paths: Sequence[Path], session_id: str) -> Reading: ...


Heads = tuple[str, Sequence[Head]]

ADAPTERS: Final[tuple[Adapter, ...]] = (claude_code, codex, pi, openhands, *lcm.ADAPTERS, copilot, opencode)
PATTERNS: Final = tuple(sorted({pattern for adapter in ADAPTERS for pattern in adapter.PATTERNS}))


def find(paths: Iterable[Path] = (), warnings: Warnings | None = None) -> list[Session]:
    """The sessions in these files and folders; without any, in the folders where the known agents keep theirs.

    Args:
        paths: Files of any name; of folders, every file below whose name is that of a known format.
        warnings: Where files that are no session are reported.

    Returns:
        The oldest session first.
    """
    warnings = Warnings() if warnings is None else warnings
    given = list(paths) or known_folders()
    found = {path: heads(path) for path in files(given)}
    for path, (_, told) in found.items():
        if not told:
            warnings.add(path, Trouble.foreign_file if path.is_file() else Trouble.unreadable_file)
        for head in told:
            if head.subagent:
                warnings.add(path, Trouble.subagent_file)
    return sessions(found)


def known_folders() -> list[Path]:
    """The folders and files in which the known agents keep their sessions, those that are there."""
    return [folder for adapter in ADAPTERS for folder in adapter.known_folders() if folder.exists()]


def sessions(found: Mapping[Path, Heads]) -> list[Session]:
    """The sessions in files whose heads are known, the oldest first."""
    grouped: dict[tuple[str, str], list[tuple[str, Path]]] = {}
    for path, (name, told) in found.items():
        for head in told:
            if not head.subagent:
                grouped.setdefault((name, head.session_id), []).append((head.first_at, path))
    # The order follows from the content alone, not from how the file system lists a folder.
    ordered = sorted((sorted(parts), session_id, name) for (name, session_id), parts in grouped.items())
    return [Session(tuple(path for _, path in parts), session_id, name) for parts, session_id, name in ordered]


def heads(path: Path) -> Heads:
    """Whose file this is: the adapter's name and the sessions in it; of a file of no known format, nobody's."""
    # Not a device or a pipe, which reading could block on.
    for adapter in ADAPTERS if path.is_file() else ():
        told = adapter.heads(path)
        if told:
            return adapter.NAME, told
    return "", ()


def files(paths: Iterable[Path]) -> Iterator[Path]:
    """The files in these paths, each once; of folders, those whose name a known format has."""
    seen: set[Path] = set()
    for path in paths:
        below = sorted({file for pattern in PATTERNS for file in path.rglob(pattern)}) if path.is_dir() else [path]
        for file in below:
            if file not in seen and not file.is_dir():
                seen.add(file)
                yield file


def read_session(session: Session) -> Reading:
    """One session that `find` found."""
    adapter = next(adapter for adapter in ADAPTERS if session.adapter == adapter.NAME)
    return adapter.reading(session.paths, session.session_id)


def read(paths: Iterable[Path] = ()) -> Iterator[Fact]:
    """The facts of every session in these files and folders, one session after the other."""
    for session in find(paths):
        yield from read_session(session)
