"""`scan`: what compaction did to sessions, from their files. No broker."""

from __future__ import annotations

from typing import Annotated

import typer

from compaction_monitor.cli import options, output, render
from compaction_monitor.cli.exits import Code, Problem
from compaction_monitor.cli.sources import Sources, reports
from compaction_monitor.reports import Document, reaches, scan_document
from compaction_monitor.rules import Rules


def scan(
    paths: options.Paths = None,
    checks: options.Checks = None,
    fail_on: options.FailOn = None,
    all_rounds: Annotated[bool, typer.Option("--all-rounds", help="List every round, not only the last 12.")] = False,
    json: options.Json = False,
) -> None:
    """Check sessions from their files, without a broker.

    Reads sessions of known agents (Claude Code) and recorded events (JSON Lines); what a file is, its content decides.
    Without PATHS: the folders where the known agents keep their sessions.
    """
    sources = Sources(paths or [])
    if not sources.files:
        raise _nothing(bool(paths), sources.warnings)
    document = scanned(sources, options.rules(checks))
    if not document["sessions"]:
        raise _nothing(True, document["warnings"])
    if json:
        output.json_document(document)
    else:
        render.scan(output.console(), document, rounds_shown=None if all_rounds else 12)
        output.warn_all(document["warnings"])
    if fail_on is not None and reaches(document["worst_severity"], fail_on):
        raise typer.Exit(int(Code.found))


def scanned(sources: Sources, rules: Rules) -> Document:
    """The document of everything in these sources, with a progress bar while it takes long."""
    with output.progress("Reading", sources.size) as bar:
        found = reports(sources.read(lambda size: bar.advance(bar.task_ids[0], size)), rules)
    return scan_document([report.document() for report in found], sources.warnings)


def _nothing(given: bool, warnings: list[str]) -> Problem:
    if given:
        todo = "Give Claude Code session files, or recorded events (JSON Lines, one event a line)."
        return Problem(Code.not_found, "No session and no recorded event in these files.", "\n".join(warnings), todo)
    return Problem(
        Code.not_found,
        "No sessions found: none of the known agents has its folder here.",
        todo="Name files or folders: compaction-monitor scan PATH…; or see one first: compaction-monitor demo",
    )
