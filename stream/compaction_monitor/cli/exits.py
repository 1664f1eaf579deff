"""How a command ends: the one table of exit codes, and the error that says what, why, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final


class Code(IntEnum):
    """Exit codes. 69 to 78 are the worker's own, from `sysexits.h`."""

    ok = 0
    failed = 1
    usage = 2
    not_found = 3
    invalid = 4
    unreachable = 5
    found = 10
    unavailable = 69
    software = 70
    fenced = 75
    config = 78
    interrupted = 130


MEANING: Final[dict[Code, str]] = {
    Code.ok: "done",
    Code.failed: "a runtime error",
    Code.usage: "wrong usage",
    Code.not_found: "no such file, or nothing found there",
    Code.invalid: "invalid input or settings",
    Code.unreachable: "no broker answers",
    Code.found: "a finding as bad as --fail-on, or worse",
    Code.unavailable: "worker: no broker answers",
    Code.software: "worker: a fault in the program",
    Code.fenced: "worker: fenced, paused for too long, stuck, or its local store failed; start it again",
    Code.config: "worker: settings, disk or topics need a decision; the last line says which",
    Code.interrupted: "interrupted",
}


def epilog() -> str:
    """The table, for `--help`: an empty line between lines keeps them apart."""
    return "\n\n".join(["Exit codes:", *(f"{code:>4}  {meaning}" for code, meaning in MEANING.items())])


class Problem(Exception):
    """Something the user can solve. Printed without a traceback, on stderr.

    Args:
        code: The exit code.
        what: What went wrong, in a line.
        why: The reason, or the details found.
        todo: What to do next.
    """

    def __init__(self, code: Code, what: str, why: str = "", todo: str = "") -> None:
        # All of them: it is pickled, when a process that reads sessions meets it.
        super().__init__(code, what, why, todo)
        self.code, self.what, self.why, self.todo = code, what, why, todo

    def __str__(self) -> str:
        return self.what


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Imports that need an extra: where it is not installed, say which one to install."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("compaction_"):
            raise
        raise Problem(
            Code.failed,
            f"This command needs {missing.name}, which is not installed.",
            todo=f"pip install 'compaction-monitor[{name}]'",
        ) from None
