"""Where output goes: data on stdout, everything else on stderr. JSON with sorted keys; tables only for people.

Ids and names come from others: what would command a terminal (escape sequences, changes of the writing direction) is
never written as it is.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

import orjson
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from compaction_monitor.cli.exits import Problem

_PLAIN_WIDTH = 120
_WARNINGS_SHOWN = 20
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class _Console(Console):
    """rich takes text as it is: here the commands in it become visible."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=_COMMANDS.sub("\ufffd", segment.text))


def console(*, stderr: bool = False) -> Console:
    """A console on the streams of this moment. rich itself is plain under NO_COLOR and where there is no terminal."""
    file = sys.stderr if stderr else sys.stdout
    # Nothing to fit into when it is read by a program or kept in a file.
    width = None if file.isatty() else shutil.get_terminal_size((_PLAIN_WIDTH, 0)).columns
    return _Console(file=file, width=width, highlight=False, soft_wrap=False)


def json_document(document: Any) -> None:
    """One document on stdout."""
    sys.stdout.write(_json(document, indented=True) + "\n")


def json_line(document: Any) -> None:
    """One line of a stream on stdout, at once."""
    sys.stdout.write(_json(document, indented=False) + "\n")
    sys.stdout.flush()


def _json(document: Any, *, indented: bool) -> str:
    """JSON that stdout can hold: escaped where its encoding has less than Unicode, or a file's name is no text."""
    try:
        text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS | (orjson.OPT_INDENT_2 if indented else 0)).decode()
        text = _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
        text.encode(sys.stdout.encoding)
    except (TypeError, UnicodeEncodeError):
        separators = None if indented else (",", ":")
        return json.dumps(document, indent=2 if indented else None, separators=separators, sort_keys=True)
    return text


def lenient() -> None:
    """What the terminal's encoding has no character for is shown as `?`, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


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
