"""Loops of regenerations, losses that no level sees, constraints that the working set lost, summaries without sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from compaction_events.builders import acknowledged, at, completed, missed, regenerated, started, written
from compaction_events.facts import Fact, RoundCompleted
from compaction_events.findings import AlertRaised, EscalateToRaw, RemediationRequested
from compaction_monitor.harness import Offline
from compaction_monitor.rules import AgentRules, Rules
from tests.compaction_monitor.tree.trees import (
    ROOMY,
    SHORT,
    UNKNOWN,
    counted,
    evidence,
    in_short,
    order_id,
    props,
    reads,
    tracked,
    trial,
    under,
)

START = tracked(*props(1, 40), pinned=["p1", "p2"])
FIRST, OTHER = props(1, 20), props(11, 30)
OPTIONS = "options=[(split 50 50 2),(raise 65 115)]"


def root(minutes: float, version: int, retained: Sequence[str], **fields: Any) -> Fact:
    """The root, regenerated and committed."""
    return regenerated("root", minutes, level=3, version=version, retained=list(retained), **fields)


def begun(**fields: Any) -> list[Fact]:
    return [*START, written("root", 1, 10, level=3, retained=FIRST, **{**SHORT, **fields})]


class LoopCase(NamedTuple):
    why: str
    commits: Sequence[Fact]
    says: Sequence[str]


STOP = "ordered stop_regenerating root: node_id=root oscillating=[{}]"
REBALANCE = f"ordered rebalance root: needed_tokens=100 node_id=root {OPTIONS}"
TWENTY = ",".join([*props(1, 10), *props(21, 30)])
LOOP = ["raised regeneration_loop critical root", STOP.format(TWENTY), REBALANCE]

LOOPS = [
    LoopCase("one regeneration is none", [root(20, 2, OTHER)], []),
    LoopCase("two without recovery are one", [root(20, 2, OTHER), root(30, 3, FIRST)], LOOP),
    LoopCase("the third says nothing new", [root(20, 2, OTHER), root(30, 3, FIRST), root(40, 4, OTHER)], LOOP),
    LoopCase("inferred: a warning",
             [root(20, 2, OTHER, basis="inferred"), root(30, 3, FIRST, basis="inferred")],
             ["raised regeneration_loop warning root", *LOOP[1:]]),
    LoopCase("the second recovered", [root(20, 2, OTHER), root(30, 3, props(5, 40))], []),
    LoopCase("it gained by losing: no recovery", [root(20, 2, FIRST), root(30, 3, props(11, 40))],
             ["raised regeneration_loop critical root", STOP.format(",".join([*props(1, 10), *props(21, 30)])), REBALANCE]),
    LoopCase("a larger budget between them", [root(20, 2, OTHER), root(30, 3, FIRST, budget_tokens=60)], []),
    LoopCase("a smaller budget between them is no rebalance", [root(20, 2, OTHER, budget_tokens=40), root(30, 3, FIRST)],
             [*LOOP[:2], "ordered rebalance root: needed_tokens=100 node_id=root options=[(raise 75 115),(split 80 40 3)]"]),
    LoopCase("written anew, not regenerated: new content", [
        written("root", 2, 20, level=3, retained=OTHER), written("root", 3, 30, level=3, retained=FIRST)], []),
    LoopCase("a repeat is no second one", [root(20, 2, OTHER), root(20, 2, OTHER)], []),
    LoopCase("what it had is told with it: an explicit before of everything that is there now is no loss, and no gain",
             [root(20, 2, OTHER, before_retained=OTHER), root(30, 3, FIRST, before_retained=FIRST)],
             ["raised regeneration_loop critical root", "ordered stop_regenerating root: node_id=root", REBALANCE]),
    LoopCase("from nothing nothing is said", [root(20, 2, [], before_retained=[]), root(30, 3, FIRST)], []),
]  # fmt: skip


@pytest.mark.parametrize("case", LOOPS, ids=lambda case: case.why)
def test_regeneration_loop(case: LoopCase) -> None:
    monitor = Offline()
    monitor.feed(begun())
    assert in_short(monitor.feed(case.commits)) == list(case.says)


class TestLoop:
    def looping(self, **rules: Any) -> Offline:
        monitor = Offline(under(**rules))
        monitor.feed([*begun(), root(20, 2, OTHER), root(30, 3, FIRST)])
        return monitor

    def test_says_which_propositions_oscillate_those_that_came_back_first(self) -> None:
        found = Offline().feed([*begun(), root(20, 2, props(2, 21)), root(30, 3, [*props(3, 21), "p1"])])
        assert evidence(found, "regeneration_loop") == {
            "node_id": "root", "level": 3, "version": 3, "regenerations": 2, "oscillating": ["p1", "p2", "p21"],
            "back_and_forth": 1, "complete": True,
        }  # fmt: skip

    def test_is_over_when_the_node_was_given_room(self) -> None:
        found = self.looping().feed([written("root", 4, 40, level=3, retained=FIRST, budget_tokens=60)])
        assert in_short(found) == ["resolved regeneration_loop recovered root", "withdrawn stop_regenerating root: resolved"]

    def test_is_over_when_the_node_was_divided(self) -> None:
        monitor = Offline()
        mids = [written(f"mid-{n}", 1, n, level=2, retained=FIRST) for n in (1, 2)]
        whole = written("root", 1, 10, level=3, retained=FIRST, children=reads("mid-1", "mid-2"), **SHORT)
        both = {"children": reads("mid-1", "mid-2")}
        monitor.feed([*START, *mids, whole, root(20, 2, OTHER, **both), root(30, 3, FIRST, **both)])
        found = monitor.feed([written("root", 4, 40, level=3, retained=FIRST, children=reads("mid-1"))])
        assert in_short(found) == ["resolved regeneration_loop recovered root", "withdrawn stop_regenerating root: resolved"]

    def test_is_over_when_it_recovered(self) -> None:
        found = self.looping().feed([root(40, 4, props(1, 40))])
        assert in_short(found)[0] == "resolved regeneration_loop recovered root"

    def test_begins_anew_after_that(self) -> None:
        monitor = self.looping()
        monitor.feed([root(40, 4, props(1, 40))])
        assert in_short(monitor.feed([root(50, 5, props(1, 39))])) == []
        assert in_short(monitor.feed([root(60, 6, props(2, 40))]))[0] == "raised regeneration_loop critical root"

    def test_no_trial_and_no_regeneration_is_asked_for_meanwhile(self) -> None:
        monitor = self.looping()
        monitor.feed([written("mid", 1, 31, level=2, retained=props(1, 40)),
                      written("root", 4, 32, level=3, retained=FIRST, children=reads(("mid", None)))])  # fmt: skip
        monitor.feed([written("mid", 2, 33, level=2, retained=props(1, 40)), missed("root", "p30", 34)])
        assert counted(monitor, "trials_held") == {("regeneration_loop",): 1}
        found = monitor.feed([trial("root", 35, 1, props(1, 40))])
        assert in_short(found)[0] == "raised stale warning root"
        assert "regenerate_parent" not in " ".join(in_short(found))

    def test_an_order_to_regenerate_is_called_back_for_good(self) -> None:
        monitor = Offline()
        monitor.feed([started(controller="expected"), *tracked(*FIRST)[1:], written("root", 1, 10, level=3, retained=FIRST)])
        asked = monitor.feed([trial("root", 15, 1, props(1, 40))])
        assert "ordered regenerate_parent root" in " ".join(in_short(asked))
        assert in_short(monitor.feed([root(20, 2, OTHER), root(30, 3, FIRST)])) == [
            "withdrawn regenerate_parent root: contradicted", *LOOP[:2], "ordered rebalance root: node_id=root"]  # fmt: skip
        for action in ("stop_regenerating", "rebalance"):
            monitor.feed([acknowledged(order_id(monitor.published, action), "rejected", 31)])
        later = [monitor.tick(at(minutes)) for minutes in range(32, 200)]
        assert "regenerate_parent" not in " ".join(line for found in later for line in in_short(found))

    def test_a_rebalance_that_is_reported_lets_trials_go_on_and_leaves_the_alert(self) -> None:
        monitor = Offline()
        found = monitor.feed([*begun(), root(20, 2, OTHER), root(30, 3, FIRST)])
        said = monitor.feed([*(acknowledged(order_id(found, a), "completed", 31) for a in ("stop_regenerating", "rebalance")),
                             written("mid", 1, 32, level=2, retained=props(1, 40)),
                             written("root", 4, 33, level=3, retained=FIRST, children=reads("mid"), **SHORT),
                             missed("root", "p30", 34)])  # fmt: skip
        assert in_short(said) == ["ordered run_trial_regeneration root: node_id=root trial_number=1 trials_max=3"]

    def test_another_figure_for_it(self) -> None:
        assert counted(self.looping(loop_regenerations=3), "findings") == {}


class LossCase(NamedTuple):
    """`says`: after the last of the nodes."""

    why: str
    nodes: Sequence[Fact]
    says: Sequence[str]


def short_mid(deficit: float, name: str = "mid", **fields: Any) -> Fact:
    room = {**ROOMY, "child_joint_entropy_bits": 100.0 + deficit, "budget_tokens": 100}
    return written(name, 1, 10, **{"level": 2, "retained": ["p1"], **room, **fields})


HEALTHY = {**ROOMY, "child_joint_entropy_bits": 95.0}


def over(*children: str, **fields: Any) -> Fact:
    return written("root", 1, 20, level=3, retained=["p1"], children=reads(*children), **{**HEALTHY, **fields})


RAISED = ["raised silent_composed_loss critical root",
          "ordered rebalance mid: needed_tokens=106 node_id=mid options=[(raise 22 122),(split 100 100 2)]"]  # fmt: skip

LOSSES = [
    LossCase("a saturated mid under a root whose own books hold", [short_mid(6), over("mid")], RAISED),
    LossCase("a healthy mid", [short_mid(0), over("mid")], []),
    LossCase("exactly 5 % of the whole is within", [short_mid(5), over("mid")], []),
    LossCase("the root knows of it itself: its own books do not hold", [short_mid(6), over("mid", budget_tokens=94)], []),
    LossCase("the root's room unknown: skipped", [short_mid(6), written("root", 1, 20, level=3, children=reads("mid"))], []),
    LossCase("the mid's room unknown: nothing is known to be lost", [written("mid", 1, 10, level=2), over("mid")], []),
    LossCase("an inferred mid: a warning", [short_mid(6, basis="inferred"), over("mid")],
             ["raised silent_composed_loss warning root", RAISED[1]]),
    LossCase("a loss two levels down",
             [short_mid(6, "leaf", level=1), written("mid", 1, 11, level=2, children=reads("leaf")), over("mid")],
             [RAISED[0], RAISED[1].replace("mid", "leaf")]),
    LossCase("two ways to one child: counted once, 3 of 98", [
        short_mid(3, "leaf", level=1), written("a", 1, 11, level=2, children=reads("leaf")),
        written("b", 1, 11, level=2, children=reads("leaf")), over("a", "b")], []),
    LossCase("two small ones together", [short_mid(3, "a"), short_mid(3, "b"), over("a", "b")], [
        RAISED[0], "ordered rebalance b: needed_tokens=103 node_id=b options=[(raise 19 119),(split 100 100 2)]"]),
    LossCase("the mid saturates later, and names its parent",
             [over("mid"), written("mid", 2, 30, level=2, parent_id="root", **{**ROOMY, "child_joint_entropy_bits": 106.0})],
             RAISED),
    LossCase("the mid saturates later, its parent known from its children alone",
             [short_mid(0), over("mid"), written("mid", 2, 30, level=2, **{**ROOMY, "child_joint_entropy_bits": 106.0})],
             RAISED),
    LossCase("a ring: the root is no descendant of its own",
             [written("mid", 1, 10, level=2, children=reads("root"), **ROOMY), over("mid")], []),
]  # fmt: skip


@pytest.mark.parametrize("case", LOSSES, ids=lambda case: case.why)
def test_silent_composed_loss(case: LossCase) -> None:
    monitor = Offline()
    quiet = monitor.feed([*START, *case.nodes[:-1]])
    assert (in_short(quiet), in_short(monitor.feed(case.nodes[-1:]))) == ([], list(case.says))


class TestSilentLoss:
    def raised(self) -> Offline:
        monitor = Offline()
        monitor.feed([*START, short_mid(6), over("mid")])
        return monitor

    def test_says_what_was_lost(self) -> None:
        assert evidence(self.raised().published, "silent_composed_loss") == {
            "node_id": "root", "level": 3, "effective_entropy_bits": 95.0, "lost_bits": 6.0, "lost_ratio": 0.0594,
            "composed_loss_ratio": 0.05, "descendants_short": 1, "worst": "mid", "worst_deficit_bits": 6.0, "complete": True,
        }  # fmt: skip

    def test_is_over_when_the_descendant_has_room(self) -> None:
        found = self.raised().feed([written("mid", 2, 30, level=2, retained=["p1"], budget_tokens=106)])
        assert in_short(found) == ["resolved silent_composed_loss recovered root"]

    def test_is_over_when_the_root_sees_it(self) -> None:
        found = self.raised().feed([written("root", 2, 30, level=3, children=reads("mid"), **{**HEALTHY, "budget_tokens": 90})])
        assert in_short(found) == ["resolved silent_composed_loss recovered root", "withdrawn rebalance mid: resolved"]

    def test_a_sibling_with_room_can_take_it(self) -> None:
        sibling = written("calm", 1, 11, level=2, retained=["p1"], **{**ROOMY, "child_joint_entropy_bits": 20.0})
        found = Offline().feed([*START, short_mid(6), sibling, over("mid", "calm")])
        assert in_short(found)[1] == (
            "ordered rebalance mid: needed_tokens=106 node_id=mid "
            "options=[(promote 6 calm 80),(raise 22 122),(split 100 100 2)]"
        )

    def test_an_order_goes_with_what_it_was_about_though_the_alert_goes_on(self) -> None:
        def node(name: str, version: int, minutes: float, need: float, budget: int, *children: str) -> Fact:
            room: dict[str, Any] = {
                "budget_tokens": budget,
                "child_joint_entropy_bits": need,
                "child_redundancy": 0.0,
                "bits_per_token": 1.0,
            }
            level = 2 if children else 1
            return written(name, version, minutes, level=level, retained=["p1"], children=reads(*children), **room)

        monitor = Offline()
        monitor.feed([*START, *(node(name, 1, 5, 100.0, 50) for name in ("low", "deep"))])
        found = monitor.feed([node("left", 1, 6, 100.0, 100, "low"), node("right", 1, 7, 100.0, 100, "deep")])
        assert in_short(found)[2] == "raised silent_composed_loss critical left right"
        found = monitor.feed([node("low", 2, 8, 50.0, 50)])
        assert in_short(found) == ["withdrawn rebalance low: resolved"]

    def test_off(self) -> None:
        monitor = Offline(Rules(default=AgentRules(off=frozenset({"silent_composed_loss"}))))
        assert in_short(monitor.feed([*START, short_mid(6), over("mid")])) == []


def round_of(number: int, retained: Sequence[str] | None, **fields: Any) -> RoundCompleted:
    held = None if retained is None else list(retained)
    return completed(number, raw_tokens=900, summary_tokens=100, propositions_retained=held, **fields)


def lost(proposition: str, level: int = 1, holder: str = "") -> str:
    nearest = f" nearest_holder={holder}" if holder else ""
    turn = proposition[1:]
    return (
        f"ordered escalate_to_raw : ids=[{proposition}] lost_at_level={level}{nearest} node_id=root "
        f"span_ids=[span-{turn}] what=propositions"
    )


class ConstraintCase(NamedTuple):
    """p1 and p2 are pinned."""

    why: str
    nodes: Sequence[Fact]
    round: RoundCompleted
    says: Sequence[str]


MID = written("mid", 1, 5, level=2, retained=["p2", "p3"])
CONSTRAINTS = [
    ConstraintCase("both there", [], round_of(1, ["p1", "p2"]), []),
    ConstraintCase("one lost, no tree: back to the raw log", [], round_of(1, ["p1"]), [
        "raised constraint_lost critical p2", "ordered escalate_to_raw : ids=[p2] span_ids=[span-2] what=propositions"]),
    ConstraintCase("inferred: a warning", [], round_of(1, ["p1"], basis="inferred"), [
        "raised constraint_lost warning p2", "ordered escalate_to_raw : ids=[p2] span_ids=[span-2] what=propositions"]),
    ConstraintCase("what is not pinned may go", [], round_of(1, ["p1", "p2"]), []),
    ConstraintCase("a rehydration raises nothing", [], round_of(1, [], cause="rehydration"), []),
    ConstraintCase("not told what is retained: skipped", [], round_of(1, None), []),
    ConstraintCase("the tree lost it too", [MID, written("root", 1, 6, level=3, retained=["p2"], children=reads("mid"))],
                   round_of(1, ["p2"]), ["raised constraint_lost critical p1", lost("p1", 2)]),
    ConstraintCase("the root still holds it: nothing to bring back to it",
                   [MID, written("root", 1, 6, level=3, retained=["p1", "p2"], children=reads("mid"))], round_of(1, ["p1"]),
                   ["raised constraint_lost critical p2"]),
    ConstraintCase("a mid holds it, the root is short: a trial, no regeneration",
                   [MID, written("root", 1, 6, level=3, retained=["p3"], children=reads("mid"), **SHORT)],
                   round_of(1, ["p1"]), ["ordered run_trial_regeneration root: node_id=root trial_number=1 trials_max=3",
                                         "raised constraint_lost critical p2"]),
    ConstraintCase("a mid holds it, nothing was rewritten: it is lost from the set, and normal in the tree",
                   [MID, written("root", 1, 6, level=3, retained=["p3"], children=reads("mid"), **ROOMY)],
                   round_of(1, ["p1"]), ["raised constraint_lost critical p2"]),
    ConstraintCase("a child of the root is not known: back to the raw log",
                   [written("root", 1, 6, level=3, retained=["p2"], children=reads("mid"))], round_of(1, ["p2"]),
                   ["raised constraint_lost critical p1", lost("p1", 3)]),
]  # fmt: skip


@pytest.mark.parametrize("case", CONSTRAINTS, ids=lambda case: case.why)
def test_constraint_lost(case: ConstraintCase) -> None:
    monitor = Offline()
    quiet = monitor.feed([*START, *case.nodes])
    assert (in_short(quiet), in_short(monitor.feed([case.round]))) == ([], list(case.says))


class TestConstraint:
    def test_says_which_and_when_it_was_stated(self) -> None:
        found = Offline().feed([*START, round_of(1, ["p1"])])
        assert evidence(found, "constraint_lost") == {"proposition": "p2", "turn": 2, "round": 1, "lost": 1, "pinned": 2}

    def test_what_one_pass_lost_is_one_publication_and_one_order(self) -> None:
        assert in_short(Offline().feed([*START, round_of(1, [])])) == [
            "raised constraint_lost critical p1 p2",
            "ordered escalate_to_raw : ids=[p1,p2] span_ids=[span-1,span-2] what=propositions",
        ]

    def test_more_than_an_alert_lists(self) -> None:
        monitor = Offline()
        many = tracked(*props(1, 25), pinned=props(1, 25))
        alert, order = (one.finding for one in monitor.feed([*many, round_of(1, [])]))
        assert isinstance(alert, AlertRaised) and isinstance(order, RemediationRequested)
        assert isinstance(order.plan, EscalateToRaw)
        assert (alert.subjects, alert.evidence["lost"]) == (order.plan.ids, 25)
        assert len(alert.subjects) == 20
        again = in_short(monitor.feed([round_of(2, props(1, 3))]))
        assert again == ["raised constraint_lost critical " + " ".join(props(4, 23))]

    def test_the_order_for_all_takes_the_place_of_the_one_before(self) -> None:
        monitor = Offline()
        monitor.feed([*START, round_of(1, ["p1"]), round_of(2, []), round_of(3, [])])
        assert in_short(monitor.feed([round_of(4, [])])) == [
            "withdrawn escalate_to_raw : superseded",
            "ordered escalate_to_raw : ids=[p2,p1] span_ids=[span-2,span-1] what=propositions",
        ]

    def test_what_is_left_is_in_the_tree_nothing_is_asked_for_any_more(self) -> None:
        monitor = Offline()
        monitor.feed([*START, MID, written("root", 1, 6, level=3, retained=["p2"], children=reads("mid")), round_of(1, [])])
        assert in_short(monitor.feed([round_of(2, ["p1"])])) == ["withdrawn escalate_to_raw : resolved"]

    def test_while_it_is_lost_nothing_is_repeated(self) -> None:
        monitor = Offline()
        short = written("root", 1, 6, level=3, retained=["p3"], children=reads("mid"), **SHORT)
        found = monitor.feed([*START, MID, short, round_of(1, ["p1"])])
        answer = trial("root", 70, 1, ["p3"], remediation_id=order_id(found, "run_trial_regeneration"))
        monitor.feed([answer])
        assert in_short(monitor.feed([round_of(number, ["p1"]) for number in range(2, 6)])) == []

    def test_another_one_joins_and_they_leave_one_by_one(self) -> None:
        monitor = Offline()
        found = [monitor.feed([round_of(n, held)]) for n, held in enumerate([["p1"], [], ["p2"], ["p1", "p2"]], 1)
                 if n > 1 or not monitor.feed(START)]  # fmt: skip
        assert [in_short(lines) for lines in found] == [
            ["raised constraint_lost critical p2", "ordered escalate_to_raw : ids=[p2] span_ids=[span-2] what=propositions"],
            ["raised constraint_lost critical p2 p1"],
            [],
            ["resolved constraint_lost recovered p1", "withdrawn escalate_to_raw : resolved"],
        ]

    def test_a_rehydration_resolves(self) -> None:
        monitor = Offline()
        monitor.feed([*START, round_of(1, ["p1"])])
        assert in_short(monitor.feed([round_of(2, ["p1", "p2"], cause="rehydration")]))[0] == (
            "resolved constraint_lost recovered p2"
        )

    def test_off_asks_for_no_trial_either(self) -> None:
        monitor = Offline(Rules(default=AgentRules(off=frozenset({"constraint_lost"}))))
        short = written("root", 1, 6, level=3, retained=["p3"], children=reads("mid"), **SHORT)
        assert in_short(monitor.feed([*START, MID, short, round_of(1, ["p1"])])) == []


class OrphanCase(NamedTuple):
    """`summaries`: (id, leaf spans); o is orphaned and covers turns 9 to 16."""

    why: str
    nodes: Sequence[tuple[str, int, int]]
    summaries: Sequence[tuple[str, int]]
    says: str


DROP = "ordered drop_summary o: summary_ids=[o]"
RAW = "ordered escalate_to_raw o: ids=[o] round=1 what=summaries"
ORPHANS = [
    OrphanCase("one other covers its turns", [("o", 9, 16), ("big", 1, 64)], [("o", 0), ("big", 4)], DROP),
    OrphanCase("two others cover them between them", [("o", 9, 16), ("a", 1, 12), ("b", 13, 20)],
               [("o", 0), ("a", 1), ("b", 1)], DROP),
    OrphanCase("a turn is left out", [("o", 9, 16), ("a", 1, 12), ("b", 14, 20)], [("o", 0), ("a", 1), ("b", 1)], RAW),
    OrphanCase("the other is not retained any more", [("o", 9, 16), ("big", 1, 64)], [("o", 0)], RAW),
    OrphanCase("the other is an orphan itself", [("o", 9, 16), ("other", 1, 64)], [("o", 0), ("other", 0)],
               "ordered escalate_to_raw o: ids=[o,other] round=1 what=summaries"),
    OrphanCase("its turns are not known", [("big", 1, 64)], [("o", 0), ("big", 4)], RAW),
    OrphanCase("nothing is known of any", [], [("o", 0), ("big", 4)], RAW),
]  # fmt: skip


@pytest.mark.parametrize("case", ORPHANS, ids=lambda case: case.why)
def test_orphaned_summary(case: OrphanCase) -> None:
    nodes = [written(name, 1, 5, turns={"first": first, "last": last}) for name, first, last in case.nodes]
    items = [{"summary_id": name, "depth": 1, "tokens": 10, "leaf_spans": leaves, "expanded_tokens": 50}
             for name, leaves in case.summaries]  # fmt: skip
    monitor = Offline()
    monitor.feed([*tracked(), *nodes])
    found = monitor.feed([completed(1, summaries=items, spans_method="pointer", distinct_source_spans=5)])
    assert [line for line in in_short(found) if line.startswith("ordered")] == [case.says]


def test_room_that_is_unknown_is_counted() -> None:
    monitor = Offline()
    monitor.feed([*START, short_mid(6), written("root", 1, 20, level=3, children=reads("mid"), **UNKNOWN)])
    assert counted(monitor, "checks_skipped") == {("silent_composed_loss", "capacity_unknown"): 1}
