"""A dashboard as one page without scripts: what Grafana would show of the same JSON and the same answers, roughly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, StrictUndefined

from deploy.grafana.answers import Answer, Mark, Window
from deploy.grafana.charts import NAMED, Shown, clock, heatmap, shown, timeseries

TEMPLATE: Final = Path(__file__).with_name("preview.html")
Details = Mapping[str, Any]


class Drawn(NamedTuple):
    """A panel ready for the page: its inside is of the kind that its type says; without one there is no data."""

    panel: Details
    place: str
    inside: Any = None
    legend: Sequence[tuple[str, str]] = ()


def page(board: Details, answers: Sequence[tuple[Details, Sequence[Answer]]], marks: Sequence[Mark], window: Window) -> str:
    """The page."""
    by_id = {panel["id"]: found for panel, found in answers}
    drawn = [_panel(Shown(panel, by_id.get(panel["id"], ()), window, marks)) for panel in board["panels"]]
    # Autoescape is on: labels are words of others.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(board=board, panels=drawn, since=clock(window.start), until=clock(window.end))


def _panel(one: Shown) -> Drawn:
    at = one.panel["gridPos"]
    place = f"grid-area: {at['y'] + 1} / {at['x'] + 1} / span {at['h']} / span {at['w']}"
    if not one.lines:
        return Drawn(one.panel, place)
    legend = list(zip((line.name for line in one.lines), one.colors, strict=True))
    return Drawn(one.panel, place, INSIDE[one.panel["type"]](one), legend if one.panel["type"] == "timeseries" else ())


def _figures(one: Shown) -> list[tuple[str, str, str]]:
    """Of each line its name, its value now, and the colour of the step that it has reached."""
    figures = []
    for line in one.lines:
        steps = [step for step in one.defaults["thresholds"]["steps"] if step["value"] is None or line.now >= step["value"]]
        figures.append((line.name, shown(line.now, one.defaults["unit"]), NAMED[steps[-1]["color"]]))
    return figures


def _table(one: Shown) -> dict[str, Any]:
    """The labels' names, the queries', and for each set of labels the values; most of the first on top."""
    labels = sorted({name for line in one.lines for name in line.labels})
    columns = [
        {tuple(line.labels.get(name, "") for name in labels): line.now for line in answer.lines} for answer in one.answers
    ]
    names = [answer.legend for answer in one.answers]
    order = columns[names.index(one.panel["options"]["sortBy"][0]["displayName"])]
    rows = sorted({row for column in columns for row in column}, key=lambda row: (-order.get(row, 0.0), row))
    values = [(row, [f"{column[row]:.0f}" if row in column else "" for column in columns]) for row in rows]
    return {"labels": labels, "names": names, "rows": values}


INSIDE: Final[Mapping[str, Callable[[Shown], Any]]] = {
    "stat": _figures,
    "table": _table,
    "timeseries": timeseries,
    "heatmap": heatmap,
}
