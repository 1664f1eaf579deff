"""Whole sessions worked out by hand: for each event everything that is published for it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from compaction_events.builders import acknowledged, at, completed, ended, started, stated
from compaction_events.facts import Fact
from compaction_events.findings import AlertRaised, AlertResolved, CapDepth, RemediationRequested
from compaction_monitor import golden
from compaction_monitor.harness import Offline, Published, milliseconds
from compaction_monitor.rules import AgentRules, LoopRules, Rules
from tests.compaction_monitor.scenes import Event, chain_pass, lines, play, tree_round, with_summaries

INVERTED = ["raised salience_inversion critical #1", "order halt_and_rehydrate for salience_inversion #1"]
FLOOR = ["raised provenance_floor critical #1", "order rehydrate for provenance_floor #1"]
OVER = ["resolved salience_inversion critical recovered", "order resume for salience_inversion #1"]

ONE_ROUND = [
    Event("it starts", started(source_spans=100)),
    Event("one round, however poor, has nothing to be compared with", tree_round(1, 200, 50, 0.5)),
    Event("it ends with nothing open", ended(90)),
]

SIX_PASSES = [
    Event("it starts", started(topology="chain")),
    Event("first generation, 3 of 11 (0.27)", chain_pass(1, 11, 3, basis="inferred")),
    Event("9 of 10 (0.9)", chain_pass(2, 10, 9, basis="inferred")),
    Event("12 of 20 (0.6)", chain_pass(3, 20, 12, basis="inferred")),
    Event(
        "3 of 17 (0.18): below 0.20; inferred, so a warning",
        chain_pass(4, 17, 3, basis="inferred"),
        ["raised provenance_floor warning #1", "order escalate_to_raw for provenance_floor #1"],
    ),
    Event(
        "9 of 12 (0.75): the next pass that holds",
        chain_pass(5, 12, 9, basis="inferred"),
        ["resolved provenance_floor warning recovered", "withdrawn escalate_to_raw resolved"],
    ),
    Event("5 of 10 (0.5)", chain_pass(6, 10, 5, basis="inferred")),
]

CONSTANT_DEPTH_2 = [
    Event("it starts, two levels at most", started(source_spans=100, max_depth=2)),
    *(Event(f"round {n} at depth 2: a cap at 2 would mean nothing", tree_round(n, 600, 90, 0.4)) for n in range(1, 13)),
]

LATE_JOIN = [
    Event("first seen in round 7: nothing to compare with", tree_round(7, 200, 50, 0.4, topology=None)),
    Event("mostly summary, fewer spans, higher cosine", tree_round(8, 190, 40, 0.5), INVERTED),
    Event("the start at last: the floor has its base, nothing begins anew", started(source_spans=100)),
    Event("10 spans are below the floor of 20, but the worse one is open", tree_round(9, 180, 10, 0.4)),
    Event("the inversion is over; what it outranked waits one round", tree_round(10, 320, 10, 0.4), OVER),
    Event(
        "and is raised now, if it still holds",
        tree_round(11, 320, 10, 0.4),
        ["raised provenance_floor critical #1", "order rehydrate for provenance_floor #1"],
    ),
]

NEW_LIFE = [
    Event("it starts", started(source_spans=100, max_depth=3)),
    Event("a first round", tree_round(1, 400, 60, 0.40)),
    Event("inverted", tree_round(2, 200, 50, 0.45), INVERTED),
    Event("the emitter restarts at 0: no comparison, and the alert stays", tree_round(0, 200, 30, 0.9, at=at(200))),
    Event("raw enough again: it is the same alert that is over", tree_round(1, 300, 40, 0.5, at=at(230)), OVER),
]

NEW_LIFE_BY_START = [
    Event("it starts", started(source_spans=100, max_depth=3)),
    Event("a first round", tree_round(1, 400, 60, 0.40)),
    Event("a later start: a new life, whose source spans are not the floor's base", started(started_at=at(70), source_spans=5)),
    Event("nothing to compare with", tree_round(1, 200, 50, 0.45, at=at(80))),
    Event(
        "19 of the first start's 100 spans: below the floor",
        tree_round(2, 320, 19, 0.3, at=at(110)),
        ["raised provenance_floor critical #1", "order rehydrate for provenance_floor #1"],
    ),
    Event("an earlier start than this life's is a repeat", started(source_spans=1)),
]

GAP = [
    Event("it starts", started(source_spans=100)),
    Event("a first round", tree_round(1, 400, 60, 0.40)),
    Event("rounds 2 to 4 are missing: compared with the last known one", tree_round(5, 200, 50, 0.45), INVERTED),
    Event("no gap any more, and nothing new", tree_round(6, 200, 45, 0.50)),
]

REPEATS = [
    Event("it starts", started(source_spans=100)),
    Event("a first round", tree_round(1, 400, 60, 0.40)),
    Event("inverted", tree_round(2, 200, 50, 0.45), INVERTED),
    Event("the same round once more", tree_round(2, 200, 50, 0.45)),
    Event("the start once more", started(source_spans=100)),
    Event("an older round, late: it would be over", tree_round(1, 400, 60, 0.40)),
    Event("a number not seen yet, but an older time", tree_round(3, 900, 99, 0.1, at=at(85))),
    Event("the next one counts", tree_round(3, 300, 60, 0.40), OVER),
]

SLIDING_WINDOW = [
    Event("a window without levels", started(topology="flat", source_spans=100)),
    *(
        Event(f"round {n}: the window slides, its ground goes with it", tree_round(n, 1_000 - 60 * n, 100 - 9 * n, n / 20, 2))
        for n in range(1, 12)
    ),
    Event(
        "what needs no level still holds",
        with_summaries(12, {"s1": 0}),
        ["raised orphaned_summary critical #1 s1", "order escalate_to_raw for orphaned_summary #1 s1"],
    ),
]

STARTS_EMPTY = [
    Event("nothing there yet", started(source_spans=0)),
    Event("an empty set", completed(1, raw_tokens=0, distinct_source_spans=0, summary_depth_max=0)),
    Event("it fills", tree_round(2, 500, 3, None, 1)),
    Event(
        "of nothing at the start one span must be reachable all the same",
        tree_round(3, 400, 0),
        ["raised provenance_floor critical #1", "order rehydrate for provenance_floor #1"],
    ),
    Event(
        "one is enough",
        tree_round(4, 400, 1),
        ["resolved provenance_floor critical recovered", "withdrawn rehydrate resolved"],
    ),
]

SESSION_END = [
    Event("it starts", started(source_spans=100)),
    Event("a first round", tree_round(1, 400, 60, 0.40)),
    Event("inverted", tree_round(2, 200, 50, 0.45), INVERTED),
    Event(
        "19 spans, and the summariser failed",
        tree_round(3, 200, 19, 0.45, summary_kind="error"),
        ["raised summary_failed critical #1"],  # recompact contradicts the halt, so it waits
    ),
    Event(
        "what is open ends; who halted may go on",
        ended(130),
        [
            "resolved salience_inversion critical ended",
            "order resume for salience_inversion #1",
            "resolved summary_failed critical ended",
        ],
    ),
    Event("an end told twice is one", ended(130)),
    Event("a round after the end: it goes on, and the floor is still broken", tree_round(4, 320, 19, 0.45),
          ["raised provenance_floor critical #1", "order rehydrate for provenance_floor #1"]),
]  # fmt: skip

EXPIRY = [
    Event("it starts", started(source_spans=100)),
    Event("a first round", tree_round(1, 400, 60, 0.40)),
    Event("inverted", tree_round(2, 200, 50, 0.45), INVERTED),
    Event("exactly a day later it is the same session", tree_round(3, 260, 50, 0.45, at=at(90) + timedelta(hours=24))),
    Event(
        "more than a day later: closed at its own time, and a new one begins",
        tree_round(4, 190, 40, 0.50, at=at(90) + timedelta(hours=48, seconds=1)),
        ["resolved salience_inversion critical expired", "order resume for salience_inversion #1"],
    ),
    Event("its second round is compared with its first", tree_round(5, 180, 30, 0.60, at=at(3_000)), INVERTED),
]

NEW_LIFE_AT_NIGHT = [
    Event("it starts", started(source_spans=100)),
    Event("a first round", tree_round(1, 400, 60, 0.40)),
    Event("nearly a day later a new life of it starts", started(started_at=at(60) + timedelta(hours=23))),
    Event(
        "its first round, more than a day after the last one but not after its start: the floor's base is still there",
        tree_round(1, 400, 10, 0.40, at=at(60) + timedelta(hours=25)),
        ["raised provenance_floor critical #1", "order rehydrate for provenance_floor #1"],
    ),
]

HYSTERESIS = [
    Event("it starts", started(source_spans=100)),
    Event("a first round", tree_round(1, 200, 50, 0.40)),
    Event("mostly summary, ground stable", tree_round(2, 200, 50, 0.40), ["raised drift info #1"]),
    Event("above 0.25, below 0.30", tree_round(3, 260, 50, 0.40)),
    Event("below again: nothing new", tree_round(4, 240, 50, 0.40)),
    Event("just below 0.30", tree_round(5, 299, 50, 0.40)),
    Event("0.30", tree_round(6, 300, 50, 0.40), ["resolved drift info recovered"]),
    Event("0.26 opens nothing", tree_round(7, 260, 50, 0.40)),
]

SUPERSEDED = [
    Event("it starts", started(source_spans=100)),
    Event("a first round", tree_round(1, 200, 50, 0.40)),
    Event("drift", tree_round(2, 200, 50, 0.40), ["raised drift info #1"]),
    Event(
        "inversion takes its place",
        tree_round(3, 200, 40, 0.45),
        [INVERTED[0], "resolved drift info superseded", INVERTED[1]],
    ),
    Event("a rehydration resolves", tree_round(4, 310, 45, 0.45, cause="rehydration"), OVER),
    Event("drift again", tree_round(5, 240, 45, 0.45), ["raised drift info #1"]),
    Event("and worse: spans fall, the cosine does not rise", tree_round(6, 240, 40, 0.45), ["raised drift warning #2"]),
    Event("milder: not published", tree_round(7, 240, 40, 0.45)),
    Event("a warning once more: it is one already", tree_round(8, 240, 39, 0.45)),
    Event("a rehydration raises nothing", tree_round(9, 240, 30, 0.90, cause="rehydration")),
]

ORPHANS = [
    Event("it starts", started()),
    Event(
        "s1 has no leaf",
        with_summaries(1, {"s1": 0, "s2": 4}),
        ["raised orphaned_summary critical #1 s1", "order escalate_to_raw for orphaned_summary #1 s1"],
    ),
    Event("s2 joins; its order waits for the cool-down", with_summaries(2, {"s1": 0, "s2": 0}),
          ["raised orphaned_summary critical #2 s1 s2"]),
    Event("s1 has a leaf again: s2 is left", with_summaries(3, {"s1": 1, "s2": 0})),
    Event(
        "s1 is an orphan anew, with a new order; that of s2 waits behind it",
        with_summaries(4, {"s1": 0, "s2": 0}),
        [
            "raised orphaned_summary critical #3 s1 s2",
            "withdrawn escalate_to_raw superseded",
            "order escalate_to_raw for orphaned_summary #1 s1",
        ],
    ),
    Event("a list that is cut and shows none proves nothing", with_summaries(5, {"s3": 1}, summaries_total=2)),
    Event(
        "none left",
        with_summaries(6, {"s3": 1}),
        ["resolved orphaned_summary critical recovered", "withdrawn escalate_to_raw resolved"],
    ),
]  # fmt: skip

FAILED_TWICE = [
    Event("it starts", started()),
    Event(
        "the summariser fell back: do it again",
        tree_round(1, 600, 90, None, 1, summary_kind="fallback"),
        ["raised summary_failed warning #1", "order recompact for summary_failed #1"],
    ),
    Event(
        "it failed for good: doing it again did not help",
        tree_round(2, 600, 90, None, 1, summary_kind="error"),
        [
            "raised summary_failed critical #2",
            "withdrawn recompact superseded",
            "order escalate_to_raw for summary_failed #1",
        ],
    ),
    Event("a third time is no news", tree_round(3, 600, 90, None, 1, summary_kind="empty")),
    Event(
        "a good one, and the last round for which the order of round 2 would not yet be void",
        tree_round(4, 600, 90, None, 1, summary_kind="ok"),
        ["resolved summary_failed critical recovered", "withdrawn escalate_to_raw resolved"],
    ),
]

CHAIN_AFTER_ALL = [
    Event("nobody said what it is, so it is looked at as a tree", tree_round(1, 400, 60, 0.40)),
    Event("inverted", tree_round(2, 200, 50, 0.45), INVERTED),
    Event(
        "it is a chain, which always looks so: the check does not apply, and does not stay open for it",
        tree_round(3, 0, 40, 0.50, topology="chain"),
        ["resolved salience_inversion critical ended", "order resume for salience_inversion #1"],
    ),
]

FAILED_TWICE_ALIKE = [
    Event("it starts", started(source_spans=100)),
    Event("an error; another check is open too", tree_round(1, 600, 19, summary_kind="error"),
          [*FLOOR, "raised summary_failed critical #1", "order recompact for summary_failed #1"]),
    Event("a second one: no worse, but what was asked for did not help", tree_round(2, 600, 19, summary_kind="error"),
          ["raised summary_failed critical #2", "withdrawn recompact superseded",
           "order escalate_to_raw for summary_failed #1"]),
    Event("the floor is over, the failures go on", tree_round(3, 600, 20, summary_kind="error"),
          ["resolved provenance_floor critical recovered", "withdrawn rehydrate resolved"]),
]  # fmt: skip

FAILED_AGAIN = [
    Event("it starts", started(source_spans=100)),
    Event("an error", tree_round(1, 600, 90, summary_kind="error"),
          ["raised summary_failed critical #1", "order recompact for summary_failed #1"]),
    Event("a good one", tree_round(2, 600, 90, summary_kind="ok"),
          ["resolved summary_failed critical recovered", "withdrawn recompact resolved"]),
    Event("the first of a new row: its order waits for the cool-down", tree_round(3, 600, 90, summary_kind="error"),
          ["raised summary_failed critical #1"]),
]  # fmt: skip

PINNED = [
    Event("it starts", started(source_spans=100, max_depth=3)),
    *(Event(f"round {n} at the deepest level", tree_round(n, 600, 90, None, 3)) for n in range(1, 6)),
    Event("a sixth, and nothing falls: told, and nothing asked for", tree_round(6, 600, 90, None, 3),
          ["raised depth_pinned info #1"]),
    Event("now it costs spans", tree_round(7, 600, 80, None, 3),
          ["raised depth_pinned warning #2", "order cap_depth for depth_pinned #1"]),
    Event("below", tree_round(8, 600, 80, None, 2),
          ["resolved depth_pinned warning recovered", "withdrawn cap_depth resolved"]),
]  # fmt: skip

NEVER_MILDER = [
    Event("it starts", started(source_spans=100)),
    Event("s1 is an orphan, by measurement", with_summaries(1, {"s1": 0, "s2": 0, "s3": 1}),
          ["raised orphaned_summary critical #1 s1 s2", "order escalate_to_raw for orphaned_summary #1 s1"]),
    Event("s3 joins, inferred: a warning by itself, but the alert is critical",
          with_summaries(2, {"s1": 0, "s3": 0}, basis="inferred"), ["raised orphaned_summary critical #2 s1 s3"]),
    Event("another check opens", tree_round(3, 600, 19), FLOOR),
    Event("s1 leaves, and nothing else does; the order about s3 has waited three rounds",
          with_summaries(4, {"s1": 1, "s3": 0}), ["order escalate_to_raw for orphaned_summary #1 s3"]),
    Event("the session ends: each alert once", ended(400),
          ["resolved orphaned_summary critical ended", "withdrawn escalate_to_raw ended",
           "resolved provenance_floor critical ended", "withdrawn rehydrate ended"]),
]  # fmt: skip

SEQUENCES = {
    "a session of one round": ONE_ROUND,
    "a chain of six passes": SIX_PASSES,
    "a tree at constant depth 2": CONSTANT_DEPTH_2,
    "a late join": LATE_JOIN,
    "an emitter that restarts at round 0": NEW_LIFE,
    "a session that starts again": NEW_LIFE_BY_START,
    "a gap": GAP,
    "duplicates and late rounds": REPEATS,
    "a sliding window": SLIDING_WINDOW,
    "a session that starts empty": STARTS_EMPTY,
    "session end": SESSION_END,
    "expiry": EXPIRY,
    "a new life at night": NEW_LIFE_AT_NIGHT,
    "hysteresis": HYSTERESIS,
    "superseded": SUPERSEDED,
    "orphans join and leave": ORPHANS,
    "two failures in a row": FAILED_TWICE,
    "two failures alike": FAILED_TWICE_ALIKE,
    "a failure, a good one, a failure": FAILED_AGAIN,
    "pinned, and then it costs": PINNED,
    "never milder": NEVER_MILDER,
    "a chain after all": CHAIN_AFTER_ALL,
}


@pytest.mark.parametrize("events", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_sequence(events: list[Event]) -> None:
    play(events)


def alerts(published: list[Published], name: str) -> list[AlertRaised]:
    found = [one.finding for one in published if isinstance(one.finding, AlertRaised)]
    return [alert for alert in found if alert.name == name]


def test_one_round_says_why_it_says_nothing() -> None:
    skipped = {name[1:]: n for name, n in play(ONE_ROUND).counts.items() if name[0] == "checks_skipped"}
    assert skipped == {
        ("salience_inversion", "no_previous"): 1,
        ("inversion_risk", "no_previous"): 1,
        ("drift", "no_previous"): 1,
        ("orphaned_summary", "no_inventory"): 1,
        ("coverage_gap", "no_records"): 1,
        ("summary_failed", "no_summary_kind"): 1,
        ("compaction_thrash", "no_eviction"): 1,
        ("constraint_lost", "no_propositions"): 1,
    }


@pytest.mark.parametrize(
    ("events", "complete"),
    [(LATE_JOIN, False), (GAP, False), (NEW_LIFE, True), (REPEATS, True)],
    ids=["the start was not seen", "rounds are missing", "a new life is known from its first round", "repeats are no gaps"],
)
def test_evidence_says_whether_all_was_seen(events: list[Event], complete: bool) -> None:
    assert [alert.evidence["complete"] for alert in alerts(play(events).published, "salience_inversion")] == [complete]


def test_a_session_expires_at_its_own_time_whenever_that_is_noticed() -> None:
    def expired(notice: Callable[[Offline], list[Published]]) -> list[tuple[str, datetime]]:
        monitor = play(SESSION_END[:3])
        found = [one.finding for one in notice(monitor)]
        assert monitor.counts["sessions_expired",] == 1
        return [(one.id, one.lastReceived) for one in found if isinstance(one, AlertResolved)]

    by_a_record = expired(lambda monitor: monitor.feed([tree_round(3, 200, 50, at=at(90 + 50 * 60))]))
    # The first tick is for the order whose time has come.
    by_a_tick = expired(lambda monitor: [*monitor.tick(at(90 + 30 * 60)), *monitor.tick(at(90 + 30 * 60))])
    assert by_a_record == by_a_tick
    assert [when for _, when in by_a_tick] == [at(90 + 24 * 60)]


def test_a_day_of_silence_is_not_yet_over() -> None:
    monitor = play(SESSION_END[:3])
    assert monitor.tick(at(90 + 24 * 60)) != [], "the halt's time is over"
    assert monitor.session("session-1") is not None
    monitor.tick(at(90 + 24 * 60) + timedelta(milliseconds=1))
    assert monitor.session("session-1") is None


ENDS = [
    Event("it starts", started(source_spans=100)),
    Event("below the floor", tree_round(1, 600, 19), FLOOR),
    Event("an end earlier than its last round: late", ended(59)),
    Event(
        "an end at the time of its last round",
        ended(60),
        ["resolved provenance_floor critical ended", "withdrawn rehydrate ended"],
    ),
    Event("a round at the time of the end, the one before: a duplicate", tree_round(1, 600, 19)),
    Event("a later round", tree_round(2, 600, 19), ["raised provenance_floor critical #1"]),
    Event("an end before that round", ended(89)),
    Event("the second end", ended(91), ["resolved provenance_floor critical ended"]),
]


def test_what_is_superseded_names_what_took_its_place() -> None:
    """The floor takes the place of the risk, too."""
    monitor = Offline()
    monitor.feed([started(source_spans=100), *(tree_round(n, 500 - 40 * n, 60 - 5 * n) for n in range(1, 5))])
    floor, risk, _ = (one.finding for one in monitor.feed([tree_round(5, 300, 19)]))
    assert isinstance(floor, AlertRaised)
    assert isinstance(risk, AlertResolved)
    assert (risk.name, risk.superseded_by) == ("inversion_risk", floor.id)
    assert (floor.name, risk.evidence["window_first_round"]) == ("provenance_floor", 1)


def test_ends() -> None:
    monitor = play(ENDS)
    ends = {name[2]: n for name, n in monitor.counts.items() if name[:2] == ("facts", "session.ended")}
    assert ends == {"late": 2, "new": 2}


def test_what_was_not_new_is_counted() -> None:
    counts = play(REPEATS).counts
    assert {name[1:]: n for name, n in counts.items() if name[0] == "facts"} == {
        ("session.started", "new"): 1,
        ("session.started", "repeat"): 1,
        ("round.completed", "new"): 3,
        ("round.completed", "duplicate"): 1,
        ("round.completed", "late"): 2,
    }


def test_a_round_ahead_of_its_time_that_comes_twice_is_one() -> None:
    monitor = Offline()
    ahead = [started(source_spans=100), *(tree_round(n, 400, 60, 0.40, at=at(500 + n)) for n in (1, 2))]
    # Appended seconds apart: each is taken back to five minutes after its own record.
    early = [
        record._replace(timestamp=milliseconds(at(n)))
        for n, record in enumerate(monitor.records([*ahead, *ahead[1:], tree_round(3, 400, 60, 0.40, at=at(510))]))
    ]
    monitor.feed_records(early)
    session = monitor.session("session-1")
    assert session is not None
    assert [known.number for known in session.window] == [1, 2, 3]
    assert monitor.counts["facts", "round.completed", "duplicate"] == 2


def test_what_is_switched_off_while_it_is_open_is_closed_at_the_next_round() -> None:
    monitor = Offline()
    monitor.feed([started(), stated("p1", 1, pinned=True), completed(1, propositions_retained=())])
    later = Offline(Rules(default=AgentRules(off=frozenset({"constraint_lost"}))))
    later.rows = monitor.rows
    assert lines(later.feed([completed(2, propositions_retained=())])) == [
        "resolved constraint_lost critical ended",
        "withdrawn escalate_to_raw ended",
    ]


def test_what_waits_is_not_sent_once_only_findings_are_wanted() -> None:
    monitor = Offline(Rules(default=AgentRules(loop=LoopRules(breaker_orders=1))))
    bad = {"read_records": 1, "claimed_records": 9}
    two = monitor.feed([started(source_spans=100), tree_round(1, 600, 19, 0.40, **bad)])
    assert [line for line in lines(two) if line.startswith("order")] == ["order rehydrate for provenance_floor #1"]
    later = Offline(Rules(default=AgentRules(observe=True)))
    later.rows = monitor.rows
    assert lines(later.feed([tree_round(5, 600, 19, 0.40, **bad)])) == []


def answer(monitor: Offline, status: str, minutes: float) -> list[Published]:
    """The controller answers the last order it got."""
    last = [one.finding for one in monitor.published if isinstance(one.finding, RemediationRequested)][-1]
    return monitor.feed([acknowledged(last.id, status, minutes)])


def test_a_controller_that_rehydrates_and_relapses() -> None:
    monitor = Offline()

    def then(fact: Fact) -> list[str]:
        return lines(monitor.feed([fact]))

    assert then(started(source_spans=100, max_depth=3, controller="expected")) == []
    assert then(tree_round(1, 400, 40, 0.40)) == []
    assert then(tree_round(2, 200, 30, 0.45)) == INVERTED
    assert answer(monitor, "accepted", 91) == []
    assert answer(monitor, "completed", 95) == []
    assert then(tree_round(3, 350, 60, 0.42, cause="rehydration")) == OVER
    assert answer(monitor, "completed", 121) == []
    assert then(tree_round(4, 350, 60, 0.42)) == []
    assert then(tree_round(5, 350, 60, 0.42)) == []
    # Three compaction rounds after it was over: the loop is the cause, so the loop changes.
    assert then(tree_round(6, 200, 50, 0.50)) == [INVERTED[0], "order cap_depth for salience_inversion #1"]
    order = monitor.published[-1].finding
    assert isinstance(order, RemediationRequested)
    assert order.plan == CapDepth(max_depth=2, reachability=True)
    assert answer(monitor, "completed", 211) == []
    # Effective within two rounds: no more is said of it, and there was no halt to resume from.
    assert then(tree_round(7, 350, 50, 0.42)) == ["resolved salience_inversion critical recovered"]
    assert {name: n for name, n in monitor.counts.items() if name[0] == "orders_ended"} == {
        ("orders_ended", "halt_and_rehydrate", "completed"): 1,
        ("orders_ended", "resume", "completed"): 1,
        ("orders_ended", "cap_depth", "completed"): 1,
    }


def test_the_golden_series() -> None:
    """The session of the inversion document: risk, inversion, pinned, each once, and each open until the end."""
    monitor = Offline()
    told = {getattr(fact, "round", 0): lines(monitor.feed([fact])) for fact in golden.series()}
    assert {number: found for number, found in told.items() if found} == {
        # Depth 2 from round 6 on; raw_ratio 0.42, below 0.5 since round 4, 184 of 214 spans.
        6: ["raised inversion_risk warning #1"],
        # raw_ratio 0.24; the floor (42 spans, round 30) is of the same family and stays behind it.
        12: [
            "raised salience_inversion critical #1",
            "resolved inversion_risk warning superseded",
            "order halt_and_rehydrate for salience_inversion #1",
        ],
        # The sixth round at depth 3.
        17: ["raised depth_pinned warning #1", "order cap_depth for depth_pinned #1"],
    }
    assert lines(monitor.feed([golden.ending()])) == [
        "resolved salience_inversion critical ended",
        "order resume for salience_inversion #1",
        "resolved depth_pinned warning ended",
    ]
