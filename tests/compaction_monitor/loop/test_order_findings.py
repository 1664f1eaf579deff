"""What orders and the two alerts about them say, whole; what is counted; what is bounded."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from compaction_events.builders import acknowledged, at, started, written
from compaction_events.findings import (
    AlertRaised,
    AlertResolved,
    CapDepth,
    EscalateToRaw,
    Plan,
    Rebalance,
    RemediationRequested,
    RemediationWithdrawn,
    Resume,
)
from compaction_monitor.harness import Offline
from compaction_monitor.rules import AgentRules, LoopRules, Rules
from tests.compaction_monitor.loop.order_scenes import (
    UNACKNOWLEDGED,
    Step,
    Table,
    answer,
    failing,
    found,
    give,
    inverted,
    over,
    played,
    shown,
    tick,
)
from tests.compaction_monitor.loop.test_orders import CASES, HELD
from tests.compaction_monitor.scenes import lines, tree_round, with_summaries
from tests.compaction_monitor.tree.trees import ROOMY, reads, tracked, trial


def test_what_an_order_says() -> None:
    table = played(*inverted(), rules=AgentRules(mode="enforce"))
    alert, order = (one.finding for one in table.monitor.published)
    assert isinstance(alert, AlertRaised)
    assert isinstance(order, RemediationRequested)
    assert alert.remediation_id == order.id
    assert (order.reason.alert_id, order.reason.evidence) == (alert.id, alert.evidence)
    assert (order.requested_at, order.expires_at, order.valid_through_round) == (at(90), at(150), 4)
    assert (order.mode, order.supersedes, order.agent) == ("enforce", (), "agent")


def test_an_order_that_waited_counts_from_when_it_was_sent() -> None:
    cooled = next(case for case in HELD if case.why.startswith("cool-down: the next order"))
    table = played(*cooled.steps)
    found = [one.finding for one in table.monitor.published if isinstance(one.finding, RemediationRequested)]
    assert [(order.requested_at, order.expires_at, order.valid_through_round) for order in found] == [
        (at(60), at(120), 3),
        (at(150), at(210), 6),
    ]


def test_what_is_contradicted_names_what_stands_instead() -> None:
    case = next(case for case in CASES if case.why.startswith("a halt calls a warning's recompact back"))
    table = played(*case.steps)
    gone = found(table, RemediationWithdrawn, "recompact")
    assert (gone.because, gone.superseded_by) == ("contradicted", table.last("halt_and_rehydrate"))


def test_what_is_called_back_names_what_took_its_place() -> None:
    table = played(give(started()), failing(1, "fallback"), failing(2, "error"))
    old, new = (one.finding for one in table.monitor.published if isinstance(one.finding, RemediationRequested))
    (gone,) = (one.finding for one in table.monitor.published if isinstance(one.finding, RemediationWithdrawn))
    assert (gone.id, gone.superseded_by, gone.attempt) == (old.id, new.id, 1)
    assert new.supersedes == (old.id,)


@pytest.mark.parametrize(
    ("ending", "because", "at_minutes"),
    [(over(3), "resolved", 120), (tick(150), "expired", 150)],
    ids=["its alert is over", "its time is over"],
)
def test_a_resume_says_which_halt_is_over_and_why(ending: Step, because: str, at_minutes: int) -> None:
    table = played(*inverted(ending))
    resume = table.monitor.published[-1].finding
    assert isinstance(resume, RemediationRequested)
    assert resume.plan == Resume(halted_by=table.last("halt_and_rehydrate"), because=because)
    assert (resume.subject, resume.requested_at) == (table.last("halt_and_rehydrate"), at(at_minutes))
    assert resume.valid_through_round is None


ANSWERED = Counter({"halt_and_rehydrate completed": 1, "halt_and_rehydrate too_late": 1, "none too_late": 1})


def test_answers_are_counted() -> None:
    late = [
        answer("halt_and_rehydrate", "completed", 92),
        answer("halt_and_rehydrate", "completed", 93, why="twice"),
        give(acknowledged("unheard-of", "accepted", 94)),
    ]
    table = played(*inverted(*late))
    assert Counter({" ".join(name[1:]): n for name, n in table.monitor.counts.items() if name[0] == "answers"}) == ANSWERED
    # Asked for at minute 90, answered at 92: once, whatever is said later.
    delays = {name[1:]: n for name, n in table.monitor.counts.items() if name[0] == "answer_delay"}
    assert delays == {("halt_and_rehydrate", "120000"): 1}


def test_an_answer_for_a_session_nobody_knows_leaves_nothing_behind() -> None:
    table = played(give(acknowledged("order", "completed", 1)))
    assert table.monitor.session("session-1") is None
    assert table.monitor.counts == {("answers", "none", "unknown_session"): 1}


def test_a_tick_does_nothing_before_its_time_and_nothing_twice() -> None:
    table = played(*inverted())
    assert [shown(table.monitor.tick(at(minutes)), table) for minutes in (91, 94, 95, 95, 96)] == [
        [],
        [],
        ["order halt_and_rehydrate for salience_inversion #2"],
        [],
        [],
    ]


def test_rules_that_never_send_again() -> None:
    rules = AgentRules(loop=replace(LoopRules(), resends_max=0, deadline_s=60.0))
    table = played(*inverted(), rules=rules)
    assert [shown(table.monitor.tick(at(m)), table) for m in (91, 92, 93)] == [[UNACKNOWLEDGED], [], []]


def test_an_alert_about_an_order_nobody_answered() -> None:
    table = played(*inverted(answer("halt_and_rehydrate", "accepted", 92), tick(150)))
    halt = found(table, RemediationRequested, "halt_and_rehydrate")
    alert = found(table, AlertRaised, "remediation_unacknowledged")
    assert (alert.severity, alert.basis, alert.subjects, alert.remediation_id) == ("warning", "measured", (halt.id,), halt.id)
    assert (alert.startsAt, alert.lastReceived, alert.attempt) == (at(150), at(150), 1)
    assert alert.evidence == {
        "remediation_id": halt.id,
        "action": "halt_and_rehydrate",
        "attempt": 1,
        "status": "accepted",
    }
    assert (
        alert.message == f"order {halt.id} (halt_and_rehydrate) was sent 1 times (status accepted) and no answer has ended it"
    )
    table.monitor.feed([acknowledged("unheard-of", "rejected", 151)])
    over = table.monitor.published[-1].finding
    assert isinstance(over, AlertResolved)
    assert (over.id, over.lastReceived, over.evidence) == (alert.id, at(151), {"answer": "rejected"})


def test_two_orders_nobody_answered_are_one_alert() -> None:
    steps = inverted(give(tree_round(3, 200, 50, 0.45, summary_kind="ok", read_records=1, claimed_records=9)), tick(181))
    table = played(*steps, rules=AgentRules(loop=LoopRules(resends_max=0)))
    alerts = [one.finding for one in table.monitor.published if isinstance(one.finding, AlertRaised)]
    halt, escalation = table.last("halt_and_rehydrate"), table.last("escalate_to_raw")
    assert [(a.attempt, a.subjects) for a in alerts if a.name == "remediation_unacknowledged"] == [
        (1, (halt,)),
        (2, (halt, escalation)),
    ]


def test_an_alert_about_a_remedy_that_did_not_help_and_what_is_tried_next() -> None:
    late = (give(tree_round(3, 200, 50, 0.45)), give(tree_round(4, 200, 50, 0.45)))
    table = played(*inverted(answer("halt_and_rehydrate", "completed", 92), *late))
    halt = found(table, RemediationRequested, "halt_and_rehydrate")
    inversion = found(table, AlertRaised, "salience_inversion")
    alert = found(table, AlertRaised, "remediation_ineffective")
    assert (alert.severity, alert.basis, alert.subjects, alert.remediation_id) == (
        "warning",
        "measured",
        ("salience_inversion",),
        halt.id,
    )
    assert alert.evidence == {
        "remediation_id": halt.id,
        "action": "halt_and_rehydrate",
        "check": "salience_inversion",
        "rounds": 2,
    }
    assert alert.message == (
        f"order {halt.id} (halt_and_rehydrate) was completed, but salience_inversion still fires after 2 compaction rounds"
    )
    lever = found(table, RemediationRequested, "cap_depth")
    assert lever.plan == CapDepth(max_depth=2)
    assert (lever.reason.check, lever.reason.alert_id) == ("salience_inversion", inversion.id)
    assert lever.reason.evidence == {
        "previous_remediation_id": halt.id,
        "previous_action": "halt_and_rehydrate",
        "previous_outcome": "ineffective",
    }
    assert (lever.subject, lever.requested_at, lever.valid_through_round, lever.supersedes) == ("", at(150), 6, ())
    table.monitor.feed([tree_round(5, 350, 50, 0.40)])
    over = found(table, AlertResolved, "remediation_ineffective")
    assert (over.id, over.resolved_because, over.evidence) == (alert.id, "recovered", {"check": "salience_inversion"})


LEVERS = [
    ("rehydrate", [give(tree_round(1, 600, 19, None))], "rejected", EscalateToRaw(what="spans")),
    ("recompact", [failing(1, "error")], "failed", EscalateToRaw(what="records")),
]


@pytest.mark.parametrize(("action", "steps", "status", "plan"), LEVERS, ids=[lever[0] for lever in LEVERS])
def test_what_is_tried_after_a_no(action: str, steps: list[Step], status: str, plan: Plan) -> None:
    table = played(give(started(source_spans=100)), *steps, answer(action, status, 61))
    lever = found(table, RemediationRequested, "escalate_to_raw")
    assert lever.plan == plan
    assert lever.reason.evidence == {
        "previous_remediation_id": table.last(action),
        "previous_action": action,
        "previous_outcome": status,
    }


def test_after_a_regeneration_that_failed_the_node_gets_room() -> None:
    table = Table(Rules())
    members = [f"p{number}" for number in range(1, 11)]
    table.monitor.feed(
        [
            *tracked(*members),
            written("mid", 1, 10, level=2, retained=members),
            written("root", 1, 20, level=3, retained=members[:5], children=reads("mid"), **ROOMY),
            written("mid", 2, 30, level=2, retained=members),
            trial("root", 40, 1, members),
        ]
    )
    alert = found(table, AlertRaised, "stale")
    table.monitor.feed([acknowledged(table.last("regenerate_parent"), "failed", 41)])
    lever = found(table, RemediationRequested, "rebalance")
    assert (lever.plan, lever.subject) == (Rebalance(node_id="root", needed_tokens=100), "root")
    assert (lever.reason.check, lever.reason.alert_id) == ("stale", alert.id)


def test_two_remedies_that_did_not_help_are_one_alert_until_both_do() -> None:
    table = Table(Rules())
    bad: dict[str, Any] = {"read_records": 1, "claimed_records": 9, "summary_kind": "error"}
    table.monitor.feed([started(source_spans=100, controller="expected"), tree_round(1, 600, 19, None, **bad)])
    for action in ("rehydrate", "recompact"):
        table.monitor.feed([acknowledged(table.last(action), "completed", 61)])
    table.monitor.feed([tree_round(2, 600, 19, None), tree_round(3, 600, 19, None)])
    told = [line for line in lines(table.monitor.published) if "ineffective" in line]
    assert told == [
        "raised remediation_ineffective warning #1 provenance_floor",
        "raised remediation_ineffective warning #2 provenance_floor summary_failed",
    ]
    assert lines(table.monitor.feed([tree_round(4, 600, 30, None)])) == [
        "resolved provenance_floor critical recovered",
        "withdrawn escalate_to_raw resolved",
    ]
    assert lines(table.monitor.feed([tree_round(5, 600, 30, None, summary_kind="ok")])) == [
        "resolved summary_failed critical recovered",
        "withdrawn escalate_to_raw resolved",
        "resolved remediation_ineffective warning recovered",
    ]


def test_what_is_held_back_is_counted_with_its_reason() -> None:
    def held(case_why: str, rules: AgentRules | None = None) -> dict[str, int]:
        case = next(case for case in CASES if case.why.startswith(case_why))
        counts = played(*case.steps, rules=rules or case.rules).monitor.counts
        return {" ".join(name[1:]): n for name, n in counts.items() if name[0] == "orders_held"}

    assert held("cool-down: the next order") == {"rehydrate cooldown": 1}
    assert held("breaker: after one order") == {"rehydrate breaker": 1}
    assert held("recompact while halted") == {"recompact contradiction": 1}


def test_orders_are_counted_as_they_are_sent() -> None:
    table = played(*inverted(tick(95), tick(102.5)))
    counts = {" ".join(name[1:]): n for name, n in table.monitor.counts.items() if name[0] == "orders"}
    assert counts == {"agent halt_and_rehydrate sent": 1, "agent halt_and_rehydrate sent_again": 2}


def test_no_more_than_64_orders_stand_at_once() -> None:
    """A new orphan in every round, orders that are never void: the sixty-fifth is dropped and counted."""
    loop = LoopRules(cooldown_rounds=0, breaker_orders=10**6, valid_rounds=10**6, expires_s=10**9)
    monitor = Offline(Rules(default=AgentRules(loop=loop)))
    monitor.feed([started()])
    for number in range(1, 70):
        monitor.feed([with_summaries(number, {f"s{number}": 0})])
    session = monitor.session("session-1")
    assert session is not None and len(session.orders) == 64
    counted = ("orders", "agent", "escalate_to_raw")
    assert (monitor.counts[*counted, "sent"], monitor.counts[*counted, "dropped"]) == (64, 5)
