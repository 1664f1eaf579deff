"""The dashboards' PromQL: every selector is written here, narrowed to the job and instance that are chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

RATE: Final = "$__rate_interval"
RANGE: Final = "$__range"
# A session that said it ended is kept for a day and counts as nothing any more.
LIVE: Final = "critical|warning|info|blind|healthy|new"


class Query(NamedTuple):
    """One line of PromQL, how its series are called, and whether exemplars are drawn over it."""

    expr: str
    legend: str
    exemplars: bool = False


def series(name: str, **matchers: str) -> str:
    """A selector. A matcher's value is a regular expression, as a variable's is.

    >>> series("compaction_ready")
    'compaction_ready{job=~"$job",instance=~"$instance"}'
    """
    return recorded(name, instance="$instance", **matchers)


def recorded(name: str, **matchers: str) -> str:
    """A selector of what a recording rule has added up over the workers: there is no instance to choose any more.

    >>> recorded("namespace_job:compaction_lag_records:sum")
    'namespace_job:compaction_lag_records:sum{job=~"$job"}'
    """
    chosen = ",".join(f'{label}=~"{value}"' for label, value in {"job": "$job", **matchers}.items())
    return f"{name}{{{chosen}}}"


def total(name: str, by: str = "", **matchers: str) -> str:
    """A gauge, summed over the workers: each reports what it owns."""
    return f"{_sum(by)}({series(name, **matchers)})"


def rate(name: str, by: str = "", **matchers: str) -> str:
    """How often a second."""
    return f"{_sum(by)}(rate({series(name, **matchers)}[{RATE}]))"


def each_minute(name: str, by: str = "", **matchers: str) -> str:
    """How often a minute: findings are rare."""
    return f"60 * {rate(name, by, **matchers)}"


def only(expr: Callable[..., str], name: str, by: str, **matchers: str) -> str:
    """A query by a label with many values: only those that are not 0, or `none` where all are."""
    return f'{expr(name, by, **matchers)} > 0 or label_replace({expr(name, **matchers)} == 0, "{by}", "none", "", "")'


def increase(name: str, by: str = "", over: str = RANGE, **matchers: str) -> str:
    """How many, over the range that is shown."""
    return f"{_sum(by)}(increase({series(name, **matchers)}[{over}]))"


def quantile(share: float, name: str, by: str = "", over: str = RATE, **matchers: str) -> str:
    """What so large a share of the observations was below."""
    labels = f"le, {by}" if by else "le"
    bucket = series(f"{name}_bucket", **matchers)
    function = "rate" if over == RATE else "increase"
    return f"histogram_quantile({share:g}, {_sum(labels)}({function}({bucket}[{over}])))"


def _sum(by: str) -> str:
    return f"sum by ({by}) " if by else "sum"
