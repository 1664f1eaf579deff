"""Trajectories as SVG: small panels, one under the other, the mean of the sessions and the range of them.

Written by hand, since two lines and a band need no plotting library; the same document gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

_WIDTH, _PANEL, _GAP, _LEFT, _RIGHT, _TOP = 760, 150, 44, 56, 20, 62
_COLOURS: Final = {"alone": "#b3261e", "with_loop": "#1a5fb4"}
_WORDS: Final = {"alone": "without the loop", "with_loop": "with the loop"}
_FONT: Final = 'font-family="system-ui, sans-serif"'
Band = dict[str, list[float]]


class Mark(NamedTuple):
    """An observed figure: a dot at its place."""

    x: float
    y: float


class Panel(NamedTuple):
    """One measure. `limit`: a threshold, drawn as a line. `marks`: observed figures."""

    title: str
    name: str
    top: float
    limit: float | None = None
    marks: tuple[Mark, ...] = ()
    digits: int = 1


_INVERSION: Final = (
    Panel("raw_ratio", "raw_ratio", 0.8, 0.25, (Mark(1, 0.71), Mark(28, 0.09), Mark(40, 0.09)), 2),
    Panel("reachable spans", "spans", 240, 42, (Mark(1, 214), Mark(30, 37)), 0),
    Panel("the scorer's own cosine", "cosine", 0.8, None, (Mark(1, 0.41), Mark(28, 0.68)), 2),
    Panel("summaries without a reachable span", "orphans", 40, None, (), 0),
)
_SATURATION: Final = (
    Panel("constraints that the root retains, of 19", "held", 20, None, (Mark(8, 11.2),), 0),
    Panel("root regenerations so far", "regenerations", 20, None, (), 0),
)


def picture(document: dict[str, Any]) -> str:
    """The picture of a run's document."""
    if document["run"] == "inversion":
        rounds = [float(number) for number in range(1, 1 + len(document["series"]["alone"]["raw_ratio"]["mean"]))]
        title = f"A compaction loop inverts: mean and range of {len(document['seeds'])} sessions"
        return _drawn(title, "round", rounds, _INVERSION, document["series"])
    title = f"A root cannot hold its children: mean and range of {len(document['seeds'])} sessions"
    return _drawn(title, "hour", document["series"]["alone"]["hours"], _SATURATION, document["series"])


def _drawn(title: str, axis: str, xs: Sequence[float], panels: Sequence[Panel], series: dict[str, Any]) -> str:
    height = _TOP + len(panels) * (_PANEL + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 24, title, 15, weight=600),
        *_legend(),
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, axis, xs, series, _TOP + 22 + number * (_PANEL + _GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> list[str]:
    parts = []
    for number, (name, words) in enumerate(_WORDS.items()):
        x = _LEFT + number * 160
        parts.append(f'<path d="M{x} 42h22" stroke="{_COLOURS[name]}" stroke-width="2.5"/>')
        parts.append(_text(x + 28, 46, words, 12))
    parts.append(f'<circle cx="{_LEFT + 330}" cy="42" r="4" fill="#222222"/>')
    parts.append(_text(_LEFT + 342, 46, "observed", 12))
    return parts


def _panel(panel: Panel, axis: str, xs: Sequence[float], series: dict[str, Any], y: float) -> list[str]:
    first, last = xs[0], xs[-1]

    def at(x: float, value: float) -> tuple[float, float]:
        across = (x - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)
        return _LEFT + across, y + _PANEL - min(value / panel.top, 1.0) * _PANEL

    parts = [_text(_LEFT, y - 8, panel.title, 12, weight=600)]
    for step in range(5):
        value = panel.top * step / 4
        _, level = at(first, value)
        parts.append(f'<path d="M{_LEFT} {level:.1f}H{_WIDTH - _RIGHT}" stroke="#dddddd" stroke-width="1"/>')
        parts.append(_text(_LEFT - 6, level + 4, f"{value:.{panel.digits}f}", 10, anchor="end"))
    ticks = ((first, "start"), (round((first + last) / 2), "middle"), (last, "end"))
    parts += [_text(at(x, 0)[0], y + _PANEL + 15, f"{axis} {x:.0f}", 10, anchor=anchor) for x, anchor in ticks]
    if panel.limit is not None:
        _, level = at(first, panel.limit)
        parts.append(f'<path d="M{_LEFT} {level:.1f}H{_WIDTH - _RIGHT}" stroke="#666666" stroke-dasharray="5 4"/>')
    for name, colour in _COLOURS.items():
        band: Band = series[name][panel.name]
        around = [at(x, v) for x, v in zip(xs, band["high"], strict=True)]
        around += [at(x, v) for x, v in reversed(list(zip(xs, band["low"], strict=True)))]
        parts.append(f'<polygon points="{_points(around)}" fill="{colour}" fill-opacity="0.13"/>')
        line = [at(x, v) for x, v in zip(xs, band["mean"], strict=True)]
        parts.append(f'<polyline points="{_points(line)}" fill="none" stroke="{colour}" stroke-width="2.2"/>')
    for mark in panel.marks:
        x, level = at(mark.x, mark.y)
        parts.append(f'<circle cx="{x:.1f}" cy="{level:.1f}" r="4" fill="#222222"/>')
    return parts


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _text(x: float, y: float, words: str, size: int, *, weight: int = 400, anchor: str = "start") -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="#222222"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {_FONT} {style}>{words}</text>'
