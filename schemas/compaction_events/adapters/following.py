"""What is new in sessions that agents are writing now: read again when their files change, told once.

A session's facts follow from its content, and a longer file begins with the same ones. So a cursor needs no offsets: how
many facts of a session were delivered, and the id of the last of them. After a restart they are passed over; if they no
longer stand where they stood (a file was replaced), all are told again, under the same ids.

What would only be told because a file ends here (a pass whose size is not known yet, the session's end) waits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import orjson

from compaction_events import adapters
from compaction_events.adapters import Heads, Session
from compaction_events.codec import ce_id
from compaction_events.facts import Fact
from compaction_events.ids import text_hash

Signature = tuple[tuple[int, int, int], ...]


class News(NamedTuple):
    """Facts of one session that were not delivered yet; `told`: how many there are with them."""

    session: Session
    facts: list[Fact]
    told: int


class Cursor:
    """What was delivered, in a file: a line of JSON, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            found = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            # None yet, or a damaged one: what was delivered is told again, under the same ids.
            found = {}
        self._known: dict[str, list[object]] = found if isinstance(found, dict) else {}

    def after(self, session: Session, facts: Sequence[Fact]) -> int:
        """How many of these facts were delivered."""
        told, last = (self._known.get(_key(session)) or [0, ""])[:2]
        if not isinstance(told, int) or not 0 < told <= len(facts):
            return 0
        return told if ce_id(facts[told - 1]) == last else 0

    def move(self, news: News) -> None:
        """These were delivered too."""
        self._known[_key(news.session)] = [news.told, ce_id(news.facts[-1])]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(f"{self._path.name}.new")
        with beside.open("wb") as file:
            file.write(orjson.dumps(self._known))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)


class Follower:
    """Looks at files and folders again and again.

    Args:
        paths: As for `find`; none: where the known agents keep theirs.
        cursor: Where to remember what was delivered.
    """

    def __init__(self, paths: Sequence[Path], cursor: Path) -> None:
        self._paths = list(paths)
        self._cursor = Cursor(cursor)
        self._seen: dict[Path, Signature] = {}
        self._heads: dict[Path, Heads] = {}

    def poll(self) -> Iterator[News]:
        """What is new in the files that changed since the last call. Call `delivered` for each before taking the next."""
        changed = self._changed()
        for session in adapters.sessions(self._heads):
            if changed.isdisjoint(session.paths):
                continue
            facts = list(settled(session))
            told = self._cursor.after(session, facts)
            if facts[told:]:
                yield News(session, facts[told:], len(facts))

    def delivered(self, news: News) -> None:
        """Its facts are safe where they were to go."""
        self._cursor.move(news)

    def _changed(self) -> set[Path]:
        present = {path: signature(path) for path in adapters.files(self._paths or adapters.known_folders())}
        before, self._seen = self._seen, present
        changed = {path for path, found in present.items() if before.get(path) != found}
        self._heads = {path: known for path, known in self._heads.items() if path in present}
        for path in changed:
            if path not in self._heads or not _goes_on(self._heads[path], before.get(path), present[path]):
                self._heads[path] = adapters.heads(path)
        return changed


def settled(session: Session) -> Iterator[Fact]:
    """The facts of a session that more content will not change."""
    reading = adapters.read_session(session)
    yield from takewhile(lambda _: not reading.at_end, reading)


def signature(path: Path) -> Signature:
    """What changes when a file does: itself, the log beside a database, and the folder, where each event is a file."""
    found = []
    for part in (path, path.with_name(f"{path.name}-wal"), *([path.parent] if path.suffix == ".json" else [])):
        try:
            status = part.stat()
        except OSError:
            continue
        found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _goes_on(known: Heads, before: Signature | None, now: Signature) -> bool:
    """Whether a file only got longer: then it is still the one session it was. A store may have got another one."""
    if not before or len(now) != 1 or len(known[1]) != 1:
        return False
    (was, size, _), (is_now, size_now, _) = before[0], now[0]
    return was == is_now and size <= size_now


def _key(session: Session) -> str:
    return text_hash(f"{session.adapter}\n{session.session_id}")
