"""The scan's document as one page: everything in it, nothing from elsewhere.

The page reads the same document as the terminal report and `--json`; it holds ids, numbers and the findings' words, no text
of a session. Without scripts it is complete; with them its tables can be sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, StrictUndefined

from compaction_monitor.report.charts import composition, curves
from compaction_monitor.report.document import LASTING, Document

OUTCOMES: Final = {
    "open": "open",
    "recovered": "recovered",
    "superseded": "superseded by a worse one",
    "ended": "still open when the session ended",
    "expired": "still open when the session went silent",
}
SEVERITIES: Final = ("critical", "warning", "info")


def page(document: Document, plan: Callable[[Document], str]) -> str:
    """The page.

    Args:
        document: What `scan_document` made.
        plan: An order's plan in words.
    """
    # Autoescape is on for every template: ids come from files of others.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"tokens": _tokens, "figure": _figure}
    template = environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    told = [session for session in document["sessions"] if session["rounds"]]
    return template.render(
        totals=document["totals"],
        warnings=document["warnings"],
        quiet=len(document["sessions"]) - len(told),
        severities=SEVERITIES,
        sessions=[_session(place, session, plan) for place, session in enumerate(told, 1)],
    )


def _session(place: int, session: Document, plan: Callable[[Document], str]) -> Document:
    alerts = sorted(_of(session, "alert"), key=lambda alert: SEVERITIES.index(alert["severity"]))
    orders = _of(session, "order")
    last = session["rounds"][-1]
    return {
        **session,
        "anchor": f"session-{place}",
        "last": last,
        "counts": {severity: sum(alert["severity"] == severity for alert in alerts) for severity in SEVERITIES},
        "alerts": [
            {
                **alert,
                "lasts": alert["outcome"] in LASTING,
                "outcome": OUTCOMES.get(alert["outcome"], alert["outcome"]),
                "todo": [plan(order["plan"]) for order in orders if order["alert_id"] == alert["id"]],
            }
            for alert in alerts
        ],
        "composition": composition(session["rounds"], alerts, session["token_budget"]),
        "curves": curves(session["rounds"]),
        "quoted": _quoted(session["rounds"]),
    }


def _of(session: Document, kind: str) -> list[Document]:
    return [finding for finding in session["findings"] if finding["kind"] == kind]


def _quoted(rounds: Sequence[Document]) -> list[Document]:
    """For each round, the user's own messages by age: those typed before this pass first, older ones after them."""
    rows = []
    for one in rounds:
        if one["quoted"] is not None:
            newest_first = reversed(one["quoted"])
            cells = [{"still": still, "typed": typed, "share": _tenths(still, typed)} for still, typed in newest_first]
            rows.append({"round": one["round"], "cells": cells})
    return rows


def _tenths(still: int, typed: int) -> int | None:
    """How many tenths are still there, for the cell's shade; None where nothing was typed."""
    return round(10 * still / typed) if typed else None


def _tokens(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _figure(value: Any, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
