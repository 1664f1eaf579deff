"""From sources to the document of a scan: many sessions on all cores, few in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction_monitor.cli import output
from compaction_monitor.cli.sources import Sources, read_session, reports
from compaction_monitor.report.document import Document, scan_document
from compaction_monitor.rules import Rules

if TYPE_CHECKING:
    from compaction_events.adapters import Session

# A process of its own takes a second to load what measures text; below this one is quicker alone.
_WORTH_BYTES: Final = 24 * 1024 * 1024
_TASKS_AHEAD: Final = 4


class Scanned(NamedTuple):
    """One session's report, and what was passed over in its files."""

    document: Document
    warnings: tuple[str, ...]


def scanned(sources: Sources, rules: Rules, workers: int | None = None) -> Document:
    """The document of everything in these sources, with a progress bar while it takes long.

    Args:
        workers: Processes; by default one for each core, and none beside this where there is little to read.
    """
    with output.progress("Reading", sources.size) as bar:
        advance: Callable[[int], None] = partial(bar.advance, bar.task_ids[0])
        documents = [report.document() for report in reports(sources.read_events(advance), rules)]
        for session, found in zip(sources.sessions, _sessions(sources.sessions, rules, workers), strict=True):
            documents.append(found.document)
            sources.warn(found.warnings)
            advance(_size(session))
    return scan_document([document for document in documents if document], sources.warnings)


def scan_session(session: Session, rules: Rules) -> Scanned:
    """Read and check one session."""
    items, warnings = read_session(session)
    found = reports(items, rules)
    return Scanned(found[0].document() if found else {}, tuple(warnings()))


def _sessions(sessions: Sequence[Session], rules: Rules, workers: int | None) -> Iterator[Scanned]:
    """Every session's report, in order."""
    wanted = min(len(sessions), (os.cpu_count() or 1) if workers is None else workers)
    if wanted < 2 or (workers is None and sum(map(_size, sessions)) < _WORTH_BYTES):
        yield from (scan_session(session, rules) for session in sessions)
        return
    # Spawned, not forked: the progress bar has a thread.
    with ProcessPoolExecutor(wanted, mp_context=get_context("spawn")) as pool:
        ahead = [pool.submit(scan_session, session, rules) for session in sessions[: wanted * _TASKS_AHEAD]]
        waiting = iter(sessions[wanted * _TASKS_AHEAD :])
        while ahead:
            yield ahead.pop(0).result()
            ahead += [pool.submit(scan_session, session, rules) for session in [next(waiting, None)] if session is not None]


def _size(session: Session) -> int:
    return sum(path.stat().st_size if path.is_file() else 0 for path in map(Path, session.paths))
