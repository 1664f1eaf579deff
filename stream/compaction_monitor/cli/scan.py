"""`scan`: what compaction did to sessions, from their files. No broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compaction_monitor.cli import options, output, render
from compaction_monitor.cli.exits import Code, Problem, extra
from compaction_monitor.cli.scanning import scanned
from compaction_monitor.cli.sources import Sources
from compaction_monitor.cli.wording import plan
from compaction_monitor.report.document import Document, reaches


def scan(
    paths: options.Paths = None,
    checks: options.Checks = None,
    fail_on: options.FailOn = None,
    all_rounds: Annotated[bool, typer.Option("--all-rounds", help="List every round, not only the last 12.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one page, complete in itself.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Check sessions from their files, without a broker.

    Reads sessions of known agents (Claude Code, Codex, pi and others) and recorded events (JSON Lines); what a file is,
    its content decides.
    Without PATHS: the folders where the known agents keep their sessions.
    """
    sources = Sources(paths or [])
    if not sources.files:
        raise _nothing(bool(paths), sources.warnings)
    document = scanned(sources, options.rules(checks))
    if not document["sessions"]:
        raise _nothing(True, document["warnings"])
    if html is not None:
        _write(html, document)
    if json:
        output.json_document(document)
    elif html is None:
        render.scan(output.console(), document, rounds_shown=None if all_rounds else 12)
        output.warn_all(document["warnings"])
    else:
        output.note(f"the report is in {html}")
    if fail_on is not None and reaches(document["worst_severity"], fail_on):
        raise typer.Exit(int(Code.found))


def _write(path: Path, document: Document) -> None:
    with extra("adapters"):
        from compaction_monitor.report.page import page
    try:
        path.write_text(page(document, lambda found: plan(found).plain), encoding="utf-8", errors="replace")
    except OSError as error:
        raise Problem(
            Code.failed, f"Cannot write {path}", error.strerror or "", "Check the folder and its permissions."
        ) from None


def _nothing(given: bool, warnings: list[str]) -> Problem:
    if given:
        todo = "Give session files of a known agent, or recorded events (JSON Lines, one event a line)."
        return Problem(Code.not_found, "No session and no recorded event in these files.", "\n".join(warnings), todo)
    return Problem(
        Code.not_found,
        "No sessions found: none of the known agents has its folder here.",
        todo="Name files or folders: compaction-monitor scan PATH…; or see one first: compaction-monitor demo",
    )
