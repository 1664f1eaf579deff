"""The golden series: which alerts it leads to, exactly, and which conditions hold before episodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from compaction_events.codec import ce_id
from compaction_events.facts import RoundCompleted
from compaction_events.findings import AlertRaised, AlertResolved, RemediationRequested, RemediationWithdrawn
from compaction_monitor import golden
from compaction_monitor.checks.rounds import CHECKS
from compaction_monitor.fold import fold
from compaction_monitor.rules import Rules
from compaction_monitor.state.session import Session

RULES = Rules()


class Passed(NamedTuple):
    """A round as it went through: which conditions held, and what was published."""

    number: int
    conditions: frozenset[str]
    findings: tuple[object, ...]


def play() -> Iterator[Passed]:
    session: Session | None = None
    for fact in golden.series():
        session, findings, *_ = fold(session, fact, ce_id(fact), RULES)
        assert session is not None
        if isinstance(fact, RoundCompleted):
            limits = RULES.of(session.agent).thresholds
            holding = {name for name, check in CHECKS.items() if check(session, fact, limits).holds}
            yield Passed(fact.round, frozenset(holding), tuple(findings))


@pytest.fixture(scope="module")
def rounds() -> list[Passed]:
    return list(play())


def holding(rounds: list[Passed], check: str) -> list[int]:
    return [entry.number for entry in rounds if check in entry.conditions]


def test_the_series_is_as_drawn() -> None:
    facts = [fact for fact in golden.series() if isinstance(fact, RoundCompleted)]
    by_round = {fact.round: fact.after for fact in facts}
    assert list(by_round) == list(range(1, 41))
    ratios = {n: after.raw_tokens / (after.raw_tokens + after.summary_tokens) for n, after in by_round.items()}
    assert {n: round(ratios[n], 4) for n in (1, 2, 8, 12, 28, 40)} == {1: 0.71, 2: 0.54, 8: 0.36, 12: 0.24, 28: 0.09, 40: 0.09}
    assert {n: by_round[n].distinct_source_spans for n in (1, 30, 40)} == {1: 214, 30: 37, 40: 37}
    assert {n: by_round[n].query_cosine_retained for n in (1, 28, 40)} == {1: 0.41, 28: 0.68, 40: 0.68}
    assert [by_round[n].summary_depth_max for n in (5, 6, 11, 12)] == [1, 2, 2, 3]
    assert all(fact.before is None and fact.basis == "measured" for fact in facts)
    assert [fact.round for fact in facts if fact.summaries] == list(range(6, 41))
    assert all(item.leaf_spans >= 1 for fact in facts for item in fact.summaries or ())


def test_the_alerts_exactly(rounds: list[Passed]) -> None:
    raised = [(r.number, f.name, f.severity) for r in rounds for f in r.findings if isinstance(f, AlertRaised)]
    assert raised == [
        (6, "inversion_risk", "warning"),
        (12, "salience_inversion", "critical"),
        (17, "depth_pinned", "warning"),
    ]


def test_the_inversion_supersedes_the_risk_and_stays_open(rounds: list[Passed]) -> None:
    inversion = next(f for r in rounds for f in r.findings if isinstance(f, AlertRaised) and f.name == "salience_inversion")
    resolved = [f for r in rounds for f in r.findings if isinstance(f, AlertResolved)]
    assert [(f.name, f.resolved_because, f.superseded_by) for f in resolved] == [("inversion_risk", "superseded", inversion.id)]


def test_the_orders_and_the_plan(rounds: list[Passed]) -> None:
    orders = [(r.number, f) for r in rounds for f in r.findings if isinstance(f, RemediationRequested)]
    assert [(number, order.action) for number, order in orders] == [(12, "halt_and_rehydrate"), (17, "cap_depth")]
    assert not [f for r in rounds for f in r.findings if isinstance(f, RemediationWithdrawn)]
    plan = orders[0][1].plan
    assert plan.action == "halt_and_rehydrate"
    assert (plan.target_raw_ratio, plan.complete, plan.tokens_over_budget) == (0.3, True, 0)
    assert [(step.summary_id, round(step.projected_raw_ratio, 4)) for step in plan.steps] == [
        ("summary-01", 0.2891),
        ("summary-02", 0.3403),
    ]


def test_conditions_before_episodes(rounds: list[Passed]) -> None:
    """The floor and drift hold too; while the inversion is open neither becomes an alert."""
    assert holding(rounds, "provenance_floor") == list(range(30, 41))
    assert holding(rounds, "drift") == list(range(29, 41))
    assert holding(rounds, "salience_inversion") == list(range(12, 29))
    assert holding(rounds, "depth_pinned") == list(range(17, 41))
    others = {"inversion_risk", "salience_inversion", "provenance_floor", "drift", "depth_pinned"}
    assert set().union(*(entry.conditions for entry in rounds)) == others
