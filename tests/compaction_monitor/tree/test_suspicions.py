"""What it means that a proposition was missed at a node: one table of cases with their whys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from compaction_events.builders import missed, regenerated, written
from compaction_events.facts import Fact
from compaction_monitor.harness import Offline
from compaction_monitor.rules import AgentRules, Rules
from tests.compaction_monitor.tree.trees import (
    ROOMY,
    SHORT,
    UNKNOWN,
    counted,
    evidence,
    in_short,
    reads,
    tracked,
    trial,
)

START = tracked("p", "q", "r", pinned=["p"])
TRIAL = "ordered run_trial_regeneration root: node_id=root trial_number=1 trials_max=3"


class Case(NamedTuple):
    """`decision`: what is counted; `says`: the findings."""

    why: str
    nodes: Sequence[Fact]
    decision: str
    says: Sequence[str] = ()
    asked: Fact = missed("root", "p", 100)


def lost(level: int, holder: str = "", severity: str = "critical", proposition: str = "p", node: str = "root") -> list[str]:
    nearest = f" nearest_holder={holder}" if holder else ""
    turn = {"p": 1, "q": 2}[proposition]
    return [
        f"raised upstream_loss {severity} {proposition}",
        f"ordered escalate_to_raw {proposition}: ids=[{proposition}] lost_at_level={level}{nearest} "
        f"node_id={node} span_ids=[span-{turn}] what=propositions",
    ]


LEAF = written("leaf", 1, 10, level=1, retained=["p", "q"])
MID = written("mid", 1, 20, level=2, retained=["p", "q"], children=reads("leaf"))
MID_WITHOUT = written("mid", 1, 20, level=2, retained=["q"], children=reads("leaf"))
ROOT = written("root", 1, 30, level=3, retained=["q"], children=reads("mid"), **ROOMY)

CASES = [
    Case("the node holds it: nothing is wrong here",
         [LEAF, MID, written("root", 1, 30, level=3, retained=["p"], children=reads("mid"))], "present"),
    Case("the mid lost it, a leaf holds it: lost at the level of the mid", [LEAF, MID_WITHOUT, ROOT], "upstream_loss",
         lost(2, "leaf")),
    Case("nothing holds it any more: lost at the lowest level there is",
         [written("leaf", 1, 10, retained=["q"]), MID_WITHOUT, ROOT], "upstream_loss", lost(1)),
    Case("a leaf that lost it: only the raw log is below", [written("leaf", 1, 10, retained=["q"])], "upstream_loss",
         lost(1, node="leaf"), missed("leaf", "p", 100)),
    Case("not pinned: for the record", [written("leaf", 1, 10, retained=["q", "p"]),
         written("mid", 1, 20, level=2, retained=["p"], children=reads("leaf")),
         written("root", 1, 30, level=3, retained=["p"], children=reads("mid"))], "upstream_loss",
         lost(2, "leaf", "info", "q"), missed("root", "q", 100)),
    Case("pinned, but the node is inferred: for the record", [LEAF, MID_WITHOUT,
         written("root", 1, 30, level=3, retained=["q"], children=reads("mid"), basis="inferred")], "upstream_loss",
         lost(2, "leaf", "info")),
    Case("a node written from the raw log has nothing below", [written("root", 1, 30, level=3, retained=["q"], sources="raw")],
         "upstream_loss", lost(3)),
    Case("the mid holds it and the root is short of room: try",
         [LEAF, MID, written("root", 1, 30, level=3, retained=["q"], children=reads("mid"), **SHORT)], "trial", [TRIAL]),
    Case("the mid was rewritten, the root only lacks what its children have: try",
         [LEAF, MID, ROOT, written("mid", 2, 40, level=2, retained=["p", "q"], children=reads("leaf"))], "trial", [TRIAL]),
    Case("no versions, but the mid is later than the root: rewritten",
         [LEAF, MID, written("root", 1, 30, level=3, retained=["q"], children=reads(("mid", None)), **ROOMY),
          written("mid", 2, 40, level=2, retained=["p", "q"], children=reads("leaf"))], "trial", [TRIAL]),
    Case("no versions, and no child is later: normal",
         [LEAF, MID, written("root", 1, 30, level=3, retained=["q"], children=reads(("mid", None)), **ROOMY)], "normal_loss"),
    Case("rewritten, but the root also holds what no child has: no staleness",
         [LEAF, MID, written("root", 1, 30, level=3, retained=["q", "r"], children=reads("mid"), **ROOMY),
          written("mid", 2, 40, level=2, retained=["p", "q"], children=reads("leaf"))], "normal_loss"),
    Case("the version that was read is the one there is, however late it was reported: not rewritten",
         [LEAF, ROOT, written("mid", 1, 40, level=2, retained=["p", "q"], children=reads("leaf"))], "normal_loss"),
    Case("room for it and nothing rewritten: normal lossy summarisation", [LEAF, MID, ROOT], "normal_loss"),
    Case("room unknown and nothing rewritten: normal",
         [LEAF, MID, written("root", 1, 30, level=3, retained=["q"], children=reads("mid"), **UNKNOWN)], "normal_loss"),
    Case("a node nobody reported: counted, never a finding", [LEAF], "unknown_node"),
    Case("a proposition nobody tracks", [LEAF, MID, ROOT], "untracked", (), missed("root", "x", 100)),
    Case("a child is not known, and no other holds it: it may",
         [MID_WITHOUT, written("root", 1, 30, level=3, retained=["q"], children=reads("mid", "elsewhere"))], "unknown_child"),
    Case("a child is not known, but another holds it: that one decides",
         [LEAF, MID, written("root", 1, 30, level=3, retained=["q"], children=reads("mid", "elsewhere"), **SHORT)],
         "trial", [TRIAL]),
    Case("written from children that were not named", [written("root", 1, 30, level=3, retained=["q"])], "unknown_child"),
    Case("missed before the version there is was written", [LEAF, MID_WITHOUT, ROOT], "late", (), missed("root", "p", 29)),
    Case("short, but nothing was retained: a trial would tell nothing",
         [LEAF, MID, written("root", 1, 30, level=3, retained=[], children=reads("mid"), **SHORT)], "trial"),
    Case("short because there is no budget at all: a trial would tell nothing",
         [LEAF, MID, written("root", 1, 30, level=3, retained=["q"], children=reads("mid"), **{**SHORT, "budget_tokens": 0})],
         "trial"),
    Case("a root that is its own child: no child of it holds p",
         [written("root", 1, 30, level=3, retained=["q"], children=reads("root"))], "upstream_loss", lost(3)),
    Case("a ring of two: each is looked at once",
         [written("mid", 1, 20, level=2, retained=["q"], children=reads("root")),
          written("root", 1, 30, level=3, retained=["q"], children=reads("mid"))], "upstream_loss", lost(2)),
    Case("a holder two levels down, the nearer of two",
         [LEAF, written("other", 1, 10, level=2, retained=["p"]),
          written("mid", 1, 20, level=2, retained=["q"], children=reads("other", "leaf")), ROOT], "upstream_loss",
         lost(3, "other")),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_decides(case: Case) -> None:
    monitor = Offline()
    quiet = monitor.feed([*START, *case.nodes])
    found = monitor.feed([case.asked])
    assert (in_short(quiet), counted(monitor, "missed"), in_short(found)) == ([], {(case.decision,): 1}, list(case.says))


def test_says_all_it_knows_of_a_loss() -> None:
    monitor = Offline()
    monitor.feed([*START, LEAF, MID_WITHOUT, ROOT])
    found = monitor.feed([missed("root", "p", 100, symptom="constraint")])
    assert evidence(found, "upstream_loss") == {
        "proposition": "p", "node_id": "root", "turn": 1, "pinned": True, "lost_at_level": 2, "nearest_holder": "leaf",
        "symptom": "constraint", "complete": True,
    }  # fmt: skip


class TestRepeats:
    def test_the_same_miss_twice(self) -> None:
        monitor = Offline()
        monitor.feed([*START, LEAF, MID, written("root", 1, 30, level=3, retained=["q"], children=reads("mid"), **SHORT)])
        found = [monitor.feed([missed("root", p, 100)]) for p in ("p", "p", "q", "p")]
        assert [in_short(lines) for lines in found] == [[TRIAL], [], [], []]
        assert counted(monitor, "missed") == {("trial",): 1, ("late",): 2, ("present",): 1}

    def test_a_suspicion_while_its_trial_is_under_way(self) -> None:
        monitor = Offline()
        monitor.feed([*START, LEAF, MID, written("root", 1, 30, level=3, retained=["q"], children=reads("mid"), **SHORT)])
        assert in_short(monitor.feed([missed("root", "p", 100), missed("root", "p", 101)])) == [TRIAL]
        assert counted(monitor, "trials_held") == {("under_way",): 1}

    def test_a_node_that_was_judged_is_not_tried_again_until_something_changed(self) -> None:
        monitor = Offline()
        monitor.feed([*START, LEAF, MID, written("root", 1, 30, level=3, retained=["q"], children=reads("mid"), **ROOMY)])
        monitor.feed([written("mid", 2, 40, level=2, retained=["p", "q"], children=reads("leaf")), missed("root", "p", 41)])
        monitor.feed([trial("root", 42, 1, ["q"]), missed("root", "p", 43)])
        assert (counted(monitor, "verdicts"), counted(monitor, "trials_held")) == ({("stable", "kept"): 1}, {("judged",): 1})
        monitor.feed([written("mid", version, 40 + version, level=2, retained=["p", "q"]) for version in (4, 5, 6)])
        assert in_short(monitor.feed([missed("root", "p", 60)])) == [TRIAL]


class TestSwitches:
    def test_observed_only(self) -> None:
        monitor = Offline(Rules(default=AgentRules(observe=True)))
        monitor.feed([*START, LEAF, MID_WITHOUT, ROOT])
        assert in_short(monitor.feed([missed("root", "p", 100)])) == ["raised upstream_loss critical p"]

    def test_observed_only_no_trial_is_asked_for(self) -> None:
        monitor = Offline(Rules(default=AgentRules(observe=True)))
        monitor.feed([*START, LEAF, MID, written("root", 1, 30, level=3, retained=["q"], children=reads("mid"), **SHORT)])
        assert in_short(monitor.feed([missed("root", "p", 100)])) == []

    def test_switched_off(self) -> None:
        monitor = Offline(Rules(default=AgentRules(off=frozenset({"upstream_loss"}))))
        monitor.feed([*START, LEAF, MID_WITHOUT, ROOT])
        assert in_short(monitor.feed([missed("root", "p", 100)])) == []


class TestRecovery:
    def test_a_child_has_it_again(self) -> None:
        monitor = Offline()
        monitor.feed([*START, LEAF, MID_WITHOUT, ROOT, missed("root", "p", 100)])
        found = monitor.feed([written("mid", 2, 110, level=2, retained=["p", "q"], children=reads("leaf"))])
        assert in_short(found) == ["resolved upstream_loss recovered p", "withdrawn escalate_to_raw p: resolved"]

    def test_the_node_has_it_again(self) -> None:
        monitor = Offline()
        monitor.feed([*START, LEAF, MID_WITHOUT, ROOT, missed("root", "p", 100)])
        found = monitor.feed([regenerated("root", 110, level=3, version=2, retained=["p", "q"], children=reads("mid"))])
        assert in_short(found) == ["resolved upstream_loss recovered p", "withdrawn escalate_to_raw p: resolved"]

    def test_a_grandchild_that_has_it_is_not_enough(self) -> None:
        monitor = Offline()
        monitor.feed([*START, LEAF, MID_WITHOUT, ROOT, missed("root", "p", 100)])
        assert in_short(monitor.feed([written("leaf", 2, 110, retained=["p"])])) == []

    def test_two_losses_are_one_alert_and_end_one_by_one(self) -> None:
        monitor = Offline()
        both = [written("mid", 1, 20, level=2, retained=["r"], children=reads("leaf")),
                written("root", 1, 30, level=3, retained=["r"], children=reads("mid"))]  # fmt: skip
        found = monitor.feed([*START, LEAF, *both, missed("root", "p", 100), missed("root", "q", 101)])
        assert in_short(found) == [
            "raised upstream_loss critical p",
            "ordered escalate_to_raw p: ids=[p] lost_at_level=2 nearest_holder=leaf node_id=root span_ids=[span-1] "
            "what=propositions",
            "raised upstream_loss critical p q",
            "ordered escalate_to_raw q: ids=[q] lost_at_level=2 nearest_holder=leaf node_id=root span_ids=[span-2] "
            "what=propositions",
        ]
        ends = [monitor.feed([written("mid", 2 + n, 110 + n, level=2, retained=[held])]) for n, held in enumerate("pq")]
        assert [in_short(lines) for lines in ends] == [
            ["withdrawn escalate_to_raw p: resolved"],
            ["resolved upstream_loss recovered q", "withdrawn escalate_to_raw q: resolved"],
        ]
