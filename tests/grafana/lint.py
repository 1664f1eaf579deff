"""The rules of Grafana's dashboard-linter, by their names, over dashboards as JSON; and the file of what is excluded.

The linter itself cannot be installed where these tests run, so its rules are written down here once more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import promql_parser as promql
import yaml

Board = dict[str, Any]
# No query of ours looks back so far, so this stands for the variable.
RATE_INTERVAL: Final = timedelta(seconds=4567)
# Of Grafana's catalogue of units, those that are used here.
UNITS: Final = {"bytes", "cpm", "none", "ops", "percentunit", "s", "short"}
RATES: Final = {"rate", "irate"}


class Fault(NamedTuple):
    """Where a rule is broken, and how; about the whole dashboard, the panel is empty."""

    rule: str
    panel: str
    what: str


class Excluded(NamedTuple):
    """A rule that a panel may break, and why."""

    rule: str
    panel: str
    reason: str


def parse(query: str) -> promql.Expr:
    """The query with Grafana's own variables filled in; those in matchers are words like any other.

    Raises:
        ValueError: It is no PromQL.
    """
    known = {"$__rate_interval": f"{RATE_INTERVAL.total_seconds():.0f}s", "$__range": "1h", "$__interval": "1m"}
    for name, duration in known.items():
        query = query.replace(name, duration)
    expr: promql.Expr = promql.parse(query)
    return expr


def nodes(expr: promql.Expr) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Each node with what it stands in, the outermost first."""
    found: list[tuple[Any, Sequence[Any]]] = []
    path: list[Any] = []

    def enter(node: promql.Expr) -> None:
        found.append((node, tuple(path)))
        path.append(node)

    def leave(_node: promql.Expr) -> None:
        path.pop()

    promql.walk(expr, enter, leave)
    return iter(found)


def selectors(expr: promql.Expr) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Each selector of series with what it stands in."""
    for node, path in nodes(expr):
        if isinstance(node, promql.VectorSelector):
            yield node, path


def matchers(selector: Any) -> dict[str, str]:
    """What a selector matches by regular expression."""
    return {one.name: one.value for one in selector.matchers.matchers if one.op == promql.MatchOp.Re}


def variables(board: Board, kind: str) -> list[dict[str, Any]]:
    return [one for one in board["templating"]["list"] if one["type"] == kind]


def panels(board: Board) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def template_datasource(board: Board) -> Iterator[tuple[str, str]]:
    sources = [(one["name"], one.get("label"), one["query"]) for one in variables(board, "datasource")]
    if sources != [("datasource", "Data source", "prometheus")]:
        yield "", f"one variable `datasource` labelled `Data source`, not {sources}"


def _template(label: str) -> Callable[[Board], Iterator[tuple[str, str]]]:
    def rule(board: Board) -> Iterator[tuple[str, str]]:
        wanted = (label.capitalize(), "${datasource}", True, ".+")
        found = [
            (one.get("label"), one["datasource"]["uid"], one["multi"], one.get("allValue"))
            for one in variables(board, "query")
            if one["name"] == label
        ]
        if found != [wanted]:
            yield "", f"one variable {label} of the data source, for several values, all of them `.+`: not {found}"

    return rule


def template_label_promql(board: Board) -> Iterator[tuple[str, str]]:
    for one in variables(board, "query"):
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"])
        try:
            promql.parse(found[1] if found else "")
        except ValueError as error:
            yield "", f"{one['name']}: {error}"


def template_on_time_change_reload(board: Board) -> Iterator[tuple[str, str]]:
    for one in variables(board, "query"):
        if one.get("refresh") != 2:
            yield "", f"{one['name']} is not read again when the time range changes"


def panel_datasource(board: Board) -> Iterator[tuple[str, str]]:
    for panel in panels(board):
        if panel.get("datasource", {}).get("uid") != "${datasource}":
            yield panel["title"], "not of the data source that is chosen"


def panel_title_description(board: Board) -> Iterator[tuple[str, str]]:
    for panel in panels(board):
        if not (panel.get("title") and panel.get("description")):
            yield panel.get("title", ""), "no title, or no description"


def panel_units(board: Board) -> Iterator[tuple[str, str]]:
    for panel in panels(board):
        unit = panel["fieldConfig"]["defaults"].get("unit")
        if unit not in UNITS:
            yield panel["title"], f"unit {unit}"


def panel_no_targets(board: Board) -> Iterator[tuple[str, str]]:
    for panel in panels(board):
        if not panel.get("targets"):
            yield panel["title"], "asks nothing"


def targets(board: Board) -> Iterator[tuple[str, str]]:
    """Each query that can be parsed, with its panel's title."""
    for panel in panels(board):
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def parsed(board: Board) -> Iterator[tuple[str, promql.Expr]]:
    for title, expr in targets(board):
        try:
            yield title, parse(expr)
        except ValueError:
            continue  # target-promql-rule says so


def target_promql(board: Board) -> Iterator[tuple[str, str]]:
    for title, expr in targets(board):
        try:
            parse(expr)
        except ValueError as error:
            yield title, str(error)


def target_rate_interval(board: Board) -> Iterator[tuple[str, str]]:
    for title, expr in parsed(board):
        for node, path in nodes(expr):
            if isinstance(node, promql.MatrixSelector) and _called(path) in RATES and node.range != RATE_INTERVAL:
                yield title, f"{node} is not over $__rate_interval"


def _called(path: Sequence[Any]) -> str:
    """The function that a range goes into."""
    return path[-1].func.name if path and isinstance(path[-1], promql.Call) else ""


def _target(label: str) -> Callable[[Board], Iterator[tuple[str, str]]]:
    def rule(board: Board) -> Iterator[tuple[str, str]]:
        for title, expr in parsed(board):
            for selector, _ in selectors(expr):
                if matchers(selector).get(label) != f"${label}":
                    yield title, f"{selector} is not narrowed to ${label}"

    return rule


def target_counter_agg(board: Board) -> Iterator[tuple[str, str]]:
    for title, expr in parsed(board):
        for selector, path in selectors(expr):
            if selector.name.endswith("_total") and _called(path[:-1]) not in RATES | {"increase"}:
                yield title, f"{selector} is a counter: its value alone says nothing"


def uneditable_dashboard(board: Board) -> Iterator[tuple[str, str]]:
    if board["editable"]:
        yield "", "is editable: what is changed by hand is lost"


RULES: Final[dict[str, Callable[[Board], Iterator[tuple[str, str]]]]] = {
    "template-datasource-rule": template_datasource,
    "template-job-rule": _template("job"),
    "template-instance-rule": _template("instance"),
    "template-label-promql-rule": template_label_promql,
    "template-on-time-change-reload-rule": template_on_time_change_reload,
    "panel-datasource-rule": panel_datasource,
    "panel-title-description-rule": panel_title_description,
    "panel-units-rule": panel_units,
    "panel-no-targets-rule": panel_no_targets,
    "target-promql-rule": target_promql,
    "target-rate-interval-rule": target_rate_interval,
    "target-job-rule": _target("job"),
    "target-instance-rule": _target("instance"),
    "target-counter-agg-rule": target_counter_agg,
    "uneditable-dashboard-rule": uneditable_dashboard,
}


def lint(board: Board) -> list[Fault]:
    """Every fault of a dashboard."""
    return [Fault(name, *found) for name, rule in RULES.items() for found in rule(board)]


def exclusions(path: Path) -> list[Excluded]:
    """What the linter's `.lint` file allows."""
    rules = yaml.safe_load(path.read_text(encoding="utf-8"))["exclusions"]
    return [Excluded(rule, entry["panel"], entry["reason"]) for rule, told in rules.items() for entry in told["entries"]]
