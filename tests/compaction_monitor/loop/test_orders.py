"""The life of orders: what is answered, not answered, held back, contradicted; each case with its why."""

from __future__ import annotations

import pytest

from compaction_events.builders import acknowledged, at, ended, started
from compaction_monitor.rules import AgentRules, LoopRules, Rules
from tests.compaction_monitor.loop.order_scenes import (
    FLOOR,
    HALT,
    RAISED,
    RECOMPACT,
    UNACKNOWLEDGED,
    Case,
    Table,
    answer,
    failing,
    give,
    inverted,
    over,
    shown,
    tick,
)
from tests.compaction_monitor.scenes import tree_round, with_summaries

ANSWERS = [
    Case(
        "no controller told, none ever heard: sent once, expires, nobody is blamed; who halted may go on",
        inverted(tick(95.1), tick(149.9), tick(150, "order resume for salience_inversion #1"), tick(210), controller=None),
        {"halt_and_rehydrate expired": 1, "resume expired": 1},
    ),
    Case(
        "a controller that says it does not answer: likewise",
        inverted(tick(95.1), tick(150, "order resume for salience_inversion #1"), controller="none"),
        {"halt_and_rehydrate expired": 1},
    ),
    Case(
        "never acknowledged: sent again after 5, 7.5 and 11.25 min, then the alert at 16.875, then it expires",
        inverted(
            tick(94.9),
            tick(95, "order halt_and_rehydrate for salience_inversion #2"),
            tick(102.4),
            tick(102.5, "order halt_and_rehydrate for salience_inversion #3"),
            tick(113.75, "order halt_and_rehydrate for salience_inversion #4"),
            tick(130.6),
            tick(130.7, UNACKNOWLEDGED),
            tick(149),
            tick(150, "order resume for salience_inversion #1"),
        ),
        {"halt_and_rehydrate expired": 1},
    ),
    Case(
        "accepted stops the re-sending; silent until it expires is not acknowledged after all",
        inverted(
            answer("halt_and_rehydrate", "accepted", 92),
            tick(95),
            tick(149.9),
            tick(150, UNACKNOWLEDGED, "order resume for salience_inversion #1"),
        ),
        {"halt_and_rehydrate expired": 1},
    ),
    Case(
        "alerted, then accepted, then silent: the second alert is another one than the first",
        inverted(
            *(tick(m, f"order halt_and_rehydrate for salience_inversion #{n}") for n, m in ((2, 95), (3, 102.5), (4, 113.75))),
            tick(131, UNACKNOWLEDGED),
            answer("halt_and_rehydrate", "accepted", 132, "resolved remediation_unacknowledged warning recovered"),
            tick(150, UNACKNOWLEDGED, "order resume for salience_inversion #1"),
        ),
        {"halt_and_rehydrate expired": 1},
    ),
    Case(
        "any answer resolves the alert, whatever it is about",
        inverted(
            *(tick(m, f"order halt_and_rehydrate for salience_inversion #{n}") for n, m in ((2, 95), (3, 102.5), (4, 113.75))),
            tick(131, UNACKNOWLEDGED),
            give(acknowledged("unheard-of", "completed", 132), "resolved remediation_unacknowledged warning recovered"),
        ),
        {},
    ),
    Case(
        "an answer where none was expected: from now on they are",
        inverted(
            answer("halt_and_rehydrate", "accepted", 92),
            tick(150, UNACKNOWLEDGED, "order resume for salience_inversion #1"),
            controller=None,
        ),
        {"halt_and_rehydrate expired": 1},
    ),
    Case(
        "deferred: the same order again after the back-off, counted from the answer",
        inverted(
            answer("halt_and_rehydrate", "deferred", 94),
            tick(98.9),
            tick(99, "order halt_and_rehydrate for salience_inversion #2"),
        ),
        {},
    ),
    Case(
        "rejected ends it, the next lever at once",
        inverted(answer("halt_and_rehydrate", "rejected", 92, "order cap_depth for salience_inversion #1")),
        {"halt_and_rehydrate rejected": 1},
    ),
    Case(
        "failed likewise; there is none after cap_depth, the alert stays",
        inverted(
            answer("halt_and_rehydrate", "failed", 92, "order cap_depth for salience_inversion #1"),
            answer("cap_depth", "failed", 93),
        ),
        {"halt_and_rehydrate failed": 1, "cap_depth failed": 1},
    ),
    Case(
        "a rejected halt has no resume",
        inverted(
            answer("halt_and_rehydrate", "rejected", 92, "order cap_depth for salience_inversion #1"),
            give(
                tree_round(3, 350, 50, 0.40),
                "resolved salience_inversion critical recovered",
                "withdrawn cap_depth resolved",
            ),
        ),
        {"halt_and_rehydrate rejected": 1, "cap_depth withdrawn": 1},
    ),
    Case(
        "completed and over in time: nothing more is said; the resume is an order too",
        inverted(answer("halt_and_rehydrate", "completed", 92), over(3), answer("resume", "completed", 121)),
        {"halt_and_rehydrate completed": 1, "resume completed": 1},
    ),
    Case(
        "completed, but no better when it expires: it was completed all the same, and the halt is over",
        inverted(
            answer("halt_and_rehydrate", "completed", 92),
            tick(149.9),
            tick(150, "order resume for salience_inversion #1"),
            tick(160, "order resume for salience_inversion #2"),
        ),
        {"halt_and_rehydrate completed": 1},
    ),
    Case(
        "deferred again: each time it waits longer",
        inverted(
            answer("halt_and_rehydrate", "deferred", 92),
            tick(97, "order halt_and_rehydrate for salience_inversion #2"),
            answer("halt_and_rehydrate", "deferred", 98),
            tick(105.4),
            tick(105.5, "order halt_and_rehydrate for salience_inversion #3"),
        ),
        {},
    ),
    Case(
        "deferred to the last: no more of it, and it was answered",
        inverted(
            *(tick(m, f"order halt_and_rehydrate for salience_inversion #{n}") for n, m in ((2, 95), (3, 102.5), (4, 113.75))),
            answer("halt_and_rehydrate", "deferred", 114),
            tick(135),
            tick(150, UNACKNOWLEDGED, "order resume for salience_inversion #1"),
        ),
        {"halt_and_rehydrate expired": 1},
    ),
    Case(
        "two orders whose time has come in one tick",
        [
            give(started(source_spans=100, controller="expected")),
            give(tree_round(1, 600, 19, None, summary_kind="error"), FLOOR[0], FLOOR[1], *RECOMPACT),
            tick(65, "order rehydrate for provenance_floor #2", "order recompact for summary_failed #2"),
            tick(66),
        ],
        {},
    ),
    Case(
        "completed, then answered once more: counted, no effect",
        inverted(answer("halt_and_rehydrate", "completed", 92), answer("halt_and_rehydrate", "failed", 93)),
        {},
    ),
    Case(
        "an answer to an order that has ended changes nothing",
        inverted(over(3), answer("halt_and_rehydrate", "rejected", 121)),
        {"halt_and_rehydrate withdrawn": 1},
    ),
    Case(
        "a status not known here is an answer, and no more",
        inverted(answer("halt_and_rehydrate", "other", 92), tick(95, "order halt_and_rehydrate for salience_inversion #2")),
        {},
    ),
    Case(
        "a resume that is completed after a relapse is not to blame for it",
        inverted(
            over(3),
            give(tree_round(4, 200, 40, 0.50), RAISED, why="relapse, its order held back by the cool-down"),
            answer("resume", "completed", 151),
            give(tree_round(5, 200, 40, 0.40), "order cap_depth for salience_inversion #1"),
            give(tree_round(6, 200, 40, 0.40)),
        ),
        {"halt_and_rehydrate withdrawn": 1, "resume completed": 1},
    ),
    Case(
        "deferred shortly before it expires: it ends when it was said to",
        inverted(
            answer("halt_and_rehydrate", "deferred", 149), tick(150, UNACKNOWLEDGED, "order resume for salience_inversion #1")
        ),
        {"halt_and_rehydrate expired": 1},
    ),
    Case(
        "the session has ended: its resume is sent again, but nobody need answer",
        inverted(
            give(
                ended(100),
                "resolved salience_inversion critical ended",
                "order resume for salience_inversion #1",
            ),
            *(tick(minutes, f"order resume for salience_inversion #{n}") for n, minutes in enumerate((105, 112.5, 123.75), 2)),
            tick(140.625),
            tick(160),
        ),
        {"halt_and_rehydrate withdrawn": 1, "resume expired": 1},
    ),
]

EFFECT = [
    Case(
        "completed, still open two compaction rounds later: ineffective, the next lever; the halt lasts until it is over",
        inverted(
            answer("halt_and_rehydrate", "completed", 92),
            give(tree_round(3, 200, 50, 0.45)),
            give(
                tree_round(4, 200, 50, 0.45),
                "raised remediation_ineffective warning #1 salience_inversion",
                "order cap_depth for salience_inversion #1",
            ),
            give(tree_round(5, 200, 50, 0.45)),
            give(
                tree_round(6, 350, 50, 0.40),
                "resolved salience_inversion critical recovered",
                "order resume for salience_inversion #1",
                "withdrawn cap_depth resolved",
                "resolved remediation_ineffective warning recovered",
            ),
        ),
        {"halt_and_rehydrate completed": 1, "cap_depth withdrawn": 1},
    ),
    Case(
        "a rehydration is no compaction round",
        inverted(
            answer("halt_and_rehydrate", "completed", 92),
            give(tree_round(3, 200, 50, 0.45)),
            give(tree_round(4, 200, 50, 0.45, cause="rehydration")),
        ),
        {},
    ),
    Case(
        "rehydrate that did not help: escalate_to_raw; after that nothing, the alert stays",
        [
            give(started(source_spans=100, controller="expected")),
            give(tree_round(1, 600, 19, None), *FLOOR),
            answer("rehydrate", "completed", 61),
            give(tree_round(2, 600, 19, None)),
            give(
                tree_round(3, 600, 19, None),
                "raised remediation_ineffective warning #1 provenance_floor",
                "order escalate_to_raw for provenance_floor #1",
            ),
            answer("escalate_to_raw", "completed", 121),
            give(tree_round(4, 600, 19, None)),
            give(tree_round(5, 600, 19, None), why="the same check did not get better: no news"),
            give(
                ended(200),
                "resolved provenance_floor critical ended",
                "resolved remediation_ineffective warning ended",
                why="each alert is resolved once",
            ),
        ],
        {"rehydrate completed": 1, "escalate_to_raw completed": 1},
    ),
    Case(
        "recompact that failed: escalate_to_raw",
        [
            give(started(controller="expected")),
            failing(1, "error", *RECOMPACT),
            answer("recompact", "failed", 61, "order escalate_to_raw for summary_failed #1"),
        ],
        {"recompact failed": 1},
    ),
]

HELD = [
    Case(
        "observe: findings without orders",
        [
            give(started(source_spans=100)),
            give(tree_round(1, 400, 60, 0.40)),
            give(tree_round(2, 200, 50, 0.45), RAISED),
            give(tree_round(3, 350, 50, 0.45), "resolved salience_inversion critical recovered"),
        ],
        {},
        AgentRules(observe=True),
    ),
    Case(
        "void two rounds after its round: a controller would drop it; nobody said it was coming",
        [
            give(started(source_spans=100, controller="expected")),
            give(tree_round(1, 600, 19, None), *FLOOR),
            give(tree_round(2, 600, 19, None)),
            give(tree_round(3, 600, 19, None)),
            give(tree_round(4, 600, 19, None), UNACKNOWLEDGED),
        ],
        {"rehydrate expired": 1},
    ),
    Case(
        "deferred and void: it was answered",
        [
            give(started(source_spans=100, controller="expected")),
            give(tree_round(1, 600, 19, None), *FLOOR),
            answer("rehydrate", "deferred", 61),
            give(tree_round(4, 600, 19, None)),
        ],
        {"rehydrate expired": 1},
    ),
    Case(
        "accepted: whoever works on it is not told to stop",
        [
            give(started(source_spans=100, controller="expected")),
            give(tree_round(1, 600, 19, None), *FLOOR),
            answer("rehydrate", "accepted", 61),
            give(tree_round(4, 600, 19, None)),
        ],
        {},
    ),
    Case(
        "void, but a halt: whoever did halt waits for the resume",
        inverted(give(tree_round(5, 200, 50, 0.45)), tick(150, "order resume for salience_inversion #1"), controller=None),
        {"halt_and_rehydrate expired": 1},
    ),
    Case(
        "cool-down: the next order of a check waits until three rounds after its last; its rounds begin then",
        [
            give(started(source_spans=100)),
            give(tree_round(1, 600, 19, None), *FLOOR),
            give(tree_round(2, 600, 20, None), "resolved provenance_floor critical recovered", "withdrawn rehydrate resolved"),
            give(tree_round(3, 600, 19, None), FLOOR[0]),
            give(tree_round(4, 600, 19, None), FLOOR[1]),
            give(tree_round(6, 600, 19, None), why="not void: it was given in round 4"),
            give(tree_round(7, 600, 20, None), "resolved provenance_floor critical recovered", "withdrawn rehydrate resolved"),
        ],
        {"rehydrate withdrawn": 2},
    ),
    Case(
        "a next lever that the breaker held back is not held back by the cool-down afterwards",
        [
            give(started(source_spans=100)),
            failing(1, "error", *RECOMPACT),
            answer("recompact", "rejected", 61),
            give(tree_round(2, 600, 90, None, 1)),
            give(tree_round(3, 600, 90, None, 1), "order escalate_to_raw for summary_failed #1", why="an hour later"),
        ],
        {"recompact rejected": 1},
        AgentRules(loop=LoopRules(breaker_orders=1)),
    ),
    Case(
        "cool-down: over before it was sent, and never heard of",
        [
            give(started(source_spans=100)),
            give(tree_round(1, 600, 19, None), *FLOOR),
            give(tree_round(2, 600, 20, None), "resolved provenance_floor critical recovered", "withdrawn rehydrate resolved"),
            give(tree_round(3, 600, 19, None), FLOOR[0]),
            give(tree_round(4, 600, 20, None), "resolved provenance_floor critical recovered"),
        ],
        {"rehydrate withdrawn": 2},
    ),
    Case(
        "breaker: after one order within the hour the others wait, whatever their check",
        [
            give(started(source_spans=100)),
            failing(1, "error", *RECOMPACT),
            give(tree_round(2, 600, 19, None, summary_kind="none"), FLOOR[0]),
            give(tree_round(3, 600, 19, None, summary_kind="none", at=at(120.1)), FLOOR[1], why="an hour later"),
        ],
        {},
        AgentRules(loop=LoopRules(breaker_orders=1)),
    ),
    Case(
        "breaker: a resume is not held back",
        inverted(over(3), controller=None),
        {"halt_and_rehydrate withdrawn": 1},
        AgentRules(loop=LoopRules(breaker_orders=1)),
    ),
    Case(
        "worse by measurement is raised again, but one halt is enough: one resume ends it",
        [
            give(started(source_spans=100, max_depth=3)),
            give(tree_round(1, 400, 60, 0.40, basis="inferred")),
            give(tree_round(2, 200, 50, 0.45, basis="inferred"), "raised salience_inversion warning #1", HALT),
            give(tree_round(3, 200, 40, 0.40)),
            give(tree_round(4, 200, 30, 0.50), "raised salience_inversion critical #2"),
            over(5),
        ],
        {"halt_and_rehydrate withdrawn": 1},
    ),
    Case(
        "worse by measurement without a new subject: the order names those it is about",
        [
            give(started()),
            give(
                with_summaries(1, {"s1": 0}, basis="inferred"),
                "raised orphaned_summary warning #1 s1",
                "order escalate_to_raw for orphaned_summary #1 s1",
            ),
            give(
                with_summaries(4, {"s1": 0}),
                "raised orphaned_summary critical #2 s1",
                why="held back by the cool-down: the second compaction round",
            ),
            give(with_summaries(5, {"s1": 0})),
            give(with_summaries(6, {"s1": 0}), "order escalate_to_raw for orphaned_summary #1 s1"),
        ],
        {"escalate_to_raw expired": 1},
    ),
    Case(
        "worse while the first order stands: it stands until the next one is sent",
        [
            give(started(controller="expected")),
            give(
                with_summaries(1, {"s1": 0}, basis="inferred"),
                "raised orphaned_summary warning #1 s1",
                "order escalate_to_raw for orphaned_summary #1 s1",
            ),
            answer("escalate_to_raw", "accepted", 61),
            give(with_summaries(2, {"s1": 0}), "raised orphaned_summary critical #2 s1"),
            give(with_summaries(3, {"s1": 0})),
            give(
                with_summaries(4, {"s1": 0}),
                "withdrawn escalate_to_raw superseded",
                "order escalate_to_raw for orphaned_summary #1 s1",
            ),
        ],
        {"escalate_to_raw withdrawn": 1},
    ),
]

CONTRADICTIONS = [
    Case(
        "recompact while halted waits: both are critical, the first stands; then it is sent",
        inverted(
            give(tree_round(3, 200, 50, 0.45, summary_kind="error"), "raised summary_failed critical #1"),
            give(
                tree_round(4, 350, 50, 0.40, summary_kind="none"),
                "resolved salience_inversion critical recovered",
                "order resume for salience_inversion #1",
                "order recompact for summary_failed #1",
            ),
            controller=None,
        ),
        {"halt_and_rehydrate withdrawn": 1},
    ),
    Case(
        "a halt calls a warning's recompact back; nobody keeps it to send again, so it is over",
        [
            give(started(source_spans=100, max_depth=3)),
            give(tree_round(1, 400, 60, 0.40, summary_kind="fallback"),
                 "raised summary_failed warning #1", "order recompact for summary_failed #1"),
            give(tree_round(2, 200, 50, 0.45), RAISED, "withdrawn recompact contradicted", HALT),
            over(3),
        ],
        {"recompact withdrawn": 1, "halt_and_rehydrate withdrawn": 1},
    ),
    Case(
        "where answers are expected it waits, and is sent again after the halt",
        [
            give(started(source_spans=100, max_depth=3, controller="expected")),
            give(tree_round(1, 400, 60, 0.40, summary_kind="fallback"),
                 "raised summary_failed warning #1", "order recompact for summary_failed #1"),
            give(tree_round(2, 200, 50, 0.45), RAISED, "withdrawn recompact contradicted", HALT),
            give(
                tree_round(3, 350, 50, 0.40),
                "resolved salience_inversion critical recovered",
                "order resume for salience_inversion #1",
                "order recompact for summary_failed #2",
            ),
        ],
        {"halt_and_rehydrate withdrawn": 1},
    ),
    Case(
        "called back and then over: it is not called back twice",
        [
            give(started(source_spans=100, max_depth=3, controller="expected")),
            give(tree_round(1, 400, 60, 0.40, summary_kind="fallback"),
                 "raised summary_failed warning #1", "order recompact for summary_failed #1"),
            give(tree_round(2, 200, 50, 0.45), RAISED, "withdrawn recompact contradicted", HALT),
            give(tree_round(3, 200, 50, 0.45, summary_kind="ok"), "resolved summary_failed warning recovered"),
        ],
        {"recompact withdrawn": 1},
    ),
    Case(
        "an inferred halt gives way to a measured failure; whoever halted already may go on",
        [
            give(started(source_spans=100, max_depth=3)),
            give(tree_round(1, 400, 60, 0.40)),
            give(tree_round(2, 200, 50, 0.45, basis="inferred"), "raised salience_inversion warning #1", HALT),
            give(
                tree_round(3, 200, 50, 0.45, summary_kind="error"),
                "raised summary_failed critical #1",
                "withdrawn halt_and_rehydrate contradicted",
                "order resume for salience_inversion #1",
                "order recompact for summary_failed #1",
            ),
        ],
        {"halt_and_rehydrate withdrawn": 1},
    ),
    Case(
        "the same with a controller: the halt waits, and ends with a resume for whoever halted before it was called back",
        [
            give(started(source_spans=100, max_depth=3, controller="expected")),
            give(tree_round(1, 400, 60, 0.40)),
            give(tree_round(2, 200, 50, 0.45, basis="inferred"), "raised salience_inversion warning #1", HALT),
            give(
                tree_round(3, 200, 50, 0.45, summary_kind="error"),
                "raised summary_failed critical #1",
                "withdrawn halt_and_rehydrate contradicted",
                "order recompact for summary_failed #1",
            ),
            give(
                tree_round(4, 350, 50, 0.40, summary_kind="none"),
                "resolved salience_inversion warning recovered",
                "order resume for salience_inversion #1",
            ),
        ],
        {"halt_and_rehydrate withdrawn": 1},
    ),
    Case(
        "and ends when it would have, though it waits: it is not sent again to be dropped",
        [
            give(started(source_spans=100, max_depth=3, controller="expected")),
            give(tree_round(1, 400, 60, 0.40)),
            give(tree_round(2, 200, 50, 0.45, basis="inferred"), "raised salience_inversion warning #1", HALT),
            give(
                tree_round(3, 200, 50, 0.45, summary_kind="error"),
                "raised summary_failed critical #1",
                "withdrawn halt_and_rehydrate contradicted",
                "order recompact for summary_failed #1",
            ),
            answer("recompact", "accepted", 121),
            tick(150, "order resume for salience_inversion #1"),
            answer("recompact", "completed", 151),
        ],
        {"halt_and_rehydrate expired": 1},
    ),
    Case(
        "a halt that was carried out cannot be called back: it is over, and may be resumed from",
        [
            give(started(source_spans=100, max_depth=3, controller="expected")),
            give(tree_round(1, 400, 60, 0.40)),
            give(tree_round(2, 200, 50, 0.45, basis="inferred"), "raised salience_inversion warning #1", HALT),
            answer("halt_and_rehydrate", "completed", 91),
            give(
                tree_round(3, 200, 50, 0.45, summary_kind="error"),
                "raised summary_failed critical #1",
                "order resume for salience_inversion #1",
                "order recompact for summary_failed #1",
            ),
        ],
        {"halt_and_rehydrate completed": 1},
    ),
    Case(
        "a new halt takes the place of the resume of an old one",
        inverted(
            over(3),
            *(give(tree_round(number, 350, 60, 0.40)) for number in range(4, 13)),
            give(tree_round(13, 200, 50, 0.45, at=at(140)), why="late"),
            give(tree_round(13, 200, 50, 0.45), RAISED, "withdrawn resume contradicted", HALT,
                 why="eleven rounds after it was over: no relapse"),
            controller=None,
        ),
        {"halt_and_rehydrate withdrawn": 1, "resume withdrawn": 1},
    ),
]  # fmt: skip

CASES = [*ANSWERS, *EFFECT, *HELD, *CONTRADICTIONS]


@pytest.mark.parametrize("case", CASES, ids=[case.why for case in CASES])
def test_orders(case: Case) -> None:
    table = Table(Rules(default=case.rules))
    told = [(why, shown(run(table), table)) for why, run, _ in case.steps]
    assert told == [(why, says) for why, _, says in case.steps]
    assert table.ended() == case.ended
    ids = [one.ce_id for one in table.monitor.published]
    assert len(set(ids)) == len(ids), "a ce_id names one publication"


def test_every_case_has_its_own_why() -> None:
    assert len({case.why for case in CASES}) == len(CASES)
