"""Pinned propositions against what a working set still states after a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from compaction_events.facts import RoundCompleted
from compaction_events.findings import MAX_SUBJECTS, Plan, Severity
from compaction_monitor.loop import orders, subjects
from compaction_monitor.loop.step import Step
from compaction_monitor.state.nodes import Node, Tracked
from compaction_monitor.state.tree import Tree
from compaction_monitor.tree.suspicions import decide, escalation, lost_where, suspect

CHECK: Final = "constraint_lost"
_IN_NO_CHILD: Final = ("upstream_loss", "unknown_child")


def constraint_lost(step: Step, event: RoundCompleted) -> None:
    """A pinned proposition is stated by nothing in the set after a pass; decided as if it was missed at the root.

    What one pass lost is one publication and one order. That order is for all that are lost, so it takes the place of
    the one before it.
    """
    if CHECK in step.rules.off:
        return
    if event.propositions_retained is None:
        step.count("checks_skipped", CHECK, "no_propositions")
        return
    tracked = step.tree.tracked
    pinned = [entry for entry in tracked.entries if entry.pinned] if step.session.has_tree else []
    retained = tracked.mask(event.propositions_retained) if pinned else 0
    lost = [entry for entry in pinned if not retained >> tracked.places[entry.proposition] & 1]
    _found_again(step, event, lost, len(pinned))
    if lost and event.cause == "compaction":
        _lost(step, event, lost, len(pinned))


def _found_again(step: Step, event: RoundCompleted, lost: Sequence[Tracked], pinned: int) -> None:
    alert = step.session.alert(CHECK)
    gone = {entry.proposition for entry in lost}
    back = [proposition for proposition in alert.subjects if proposition not in gone] if alert else []
    for proposition in back:
        evidence = {"proposition": proposition, "round": event.round, "lost": len(lost), "pinned": pinned}
        subjects.drop(step, CHECK, proposition, evidence)
    alert = step.session.alert(CHECK)
    if back and alert is not None and _reclaim(step.tree, _of(lost, alert.subjects)) is None:
        orders.subject_closed(step, alert, "", "recovered")


def _lost(step: Step, event: RoundCompleted, lost: Sequence[Tracked], pinned: int) -> None:
    alert = step.session.alert(CHECK)
    listed = alert.subjects if alert else ()
    new = [entry for entry in lost if entry.proposition not in listed]
    fitting = new[: MAX_SUBJECTS - len(listed)]
    asks = [entry for entry in fitting if _asks_for_raw(step, entry)]
    first = (fitting or lost)[0]
    evidence = {
        "proposition": first.proposition,
        "turn": first.turn,
        "round": event.round,
        "lost": len(lost),
        "pinned": pinned,
    }
    severity = Severity.critical if event.basis == "measured" else Severity.warning
    plan = _reclaim(step.tree, [*_of(lost, listed), *fitting]) if asks else None
    names = [entry.proposition for entry in new or lost]
    subjects.add(step, CHECK, names, severity, event.basis.value, evidence, plan, order_subject="")


def _asks_for_raw(step: Step, entry: Tracked) -> bool:
    """Decide what one more loss means; where it is a matter of a trial, ask for that."""
    root = _root(step.tree)
    if root is None:
        return True
    decision = decide(step.tree, root[0], entry.proposition)
    step.count("missed", decision)
    if decision == "trial":
        suspect(step, *root)
    return decision in _IN_NO_CHILD


def _reclaim(tree: Tree, lost: Sequence[Tracked]) -> Plan | None:
    """The order that brings lost constraints back; None where all of them are still in the tree."""
    root = _root(tree)
    if root is None:
        return escalation(lost, None)
    name, node = root
    wanted = [entry for entry in lost if decide(tree, name, entry.proposition) in _IN_NO_CHILD]
    if not wanted:
        return None
    place = tree.tracked.places[wanted[0].proposition]
    return escalation(wanted, name, lost_where(tree, name, node, place) if len(wanted) == 1 else None)


def _of(entries: Sequence[Tracked], propositions: Sequence[str]) -> list[Tracked]:
    return [entry for entry in entries if entry.proposition in propositions]


def _root(tree: Tree) -> tuple[str, Node] | None:
    name = tree.ledger.root
    node = tree.node(name) if name else None
    return None if name is None or node is None else (name, node)
