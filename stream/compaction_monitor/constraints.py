"""Pinned propositions against what a working set still states after a pass."""

from __future__ import annotations

from compaction_events.facts import RoundCompleted
from compaction_events.findings import EscalateToRaw, Plan, Severity
from compaction_monitor import subjects
from compaction_monitor.step import Step
from compaction_monitor.suspicions import decide, escalation, lost_where, suspect
from compaction_monitor.tree_rows import Tracked


def constraint_lost(step: Step, event: RoundCompleted) -> None:
    """A pinned proposition is stated by nothing in the set after a pass; decided as if it was missed at the root."""
    check = "constraint_lost"
    if check in step.rules.off:
        return
    if event.propositions_retained is None:
        step.count("checks_skipped", check, "no_propositions")
        return
    alert = step.session.alert(check)
    lost_before = alert.subjects if alert else ()
    pinned = [entry for entry in step.tree.tracked.entries if entry.pinned] if step.session.has_tree else []
    retained = step.tree.tracked.mask(event.propositions_retained) if pinned else 0
    for entry in pinned:
        held = retained >> step.tree.tracked.places[entry.proposition] & 1
        if held and entry.proposition not in lost_before:
            continue
        evidence = {"proposition": entry.proposition, "turn": entry.turn, "round": event.round, "pinned": len(pinned)}
        if held:
            subjects.drop(step, check, entry.proposition, evidence)
        elif event.cause == "compaction":
            severity = Severity.critical if event.basis == "measured" else Severity.warning
            plan = None if entry.proposition in lost_before else _reclaim(step, entry)
            subjects.add(step, check, entry.proposition, severity, event.basis.value, evidence, plan)


def _reclaim(step: Step, entry: Tracked) -> Plan | None:
    """The order that brings a lost constraint back; None where it is a matter of a trial, or still in the tree."""
    tree = step.tree
    root = tree.ledger.root
    node = tree.node(root) if root else None
    if root is None or node is None:
        return EscalateToRaw(what="propositions", ids=(entry.proposition,), span_id=entry.span_id or None)
    decision = decide(tree, root, entry.proposition)
    step.count("missed", decision)
    if decision == "trial":
        suspect(step, root, node)
    if decision not in ("upstream_loss", "unknown_child"):
        return None
    place = tree.tracked.place(entry.proposition)
    assert place is not None
    return escalation(root, entry, lost_where(tree, root, node, place))
