"""The report's charts as SVG: plain shapes with classes, so that one style sheet colours them in light, dark and print.

Every shape that stands for a number carries it in words (`title`), and beside every chart stands a table of the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup, escape

Round = dict[str, Any]

WIDTH: Final = 960
MIN_WIDTH: Final = 420
LEFT: Final = 64
RIGHT: Final = 12
_MAX_LABELS: Final = 24
_MAX_STEP: Final = 110.0
_MARKS: Final = {"critical": 0, "warning": 1, "info": 2}


class Scale(NamedTuple):
    """From a value to a height: `top` at the upper edge, `bottom` at the lower one."""

    bottom: float
    top: float
    upper: float
    lower: float

    def y(self, value: float) -> float:
        span = self.top - self.bottom or 1.0
        return round(self.lower - (value - self.bottom) / span * (self.lower - self.upper), 1)


def round_up(value: float) -> float:
    """The next number of the form 1, 2 or 5 times a power of ten.

    >>> [round_up(value) for value in (0, 7, 156_699, 0.3)]
    [1.0, 10.0, 200000.0, 0.5]
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** len(str(int(value))) if value >= 1 else 1.0
    while True:
        for step in (0.5, 0.2, 0.1):
            if value > step * power:
                return float(f"{ {0.5: 1.0, 0.2: 0.5, 0.1: 0.2}[step] * power:g}")
        power /= 10


def short(count: float) -> str:
    """A number on an axis.

    >>> short(200_000), short(1_500), short(12), short(0.5)
    ('200k', '1.5k', '12', '0.5')
    """
    return f"{count / 1_000:g}k" if count >= 1_000 else f"{count:g}"


def composition(rounds: Sequence[Round], alerts: Sequence[dict[str, Any]], budget: int | None) -> Markup:
    """For every round two bars: what the set was before the pass, and what it is made of after it; above, the findings."""
    height, upper, lower = 260, 34, 224
    highest = max((max(one["before_tokens"] or 0, one["after_tokens"] or 0) for one in rounds), default=0)
    scale = Scale(0, round_up(max(highest, budget or 0 if budget and budget < 2 * highest else 0)), upper, lower)
    width = _width(rounds)
    shapes = [*_axis(scale, "tokens", width), *_numbers(rounds, lower)]
    if budget is not None and budget <= scale.top:
        y = scale.y(budget)
        shapes.append(f'<line class="budget" x1="{LEFT}" x2="{width - RIGHT}" y1="{y}" y2="{y}"/>')
        shapes.append(f'<text class="label budget-label" x="{width - RIGHT}" y="{y - 4}">budget {short(budget)}</text>')
    step = _step(rounds)
    bar = max(1.0, min(34.0, step * 0.34))
    for place, one in enumerate(rounds):
        x = LEFT + step * (place + 0.5)
        shapes += _before(one, scale, x - bar - 1, bar)
        shapes += _stack(one, scale, x + 1, bar)
        shapes += _marks([alert for alert in alerts if alert["round"] == one["round"]], x)
    return _svg("Tokens before and after every round, by what they are", width, height, shapes)


def _step(rounds: Sequence[Round]) -> float:
    """From one round to the next; few rounds stand together, so that they can be compared."""
    return min(_MAX_STEP, (WIDTH - LEFT - RIGHT) / max(len(rounds), 1))


def _width(rounds: Sequence[Round]) -> int:
    return max(MIN_WIDTH, round(LEFT + RIGHT + _step(rounds) * len(rounds)))


def _before(one: Round, scale: Scale, x: float, bar: float) -> Iterator[str]:
    total = one["before_tokens"]
    if total is not None:
        told = f"round {one['round']}, before: {total:,} tokens"
        yield _rect("before", x, bar, scale.y(total), scale.lower, told)


def _stack(one: Round, scale: Scale, x: float, bar: float) -> Iterator[str]:
    below = 0
    for part in ("overhead", "raw", "summary"):
        tokens = one[f"{part}_tokens"]
        if tokens:
            told = f"round {one['round']}, after: {tokens:,} tokens {part}"
            yield _rect(part, x, bar, scale.y(below + tokens), scale.y(below), told)
            below += tokens


def _rect(kind: str, x: float, width: float, upper: float, lower: float, told: str) -> str:
    height = max(0.5, round(lower - upper, 1))
    place = f'x="{x:.1f}" y="{upper}" width="{width:.1f}" height="{height}"'
    return f'<rect class="{kind}" {place}><title>{escape(told)}</title></rect>'


def _marks(alerts: Sequence[dict[str, Any]], x: float) -> Iterator[str]:
    """A shape for each severity, the worst on top: told apart without colour too."""
    for place, alert in enumerate(sorted(alerts, key=lambda one: _MARKS.get(one["severity"], 3))[:3]):
        y = 8 + 9 * place
        corners = {
            "critical": f"{x:.1f},{y - 5} {x + 5:.1f},{y + 4} {x - 5:.1f},{y + 4}",
            "warning": f"{x:.1f},{y - 5} {x + 5:.1f},{y} {x:.1f},{y + 5} {x - 5:.1f},{y}",
        }.get(alert["severity"], f"{x - 4:.1f},{y - 4} {x + 4:.1f},{y - 4} {x + 4:.1f},{y + 4} {x - 4:.1f},{y + 4}")
        told = f"{alert['severity']}: {alert['name']} in round {alert['round']}"
        yield f'<polygon class="mark {escape(alert["severity"])}" points="{corners}"><title>{escape(told)}</title></polygon>'


def curves(rounds: Sequence[Round]) -> Markup:
    """Spans that still stand, and below them the cosine to the query: each on its own scale."""
    shapes: list[str] = []
    width = _width(rounds)
    most = max((max(one["spans"] or 0, one["spans_before"] or 0) for one in rounds), default=0)
    spans = Scale(0, round_up(most), 12, 92)
    shapes += [*_axis(spans, "spans", width, 2), *_curve(rounds, "spans_before", "spans before the pass", spans, "line-before")]
    shapes += _curve(rounds, "spans", "spans after the pass", spans, "line-spans")
    cosines = [one["cosine"] for one in rounds if one["cosine"] is not None]
    cosine = Scale(min(0.0, *cosines) if cosines else 0, round_up(max(cosines, default=0)), 116, 196)
    shapes += [*_axis(cosine, "cosine", width, 2), *_curve(rounds, "cosine", "cosine after the pass", cosine, "line-cosine")]
    name = "Source spans that still stand, and the cosine to the query, over the rounds"
    return _svg(name, width, 222, [*shapes, *_numbers(rounds, 196)])


def _curve(rounds: Sequence[Round], field: str, name: str, scale: Scale, kind: str) -> Iterator[str]:
    """A line through the values; a gap where one is not known."""
    step = _step(rounds)
    run: list[str] = []
    dots: list[str] = []
    for place, one in enumerate(rounds):
        value = one[field]
        if value is None:
            yield from _run(run, kind)
            run = []
            continue
        x, y = LEFT + step * (place + 0.5), scale.y(value)
        run.append(f"{x:.1f},{y}")
        told = escape(f"round {one['round']}: {name} {value:g}")
        dots.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y}" r="3"><title>{told}</title></circle>')
    yield from _run(run, kind)
    yield from dots


def _run(points: Sequence[str], kind: str) -> Iterator[str]:
    if len(points) > 1:
        yield f'<polyline class="{kind}" points="{" ".join(points)}"/>'


def _axis(scale: Scale, name: str, width: int, steps: int = 4) -> Iterator[str]:
    for step in range(steps + 1):
        value = scale.bottom + (scale.top - scale.bottom) * step / steps
        y = scale.y(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text class="label end" x="{LEFT - 6}" y="{y + 4}">{short(round(value, 3))}</text>'
    middle = (scale.upper + scale.lower) / 2
    yield f'<text class="label middle" transform="translate(12 {middle:g}) rotate(-90)">{name}</text>'


def _numbers(rounds: Sequence[Round], lower: float) -> Iterator[str]:
    """The rounds' numbers below, as many as there is room for."""
    step = _step(rounds)
    every = -(-len(rounds) // _MAX_LABELS)
    for place, one in enumerate(rounds):
        if place % every == 0:
            yield f'<text class="label middle" x="{LEFT + step * (place + 0.5):.1f}" y="{lower + 16:g}">{one["round"]}</text>'
    yield f'<text class="label end" x="{LEFT - 6}" y="{lower + 16:g}">round</text>'


def _svg(name: str, width: int, height: int, shapes: Sequence[str]) -> Markup:
    # The shapes are made here of numbers and escaped words only.
    inner = "".join(shapes)
    return Markup(  # noqa: S704
        f'<svg viewBox="0 0 {width} {height}" style="max-width: {width}px" role="img" aria-label="{escape(name)}">{inner}</svg>'
    )
