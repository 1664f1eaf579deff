"""A figure of the simulation beside the observed one, over seeds, and whether it is met."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Final, NamedTuple

HELD_OUT: Final = 1_000
"""The first of the seeds that figures are reported on. Constants were chosen on seeds 0 to 39, so none of these."""


class Spread(NamedTuple):
    """Mean and standard deviation over seeds."""

    mean: float
    sd: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value; the deviation of one is 0.

        >>> Spread.of([1.0, 3.0])
        Spread(mean=2.0, sd=1.4142135623730951)
        """
        return cls(fmean(values), stdev(values) if len(values) > 1 else 0.0)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        name: What is measured.
        observed: As the document says it.
        low, high: The mean meets the observed figure within these; infinite where only one side counts.
        values: One a seed.
        digits: Shown after the point.
        why: Why it is short, shown where it is.
        target: What the mean would best be; None where anything within the bounds is as good.
    """

    name: str
    observed: str
    low: float
    high: float
    values: tuple[float, ...]
    digits: int = 2
    why: str = ""
    target: float | None = None

    @property
    def spread(self) -> Spread:
        return Spread.of(self.values)

    @property
    def short_by(self) -> float:
        """How far the mean is outside; 0 where it is met."""
        mean = self.spread.mean
        return max(self.low - mean, mean - self.high, 0.0)

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        mean, sd = self.spread
        met = self.short_by == 0
        return {
            "name": self.name,
            "observed": self.observed,
            "mean": round(mean, self.digits + 1),
            "sd": round(sd, self.digits + 1),
            "digits": self.digits,
            "met": met,
            "short_by": round(self.short_by, self.digits + 1),
            "off_by": None if self.target is None else round(mean - self.target, self.digits + 1),
            "why": "" if met else self.why,
        }


def near(name: str, target: float, values: Iterable[float], digits: int = 2, why: str = "", observed: str = "") -> Figure:
    """Met where the observed figure, as precisely as it is given, is within one standard deviation of the mean.

    >>> near("spans", 37, [36.0, 40.0], 0).short_by
    0.0
    """
    found = tuple(values)
    within = max(Spread.of(found).sd, 0.5 * 10**-digits)
    return Figure(name, observed or f"{target:.{digits}f}", target - within, target + within, found, digits, why, target)


def within(
    name: str, low: float, high: float, values: Iterable[float], observed: str, digits: int = 2, why: str = ""
) -> Figure:
    """Met where the mean is within these bounds."""
    return Figure(name, observed, low, high, tuple(values), digits, why)


def every(name: str, holds: Iterable[bool], observed: str = "yes", why: str = "") -> Figure:
    """Met where it holds for every seed; the mean is the share of those for which it does."""
    return Figure(name, observed, 1.0, 1.0, tuple(map(float, holds)), 2, why)


class Table(NamedTuple):
    """A table of plain cells. `note` says how to read it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": rows, "note": self.note}


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation as words.

    >>> spread([1.0, 3.0], 1), spread([0.5, 0.5])
    ('2.0 ± 1.4', '0.50 ± 0.00')
    """
    mean, sd = Spread.of(values)
    return f"{mean:.{digits}f} ± {sd:.{digits}f}"


def share(holds: Iterable[bool]) -> str:
    """How many of how many.

    >>> share([True, False])
    '1 of 2'
    """
    found = list(holds)
    return f"{sum(found)} of {len(found)}"
