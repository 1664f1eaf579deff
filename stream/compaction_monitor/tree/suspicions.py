"""Somebody missed a proposition at a node: is it there, was it lost below, is the node suspect, or is this normal?

Source: "How should an instance distinguish checkpoint staleness from summary-space saturation in hierarchical agent
compaction", Condition of Validity and Decision Boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from compaction_events.facts import MAX_COUNT, PropositionMissed
from compaction_events.findings import EscalateToRaw, RunTrialRegeneration, Severity
from compaction_monitor.checks.regeneration import unfit
from compaction_monitor.loop import orders, subjects
from compaction_monitor.loop.step import Step
from compaction_monitor.state.nodes import Node, Tracked, node_name
from compaction_monitor.state.tree import Tree, rewritten

TRIAL: Final = "trial"
"""What an order for a trial is filed under: a suspicion is no alert."""

Decision = Literal["present", "upstream_loss", "trial", "normal_loss", "unknown_node", "unknown_child", "untracked", "late"]


class Loss(NamedTuple):
    """Where a proposition was lost: the level above its nearest holder, or the lowest level when nothing holds it."""

    lost_at_level: int
    nearest_holder: str | None


def missed(step: Step, fact: PropositionMissed) -> None:
    """Decide what a missed proposition means, and act on it."""
    name = node_name(fact.node_id)
    decision = decide(step.tree, name, fact.proposition)
    node = step.tree.node(name)
    place = step.tree.tracked.place(fact.proposition)
    if node is not None and place is not None:
        if _passed(step, node, place):
            decision = "late"
        else:
            node = _noted(step, name, node, place)
    step.count("missed", decision)
    if node is None or place is None:
        return
    if decision == "upstream_loss":
        _upstream_loss(step, name, node, place, fact)
    elif decision == "trial":
        suspect(step, name, node)


def _passed(step: Step, node: Node, place: int) -> bool:
    """It was missed in an older version, or this has been said."""
    said = step.at_us == node.missed_at_us and node.missed_then >> place & 1
    return bool(said) or step.at_us < node.missed_at_us or step.at_us <= node.at_us


def _noted(step: Step, name: str, node: Node, place: int) -> Node:
    then = node.missed_then if step.at_us == node.missed_at_us else 0
    step.tree.changed[name] = node = node._replace(missed_at_us=step.at_us, missed_then=then | 1 << place)
    return node


def decide(tree: Tree, name: str, proposition: str) -> Decision:
    """What it means that a proposition was not found at a node; changes nothing."""
    node = tree.node(name)
    if node is None:
        return "unknown_node"
    place = tree.tracked.place(proposition)
    if place is None:
        return "untracked"
    if node.retained >> place & 1:
        return "present"
    children = tree.children(node)
    if not any(child is not None and child.retained >> place & 1 for _, child in children):
        return "unknown_child" if _unknown_below(node, children) else "upstream_loss"
    if node.room.deficit_bits:
        return "trial"
    return "trial" if _children_newer(tree, node) and _strict_subset(node, children) else "normal_loss"


def _unknown_below(node: Node, children: list[tuple[str, Node | None]]) -> bool:
    """What is under a node is not fully known: a child is not, or none was named though it was written from some."""
    if not children:
        return node.level > 1 and not node.from_raw
    return any(child is None for _, child in children)


def _children_newer(tree: Tree, node: Node) -> bool:
    """A child was rewritten since the node was written: by its versions, where these are not known by its time."""
    by_version = rewritten(tree, node)
    if by_version is not None:
        return by_version
    return any(child is not None and child.at_us > node.at_us for _, child in tree.children(node))


def _strict_subset(node: Node, children: list[tuple[str, Node | None]]) -> bool:
    union = 0
    for _, child in children:
        union |= child.retained if child is not None else 0
    return node.retained | union == union and node.retained != union


def lost_where(tree: Tree, name: str, node: Node, place: int) -> Loss:
    """Where on the way up a proposition got lost."""
    lowest = node.level
    for holder, below in tree.descendants(name, node):
        if below.retained >> place & 1:
            return Loss(min(below.level + 1, MAX_COUNT), holder)
        lowest = min(lowest, below.level)
    return Loss(lowest, None)


def suspect(step: Step, name: str, node: Node) -> None:
    """Ask for a trial, unless one is under way, the node is known to loop, was judged, or cannot be."""
    if looping(step, node) and not _rebalance_done(step, name):
        held = "regeneration_loop"
    elif any(order.check == TRIAL and order.subject == name for order in step.session.orders):
        held = "under_way"
    elif node.judged and not _changed_since(step.tree, node):
        held = "judged"
    else:
        why = unfit(node.before(step.tree.retained(node)), ())
        held = "" if why in (None, "no_trial") else str(why)
    if held:
        step.count("trials_held", held)
    else:
        ask_for_trial(step, name)


def looping(step: Step, node: Node) -> bool:
    """The node is being regenerated in a loop: no more of it until it was rebalanced."""
    return node.unrecovered >= step.rules.loop.loop_regenerations


def _rebalance_done(step: Step, name: str) -> bool:
    """Its controller says so; that lets orders go on, whatever the alert waits for."""
    return any(o.subject == name and o.action == "rebalance" and o.status == "completed" for o in step.session.orders)


def _changed_since(tree: Tree, node: Node) -> bool:
    """A child was written after the node's trials came to a verdict: they may say something else now."""
    return any(child is not None and child.at_us > node.judged_at_us for _, child in tree.children(node))


def ask_for_trial(step: Step, name: str) -> None:
    """Order the next trial, the lowest number not reported yet; the second and third are not held back."""
    node = step.tree.node(name)
    if node is None or step.rules.observe:
        return
    taken = {seen.number for seen in node.trials}
    number = next(number for number in range(1, len(taken) + 2) if number not in taken)
    evidence = {"node_id": name, "level": node.level, "version": node.version, "trials_spent": node.trials_spent}
    plan = RunTrialRegeneration(node_id=name, trial_number=number, trials_max=step.rules.loop.trials_max)
    evidence |= subjects.count_order(step.tree, name)
    orders.request(step, orders.Concern(TRIAL, ""), plan, evidence, name, exempt=bool(taken))


def _upstream_loss(step: Step, name: str, node: Node, place: int, fact: PropositionMissed) -> None:
    tree = step.tree
    entry = tree.tracked.entries[place]
    loss = lost_where(tree, name, node, place)
    severity = Severity.critical if entry.pinned and node.measured else Severity.info
    evidence = {
        "proposition": entry.proposition,
        "node_id": name,
        "turn": entry.turn if entry.stated else None,
        "pinned": entry.pinned,
        "lost_at_level": loss.lost_at_level,
        "nearest_holder": loss.nearest_holder,
        "symptom": fact.symptom.value if fact.symptom else None,
        "complete": tree.complete,
    }
    plan = escalation([entry], name, loss)
    basis = "measured" if node.measured else "inferred"
    alert = subjects.add(step, "upstream_loss", entry.proposition, severity, basis, evidence, plan, node=name)
    if alert is not None:
        missing = {**tree.ledger.missing, entry.proposition: name}
        listed = {proposition: at for proposition, at in missing.items() if proposition in alert.subjects}
        tree.ledger = tree.ledger._replace(missing=listed)


def escalation(entries: Sequence[Tracked], name: str | None, loss: Loss | None = None) -> EscalateToRaw:
    """Back to the raw log for propositions that were missed at a node; and, of one, where on the way up it was lost."""
    return EscalateToRaw(
        what="propositions",
        ids=tuple(entry.proposition for entry in entries),
        span_ids=tuple(dict.fromkeys(entry.span_id for entry in entries if entry.span_id)),
        node_id=name,
        lost_at_level=loss.lost_at_level if loss else None,
        nearest_holder=loss.nearest_holder if loss else None,
    )


def found_again(step: Step, written: str) -> None:
    """A node was committed: losses that it, or the node above it, no longer shows are over."""
    tree = step.tree
    for proposition, name in tree.ledger.missing.items():
        node = tree.node(name)
        place = tree.tracked.place(proposition)
        if node is None or place is None or not (written == name or any(child == written for child, _ in node.children)):
            continue
        held = [node, *(child for _, child in tree.children(node) if child is not None)]
        if any(found.retained >> place & 1 for found in held):
            missing = {other: at for other, at in tree.ledger.missing.items() if other != proposition}
            tree.ledger = tree.ledger._replace(missing=missing)
            subjects.drop(step, "upstream_loss", proposition, {"proposition": proposition, "node_id": name})
