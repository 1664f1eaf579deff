"""Where output goes: data on stdout, everything else on stderr. JSON with sorted keys; tables only for people."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from compaction_monitor.cli.exits import Problem

_PLAIN_WIDTH = 120
_WARNINGS_SHOWN = 20


def console(*, stderr: bool = False) -> Console:
    """A console on the streams of this moment. rich itself is plain under NO_COLOR and where there is no terminal."""
    file = sys.stderr if stderr else sys.stdout
    # Nothing to fit into when it is read by a program or kept in a file.
    width = None if file.isatty() else shutil.get_terminal_size((_PLAIN_WIDTH, 0)).columns
    return Console(file=file, width=width, highlight=False, soft_wrap=False)


def json_document(document: Any) -> None:
    """One document on stdout."""
    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode() + "\n")


def json_line(document: Any) -> None:
    """One line of a stream on stdout, at once."""
    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode() + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A line about what is going on, on stderr."""
    console(stderr=True).print(Text(text, style="dim"), soft_wrap=True)


def warn(text: str) -> None:
    """A line about what was passed over, on stderr."""
    console(stderr=True).print(Text.assemble(("warning: ", "yellow"), text), soft_wrap=True)


def warn_all(texts: Sequence[str]) -> None:
    """Warnings, the first of many."""
    for text in texts[:_WARNINGS_SHOWN]:
        warn(text)
    if len(texts) > _WARNINGS_SHOWN:
        warn(f"{len(texts) - _WARNINGS_SHOWN} more; --json lists all")


def show(problem: Problem) -> None:
    """What, why, and what to do next."""
    out = console(stderr=True)
    out.print(Text.assemble(("error: ", "bold red"), problem.what), soft_wrap=True)
    for line in problem.why.splitlines():
        out.print(Text(f"  {line}"), soft_wrap=True)
    if problem.todo:
        out.print(Text.assemble(("  next: ", "bold"), problem.todo), soft_wrap=True)


@contextmanager
def progress(what: str, total: int) -> Iterator[Progress]:
    """A bar on stderr while long work runs, gone when it is done; nothing where there is no terminal.

    Yields:
        The bar; `advance` its one task.
    """
    out = console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
        console=out, transient=True, disable=not out.is_terminal,
    )  # fmt: skip
    with bar:
        bar.add_task(what, total=total)
        yield bar
