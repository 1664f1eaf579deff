"""A dashboard's panels as one page without scripts: what Grafana would show of the same JSON and the same answers, roughly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from compaction_monitor.report.charts import Scale, round_up
from deploy.grafana.answers import Answer, Line, Window

Points = Sequence[tuple[float, float]]
TEMPLATE: Final = Path(__file__).with_name("preview.html")
# Grafana's names of colours, and what it takes in turn for series without one.
NAMED: Final = {
    "red": "#f2495c", "orange": "#ff9830", "green": "#73bf69", "blue": "#5794f2", "purple": "#b877d9", "light-blue": "#8ab8ff",
    "text": "#ccccdc", "transparent": "none",
}  # fmt: skip
PALETTE: Final = (
    "#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#96d98d", "#ffee52", "#c0d8ff", "#ffb357",
    "#ff7383", "#a352cc", "#37872d", "#e0b400", "#1f60c4",
)  # fmt: skip
COLUMN: Final = 61.5
CHART_HEIGHT: Final = 212
LEFT, RIGHT, UPPER, LOWER = 58, 8, 8, CHART_HEIGHT - 22
SECONDS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"), (0.001, "ms"))
THOUSANDS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
BYTES: Final = ((2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"))
SUFFIXES: Final = {"ops": "/s", "cpm": "/min", "bytes": " B"}


class Drawn(NamedTuple):
    """A panel ready for the page: where it stands, its words, and its inside."""

    panel: Mapping[str, Any]
    place: str
    inside: Markup
    legend: Sequence[tuple[str, str]]


def page(board: Mapping[str, Any], answers: Sequence[tuple[Mapping[str, Any], Sequence[Answer]]], window: Window) -> str:
    """The page of one dashboard."""
    by_id = {panel["id"]: found for panel, found in answers}
    drawn = [_panel(panel, by_id.get(panel["id"], ()), window) for panel in board["panels"]]
    # Autoescape is on: legends are words of others.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(board=board, panels=drawn, since=_clock(window.start), until=_clock(window.end))


def _panel(panel: Mapping[str, Any], answers: Sequence[Answer], window: Window) -> Drawn:
    at = panel["gridPos"]
    place = f"grid-area: {at['y'] + 1} / {at['x'] + 1} / span {at['h']} / span {at['w']}"
    lines = [line for answer in answers for line in answer.lines]
    if panel["type"] == "row" or not lines:
        return Drawn(panel, place, Markup(""), ())
    colors = _colors(panel, lines)
    inside = INSIDE[panel["type"]](panel, answers, window, colors)
    legend = list(zip((line.name for line in lines), colors, strict=True)) if panel["type"] == "timeseries" else ()
    return Drawn(panel, place, inside, legend)


def shown(value: float, unit: str) -> str:
    """A figure with its unit, short.

    >>> shown(0.123, "percentunit"), shown(0.25, "s"), shown(90, "s"), shown(12_300, "short"), shown(2**21, "bytes")
    ('12.3 %', '250 ms', '1.5 min', '12.3k', '2 MiB')
    """
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    scales = SECONDS if unit == "s" else BYTES if unit == "bytes" else THOUSANDS
    for size, name in scales:
        if abs(value) >= size:
            gap = " " if unit == "s" else ""
            return f"{value / size:.3g}{gap}{name}{'' if unit in ('s', 'bytes') else SUFFIXES.get(unit, '')}"
    return f"{value:.3g}{SUFFIXES.get(unit, '')}"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _colors(panel: Mapping[str, Any], lines: Sequence[Line]) -> list[str]:
    fixed = {
        override["matcher"]["options"]: NAMED[one["value"]["fixedColor"]]
        for override in panel["fieldConfig"]["overrides"]
        for one in override["properties"]
        if one["id"] == "color"
    }
    return [fixed.get(line.name, PALETTE[place % len(PALETTE)]) for place, line in enumerate(lines)]


def _stat(panel: Mapping[str, Any], answers: Sequence[Answer], _window: Window, _colors: Sequence[str]) -> Markup:
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    unit = panel["fieldConfig"]["defaults"]["unit"]
    lines = [line for answer in answers for line in answer.lines]
    figures = []
    for line in lines:
        reached = [step["color"] for step in steps if step["value"] is None or line.now >= step["value"]]
        name = Markup("<small>{}</small> ").format(line.name) if len(lines) > 1 else ""
        figure = Markup('<span style="color: {}">{}{}</span>')
        figures.append(figure.format(NAMED[reached[-1]], name, shown(line.now, unit)))
    return Markup('<p class="figure {}">{}</p>').format("many" if len(lines) > 1 else "one", Markup(" ").join(figures))


def _table(panel: Mapping[str, Any], answers: Sequence[Answer], _window: Window, _colors: Sequence[str]) -> Markup:
    labels = sorted({name for answer in answers for line in answer.lines for name in line.labels})
    values = [{tuple(line.labels.get(name, "") for name in labels): line.now for line in answer.lines} for answer in answers]
    order = [answer.legend for answer in answers].index(panel["options"]["sortBy"][0]["displayName"])
    rows = sorted({row for one in values for row in one}, key=lambda row: (-values[order].get(row, 0.0), row))
    head = Markup("").join(Markup("<th>{}</th>").format(name) for name in labels)
    head += Markup("").join(Markup('<th class="value">{}</th>').format(answer.legend) for answer in answers)
    body = Markup("").join(
        Markup("<tr>{}{}</tr>").format(
            Markup("").join(Markup("<td>{}</td>").format(word) for word in row),
            Markup("").join(
                Markup('<td class="value">{}</td>').format(shown(one[row], "short") if row in one else "") for one in values
            ),
        )
        for row in rows
    )
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, body)


def _timeseries(panel: Mapping[str, Any], answers: Sequence[Answer], window: Window, colors: Sequence[str]) -> Markup:
    defaults = panel["fieldConfig"]["defaults"]
    lines = [line for answer in answers for line in answer.lines]
    stacked = "stacking" in defaults["custom"]
    columns = _stacks(lines) if stacked else [line.points for line in lines]
    highest = max((value for points in columns for _, value in points), default=0.0)
    scale = Scale(defaults.get("min", 0), defaults.get("max") or round_up(highest), UPPER, LOWER)
    canvas = Canvas(panel["gridPos"]["w"], window)
    shapes = [*canvas.axes(scale, defaults["unit"])]
    for step in defaults.get("thresholds", {}).get("steps", [])[1:]:
        if scale.bottom <= step["value"] <= scale.top:
            y = scale.y(step["value"])
            across = f'x1="{LEFT}" x2="{canvas.width - RIGHT}" y1="{y}" y2="{y}"'
            shapes.append(f'<line class="step" {across} stroke="{NAMED[step["color"]]}"/>')
    if stacked:
        for points, line, color in reversed(list(zip(columns, lines, colors, strict=True))):
            shapes += canvas.bars(points, scale, color, line.name)
    else:
        for points, line, color in zip(columns, lines, colors, strict=True):
            shapes += canvas.curve(points, scale, color, line.name)
    return canvas.svg(panel["title"], shapes)


def _stacks(lines: Sequence[Line]) -> list[Points]:
    """Each line on top of those before it; drawn from the last, so that each hides what is not its own."""
    below: dict[float, float] = {}
    stacks: list[Points] = []
    for line in lines:
        for at, value in line.points:
            below[at] = below.get(at, 0.0) + value
        stacks.append([(at, below[at]) for at, value in line.points if value])
    return stacks


def _heatmap(panel: Mapping[str, Any], answers: Sequence[Answer], window: Window, _colors: Sequence[str]) -> Markup:
    lines = sorted((line for answer in answers for line in answer.lines), key=lambda line: float(line.labels["le"]))
    unit = panel["fieldConfig"]["defaults"]["unit"]
    canvas = Canvas(panel["gridPos"]["w"], window)
    height = (LOWER - UPPER) / len(lines)
    counts: list[dict[float, float]] = []
    below: dict[float, float] = {}
    for line in lines:
        counts.append({at: value - below.get(at, 0.0) for at, value in line.points})
        below = dict(line.points)
    most = max(max(of_bucket.values(), default=0.0) for of_bucket in counts) or 1.0
    shapes = [*canvas.times()]
    every = -(-len(lines) // 7)
    for place, (line, of_bucket) in enumerate(zip(lines, counts, strict=True)):
        y = LOWER - height * (place + 1)
        if place % every == 0 and line.labels["le"] != "+Inf":
            bound = escape(shown(float(line.labels["le"]), unit))
            shapes.append(f'<text class="end" x="{LEFT - 6}" y="{y + 4:.1f}">{bound}</text>')
        for at, count in of_bucket.items():
            if count > 0:
                cell = f'x="{canvas.x(at) - canvas.step:.1f}" y="{y:.1f}" width="{canvas.step:.1f}" height="{height - 1:.1f}"'
                shapes.append(f'<rect {cell} fill="#8ab8ff" fill-opacity="{0.08 + 0.92 * (count / most) ** 0.5:.2f}"/>')
    return canvas.svg(panel["title"], shapes)


class Canvas:
    """The plane of a chart: so many columns wide, from the window's start to its end."""

    def __init__(self, columns: int, window: Window) -> None:
        self.width = round(COLUMN * columns - 28)
        self._window = window
        self.step = max(1.0, (self.width - LEFT - RIGHT) * window.step / (window.end - window.start))

    def x(self, at: float) -> float:
        share = (at - self._window.start) / (self._window.end - self._window.start)
        return LEFT + share * (self.width - LEFT - RIGHT)

    def axes(self, scale: Scale, unit: str) -> Iterator[str]:
        for part in range(5):
            value = scale.bottom + (scale.top - scale.bottom) * part / 4
            y = scale.y(value)
            yield f'<line class="grid" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y}" y2="{y}"/>'
            yield f'<text class="end" x="{LEFT - 6}" y="{y + 4}">{escape(shown(value, unit))}</text>'
        yield from self.times()

    def times(self) -> Iterator[str]:
        count = max(2, self.width // 160)
        for part in range(count + 1):
            at = self._window.start + (self._window.end - self._window.start) * part / count
            anchor = "start" if part == 0 else "end" if part == count else "middle"
            yield f'<text class="{anchor}" x="{self.x(at):.1f}" y="{CHART_HEIGHT - 4}">{_clock(at)}</text>'

    def curve(self, points: Points, scale: Scale, color: str, name: str) -> Iterator[str]:
        """A line, broken where a value is missing; a value alone is a dot."""
        runs: list[list[str]] = [[]]
        for before, (at, value) in zip([points[0], *points], points, strict=False):
            if at - before[0] > 1.5 * self._window.step:
                runs.append([])
            runs[-1].append(f"{self.x(at):.1f},{scale.y(min(value, scale.top))}")
        for run in runs:
            if len(run) == 1:
                x, y = run[0].split(",")
                yield f'<circle cx="{x}" cy="{y}" r="2" fill="{color}"><title>{escape(name)}</title></circle>'
            else:
                yield f'<polyline points="{" ".join(run)}" stroke="{color}"><title>{escape(name)}</title></polyline>'

    def bars(self, points: Points, scale: Scale, color: str, name: str) -> Iterator[str]:
        for at, value in points:
            y = scale.y(min(value, scale.top))
            width = self.step - 1 if self.step > 6 else self.step
            place = f'x="{self.x(at) - self.step:.1f}" y="{y}" width="{width:.1f}" height="{LOWER - y:.1f}"'
            yield f'<rect {place} fill="{color}"><title>{escape(name)}</title></rect>'

    def svg(self, name: str, shapes: Sequence[str]) -> Markup:
        head = f'<svg viewBox="0 0 {self.width} {CHART_HEIGHT}" role="img" aria-label="{escape(name)}">'
        # The shapes are made here, of numbers and escaped words only.
        return Markup(f"{head}{''.join(shapes)}</svg>")  # noqa: S704


Inside = Callable[[Mapping[str, Any], Sequence[Answer], Window, Sequence[str]], Markup]
INSIDE: Final[Mapping[str, Inside]] = {"stat": _stat, "table": _table, "timeseries": _timeseries, "heatmap": _heatmap}
