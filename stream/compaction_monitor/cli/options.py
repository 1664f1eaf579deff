"""Options that several commands share, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compaction_events.findings import Severity
from compaction_monitor.cli.exits import Code, Problem
from compaction_monitor.rules import Rules
from compaction_monitor.rules_file import RulesFileError, read_rules

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout, keys sorted.")]
Paths = Annotated[
    list[Path] | None,
    typer.Argument(help="Session files, files of recorded events, or folders of them.", show_default=False),
]
Checks = Annotated[
    Path | None, typer.Option("--checks", metavar="FILE", help="TOML file with thresholds, switches and severities.")
]
FailOn = Annotated[
    Severity | None,
    typer.Option("--fail-on", help="Exit 10 if any alert was raised that is as bad as this, or worse."),
]


def rules(checks: Path | None) -> Rules:
    """The rules of a checks file; the defaults without one.

    Raises:
        Problem: The file does not exist, or something in it is not allowed.
    """
    if checks is None:
        return Rules()
    try:
        return read_rules(checks.read_text(encoding="utf-8"), checks.name)
    except OSError as error:
        raise Problem(Code.not_found, f"Cannot read the checks file {checks}", error.strerror or "") from None
    except UnicodeDecodeError:
        raise Problem(Code.invalid, f"The checks file {checks} is not UTF-8 text.") from None
    except RulesFileError as error:
        raise Problem(Code.invalid, "The checks file is wrong.", str(error), "Correct these keys.") from None
