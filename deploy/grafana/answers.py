"""What a dashboard's panels show of a Prometheus: their queries, filled in as Grafana would, and what they give."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

POINTS: Final = 120
TIMEOUT_S: Final = 30
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")
_LABEL: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Line(NamedTuple):
    """One series: its labels, what its legend calls it, and its values by time."""

    name: str
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]

    @property
    def now(self) -> float:
        return self.points[-1][1]


class Answer(NamedTuple):
    """What one query of a panel gives; without a line there is no data."""

    query: str
    legend: str
    lines: Sequence[Line]


class Mark(NamedTuple):
    """What an annotation marks, from when to when, and in which of Grafana's colours."""

    name: str
    color: str
    start: float
    end: float


class Window(NamedTuple):
    """From when to when, at which step, and how far a rate looks back: as Grafana would choose them."""

    start: float
    end: float
    step: float
    rate_s: float

    def fill(self, query: str) -> str:
        """The query as it is sent: variables replaced, nothing narrowed.

        >>> Window(0, 3600, 30, 60).fill('rate(a{job=~"$job"}[$__rate_interval])')
        'rate(a{job=~".+"}[60000ms])'
        """
        lengths = {"__rate_interval": self.rate_s, "__range": self.end - self.start, "__interval": self.step}
        # Prometheus takes no fractions.
        known = {name: f"{round(1_000 * seconds)}ms" for name, seconds in lengths.items()}
        return _VARIABLE.sub(lambda found: known.get(found[1] or found[2], ".+"), query)


class UnreachableError(Exception):
    """No Prometheus answers."""


class Prometheus:
    """The little of Prometheus' HTTP API that a dashboard needs."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    def get(self, path: str, **query: object) -> Any:
        """The data of an answer.

        Raises:
            UnreachableError: There is none.
            ValueError: The question was wrong.
        """
        try:
            # The address is the operator's own word.
            with urlopen(f"{self._address}/api/v1/{path}?{urlencode(query, doseq=True)}", timeout=TIMEOUT_S) as answer:  # noqa: S310
                return json.load(answer)["data"]
        except HTTPError as error:
            raise ValueError(f"{query}: {error.read().decode(errors='replace')}") from None
        except OSError as error:
            raise UnreachableError(f"no Prometheus answers at {self._address}: {error}") from None

    def window(self, range_s: float) -> Window:
        """The last so many seconds."""
        targets = self.get("targets", state="active")["activeTargets"]
        # The job's name has ours in it, as the rules want it.
        scraped = [_seconds(one["scrapeInterval"]) for one in targets if "compaction-monitor" in one["labels"]["job"]]
        every = max(scraped, default=15.0)
        step = max(every, math.ceil(range_s / POINTS))
        end = time.time()
        return Window(end - range_s, end, step, max(step + every, 4 * every))

    def ask(
        self, query: str, window: Window, *, instant: bool = False
    ) -> Iterator[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Each series' labels and values; not a number, as of a quantile of nothing, is no value."""
        asked = {"query": window.fill(query)}
        if instant:
            results = self.get("query", time=window.end, **asked)["result"]
        else:
            results = self.get("query_range", start=window.start, end=window.end, step=window.step, **asked)["result"]
        for result in results:
            values = result.get("values") or [result["value"]]
            yield result["metric"], [(at, float(value)) for at, value in values if not math.isnan(float(value))]


def _seconds(duration: str) -> float:
    """A duration of Prometheus in seconds.

    >>> _seconds("1m30s"), _seconds("500ms")
    (90.0, 0.5)
    """
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    return sum(float(amount) * units[unit] for amount, unit in re.findall(r"(\d+)(ms|[smhd])", duration))


def answers(panel: Mapping[str, Any], prometheus: Prometheus, window: Window) -> list[Answer]:
    """What each query of a panel gives."""
    found = []
    for target in panel["targets"]:
        series = prometheus.ask(target["expr"], window, instant=target.get("instant", False))
        lines = [Line(_called(target["legendFormat"], labels), labels, points) for labels, points in series if points]
        found.append(Answer(target["expr"], target["legendFormat"], sorted(lines, key=lambda line: line.name)))
    return found


def _called(legend: str, labels: Mapping[str, str]) -> str:
    return _LABEL.sub(lambda found: labels.get(found[1], ""), legend)


def panels(board: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The panels that ask something."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def marks(board: Mapping[str, Any], prometheus: Prometheus, window: Window) -> list[Mark]:
    """What the annotations that are on mark; times that follow each other are one mark."""
    found = []
    for told in board["annotations"]["list"]:
        for labels, points in prometheus.ask(told["expr"], window) if told["enable"] else ():
            times = [at for at, _ in points]
            begins = [at for at, before in zip(times, [-math.inf, *times], strict=False) if at - before > window.step * 1.5]
            name = _called(told["titleFormat"], labels)
            for start, after in zip(begins, [*begins[1:], math.inf], strict=True):
                found.append(Mark(name, told["iconColor"], start, max(at for at in times if at < after)))
    return found
