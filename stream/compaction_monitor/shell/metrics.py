"""Everything the worker counts, in a registry of its own; the only module that imports prometheus_client.

The pure middle counts in tuples; what it may count is in `counts`. They are added only when the transaction that carries
the effects is committed. Labels come from closed sets, and where a set is known every series is there from the start, at 0.
"""

from __future__ import annotations

import hashlib
import platform
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Info,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    exposition,
)
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from compaction_monitor.counts import ACTIONS, CHECKS, DOMAIN, SEVERITIES
from compaction_monitor.effects import Effects, JudgedRound, Standing
from compaction_monitor.tally import OTHER, STATES, agent_label

PREFIX: Final = "compaction"
MAX_EXEMPLAR_CHARS: Final = 64
WITH_EXEMPLARS: Final = frozenset({"findings", "orders"})

RAW_RATIOS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1)
COSINES = (0, 0.1, 0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 1)
SPANS_RATIOS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
DEPTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10)
COMMIT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
DETECTION_S = (*COMMIT_S, 300, 1800)
ANSWER_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600, 1800, 3600)


class Distribution(Collector):
    """A histogram that takes many values at once: to observe them one by one would cost 2 µs each.

    Args:
        bounds: Upper bounds of the buckets, without infinity.
        label: Its name; empty where there is none.
        values: Every value that the label has.
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float], label: str = "", values: Sequence[str] = ("",)) -> None:
        self._name, self._text, self._bounds = f"{PREFIX}_{name}", text, bounds
        self._label = (label,) if label else ()
        self._counts = {value: [0] * len(bounds) for value in values}  # at most each bound
        self._totals = dict.fromkeys(values, 0)
        self._sums = dict.fromkeys(values, 0.0)

    def add(self, values: Iterable[float], label: str = "") -> None:
        """Count values."""
        ordered = sorted(values)  # and each bound sought among them: a third of seeking each value's bucket
        counts = self._counts[label]
        for place, bound in enumerate(self._bounds):
            counts[place] += bisect_right(ordered, bound)
        self._totals[label] += len(ordered)
        self._sums[label] += sum(ordered)

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._text, labels=self._label)

    def describe(self) -> Iterator[HistogramMetricFamily]:
        yield self._family()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = self._family()
        names = [str(float(bound)) for bound in self._bounds]
        for value, counts in self._counts.items():
            total = self._totals[value]
            buckets = [*zip(names, counts, strict=True), ("+Inf", total)]
            family.add_metric((value,) if self._label else (), buckets, self._sums[value])
        yield family


class Metrics:
    """The worker's metrics.

    Args:
        agents: Those that are named; every other one is `other`.
        topics: The input topics.
    """

    def __init__(self, agents: Iterable[str] = (), topics: Sequence[str] = ()) -> None:
        # `_created`: a second series for each, of when the process started.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client
        self.registry = CollectorRegistry()
        self._agents = frozenset(agents)
        self._labelled = {"agent": (*sorted(self._agents), OTHER), "topic": tuple(topics)}
        self._domain = {name: self._counter(name, *counted) for name, counted in DOMAIN.items()}
        self._rounds = self._counter(
            "rounds",
            "Rounds judged; what is no compaction is called a rehydration.",
            ("agent", "cause"),
            [("compaction",), ("rehydration",)],
        )
        self._records = self._counter("records_consumed", "Input records consumed and committed.", ("partition",))
        self._transactions = self._counter("transactions", "Kafka transactions.", ("result",), [("committed",), ("aborted",)])
        by_topic = {
            "records_lost": "Input records deleted by retention before they were read.",
            "records_undecodable": "Records the client library could not read.",
            "rewinds": "Batches that were dropped on the way and read again.",
        }
        self._by_topic = {name: self._counter(name, text, ("topic",), [()]) for name, text in by_topic.items()}
        self._recovered = self._counter("recovery_records", "Changelog records read by recoveries.")
        self._recovery = Gauge(f"{PREFIX}_recovery_duration_seconds", "The last recovery.", registry=self.registry)
        self._recovery_started = 0.0
        self.recovered_records = 0
        self._ready = Gauge(f"{PREFIX}_ready", "1 when /ready says yes.", registry=self.registry)
        build = Info(f"{PREFIX}_build", "Versions.", registry=self.registry)
        build.info({"version": version("compaction-monitor"), "python": platform.python_version()})
        ProcessCollector(registry=self.registry)
        self._add_distributions()

    def _add_distributions(self) -> None:
        by_agent: Any = ("agent", self._labelled["agent"])
        self._raw_ratio = self._distribution(
            "round_raw_ratio", "Raw tokens per token of the set after a round.", RAW_RATIOS, *by_agent
        )
        self._cosine = self._distribution(
            "round_cosine", "The scorer's cosine after a round whose reachable spans are known.", COSINES, *by_agent
        )
        self._spans_ratio = self._distribution(
            "round_spans_ratio",
            "Reachable spans after a round, per span at session start; in a chain, before the pass.",
            SPANS_RATIOS,
            *by_agent,
        )
        self._depth = self._distribution("round_depth", "Depth of the deepest summary after a round.", DEPTHS, *by_agent)
        self._delay = self._distribution(
            "detection_delay_seconds",
            "From the append of the oldest record of a batch to the commit of what was found in it.",
            DETECTION_S,
        )
        self._answer_delay = self._distribution(
            "answer_delay_seconds", "From an order's first publication to its controller's word.", ANSWER_S, "action", ACTIONS
        )
        self._duration = self._distribution(
            "transaction_duration_seconds", "From the first record handed over to the commit.", COMMIT_S
        )

    def _distribution(self, name: str, *args: Any) -> Distribution:
        made = Distribution(name, *args)
        self.registry.register(made)
        return made

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = (), series: Sequence[tuple[str, ...]] = ()) -> Counter:
        counter = Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)
        own = labels[:1] and self._labelled.get(labels[0])
        for values in series:
            for first in [()] if own is None else [(value,) for value in own]:
                counter.labels(*first, *values)
        return counter

    def add(self, effects: Effects) -> None:
        """Add what a batch led to, now that it is committed."""
        for counted, amount in effects.counts.items():
            self._add(counted, amount, effects.examples.get(counted))
        if effects.rounds:
            self._add_rounds(effects.rounds)

    def _add(self, counted: tuple[str, ...], amount: int, session: str | None) -> None:
        name, *labels = counted
        if name == "answer_delay":
            action, delay_ms = labels
            self._answer_delay.add([int(delay_ms) / 1_000] * amount, action)
            return
        if DOMAIN[name].labels[:1] == ("agent",):
            labels[0] = agent_label(labels[0], self._agents)
        counter = self._domain[name].labels(*labels) if labels else self._domain[name]
        exemplar = {"session": exemplar_id(session)} if session is not None and name in WITH_EXEMPLARS else None
        counter.inc(amount, exemplar)

    def _add_rounds(self, rounds: Sequence[JudgedRound]) -> None:
        by_agent: dict[str, list[JudgedRound]] = defaultdict(list)
        for judged in rounds:
            by_agent[judged[0]].append(judged)
        for agent, found in by_agent.items():
            label = agent_label(agent, self._agents)
            # By columns: a tenth of a microsecond here is one more for each event.
            _, seen, bases = zip(*found, strict=True)
            _, _, compaction, _, _, raw, summary, spans, cosines, depths, _ = zip(*seen, strict=True)
            passes = sum(compaction)
            self._rounds.labels(label, "compaction").inc(passes)
            self._rounds.labels(label, "rehydration").inc(len(seen) - passes)
            self._raw_ratio.add([a / (a + b) for a, b in zip(raw, summary, strict=True) if a + b], label)
            self._spans_ratio.add([n / base for n, base in zip(spans, bases, strict=True) if base and n is not None], label)
            known = zip(cosines, spans, strict=True)
            self._cosine.add([cosine for cosine, n in known if n is not None and cosine is not None], label)
            self._depth.add([depth for depth in depths if depth is not None], label)

    def processed(self, partition: int, records: int, seconds: float) -> None:
        self._records.labels(str(partition)).inc(records)
        self._duration.add([seconds])

    def committed(self) -> None:
        self._transactions.labels("committed").inc()

    def detected(self, findings: int, seconds: float) -> None:
        """Findings were published so long after the oldest record they can rest on."""
        self._delay.add([seconds] * findings)

    def aborted(self) -> None:
        self._transactions.labels("aborted").inc()

    def lost(self, topic: str, records: int) -> None:
        self._by_topic["records_lost"].labels(topic).inc(records)

    def rewound(self, topic: str) -> None:
        self._by_topic["rewinds"].labels(topic).inc()

    def undecodable(self, topic: str, records: int) -> None:
        self._by_topic["records_undecodable"].labels(topic).inc(records)

    def recovered(self, records: int) -> None:
        self._recovered.inc(records)
        self.recovered_records += records

    def recovery_started(self) -> None:
        self._recovery_started = time.monotonic()

    def recovery_ended(self) -> None:
        self._recovery.set(time.monotonic() - self._recovery_started)

    def watch(self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """A gauge whose values are read when it is scraped."""
        self.registry.register(_Watched(f"{PREFIX}_{name}", text, labels, read))

    def watch_standings(self, read: Callable[[], Iterable[Standing]]) -> None:
        """Gauges of how the sessions stand in the partitions that are at work now."""
        agents = self._labelled["agent"]

        def sums(name: str, zeros: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], float]:
            found = dict.fromkeys(zeros, 0.0)
            for standing in read():
                for (counted, *labels), number in standing.counts.items():
                    if counted == name:
                        found[tuple(labels)] += number
            return found

        self.watch(
            "sessions", "Sessions known, by the worst that is open in them.", ("agent", "state"),
            lambda: sums("sessions", product(agents, STATES)),
        )  # fmt: skip
        self.watch(
            "findings_open", "Alerts that fire.", ("agent", "check", "severity"),
            lambda: sums("findings_open", product(agents, CHECKS, SEVERITIES)),
        )  # fmt: skip
        self.watch(
            "partitions_counted", "Partition numbers whose sessions have all been counted since they were assigned.", (),
            lambda: {(): float(sum(standing.complete for standing in read()))},
        )  # fmt: skip

    def collect(self, ready: bool) -> Collected:
        """What there is at this moment."""
        self._ready.set(ready)
        return Collected(list(self.registry.collect()))


class Collected(Collector):
    """All metrics as they were. Writing them down takes most of a scrape, and can be done in another thread."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families

    def page(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics (with exemplars) for whoever accepts it, else Prometheus text."""
        if "application/openmetrics-text" in accept:
            page: bytes = openmetrics.generate_latest(self)  # type: ignore[no-untyped-call]  # prometheus_client
            return page, openmetrics.CONTENT_TYPE_LATEST
        return exposition.generate_latest(self), exposition.CONTENT_TYPE_LATEST


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
