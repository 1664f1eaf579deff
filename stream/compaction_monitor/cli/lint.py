"""`lint`: are these events valid, which checks can run on them, which are blind, and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compaction_events.errors import ContractError
from compaction_monitor.checks.blindness import coverage, why
from compaction_monitor.checks.rounds import CHECKS
from compaction_monitor.cli import options, output
from compaction_monitor.cli.exits import Code, Problem
from compaction_monitor.cli.sources import BadLine, Sources, reports, shown
from compaction_monitor.cli.wording import counted
from compaction_monitor.report.document import Document, SessionReport
from compaction_monitor.rules import Rules

STATE_STYLE: Final = {"runs": "green", "partly": "yellow", "blind": "bold red"}
SHOWN_LINES: Final = 20
ROUND_CHECKS: Final = (*CHECKS, "constraint_lost")


def lint(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Recorded events, or a session file of a known agent.")],
    checks: options.Checks = None,
    json: options.Json = False,
) -> None:
    """Say whether these events are valid, which checks can run on them, and which are blind and why.

    Exits 4 if a line breaks the contract.
    """
    rules = options.rules(checks)
    sources = Sources([file])
    if not sources.files:
        raise Problem(
            Code.invalid, f"{file} holds no event and no session of a known agent.", "\n".join(sources.warnings),
            "One JSON object a line, with a `type`: compaction-monitor schema export DIR lists the types.",
        )  # fmt: skip
    found = reports(sources.read(), rules)
    document = linted(str(file), found, sources, rules)
    if json:
        output.json_document(document)
    else:
        _show(output.console(), document)
    if not document["valid"]:
        raise typer.Exit(int(Code.invalid))


def linted(name: str, found: list[SessionReport], sources: Sources, rules: Rules) -> Document:
    """The document: what is valid, what is not, and how much each check sees."""
    types: Counter[str] = Counter()
    for report in found:
        types.update(report.facts)
    return {
        "file": name,
        "valid": not sources.bad_lines,
        "events": types.total(),
        "types": dict(types),
        "invalid_lines": [_bad(bad) for bad in sources.bad_lines],
        "sessions": [_session(report, rules) for report in found],
        "warnings": [] if sources.bad_lines else sources.warnings,
    }


def _bad(bad: BadLine) -> Document:
    error: ContractError = bad.error
    faults = [{"field": fault.field, "found": shown(fault.value), "allowed": fault.allowed} for fault in error.faults]
    return {"line": bad.line, "reason": error.reason.value, "faults": faults}


def _session(report: SessionReport, rules: Rules) -> Document:
    document = report.document()
    judged = [entry for entry in document["rounds"] if entry["ignored"] is None]
    off = rules.of(document["agent"]).off
    return {
        "session_id": document["session_id"],
        "agent": document["agent"],
        "topology": document["topology"],
        "rounds": len(judged),
        "ignored_rounds": len(document["rounds"]) - len(judged),
        "checks": coverage({check: check not in off for check in ROUND_CHECKS}, len(judged), document["checks_skipped"]),
    }


def _show(out: Console, document: Document) -> None:
    types = ", ".join(f"{count} {kind}" for kind, count in sorted(document["types"].items()))
    out.print(Text(f"{document['file']}: {counted(document['events'], 'valid event')}" + (f" ({types})" if types else "")))
    bad = document["invalid_lines"]
    for line in bad[:SHOWN_LINES]:
        faults = "; ".join(f"{fault['field']}: {fault['found']} (allowed: {fault['allowed']})" for fault in line["faults"])
        out.print(Text.assemble((f"line {line['line']}: {line['reason']}", "red"), f"  {faults}"))
    if len(bad) > SHOWN_LINES:
        out.print(Text(f"{len(bad) - SHOWN_LINES} more invalid lines; --json lists all", style="red"))
    for session in document["sessions"]:
        out.print(_table(session))
    output.warn_all(document["warnings"])


def _table(session: dict[str, Any]) -> Table:
    late = f", {session['ignored_rounds']} late or repeated" if session["ignored_rounds"] else ""
    title = f"{session['session_id']}  {session['agent']}  {session['topology'] or 'unknown topology'}"
    table = Table(title=f"{title}, {counted(session['rounds'], 'round')}{late}", title_justify="left", box=None, padding=(0, 1))
    table.add_column("check", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("ran", justify="right")
    table.add_column("not run because")
    table.add_column("to see more, send")
    for check, found in session["checks"].items():
        reasons = [f"{why(reason).means} ({count})" for reason, count in found["skipped"].items()]
        state = Text(found["state"].replace("_", " "), style=STATE_STYLE.get(found["state"], "dim"))
        table.add_row(check, state, str(found["ran"]), "; ".join(reasons), "; ".join(found["send"]))
    return table
