"""The page of the worker's metrics: what is on it from the start, what a batch adds, and that sessions add no series."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, Metric, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from compaction_events.builders import acknowledged, at, completed, ended, missed, regenerated, started, stated, written
from compaction_events.facts import Fact
from compaction_events.findings import RemediationRequested
from compaction_monitor.counts import DOMAIN
from compaction_monitor.effects import Effects
from compaction_monitor.harness import Offline, Published
from compaction_monitor.shell.metrics import RAW_RATIOS, Distribution, Metrics, exemplar_id
from tests.absent import skip_or_fail
from tests.compaction_monitor.scenes import tree_round
from tests.e2e.alertmanagers import ProgramMissingError, program

PACKAGE = Path(__file__).parents[3] / "stream" / "compaction_monitor"
TOPICS = ("compaction.events", "compaction.outcomes")
# Nothing of one session, and nothing that an agent may say freely.
LABELS = {
    "action", "agent", "cause", "check", "decision", "outcome", "partition", "phase", "python", "reason", "result", "severity",
    "state", "status", "topic", "type", "verdict", "version",
}  # fmt: skip


class Watched(Offline):
    """A monitor whose batches are added to metrics, as after their commit."""

    def __init__(self, agents: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._core.agents = frozenset(agents)
        self.metrics = Metrics(agents, TOPICS)
        self.metrics.watch_standings(lambda: [partition.standing for partition in self._open.values()])

    def _commit(self, number: int, effects: Effects) -> list[Published]:
        found = super()._commit(number, effects)
        self.metrics.add(effects)
        return found

    def page(self) -> str:
        return self.metrics.collect(ready=True).page("")[0].decode()

    def families(self) -> dict[str, Metric]:
        return {family.name: family for family in plain(self.page())}


def values(families: dict[str, Metric], name: str) -> dict[tuple[str, ...], float]:
    """What a family counts by its labels, in the order of their names; without the series that are still 0."""
    return {tuple(dict(sorted(s.labels.items())).values()): s.value for s in families[name].samples if s.value}


def series(page: str) -> list[str]:
    return sorted(line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#"))


def counts_in_the_source() -> Iterator[tuple[str, int, str]]:
    """Each name that the pure middle counts, with how many labels, and where."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            parts: list[ast.expr] = []
            called = ast.unparse(node.func)
            if called.endswith("step.count"):
                parts = node.args
            elif called in ("self.count", "counted.append", "self.counted.append"):
                first = node.args[0]
                parts = first.elts if isinstance(first, ast.Tuple) else node.args
            if parts and isinstance(parts[0], ast.Constant):
                yield str(parts[0].value), len(parts) - 1, f"{path.name}:{node.lineno}"


def test_whatever_is_counted_has_a_metric_with_these_labels() -> None:
    found = list(counts_in_the_source())
    assert len(found) > 30
    times = {"answer_delay": 2}  # its action, and how long it took
    wrong = [
        entry for entry in found if entry[1] != times.get(entry[0], len(DOMAIN[entry[0]].labels) if entry[0] in DOMAIN else -1)
    ]
    assert wrong == []
    assert set(DOMAIN) - {name for name, _, _ in found} == {"nodes_forgotten"}  # counted many at once


def sinking(name: str, agent: str = "coder") -> list[Fact]:
    """A session that inverts in its second round."""
    first = tree_round(1, 400, 90, 0.4, session_id=name, agent=agent)
    second = tree_round(2, 200, 60, 0.5, session_id=name, agent=agent)
    return [started(name, agent=agent, source_spans=200), first, second]


def test_a_batch_is_counted_by_agent_check_and_severity() -> None:
    watched = Watched(("coder",))
    watched.tick(at(0))
    watched.feed([*sinking("a"), *sinking("b", agent="stranger")], batch=6)
    families = watched.families()
    assert values(families, "compaction_findings") == {
        ("coder", "salience_inversion", "critical", "raised"): 1,
        ("other", "salience_inversion", "critical", "raised"): 1,
    }
    assert values(families, "compaction_findings_open") == {
        ("coder", "salience_inversion", "critical"): 1,
        ("other", "salience_inversion", "critical"): 1,
    }
    assert values(families, "compaction_sessions") == {("coder", "critical"): 1, ("other", "critical"): 1}
    assert values(families, "compaction_orders") == {
        ("halt_and_rehydrate", "coder", "sent"): 1,
        ("halt_and_rehydrate", "other", "sent"): 1,
    }
    assert values(families, "compaction_rounds") == {("coder", "compaction"): 2, ("other", "compaction"): 2}
    assert values(families, "compaction_partitions_counted") == {(): 1}


def buckets(families: dict[str, Metric], name: str, agent: str) -> dict[str, float]:
    """How many values lie in each bucket, where any do; and the sum of all."""
    found: dict[str, float] = {}
    below = 0.0
    for sample in families[name].samples:
        if sample.labels.get("agent") != agent:
            continue
        if sample.name.endswith("_bucket") and sample.value != below:
            found[sample.labels["le"]] = sample.value - below
            below = sample.value
        elif sample.name.endswith("_sum"):
            found["sum"] = round(sample.value, 6)
    return found


def test_rounds_are_distributed_by_what_they_left() -> None:
    watched = Watched(("coder",))
    watched.feed(sinking("a"))
    chain_of = {"session_id": "chain", "agent": "coder", "topology": "chain"}
    watched.feed([completed(1, before={"raw_tokens": 9, "summary_tokens": 1, "distinct_source_spans": 20},
                            distinct_source_spans=5, query_cosine_retained=0.2, **chain_of)])  # fmt: skip
    # A cosine without spans says nothing; nor does an empty set have a ratio, or a rehydration count as a compaction.
    empty: dict[str, Any] = {"raw_tokens": 0, "summary_tokens": 0, "query_cosine_retained": 0.9}
    watched.feed([completed(2, cause="rehydration", **empty, **chain_of)])
    families = watched.families()
    assert buckets(families, "compaction_round_raw_ratio", "coder") == {"0.2": 1, "0.4": 1, "1.0": 1, "sum": 1.6}
    assert buckets(families, "compaction_round_spans_ratio", "coder") == {"0.25": 1, "0.3": 1, "0.5": 1, "sum": 1.0}
    assert buckets(families, "compaction_round_cosine", "coder") == {"0.2": 1, "0.4": 1, "0.5": 1, "sum": 1.1}
    assert buckets(families, "compaction_round_depth", "coder") == {"2.0": 2, "sum": 4}
    assert values(families, "compaction_rounds") == {("coder", "compaction"): 3, ("coder", "rehydration"): 1}


def test_a_round_that_changes_nothing_is_not_distributed() -> None:
    watched = Watched()
    watched.feed([started(), completed(1), completed(1), completed(0), ended(999)])
    families = watched.families()
    assert values(families, "compaction_rounds") == {("other", "compaction"): 1}
    assert values(families, "compaction_facts") == {
        ("new", "session.started"): 1,
        ("new", "round.completed"): 1,
        ("duplicate", "round.completed"): 1,
        ("late", "round.completed"): 1,
        ("new", "session.ended"): 1,
    }


def test_a_statement_is_counted_by_what_it_told() -> None:
    watched = Watched()
    watched.feed([stated("p1", 1), stated("p1", 1), stated("p1", 1, pinned=True)])
    watched.feed([stated(f"p{number}", 2) for number in range(1_001)], batch=1_001)
    assert values(watched.families(), "compaction_facts") == {
        ("new", "proposition.stated"): 2 + 999,
        ("repeat", "proposition.stated"): 2,
        ("no_room", "proposition.stated"): 1,
    }
    assert values(watched.families(), "compaction_propositions_dropped") == {(): 1}


def test_an_answer_is_timed_from_its_order() -> None:
    watched = Watched()
    watched.feed([started(controller="expected"), *sinking("session-1")[1:]])
    [order] = [found.finding for found in watched.published if isinstance(found.finding, RemediationRequested)]
    watched.feed([acknowledged(order.id, "accepted", 92), acknowledged(order.id, "completed", 95)])
    family = watched.families()["compaction_answer_delay_seconds"]
    about = [sample for sample in family.samples if sample.labels["action"] == "halt_and_rehydrate"]
    assert {sample.labels["le"]: sample.value for sample in about if sample.name.endswith("_bucket")}["300.0"] == 1
    assert [sample.value for sample in about if sample.name.endswith("_sum")] == [120]
    assert [sample.value for sample in about if sample.name.endswith("_count")] == [1]


def test_a_finding_leads_to_a_session_in_which_it_was_found() -> None:
    """In one batch, each its own; a name that is too long for an exemplar as its hash."""
    watched = Watched()
    long = "s" * 200
    watched.feed([*sinking("a"), started(long), completed(1, long, summary_kind="fallback")], batch=5)
    page, content_type = watched.metrics.collect(ready=True).page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    parsed = openmetrics(page.decode())  # type: ignore[no-untyped-call]  # prometheus_client
    samples = chain.from_iterable(family.samples for family in parsed)
    found = {
        (sample.name, sample.labels.get("check") or sample.labels.get("action")): sample.exemplar.labels
        for sample in samples
        if sample.exemplar is not None
    }
    assert found == {
        ("compaction_findings_total", "salience_inversion"): {"session": "a"},
        ("compaction_findings_total", "summary_failed"): {"session": exemplar_id(long)},
        ("compaction_orders_total", "halt_and_rehydrate"): {"session": "a"},
        ("compaction_orders_total", "recompact"): {"session": exemplar_id(long)},
    }
    assert len(exemplar_id(long)) == 64 and not long.startswith(exemplar_id(long))


def test_what_is_known_beforehand_is_there_from_the_start_and_has_known_labels() -> None:
    metrics = Metrics(("coder", "writer"), TOPICS)
    families = {family.name: family for family in plain(metrics.collect(ready=False).page("")[0].decode())}
    there = {sample.labels["agent"] for sample in families["compaction_findings"].samples}
    assert there == {"coder", "writer", "other"}
    assert len(families["compaction_dead_letters"].samples) == 12 * len(TOPICS)
    assert {label for family in families.values() for sample in family.samples for label in sample.labels} - {"le"} <= LABELS
    bare = {name for name, counted in DOMAIN.items() if not families[f"compaction_{name}"].samples}
    assert bare == {"checks_skipped", "verdicts", "missed", "trials_held"}
    assert not any(sample.name.endswith("_created") for family in families.values() for sample in family.samples)


def a_session(name: str, agent: str, eventful: bool) -> list[Fact]:
    """A session that only compacts, or one in which everything happens."""
    if not eventful:
        return [started(name, agent=agent), completed(1, name, agent=agent), ended(300, name, agent=agent)]
    told = [*sinking(name, agent), completed(3, name, agent=agent)]
    told += [stated("p1", 1, name), written("root", 1, 200, name, retained=("p1",), level=2)]
    told += [regenerated("root", 210, name, trial_number=1, remediation_id="x"), missed("root", "p2", 220, name)]
    return [*told, ended(300, name, agent=agent)]


def test_ten_thousand_sessions_add_no_series() -> None:
    watched = Watched(("coder",))
    watched.tick(at(0))
    for agent in ("coder", "reviewer"):
        watched.feed([*a_session(f"first-{agent}", agent, eventful=True), *a_session(f"second-{agent}", agent, eventful=False)])
    before = series(watched.page())
    for number in range(0, 10_000, 500):
        some = range(number, number + 500)
        facts = [fact for one in some for fact in a_session(f"session-{one}", f"agent-{one}", eventful=one % 50 == 0)]
        watched.feed(facts, batch=len(facts))
    page = watched.page()
    assert series(page) == before
    assert values(watched.families(), "compaction_sessions")["other", "ended"] == 10_002
    assert "session-" not in page and "agent-" not in page and "root" not in page


@given(st.lists(st.lists(st.floats(0, 1.2), max_size=9), max_size=5))
def test_a_distribution_is_what_the_library_makes_of_the_same_values(batches: list[list[float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    distribution = Distribution("ratio", "A ratio.", RAW_RATIOS)
    ours.register(distribution)
    histogram = Histogram("compaction_ratio", "A ratio.", registry=theirs, buckets=RAW_RATIOS)
    for batch in batches:
        distribution.add(batch)
        for value in batch:
            histogram.observe(value)

    def told(registry: CollectorRegistry) -> list[tuple[str, dict[str, str], Any]]:
        [family] = plain(generate_latest(registry).decode())
        return [(s.name, s.labels, pytest.approx(s.value)) for s in family.samples if not s.name.endswith("_created")]

    assert told(ours) == told(theirs)


def test_promtool_has_nothing_to_say_about_the_page() -> None:
    try:
        promtool = program("promtool")
    except ProgramMissingError as missing:
        skip_or_fail(str(missing))
    watched = Watched(("coder",))
    watched.feed(a_session("a", "coder", eventful=True))
    check = [promtool, "check", "metrics"]
    checked = subprocess.run(check, input=watched.page(), capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
