"""One suite over every check, of rounds and of the tree: what all of them have in common.

Each check has one scene in which it fires and nothing is missing. From there: an input is taken away, things get
worse, the state is stored and read again.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from compaction_events.builders import acknowledged, completed, ended, regenerated, started, stated, written
from compaction_events.codec import ce_id
from compaction_events.facts import Fact
from compaction_events.findings import AlertRaised, Finding, Severity
from compaction_monitor.checks.evidence import WORDS
from compaction_monitor.checks.rounds import CHECKS, GROUNDING, INFERRED_MAY_BE_CRITICAL
from compaction_monitor.fold import fold
from compaction_monitor.harness import Offline
from compaction_monitor.loop.remedies import remedy
from compaction_monitor.rules import AgentRules, Rules, Thresholds
from compaction_monitor.state.session import NewerStateError, Session, peek
from tests.compaction_monitor.scenes import chain_pass, tree_round, with_summaries

Change = Callable[[list[Fact]], list[Fact]]


def start(**told: Any) -> Fact:
    return started(**{"source_spans": 100, "max_depth": 3, "scorer": {"name": "cosine"}, "eviction": "continuous", **told})


def node(name: str, budget: int | None, entropy: float, **more: Any) -> Fact:
    room = {"budget_tokens": budget, "child_joint_entropy_bits": entropy, "child_redundancy": 0.0, "bits_per_token": 1.0}
    parent = {"parent_id": "root", "level": 1} if name != "root" else {"level": 2, "children": [{"node_id": "leaf"}]}
    return written(name, 1, 2 if name == "root" else 1, **{**room, **parent, **more})


SCENES: dict[str, list[Fact]] = {
    "salience_inversion": [start(), tree_round(1, 400, 60, 0.40), tree_round(2, 200, 50, 0.45)],
    "provenance_floor": [start(), tree_round(1, 400, 60, 0.40), tree_round(2, 400, 19, 0.40)],
    "inversion_risk": [start(), *(tree_round(n, 500 - 40 * n, 60 - 5 * n, 0.40) for n in range(1, 5))],
    "drift": [start(), tree_round(1, 400, 60, 0.40), tree_round(2, 200, 60, 0.45)],
    "depth_pinned": [start(), *(tree_round(n, 600, 60, 0.40, 3) for n in range(1, 7))],
    "orphaned_summary": [start(), with_summaries(1, {"s1": 2}), with_summaries(2, {"s1": 0})],
    "coverage_gap": [start(), tree_round(1, 600, 60, 0.40, 1, read_records=4, claimed_records=10)],
    "summary_failed": [start(), tree_round(1, 600, 60, 0.40, 1, summary_kind="error")],
    "compaction_thrash": [
        start(eviction="overflow", token_budget=1_000),
        *(tree_round(n, 950, 60, 0.40, 1) for n in range(1, 4)),
    ],
    "constraint_lost": [
        start(),
        stated("p1", 1, pinned=True),
        tree_round(1, 600, 60, 0.40, 1, propositions_retained=("p1",)),
        tree_round(2, 600, 60, 0.40, 1, propositions_retained=()),
    ],
    "silent_composed_loss": [start(), node("leaf", 50, 100.0), node("root", 100, 60.0)],
    "regeneration_loop": [
        start(),
        *(stated(p, 1) for p in ("p1", "p2")),
        node("root", 100, 60.0, retained=("p1",)),
        regenerated("root", 3, level=2, version=2, retained=("p2",)),
        regenerated("root", 4, level=2, version=3, retained=("p1",)),
    ],
}
"""Every check that fires on facts alone (the verdicts on trials and the loop's own two also need an order's id)."""
ON_ORDERS = {"upstream_loss", "stale", "saturated", "unstable", "ambiguous", "over_capacity"}
ABOUT_ORDERS = {"remediation_unacknowledged", "remediation_ineffective"}


def told(**fields: Any) -> Change:
    """The session's start tells something else; None: nothing."""
    return lambda facts: [_with(facts[0], fields), *facts[1:]]


def last(**fields: Any) -> Change:
    """The last fact tells something else; None: nothing."""
    return lambda facts: [*facts[:-1], _with(facts[-1], fields)]


def every(**fields: Any) -> Change:
    """Every fact but the start tells something else."""
    return lambda facts: [facts[0], *(_with(fact, fields) for fact in facts[1:])]


def alone(facts: list[Fact]) -> list[Fact]:
    """Only the last round was seen."""
    return [facts[0], facts[-1]]


def _with(fact: Fact, fields: dict[str, Any]) -> Fact:
    plain = fact.model_dump()
    part = plain.get("after", {})
    for name, value in fields.items():
        (part if name in part else plain)[name] = value
    return type(fact).model_validate(plain)


class Missing(NamedTuple):
    check: str
    what: str
    change: Change
    reason: str


MISSING = [
    Missing("salience_inversion", "the round before", alone, "no_previous"),
    Missing("salience_inversion", "spans", last(distinct_source_spans=None), "no_reachability"),
    Missing("salience_inversion", "cosine", last(query_cosine_retained=None), "no_cosine"),
    Missing("salience_inversion", "depth", last(summary_depth_max=None), "no_depth"),
    Missing("salience_inversion", "a scorer", told(scorer={"name": "none"}), "no_scorer"),
    Missing("salience_inversion", "levels", told(topology="chain"), "chain"),
    Missing("salience_inversion", "levels of any kind", told(topology="flat"), "flat"),
    Missing("provenance_floor", "spans at the start", told(source_spans=None), "no_source_spans"),
    Missing("provenance_floor", "spans", last(distinct_source_spans=None), "no_reachability"),
    Missing("provenance_floor", "depth", last(summary_depth_max=None), "no_depth"),
    Missing("provenance_floor", "the state before the pass, in a chain", told(topology="chain"), "no_before"),
    Missing("provenance_floor", "ground to keep", told(topology="flat"), "flat"),
    Missing("inversion_risk", "the rounds before", alone, "no_previous"),
    Missing("inversion_risk", "enough rounds", lambda facts: [facts[0], *facts[2:]], "few_rounds"),
    Missing("inversion_risk", "spans", last(distinct_source_spans=None), "no_reachability"),
    Missing("inversion_risk", "depth", last(summary_depth_max=None), "no_depth"),
    Missing("inversion_risk", "levels", told(topology="chain"), "chain"),
    Missing("inversion_risk", "levels of any kind", told(topology="flat"), "flat"),
    Missing("drift", "the round before", alone, "no_previous"),
    Missing("drift", "spans", last(distinct_source_spans=None), "no_reachability"),
    Missing("drift", "cosine, and spans fall", last(query_cosine_retained=None, distinct_source_spans=59), "no_cosine"),
    Missing("drift", "depth", last(summary_depth_max=None), "no_depth"),
    Missing("drift", "levels", told(topology="chain"), "chain"),
    Missing("drift", "levels of any kind", told(topology="flat"), "flat"),
    Missing("depth_pinned", "depth", last(summary_depth_max=None), "no_depth"),
    Missing("depth_pinned", "levels", told(topology="chain"), "chain"),
    Missing("depth_pinned", "levels of any kind", told(topology="flat"), "flat"),
    Missing("orphaned_summary", "the inventory", last(summaries=None), "no_inventory"),
    Missing("orphaned_summary", "pointers", last(spans_method="lexical"), "no_pointers"),
    Missing("coverage_gap", "claims", last(claimed_records=None), "no_records"),
    Missing("coverage_gap", "reads", last(read_records=None), "no_records"),
    Missing("coverage_gap", "a summary", last(summary_kind="none"), "no_summary"),
    Missing("summary_failed", "the kind", last(summary_kind=None), "no_summary_kind"),
    Missing("compaction_thrash", "how it evicts", told(eviction=None), "no_eviction"),
    Missing("compaction_thrash", "room to overflow", told(eviction="continuous"), "continuous"),
    Missing("constraint_lost", "what is retained", last(propositions_retained=None), "no_propositions"),
    Missing("silent_composed_loss", "its budget", last(budget_tokens=None), "capacity_unknown"),
    Missing("silent_composed_loss", "its entropy", last(child_joint_entropy_bits=None), "capacity_unknown"),
    Missing("silent_composed_loss", "its redundancy", last(child_redundancy=None), "capacity_unknown"),
]
NEVER_BLIND = {"regeneration_loop"}
each_check = pytest.mark.parametrize("check", SCENES)
each_missing = pytest.mark.parametrize("case", MISSING, ids=[f"{case.check} without {case.what}" for case in MISSING])


def raised(findings: Sequence[Finding]) -> set[str]:
    return {finding.name for finding in findings if isinstance(finding, AlertRaised)}


def said(facts: Sequence[Fact], rules: Rules | None = None) -> tuple[set[str], Counter[tuple[str, ...]]]:
    """The checks that were raised by the last fact, and what was counted at it."""
    monitor = Offline(rules)
    monitor.feed(facts[:-1])
    monitor.counts.clear()
    return raised([one.finding for one in monitor.feed([facts[-1]])]), monitor.counts


def test_every_check_is_here() -> None:
    assert set(SCENES) | ON_ORDERS | ABOUT_ORDERS == set(WORDS)
    assert set(SCENES) >= set(CHECKS)
    assert {case.check for case in MISSING} == set(SCENES) - NEVER_BLIND


def test_one_word_per_check() -> None:
    assert {name: rule.__name__ for name, rule in CHECKS.items()} == {name: name for name in CHECKS}
    assert set(GROUNDING) | INFERRED_MAY_BE_CRITICAL <= set(CHECKS)


class TestScenes:
    @each_check
    def test_the_last_fact_raises_it_and_misses_nothing(self, check: str) -> None:
        names, counts = said(SCENES[check])
        assert names == {check}
        assert [name for name in counts if name[:2] == ("checks_skipped", check)] == []

    @each_check
    def test_nothing_else_came_before(self, check: str) -> None:
        assert Offline().feed(SCENES[check][:-1]) == []

    @each_check
    def test_switched_off_it_says_nothing_and_counts_nothing(self, check: str) -> None:
        names, counts = said(SCENES[check], Rules(default=AgentRules(off=frozenset({check}))))
        assert check not in names
        assert [name for name in counts if check in name] == []

    @each_check
    def test_the_operator_says_how_bad_it_is(self, check: str) -> None:
        for severity in Severity:
            monitor = Offline(Rules(default=AgentRules(severity={check: severity})))
            assert [one.finding.severity for one in monitor.feed(SCENES[check]) if isinstance(one.finding, AlertRaised)] == [
                severity
            ]

    @each_check
    def test_nothing_inferred_is_worse_than_a_warning(self, check: str) -> None:
        facts = SCENES[check]
        estimated = [_with(fact, {"basis": "inferred"}) if "basis" in type(fact).model_fields else fact for fact in facts]
        (alert,) = (one.finding for one in Offline().feed(estimated) if isinstance(one.finding, AlertRaised))
        assert alert.basis == "inferred"
        assert (alert.severity == "critical") == (check in INFERRED_MAY_BE_CRITICAL)


class TestMissing:
    @each_missing
    def test_is_skipped_with_its_reason(self, case: Missing) -> None:
        names, counts = said(case.change(SCENES[case.check]))
        assert case.check not in names
        assert {name[2]: n for name, n in counts.items() if name[:2] == ("checks_skipped", case.check)} == {case.reason: 1}

    @each_missing
    def test_an_open_alert_stays_open_until_it_can_be_told(self, case: Missing) -> None:
        """An input that is missing now is no recovery. Checks that do not apply (any more) close at the session's end."""
        facts = SCENES[case.check]
        later = [_with(fact, {name: value}) for fact, name, value in _later(case.change(facts)[-1])]
        monitor = Offline()
        monitor.feed(facts)
        session = monitor.session("session-1")
        assert session is not None and session.alert(case.check) is not None
        monitor.feed(later)
        session = monitor.session("session-1")
        assert session is not None and session.alert(case.check) is not None


def _later(fact: Fact) -> list[tuple[Fact, str, Any]]:
    """The same round once more, as the next one; a checkpoint cannot come again without its numbers."""
    if fact.type != "round.completed":
        return []
    number = fact.model_dump()["round"] + 1
    return [(_with(fact, {"round": number}), "at", completed(number).at)]


class TestQuiet:
    def test_before_there_is_a_round(self) -> None:
        facts = [
            start(),
            stated("p1", 1, pinned=True),
            written("root", 1, 1, level=2),
            acknowledged("order", "completed", 2),
            ended(3),
            started(),
        ]
        assert Offline().feed(facts) == []

    @pytest.mark.parametrize("topology", ["tree", "chain", "flat", None])
    def test_on_an_empty_set(self, topology: str | None) -> None:
        empty = tree_round(1, 0, 0, 0.0, 0, summaries=(), spans_method="pointer", propositions_retained=())
        after = _with(empty, {"raw_tokens": 0, "summary_tokens": 0})
        assert Offline().feed([start(topology=topology), after, _with(after, {"round": 2})]) == []

    def test_a_chain_that_keeps_its_ground(self) -> None:
        assert Offline().feed([start(topology="chain"), *(chain_pass(n, 20, 18) for n in range(1, 6))]) == []


class TestState:
    @each_check
    def test_input_is_left_alone_and_the_same_input_gives_the_same(self, check: str) -> None:
        session: Session | None = None
        for fact in SCENES[check]:
            kept = copy.deepcopy((session, fact))
            first, second = (fold(session, fact, ce_id(fact), Rules()) for _ in range(2))
            assert (session, fact) == kept
            assert (first.session, first.findings, first.counts) == (second.session, second.findings, second.counts)
            session = first.session
            assert session is not None
            assert Session.from_bytes(session.to_bytes()) == session

    @each_check
    def test_stored_and_read_after_every_fact_it_says_the_same(self, check: str) -> None:
        kept, restarted = Offline(), Offline()
        facts = [*SCENES[check], ended(10_000)]
        for fact in facts:
            restarted.feed([fact])
            restarted.restart()
        kept.feed(facts)
        assert restarted.published == kept.published
        assert [rows.tables for rows in restarted.rows] == [rows.tables for rows in kept.rows]
        row = kept.session("session-1")
        assert row is not None
        assert Session.from_bytes(row.to_bytes()) == row


def test_a_state_of_a_newer_version_is_left_alone() -> None:
    row = Session(agent="agent").to_bytes().replace(b"[1,", b"[2,", 1)
    for read in (Session.from_bytes, peek):
        with pytest.raises(NewerStateError, match="a session's state has version 2, this code knows 1"):
            read(row)


class Worse(NamedTuple):
    check: str
    why: str
    changes: list[Change]


WORSE = [
    Worse("salience_inversion", "less raw", [last(raw_tokens=raw, summary_tokens=1_000 - raw) for raw in (240, 100, 0)]),
    Worse("salience_inversion", "fewer spans", [last(distinct_source_spans=n) for n in (59, 20, 0)]),
    Worse("salience_inversion", "a higher cosine", [last(query_cosine_retained=c) for c in (0.401, 0.9, 1.0)]),
    Worse("salience_inversion", "deeper", [last(summary_depth_max=d) for d in (3, 9)]),
    Worse("provenance_floor", "fewer spans", [last(distinct_source_spans=n) for n in (10, 1, 0)]),
    Worse("provenance_floor", "more at the start", [told(source_spans=n) for n in (200, 299)]),
    Worse("provenance_floor", "deeper", [last(summary_depth_max=d) for d in (3, 9)]),
    Worse("inversion_risk", "less raw", [last(raw_tokens=raw, summary_tokens=1_000 - raw) for raw in (320, 260)]),
    Worse("inversion_risk", "fewer spans", [last(distinct_source_spans=n) for n in (30, 20)]),
    Worse("drift", "less raw", [last(raw_tokens=raw, summary_tokens=1_000 - raw) for raw in (100, 0)]),
    Worse("depth_pinned", "less raw", [last(raw_tokens=raw, summary_tokens=1_000 - raw) for raw in (300, 240)]),
    Worse("depth_pinned", "deeper than allowed", [every(summary_depth_max=d) for d in (4, 9)]),
    Worse("orphaned_summary", "by words too", [last(summaries_total=9)]),
    Worse("coverage_gap", "fewer read", [last(read_records=n) for n in (3, 0)]),
    Worse("coverage_gap", "more claimed", [last(claimed_records=n) for n in (11, 1_000)]),
    Worse("summary_failed", "nothing at all", [last(summary_kind="empty")]),
    Worse("compaction_thrash", "fuller", [last(raw_tokens=n) for n in (960, 2_000)]),
    Worse("constraint_lost", "without a start", [lambda facts: facts[1:]]),
    Worse("silent_composed_loss", "less room below", [lambda facts: [facts[0], node("leaf", 10, 100.0), facts[-1]]]),
]  # fmt: skip


@pytest.mark.parametrize("case", WORSE, ids=[f"{case.check}: {case.why}" for case in WORSE])
def test_worse_input_never_turns_it_off(case: Worse) -> None:
    for change in case.changes:
        names, _ = said(change(SCENES[case.check]))
        assert case.check in names


def test_changes_add_up() -> None:
    changes = [last(raw_tokens=0, summary_tokens=1_000), last(distinct_source_spans=0), last(query_cosine_retained=1.0)]
    facts = SCENES["salience_inversion"]
    for change in changes:
        facts = change(facts)
    names, _ = said(facts)
    assert names == {"salience_inversion"}


def test_a_check_that_asks_for_nothing_has_no_plan() -> None:
    session = Session(agent="agent")
    event = tree_round(1, 600, 60)
    for check in ("inversion_risk", "drift"):
        assert remedy(check, session, event, Thresholds(), Severity.warning, ()) is None
