"""Everything the worker counts, in a registry of its own; the only module that imports prometheus_client.

The pure middle counts in tuples (`Effects.counts`): the metric's name without prefix, then its label values in the
order of `DOMAIN`. They are added only when the transaction that carries the effects is committed.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, exposition
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

PREFIX = "compaction"
MAX_EXEMPLAR_CHARS = 64
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

# name: (what it counts, labels). The pure middle may count any of these.
DOMAIN: dict[str, tuple[str, tuple[str, ...]]] = {
    "facts": ("Input facts by what became of them.", ("type", "outcome")),
    "findings": ("Alerts.", ("check", "severity", "status")),
    "findings_dropped": ("Alerts that were not opened because a session may hold only so many.", ("check",)),
    "checks_skipped": ("Checks that an absent input skipped.", ("check", "reason")),
    "orders": ("Remediation orders published.", ("action", "status")),
    "orders_held": ("Remediation orders held back.", ("action", "reason")),
    "orders_ended": ("Remediation orders that came to an end.", ("action", "outcome")),
    "answers": ("Acknowledgements of controllers.", ("action", "status")),
    "sessions": ("Sessions by what happened to them.", ("status",)),
    "dead_letters": ("Records that could not be used.", ("topic", "reason")),
}


class Metrics:
    """The worker's metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._domain = {name: self._counter(name, text, labels) for name, (text, labels) in DOMAIN.items()}
        self._others = self._counter("other", "Counts without a metric of their own.", ("name",))
        self._records = self._counter("records_consumed", "Input records consumed and committed.", ("partition",))
        self._transactions = self._counter("transactions", "Kafka transactions.", ("result",))
        self._lost = self._counter("records_lost", "Input records deleted by retention before they were read.", ("topic",))
        self._rewinds = self._counter("rewinds", "Batches that were dropped on the way and read again.", ("topic",))
        self._recovered = self._counter("recovery_records", "Changelog records read by recoveries.", ())
        self._undecodable = self._counter("records_undecodable", "Records the client library could not read.", ("topic",))
        self._duration = Histogram(
            f"{PREFIX}_transaction_duration_seconds", "From the first record handed over to the commit.",
            registry=self.registry, buckets=BUCKETS_S,
        )  # fmt: skip
        self._delay = Histogram(
            f"{PREFIX}_detection_delay_seconds", "At most: from the oldest record of the batch to the commit.",
            registry=self.registry, buckets=BUCKETS_S,
        )  # fmt: skip
        self._recovery = Gauge(f"{PREFIX}_recovery_duration_seconds", "The last recovery.", registry=self.registry)
        self._ready = Gauge(f"{PREFIX}_ready", "1 when /ready says yes.", registry=self.registry)
        build = Info(f"{PREFIX}_build", "Versions.", registry=self.registry)
        build.info({"version": version("compaction-monitor"), "python": platform.python_version()})
        self._recovery_started = 0.0

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def count(self, counts: Mapping[tuple[str, ...], int], session: str | None = None) -> None:
        """Add what a batch counted.

        Args:
            counts: As in `Effects.counts`.
            session: A session of which something was found; attached to the findings as an exemplar.
        """
        for (name, *labels), amount in counts.items():
            counter = self._domain.get(name)
            if counter is None or len(labels) != len(DOMAIN[name][1]):
                self._others.labels(name).inc(amount)
                continue
            exemplar = {"session": exemplar_id(session)} if session and name == "findings" else None
            counter.labels(*labels).inc(amount, exemplar)

    def committed(self, partition: int, records: int, seconds: float) -> None:
        self._records.labels(str(partition)).inc(records)
        self._transactions.labels("committed").inc()
        self._duration.observe(seconds)

    def detected(self, findings: int, seconds: float) -> None:
        """Findings were published so long after the oldest record they can rest on."""
        for _ in range(findings):
            self._delay.observe(seconds)

    def aborted(self) -> None:
        self._transactions.labels("aborted").inc()

    def lost(self, topic: str, records: int) -> None:
        self._lost.labels(topic).inc(records)

    def rewound(self, topic: str) -> None:
        self._rewinds.labels(topic).inc()

    def undecodable(self, topic: str, records: int) -> None:
        self._undecodable.labels(topic).inc(records)

    def recovered(self, records: int) -> None:
        self._recovered.inc(records)

    def recovery_started(self) -> None:
        self._recovery_started = time.monotonic()

    def recovery_ended(self) -> None:
        self._recovery.set(time.monotonic() - self._recovery_started)

    def watch(self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """A gauge whose values are read when it is scraped."""
        self.registry.register(_Watched(f"{PREFIX}_{name}", text, labels, read))

    def expose(self, accept: str, ready: bool) -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics (with exemplars) for whoever accepts it, else Prometheus text."""
        self._ready.set(ready)
        if "application/openmetrics-text" in accept:
            page: bytes = openmetrics.generate_latest(self.registry)  # type: ignore[no-untyped-call]  # prometheus_client
            return page, openmetrics.CONTENT_TYPE_LATEST
        return exposition.generate_latest(self.registry), exposition.CONTENT_TYPE_LATEST


class _Watched(Collector):
    def __init__(self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Any]) -> None:
        self._name, self._text, self._labels, self._read = name, text, labels, read

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self._read().items():
            family.add_metric(labels, value)
        yield family


def exemplar_id(session: str) -> str:
    """The session's id, hashed when it is too long for an exemplar (128 characters with its label names)."""
    if len(session) <= MAX_EXEMPLAR_CHARS:
        return session
    return hashlib.sha256(session.encode()).hexdigest()[:MAX_EXEMPLAR_CHARS]
