"""Trial before commit: what a series of trials leads to, what belongs to it, and when a verdict is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from compaction_events.builders import acknowledged, completed, missed, regenerated, written
from compaction_events.facts import Fact
from compaction_events.findings import AlertResolved, RemediationRequested, Severity
from compaction_monitor.harness import Offline, Published
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

B20 = props(1, 20)
START = tracked(*props(1, 40))


def base(room: Any, *, rewritten: bool = True, level: int = 3, **fields: Any) -> list[Fact]:
    """A root with p1 to p20, over a mid that has since said 40."""
    root = {"level": level, "retained": B20, "children": reads("mid"), **room, **fields}
    nodes: list[Fact] = [written("mid", 1, 10, level=2, retained=B20), written("root", 1, 20, **root)]
    return [*nodes, written("mid", 2, 30, level=2, retained=props(1, 40))] if rewritten else nodes


class Case(NamedTuple):
    """`says`: what each trial leads to."""

    why: str
    before: Sequence[Fact]
    trials: Sequence[list[str]]
    says: Sequence[Sequence[str]]


def asks(number: int) -> list[str]:
    return [f"ordered run_trial_regeneration root: node_id=root trial_number={number} trials_max=3"]


OPTIONS = "options=[(split 50 50 2),(raise 65 115)]"
CASES = [
    Case("much recovered, nothing lost, room for it: stale", base(ROOMY), [props(1, 40)],
         [["raised stale warning root", "ordered regenerate_parent root: commit_trial=1 node_id=root"]]),
    Case("a little recovered, within noise: it was no staleness", base(ROOMY), [props(1, 23)], [[]]),
    Case("a little more than noise: stale", base(ROOMY), [props(1, 24)],
         [["raised stale warning root", "ordered regenerate_parent root: commit_trial=1 node_id=root"]]),
    Case("room unknown: stale all the same, inferred", base(UNKNOWN), [props(1, 40)],
         [["raised stale warning root", "ordered regenerate_parent root: commit_trial=1 node_id=root"]]),
    Case("others instead, no room: saturated", base(SHORT), [props(11, 30)],
         [["raised saturated critical root", f"ordered rebalance root: needed_tokens=100 node_id=root {OPTIONS}"]]),
    Case("others instead, the node inferred: a warning", base(SHORT, basis="inferred"), [props(11, 30)],
         [["raised saturated warning root", f"ordered rebalance root: needed_tokens=100 node_id=root {OPTIONS}"]]),
    Case("others instead, room unknown: a warning, and no way can be costed", base(UNKNOWN), [props(11, 30)],
         [["raised saturated warning root", "ordered rebalance root: node_id=root"]]),
    Case("recovered without room: saturated, and this trial lost nothing", base(SHORT), [props(1, 40)],
         [["raised saturated critical root",
           f"ordered rebalance root: keep_trial=1 needed_tokens=100 node_id=root {OPTIONS}"]]),
    Case("others instead, although there is room: unstable, look at the child", base(ROOMY), [props(11, 30)],
         [["raised unstable warning root", "ordered inspect_children root: children=[mid] node_id=root"]]),
    Case("the same again: stable, nothing to say", base(ROOMY), [B20], [[]]),
    Case("the same three times without room: a lucky draw, for the record", base(SHORT), [B20] * 3,
         [asks(2), asks(3), ["raised over_capacity info root"]]),
    Case("it shrank three times: the raw log tells", base(ROOMY), [props(1, 10)] * 3,
         [asks(2), asks(3), ["raised ambiguous info root", "ordered escalate_to_raw root: node_id=root what=node"]]),
    Case("it shrank, then kept: on the whole it shrank; then again much: judged together", base(SHORT),
         [props(1, 10), props(11, 30), props(21, 40)],
         [asks(2), asks(3), ["raised ambiguous info root", "ordered escalate_to_raw root: node_id=root what=node"]]),
    Case("undecided, then others: the second decides between the trials", base(SHORT), [B20, props(11, 30)],
         [asks(2), ["raised saturated critical root", f"ordered rebalance root: needed_tokens=100 node_id=root {OPTIONS}"]]),
    Case("recovered, though no child was rewritten: not explained, asked again", base(ROOMY, rewritten=False),
         [props(1, 40)], [asks(2)]),
    Case("nothing was retained before: counted, nothing said", base(SHORT, retained=[]), [B20], [[]]),
    Case("written from the raw log: no hierarchy to judge", base(SHORT, sources="raw"), [props(11, 30)], [[]]),
]  # fmt: skip


def answered(monitor: Offline, series: Sequence[list[str]]) -> list[list[Published]]:
    """Each trial names the order that asked for it, where one did."""
    found: list[list[Published]] = []
    for number, held in enumerate(series, 1):
        order = order_id(found[-1], "run_trial_regeneration") if found else "own"
        found.append(monitor.feed([trial("root", 100 + number, number, held, remediation_id=order)]))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_leads_to(case: Case) -> None:
    monitor = Offline()
    monitor.feed([*START, *case.before])
    found = answered(monitor, case.trials)
    assert [in_short(lines) for lines in found] == list(map(list, case.says))


def test_says_what_was_measured() -> None:
    monitor = Offline()
    found = monitor.feed([*START, *base(SHORT), trial("root", 100, 1, props(11, 30))])
    assert evidence(found, "saturated") == {
        "node_id": "root", "level": 3, "version": 1, "verdict": "saturated", "reason": "resampled", "delta_ratio": 0.0,
        "member_loss_ratio": 0.5, "churn_ratio": 2 / 3, "trials": 1, "budget_tokens": 50, "bits_per_token": 1.0,
        "effective_entropy_bits": 100.0, "noise": 0.15, "churn_limit": 0.25, "trials_spent": 1, "complete": True,
    }  # fmt: skip


def test_a_single_trial_decides_where_the_setting_says_so() -> None:
    monitor = Offline(under(trials_max=1))
    found = monitor.feed([*START, *base(SHORT), trial("root", 100, 1, B20)])
    assert in_short(found) == ["raised over_capacity info root"]


def test_children_by_suspicion_not_known_first_then_the_largest_deficit_then_the_latest() -> None:
    room = {**SHORT, "child_joint_entropy_bits": 60.0}
    nodes = [written("late", 1, 12, level=2, retained=["p1"]), written("early", 1, 11, level=2, retained=["p1"]),
             written("short", 1, 5, level=2, retained=["p1"], **room), written("shorter", 1, 4, level=2, **SHORT),
             written("root", 1, 20, level=3, retained=B20, **ROOMY,
                     children=reads("early", "late", "short", "elsewhere", "shorter"))]  # fmt: skip
    found = Offline().feed([*START, *nodes, trial("root", 100, 1, props(11, 30))])
    assert in_short(found)[-1] == "ordered inspect_children root: children=[elsewhere,shorter,short,late,early] node_id=root"


class TestBelongs:
    """What counts as one of a series."""

    def test_a_repeat_is_ignored(self) -> None:
        monitor = Offline()
        first = trial("root", 100, 1, B20)
        found = [monitor.feed([*START, *base(SHORT), first]), monitor.feed([first]), monitor.feed([trial("root", 99, 1, B20)])]
        assert [in_short(lines) for lines in found] == [asks(2), [], []]

    def test_a_repeat_after_the_verdict_is_ignored(self) -> None:
        monitor = Offline()
        series = [trial("root", 100 + n, n, B20) for n in (1, 2, 3)]
        monitor.feed([*START, *base(SHORT), *series])
        assert in_short(monitor.feed(series)) == []
        assert counted(monitor, "facts")["checkpoint.regenerated", "late"] == 3

    def test_out_of_order_and_at_one_time(self) -> None:
        monitor = Offline()
        found = [monitor.feed([*START, *base(SHORT), trial("root", 102, 3, B20)])]
        found += [monitor.feed([trial("root", 101, 1, B20)]), monitor.feed([trial("root", 101, 2, B20)])]
        assert [in_short(lines)[-1:] for lines in found] == [asks(1), asks(2), ["raised over_capacity info root"]]

    def test_one_of_an_older_version_is_late(self) -> None:
        monitor = Offline()
        found = monitor.feed([*START, *base(SHORT), trial("root", 19, 1, props(11, 30))])
        assert (in_short(found), counted(monitor, "verdicts")) == ([], {})

    def test_a_commit_ends_a_series(self) -> None:
        monitor = Offline()
        commit = written("root", 2, 101, level=3, retained=B20, children=reads(("mid", 2)), **SHORT)
        found = monitor.feed([*START, *base(SHORT), trial("root", 100, 1, B20), commit, trial("root", 102, 1, B20)])
        assert in_short(found) == asks(2) + asks(2)

    def test_one_of_a_node_nobody_reported(self) -> None:
        monitor = Offline()
        assert in_short(monitor.feed([*START, trial("root", 100, 1, B20)])) == []
        assert counted(monitor, "facts")["checkpoint.regenerated", "unknown_node"] == 1

    def test_an_explicit_before_overrides_what_is_known(self) -> None:
        found = Offline().feed([*START, *base(ROOMY), trial("root", 100, 1, B20, before_retained=props(1, 10))])
        assert in_short(found)[0] == "raised stale warning root"

    def test_what_was_never_stated_counts_too(self) -> None:
        unknown = [f"u{number}" for number in range(20)]
        found = Offline().feed([*START, *base(ROOMY), trial("root", 100, 1, unknown, before_retained=unknown[:10])])
        assert in_short(found)[0] == "raised stale warning root"


class TestOrders:
    def asked(self) -> tuple[Offline, str]:
        monitor = Offline()
        held = {"retained": B20, "children": reads("mid"), **SHORT}
        mid = written("mid", 1, 10, level=2, retained=props(1, 40))
        found = monitor.feed([*START, mid, written("root", 1, 20, level=3, **held), missed("root", "p30", 90)])
        return monitor, order_id(found, "run_trial_regeneration")

    def test_an_answer_fulfils_the_order(self) -> None:
        monitor, order = self.asked()
        assert in_short(monitor.feed([trial("root", 100, 1, props(11, 30), remediation_id=order)]))[0] == (
            "raised saturated critical root"
        )
        assert counted(monitor, "orders_ended") == {("run_trial_regeneration", "completed"): 1}

    def test_an_answer_to_another_order_makes_it_needless(self) -> None:
        monitor, _ = self.asked()
        found = monitor.feed([trial("root", 100, 1, props(11, 30), remediation_id="older")])
        assert in_short(found)[:2] == ["withdrawn run_trial_regeneration root: superseded", "raised saturated critical root"]

    def test_a_rejection_loses_no_trial_that_was_reported(self) -> None:
        monitor, order = self.asked()
        found = monitor.feed([trial("root", 100, 1, B20, remediation_id=order)])
        found = monitor.feed([acknowledged(order_id(found, "run_trial_regeneration"), "rejected", 101)])
        assert in_short(found) == []
        assert in_short(monitor.feed([missed("root", "p31", 102)])) == asks(2)

    def test_trials_and_orders_are_counted_at_the_node(self) -> None:
        monitor, order = self.asked()
        found = monitor.feed([trial("root", 100, 1, B20, remediation_id=order), trial("root", 101, 2, props(11, 30))])
        reasons = [one.finding.reason.evidence for one in found if isinstance(one.finding, RemediationRequested)]
        assert [(reason["trials_spent"], reason["orders"]) for reason in reasons] == [(1, 2), (2, 3)]

    def test_two_remedies_of_one_check_that_did_not_help_are_one_publication(self) -> None:
        monitor = Offline()
        for name in ("a", "b"):
            monitor.feed([*tracked(*props(1, 40)), written(name, 1, 1, level=3, retained=props(1, 20), **SHORT)])
            found = monitor.feed([trial(name, 5, 1, props(4, 23))])
            monitor.feed([acknowledged(order_id(found, "rebalance"), "completed", 6)])
        rounds = [completed(number) for number in range(1, 4)]
        assert in_short(monitor.feed(rounds)) == ["raised remediation_ineffective warning saturated"]


class TestVerdictsEnd:
    def saturated(self) -> Offline:
        monitor = Offline()
        monitor.feed([*START, *base(SHORT), trial("root", 100, 1, props(11, 30))])
        return monitor

    def test_by_a_larger_budget_that_suffices(self) -> None:
        commit = written("root", 2, 110, level=3, retained=B20, children=reads(("mid", 2)), **ROOMY)
        found = self.saturated().feed([commit])
        assert in_short(found) == ["resolved saturated recovered root"]

    def test_not_by_a_larger_budget_that_does_not(self) -> None:
        room = {**SHORT, "budget_tokens": 60}
        found = self.saturated().feed([written("root", 2, 110, level=3, retained=B20, children=reads(("mid", 2)), **room)])
        assert in_short(found) == []

    def test_not_by_another_version_without_room(self) -> None:
        assert in_short(self.saturated().feed([written("root", 2, 110, level=3, retained=B20, **SHORT)])) == []

    def test_by_a_split_into_two_nodes_that_are_new(self) -> None:
        monitor = Offline()
        mids = [written(f"mid-{n}", 1, n, level=2, retained=B20) for n in (1, 2)]
        root = written("root", 1, 20, level=3, retained=B20, children=reads("mid-1", "mid-2"), **SHORT)
        monitor.feed([*START, *mids, root, trial("root", 100, 1, props(11, 30))])
        part = written("root-b", 1, 110, level=3, retained=B20, children=reads("mid-2"))
        assert in_short(monitor.feed([part])) == ["resolved saturated recovered root"]

    def test_by_a_stable_verdict(self) -> None:
        monitor = Offline()
        monitor.feed([*START, *base(ROOMY), trial("root", 100, 1, props(11, 30))])
        found = monitor.feed([trial("root", 110, 1, B20)])
        assert in_short(found) == ["resolved unstable recovered root", "withdrawn inspect_children root: resolved"]

    def test_another_verdict_takes_its_place(self) -> None:
        monitor = Offline()
        first = monitor.feed([*START, *base(ROOMY), trial("root", 100, 1, props(11, 30))])
        found = monitor.feed([trial("root", 110, 1, props(1, 40))])
        assert in_short(found) == [
            "resolved unstable superseded root",
            "withdrawn inspect_children root: superseded",
            "raised stale warning root",
            "ordered regenerate_parent root: commit_trial=1 node_id=root",
        ]
        gone, new = found[0].finding, found[2].finding
        assert isinstance(gone, AlertResolved)
        assert gone.superseded_by == new.id != first[0].finding.id

    def test_a_trial_that_cannot_be_judged_ends_nothing(self) -> None:
        monitor = self.saturated()
        assert in_short(monitor.feed([trial("root", 110, 1, B20, before_retained=[])])) == []

    def test_staleness_of_unknown_room_by_the_regeneration_that_recovers(self) -> None:
        monitor = Offline()
        monitor.feed([*START, *base(UNKNOWN), trial("root", 100, 1, props(1, 40))])
        found = monitor.feed([regenerated("root", 110, level=3, version=2, retained=props(1, 40), children=reads(("mid", 2)))])
        assert in_short(found) == ["resolved stale recovered root"]
        assert counted(monitor, "orders_ended") == {("regenerate_parent", "completed"): 1}

    def test_two_nodes_share_an_alert_and_leave_it_one_by_one(self) -> None:
        monitor = Offline()
        found = monitor.feed([*START, *base(SHORT), written("root-2", 1, 21, level=3, retained=B20, **SHORT),
                              trial("root", 100, 1, props(11, 30)), trial("root-2", 101, 1, props(11, 30))])  # fmt: skip
        assert in_short(found)[2] == "raised saturated critical root root-2"
        assert in_short(monitor.feed([written("root", 2, 110, level=3, retained=B20, **ROOMY)])) == []
        assert in_short(monitor.feed([written("root-2", 2, 111, level=3, retained=B20, **ROOMY)])) == [
            "resolved saturated recovered root-2"
        ]


class TestSwitches:
    def test_a_verdict_that_is_off_says_and_orders_nothing(self) -> None:
        monitor = Offline(Rules(default=AgentRules(off=frozenset({"saturated"}))))
        assert in_short(monitor.feed([*START, *base(SHORT), trial("root", 100, 1, props(11, 30))])) == []

    def test_the_operators_severity(self) -> None:
        monitor = Offline(Rules(default=AgentRules(severity={"saturated": Severity.info})))
        found = monitor.feed([*START, *base(SHORT), trial("root", 100, 1, props(11, 30))])
        assert in_short(found)[0] == "raised saturated info root"

    def test_observed_only_trials_are_judged_all_the_same(self) -> None:
        monitor = Offline(Rules(default=AgentRules(observe=True)))
        found = monitor.feed([*START, *base(SHORT), *(trial("root", 100 + n, n, B20) for n in (1, 2, 3))])
        assert in_short(found) == ["raised over_capacity info root"]

    def test_the_twenty_first_node_is_counted(self) -> None:
        monitor = Offline()
        facts: list[Fact] = []
        for n in range(21):
            facts += [written(f"n{n}", 1, 10 + n, level=3, retained=B20, **SHORT), trial(f"n{n}", 50 + n, 1, props(11, 30))]
        found = monitor.feed([*START, *facts])
        assert sum(line.startswith("raised") for line in in_short(found)) == 20
        assert counted(monitor, "findings_dropped") == {("saturated",): 1}
