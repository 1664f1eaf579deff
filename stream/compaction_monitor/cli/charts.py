"""Numbers as short strings: bars and sparklines, in ASCII where the terminal cannot show more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple


class Glyphs(NamedTuple):
    """The characters of one kind of terminal: `levels` from low to high, a bar's full and empty cell, and marks."""

    levels: str
    full: str
    empty: str
    missing: str
    mark: str
    arrow: str


UNICODE: Final = Glyphs("▁▂▃▄▅▆▇█", "█", "░", "·", "●", "→")
ASCII: Final = Glyphs("_.-=+*#", "#", ".", " ", "*", "->")


def glyphs(encoding: str) -> Glyphs:
    """The characters that an encoding has.

    >>> glyphs("utf-8") is UNICODE, glyphs("ascii") is ASCII
    (True, True)
    """
    return UNICODE if encoding.lower().replace("-", "").startswith("utf") else ASCII


def bar(ratio: float, width: int, of: Glyphs = UNICODE) -> str:
    """A ratio 0..1 as a bar.

    >>> bar(0.5, 4)
    '██░░'
    """
    full = round(min(1.0, max(0.0, ratio)) * width)
    return of.full * full + of.empty * (width - full)


def sparkline(values: Sequence[float | None], of: Glyphs = UNICODE, *, low: float | None = None, width: int = 60) -> str:
    """One character for each value, the highest value the highest character; at most `width` of them.

    Args:
        low: What the lowest character stands for; the lowest value where not given.

    >>> sparkline([1, 2, None, 3])
    '▁▅·█'
    """
    shown = _thinned(values, width)
    known = [value for value in shown if value is not None]
    if not known:
        return of.missing * len(shown)
    bottom = min(known) if low is None else low
    span = max(known) - bottom
    top = len(of.levels) - 1

    def level(value: float) -> str:
        share = (value - bottom) / span if span > 0 else 0.5
        return of.levels[int(min(1.0, max(0.0, share)) * top + 0.5)]

    return "".join(of.missing if value is None else level(value) for value in shown)


def _thinned(values: Sequence[float | None], width: int) -> list[float | None]:
    """Evenly chosen values, the first and the last among them."""
    if len(values) <= width:
        return list(values)
    step = (len(values) - 1) / (width - 1)
    return [values[round(index * step)] for index in range(width)]
