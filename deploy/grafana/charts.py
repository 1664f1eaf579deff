"""Charts of a panel as SVG: curves, stacks and heatmaps over the time that was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from markupsafe import Markup, escape

from compaction_monitor.report.charts import Scale, round_up
from deploy.grafana.answers import Answer, Line, Mark, Window

Points = Sequence[tuple[float, float]]
# Grafana's names of colours, and what it takes in turn for series without one.
NAMED: Final = {
    "red": "#f2495c", "orange": "#ff9830", "green": "#73bf69", "blue": "#5794f2", "purple": "#b877d9", "light-blue": "#8ab8ff",
    "text": "#ccccdc",
}  # fmt: skip
PALETTE: Final = (
    "#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#96d98d", "#ffee52", "#c0d8ff", "#ffb357",
    "#ff7383", "#a352cc", "#37872d", "#e0b400", "#1f60c4",
)  # fmt: skip
# Pixels: a column of Grafana's grid, what is beside and below the plane, a line of the legend and its letters.
COLUMN: Final = 61.5
LEFT, RIGHT, UPPER, BELOW = 66, 8, 8, 22
INSIDE_HEIGHT: Final = 246
LEGEND_LINE, LEGEND_LETTER, LEGEND_KEY = 17, 6.6, 32
SECONDS: Final = ((86_400, " d"), (3_600, " h"), (60, " min"), (1, " s"), (0.001, " ms"))
THOUSANDS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
BYTES: Final = ((2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B"))
SUFFIXES: Final = {"ops": "/s", "cpm": "/min"}


class Shown(NamedTuple):
    """A panel with what it asked for, the window it asked for, and the findings that are marked there."""

    panel: Mapping[str, Any]
    answers: Sequence[Answer]
    window: Window
    marks: Sequence[Mark]

    @property
    def lines(self) -> list[Line]:
        return [line for answer in self.answers for line in answer.lines]

    @property
    def defaults(self) -> Mapping[str, Any]:
        """How its values are to be shown."""
        told: Mapping[str, Any] = self.panel["fieldConfig"]["defaults"]
        return told

    @property
    def colors(self) -> list[str]:
        """One for each line."""
        fixed = {
            override["matcher"]["options"]: NAMED[one["value"]["fixedColor"]]
            for override in self.panel["fieldConfig"]["overrides"]
            for one in override["properties"]
            if one["id"] == "color"
        }
        return [fixed.get(line.name, PALETTE[place % len(PALETTE)]) for place, line in enumerate(self.lines)]


def shown(value: float, unit: str) -> str:
    """A figure with its unit, short.

    >>> shown(0.123, "percentunit"), shown(0.25, "s"), shown(90, "s"), shown(12_300, "cpm"), shown(2**21, "bytes")
    ('12.3 %', '250 ms', '1.5 min', '12.3k/min', '2 MiB')
    """
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    scales = {"s": SECONDS, "bytes": BYTES}.get(unit, THOUSANDS)
    size, name = next((scale for scale in scales if abs(value) >= scale[0]), (1, ""))
    return f"{value / size:.3g}{name}{SUFFIXES.get(unit, '')}"


def clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def timeseries(one: Shown) -> Markup:
    """Curves, or what is a part of a whole stacked."""
    stacked = "stacking" in one.defaults["custom"]
    lines = one.lines
    heights = _stacks(lines) if stacked else [line.points for line in lines]
    highest = max((value for points in heights for _, value in points), default=0.0)
    canvas = Canvas(one)
    scale = Scale(one.defaults.get("min", 0), one.defaults.get("max") or round_up(highest), UPPER, canvas.lower)
    shapes = [*canvas.marks(one.marks), *canvas.axes(scale, one.defaults["unit"])]
    steps = one.defaults.get("thresholds", {}).get("steps", [])[1:]
    reached = [step for step in steps if step["value"] <= scale.top]
    shapes += [canvas.across(scale.y(step["value"]), "step", NAMED[step["color"]]) for step in reached]
    # The last of a stack reaches highest: it comes first, and those before it hide what is theirs.
    for points, line, color in reversed(list(zip(heights, lines, one.colors, strict=True))):
        shapes += (canvas.bars if stacked else canvas.curve)(points, scale, color, line.name)
    return canvas.svg(one.panel["title"], shapes)


def _stacks(lines: Sequence[Line]) -> list[Points]:
    """Each line on top of those before it."""
    below: dict[float, float] = {}
    stacks: list[Points] = []
    for line in lines:
        for at, value in line.points:
            below[at] = below.get(at, 0.0) + value
        stacks.append([(at, below[at]) for at, value in line.points if value])
    return stacks


def heatmap(one: Shown) -> Markup:
    """A row for each bucket, stronger where more fell into it."""
    lines = sorted(one.lines, key=lambda line: float(line.labels["le"]))
    counts: list[dict[float, float]] = []
    below: dict[float, float] = {}
    for line in lines:
        counts.append({at: value - below.get(at, 0.0) for at, value in line.points})
        below = dict(line.points)
    most = max(max(bucket.values()) for bucket in counts) or 1.0
    canvas = Canvas(one)
    height = (canvas.lower - UPPER) / len(lines)
    every = -(-len(lines) // 7)
    shapes = [*canvas.times()]
    for place, (line, bucket) in enumerate(zip(lines, counts, strict=True)):
        y = canvas.lower - height * (place + 1)
        if place % every == 0 and line.labels["le"] != "+Inf":
            shapes.append(_text("end", LEFT - 6, y + 4, shown(float(line.labels["le"]), one.defaults["unit"])))
        for at, count in bucket.items():
            if count > 0:
                strength = f'fill="{NAMED["light-blue"]}" fill-opacity="{0.08 + 0.92 * (count / most) ** 0.5:.2f}"'
                shapes.append(canvas.cell(at, y, height - 1, strength))
    return canvas.svg(one.panel["title"], shapes)


class Canvas:
    """The plane of one panel's chart, as high as its legend lets it be."""

    def __init__(self, one: Shown) -> None:
        self._window = one.window
        self.width: int = round(COLUMN * one.panel["gridPos"]["w"] - 28)
        self._height = INSIDE_HEIGHT - (LEGEND_LINE * self._legend(one.lines) if one.panel["type"] == "timeseries" else 0)
        self.lower = self._height - BELOW
        self._step = (self.width - LEFT - RIGHT) * one.window.step / (one.window.end - one.window.start)

    def _legend(self, lines: Sequence[Line]) -> int:
        """How many lines it needs."""
        count, place = 1, 0.0
        for line in lines:
            length = LEGEND_LETTER * len(line.name) + LEGEND_KEY
            if place and place + length > self.width:
                count, place = count + 1, 0.0
            place += length
        return count

    def x(self, at: float) -> float:
        share = (at - self._window.start) / (self._window.end - self._window.start)
        return LEFT + share * (self.width - LEFT - RIGHT)

    def axes(self, scale: Scale, unit: str) -> Iterator[str]:
        for part in range(5):
            value = scale.bottom + (scale.top - scale.bottom) * part / 4
            yield self.across(scale.y(value), "grid")
            yield _text("end", LEFT - 6, scale.y(value) + 4, shown(value, unit))
        yield from self.times()

    def times(self) -> Iterator[str]:
        count = max(2, self.width // 160)
        for part in range(count + 1):
            at = self._window.start + (self._window.end - self._window.start) * part / count
            anchor = "start" if part == 0 else "end" if part == count else "middle"
            yield _text(anchor, self.x(at), self._height - 4, clock(at))

    def across(self, y: float, kind: str, color: str = "") -> str:
        stroke = f' stroke="{color}"' if color else ""
        return f'<line class="{kind}" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y}" y2="{y}"{stroke}/>'

    def marks(self, marks: Sequence[Mark]) -> Iterator[str]:
        """A shade from when to when, with a corner below its beginning."""
        for mark in marks:
            left, right, color = self.x(mark.start), max(self.x(mark.end), self.x(mark.start) + 1), NAMED[mark.color]
            place = f'x="{left:.1f}" y="{UPPER}" width="{right - left:.1f}" height="{self.lower - UPPER}"'
            yield f'<rect {place} fill="{color}" fill-opacity="0.06"/>'
            corners = f"{left:.1f},{self.lower} {left - 4:.1f},{self.lower + 6} {left + 4:.1f},{self.lower + 6}"
            yield f'<polygon points="{corners}" fill="{color}"><title>{escape(mark.name)}</title></polygon>'

    def curve(self, points: Points, scale: Scale, color: str, name: str) -> Iterator[str]:
        """A line, broken where a value is missing; a value alone is a dot."""
        runs: list[list[tuple[float, float]]] = []
        last = -1e18
        for at, value in points:
            if at - last > 1.5 * self._window.step:
                runs.append([])
            runs[-1].append((round(self.x(at), 1), scale.y(min(value, scale.top))))
            last = at
        for run in runs:
            if len(run) == 1:
                yield f'<circle cx="{run[0][0]}" cy="{run[0][1]}" r="2" fill="{color}"><title>{escape(name)}</title></circle>'
            else:
                corners = " ".join(f"{x},{y}" for x, y in run)
                yield f'<polyline points="{corners}" stroke="{color}"><title>{escape(name)}</title></polyline>'

    def bars(self, points: Points, scale: Scale, color: str, name: str) -> Iterator[str]:
        for at, value in points:
            y = scale.y(min(value, scale.top))
            yield self.cell(at, y, self.lower - y, f'fill="{color}"', name)

    def cell(self, at: float, y: float, height: float, fill: str, name: str = "") -> str:
        """What ends at a time: a sample is about the step before it."""
        width = self._step - 1 if self._step > 6 else self._step
        place = f'x="{self.x(at) - self._step:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        return f"<rect {place} {fill}><title>{escape(name)}</title></rect>" if name else f"<rect {place} {fill}/>"

    def svg(self, name: str, shapes: Sequence[str]) -> Markup:
        head = f'<svg viewBox="0 0 {self.width} {self._height}" role="img" aria-label="{escape(name)}">'
        # The shapes are made here, of numbers and escaped words only.
        return Markup(f"{head}{''.join(shapes)}</svg>")  # noqa: S704


def _text(anchor: str, x: float, y: float, words: str) -> str:
    return f'<text class="{anchor}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
