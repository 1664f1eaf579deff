"""Somebody missed a proposition at a node: is it there, was it lost below, is the node suspect, or is this normal?

Source: "How should an instance distinguish checkpoint staleness from summary-space saturation in hierarchical agent
compaction", Condition of Validity and Decision Boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple

from compaction_events.facts import PropositionMissed, RoundCompleted
from compaction_events.findings import EscalateToRaw, Plan, RunTrialRegeneration, Severity
from compaction_monitor import orders, subjects
from compaction_monitor.regeneration import unfit
from compaction_monitor.step import Step
from compaction_monitor.tree import Node, Tracked, Tree, short

TRIAL: Final = "trial"
"""What an order for a trial is filed under: a suspicion is no alert."""

Decision = Literal["present", "upstream_loss", "trial", "normal_loss", "unknown_node", "unknown_child", "untracked"]


class Loss(NamedTuple):
    """Where a proposition was lost: the level above its nearest holder, or the lowest level when nothing holds it."""

    lost_at_level: int
    nearest_holder: str | None


def missed(step: Step, fact: PropositionMissed) -> None:
    """Decide what a missed proposition means, and act on it."""
    name = short(fact.node_id)
    decision = decide(step.tree, name, fact.proposition)
    step.count("missed", decision)
    node = step.tree.node(name)
    if node is None:
        return
    if decision == "upstream_loss":
        _upstream_loss(step, name, node, fact)
    elif decision == "trial":
        suspect(step, name, node)


def constraint_lost(step: Step, event: RoundCompleted) -> None:
    """A pinned proposition is stated by nothing in the set after a pass; decided as if it was missed at the root."""
    check = "constraint_lost"
    if event.propositions_retained is None:
        step.count("checks_skipped", check, "no_propositions")
        return
    pinned = [entry for entry in step.tree.ledger.tracked if entry.pinned] if step.session.has_tree else []
    retained = {short(proposition) for proposition in event.propositions_retained}
    for entry in pinned:
        evidence = {"proposition": entry.proposition, "turn": entry.turn, "round": event.round, "pinned": len(pinned)}
        if entry.proposition in retained:
            subjects.drop(step, check, entry.proposition, evidence)
        elif event.cause == "compaction":
            measured = event.basis == "measured"
            severity = Severity.critical if measured else Severity.warning
            plan = _reclaim(step, entry)
            subjects.add(step, check, entry.proposition, severity, event.basis, evidence, plan)


def _reclaim(step: Step, entry: Tracked) -> Plan | None:
    """The order that brings a lost constraint back; None where it is a matter of a trial, or still in the tree."""
    root = step.tree.ledger.root
    node = step.tree.node(root) if root else None
    if root is None or node is None:
        return EscalateToRaw(what="propositions", ids=(entry.proposition,), span_id=entry.span_id or None)
    decision = decide(step.tree, root, entry.proposition)
    step.count("missed", decision)
    if decision == "trial":
        suspect(step, root, node)
    if decision not in ("upstream_loss", "unknown_child"):
        return None
    return _escalation(step.tree, root, node, entry)


def decide(tree: Tree, name: str, proposition: str) -> Decision:
    """What it means that a proposition was not found at a node; changes nothing."""
    node = tree.node(name)
    if node is None:
        return "unknown_node"
    place = tree.bit(proposition)
    if place is None:
        return "untracked"
    if node.retained >> place & 1:
        return "present"
    children = tree.children(node)
    if not any(child is not None and child.retained >> place & 1 for _, child in children):
        return "unknown_child" if any(child is None for _, child in children) else "upstream_loss"
    if node.deficit_bits:
        return "trial"
    below = [child for _, child in children if child is not None]
    return "trial" if _rewritten(node, children) and _strict_subset(node, below) else "normal_loss"


def _rewritten(node: Node, children: Sequence[tuple[str, Node | None]]) -> bool:
    return any(child is not None and child.at_us > node.at_us for _, child in children)


def _strict_subset(node: Node, children: Sequence[Node]) -> bool:
    union = 0
    for child in children:
        union |= child.retained
    return node.retained | union == union and node.retained != union


def lost_where(tree: Tree, node: Node, place: int) -> Loss:
    """Where on the way up a proposition got lost."""
    lowest = node.level
    for name, below in tree.descendants(node):
        if below.retained >> place & 1:
            return Loss(below.level + 1, name)
        lowest = min(lowest, below.level)
    return Loss(lowest, None)


def suspect(step: Step, name: str, node: Node) -> None:
    """Ask for a first trial, unless one is under way, the node is known to loop, or cannot be judged."""
    if looping(step, name):
        step.count("trials_held", "regeneration_loop")
    elif node.trials_asked and any(o.check == TRIAL and o.subject == name for o in step.session.orders):
        step.count("trials_held", "under_way")
    elif (why := unfit(node.before(frozenset(step.tree.names(node.retained))), ())) not in (None, "no_trial"):
        step.count("trials_held", str(why))
    else:
        step.tree.changed[name] = replace(node, trials=())
        ask_for_trial(step, name, 1)


def looping(step: Step, name: str) -> bool:
    """The node is being regenerated in a loop: no more of it until it was rebalanced."""
    loop = step.session.alert("regeneration_loop")
    return loop is not None and name in loop.subjects


def ask_for_trial(step: Step, name: str, number: int) -> None:
    """Order a trial; the second and third are not held back."""
    node = step.tree.node(name)
    if node is None or step.rules.observe:
        return
    step.tree.changed[name] = replace(node, trials_asked=number, orders=node.orders + 1)
    plan = RunTrialRegeneration(node_id=name, trial_number=number, trials_max=step.rules.loop.trials_max)
    evidence = {"node_id": name, "level": node.level, "version": node.version, "trials_spent": node.trials_spent}
    orders.request(step, orders.Concern(TRIAL, ""), plan, evidence, name, exempt=number > 1)


def _upstream_loss(step: Step, name: str, node: Node, fact: PropositionMissed) -> None:
    tree = step.tree
    place = tree.bit(fact.proposition)
    assert place is not None
    entry = tree.ledger.tracked[place]
    loss = lost_where(tree, node, place)
    severity = Severity.critical if entry.pinned and node.measured else Severity.info
    evidence = {
        "proposition": entry.proposition,
        "node_id": name,
        "turn": entry.turn if entry.stated else None,
        "pinned": entry.pinned,
        "lost_at_level": loss.lost_at_level,
        "nearest_holder": loss.nearest_holder,
        "symptom": fact.symptom.value if fact.symptom else None,
        "complete": not tree.ledger.forgotten,
    }
    plan = _escalation(tree, name, node, entry)
    basis = "measured" if node.measured else "inferred"
    alert = subjects.add(step, "upstream_loss", entry.proposition, severity, basis, evidence, plan)
    if alert is not None:
        missing = tuple(dict.fromkeys([*tree.ledger.missing, (entry.proposition, name)]))
        tree.ledger = replace(tree.ledger, missing=missing[-64:])


def _escalation(tree: Tree, name: str, node: Node, entry: Tracked) -> EscalateToRaw:
    place = tree.bit(entry.proposition)
    assert place is not None
    loss = lost_where(tree, node, place)
    return EscalateToRaw(
        what="propositions",
        ids=(entry.proposition,),
        span_id=entry.span_id or None,
        node_id=name,
        lost_at_level=loss.lost_at_level,
        nearest_holder=loss.nearest_holder,
    )


def found_again(step: Step, written: str) -> None:
    """A node was committed: losses that it, or the node above it, no longer shows are over."""
    tree = step.tree
    for proposition, name in tree.ledger.missing:
        node = tree.node(name)
        place = tree.bit(proposition)
        if node is None or place is None or not (written == name or any(child == written for child, _ in node.children)):
            continue
        held = [node, *(child for _, child in tree.children(node) if child is not None)]
        if any(found.retained >> place & 1 for found in held):
            tree.ledger = replace(tree.ledger, missing=tuple(e for e in tree.ledger.missing if e != (proposition, name)))
            if all(other != proposition for other, _ in tree.ledger.missing):
                subjects.drop(step, "upstream_loss", proposition, {"proposition": proposition, "node_id": name})
