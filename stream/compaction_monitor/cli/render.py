"""Reports for people: a table of rounds, curves, findings with why and what to do. Reads the same document as --json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from compaction_monitor.cli.charts import Glyphs, bar, glyphs, sparkline
from compaction_monitor.cli.wording import counted, number, plan, tokens
from compaction_monitor.report.document import LASTING, Document

STYLE: Final = {"critical": "bold red", "warning": "yellow", "info": "cyan", None: "green"}
OUTCOME: Final = {
    "open": "open",
    "recovered": "recovered",
    "superseded": "superseded by a worse one",
    "ended": "still open when the session ended",
    "expired": "still open when the session went silent",
}
MIN_CURVE_ROUNDS: Final = 4


def scan(out: Console, document: Document, rounds_shown: int | None) -> None:
    """The whole report.

    Args:
        rounds_shown: The last rounds of a session to list; None: all.
    """
    of = glyphs(out.encoding)
    quiet = 0
    for session in document["sessions"]:
        if session["rounds"]:
            out.print(_session(session, of, rounds_shown))
        else:
            quiet += 1
    if quiet:
        out.print(Text(f"{counted(quiet, 'session')} without a compaction round, not listed.", style="dim"))
    out.print(_totals(document))


def _session(session: Document, of: Glyphs, rounds_shown: int | None) -> RenderableType:
    rounds = session["rounds"]
    shown = rounds if rounds_shown is None else rounds[-rounds_shown:]
    title = Text.assemble((session["session_id"], "bold"), f"  {session['agent']}  {session['topology'] or 'unknown'}")
    parts: list[RenderableType] = [Text(", ".join(session["files"]), style="dim")]
    if len(rounds) >= MIN_CURVE_ROUNDS:
        parts.append(curves(rounds, of))
    if len(shown) < len(rounds):
        parts.append(Text(f"{counted(len(rounds) - len(shown), 'earlier round')}, listed by --all-rounds", style="dim"))
    parts.append(_rounds(shown, session["findings"], of))
    parts += findings(session["findings"], of) or [Text("No findings.", style="green")]
    worst = session["worst_severity"]
    return Panel(Group(*parts), title=title, title_align="left", border_style=STYLE[worst] if worst else "dim")


def curves(rounds: Sequence[Document], of: Glyphs) -> Table:
    """raw_ratio, spans and cosine over the rounds; each curve on its own scale, spans and raw_ratio from 0."""
    table = Table.grid(padding=(0, 2))
    for name, low, digits in (("raw_ratio", 0.0, 2), ("spans", 0.0, 0), ("cosine", None, 2)):
        values = [entry[name] for entry in rounds]
        known = [value for value in values if value is not None]
        if known:
            ends = f"{number(known[0], digits)} {of.arrow} {number(known[-1], digits)}"
            table.add_row(Text(name, style="dim"), sparkline(values, of, low=low), ends)
    return table


def _rounds(rounds: Iterable[Document], found: Sequence[Document], of: Glyphs) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for column in ("round", "at", "cause", "before", "after", "raw_ratio", "spans", "cosine", "depth", "read", "alerts"):
        right = column in ("round", "before", "after", "spans", "cosine", "depth", "read")
        table.add_column(column, justify="right" if right else "left", no_wrap=column not in ("alerts",))
    for entry in rounds:
        alerts = [f for f in found if f["kind"] == "alert" and f["round"] == entry["round"]]
        table.add_row(
            str(entry["round"]), entry["at"][:16].replace("T", " "), entry["trigger"] or entry["cause"],
            tokens(entry["before_tokens"]), tokens(entry["after_tokens"]),
            f"{bar(entry['raw_ratio'], 8, of)} {number(entry['raw_ratio'])}",
            _spans(entry, of), number(entry["cosine"]), _count(entry["depth"]), _read(entry),
            Text("; ").join(Text(a["name"], style=STYLE[a["severity"]]) for a in alerts) if alerts else entry["ignored"] or "",
        )  # fmt: skip
    return table


def _spans(entry: Document, of: Glyphs) -> str:
    if entry["spans_before"] is None or entry["spans"] is None:
        return _count(entry["spans"])
    return f"{entry['spans_before']} {of.arrow} {entry['spans']}"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _read(entry: Document) -> str:
    if entry["claimed_records"] is None or entry["read_records"] is None:
        return "-"
    return f"{entry['read_records']}/{entry['claimed_records']}"


def findings(found: Sequence[Document], of: Glyphs) -> list[RenderableType]:
    """Every alert, worst first, with why it matters and what was ordered."""
    alerts = [entry for entry in found if entry["kind"] == "alert"]
    orders = [entry for entry in found if entry["kind"] == "order"]
    rank = list(STYLE)
    parts: list[RenderableType] = []
    for alert in sorted(alerts, key=lambda entry: rank.index(entry["severity"])):
        parts += [Text(), _alert(alert, [order for order in orders if order["alert_id"] == alert["id"]], of)]
    return parts


def _alert(alert: Document, orders: Sequence[Document], of: Glyphs) -> RenderableType:
    head = Text.assemble(
        (f"{of.mark} {alert['severity']} {alert['name']}", STYLE[alert["severity"]]),
        f"  round {alert['round']}, {alert['basis']}, ",
        (OUTCOME[alert["outcome"]], "bold" if alert["outcome"] in LASTING else "green"),
    )
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", min_width=4)
    table.add_column()
    table.add_row("what", alert["message"])
    if alert["subjects"]:
        table.add_row("of", ", ".join(alert["subjects"]))
    table.add_row("why", alert["description"])
    for order in orders:
        table.add_row("do", plan(order["plan"]))
        if order["plan"].get("steps"):
            table.add_row("", steps(order["plan"]))
    return Group(head, Padding(table, (0, 0, 0, 2)))


def steps(found: Document) -> Table:
    """The steps of a rehydration plan, in order."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for column in ("step", "expand", "depth", "leaves", "adds raw", "removes", "raw_ratio then"):
        table.add_column(column, justify="left" if column == "expand" else "right")
    for index, step in enumerate(found["steps"], 1):
        table.add_row(
            str(index), step["summary_id"], str(step["depth"]), str(step["leaf_spans"]),
            tokens(step["adds_raw_tokens"]), tokens(step["removes_summary_tokens"]), number(step["projected_raw_ratio"]),
        )  # fmt: skip
    return table


def _totals(document: Document) -> Text:
    totals = document["totals"]
    text = Text(f"{counted(totals['sessions'], 'session')}, {counted(totals['rounds'], 'round')}: ")
    raised = [(severity, count) for severity, count in totals["alerts"].items() if count]
    if not raised:
        return text.append("no alerts", style="green")
    text.append_text(Text(", ").join(Text(f"{count} {severity}", style=STYLE[severity]) for severity, count in raised))
    return text.append(f"; {totals['unresolved']} never recovered")
