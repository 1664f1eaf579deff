"""The checks on a committed checkpoint: is it regenerated in a loop, and did those below it lose what it never saw?"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from compaction_events.findings import Action, Severity, StopRegenerating
from compaction_monitor.checks.regeneration import recovered
from compaction_monitor.loop import orders, subjects
from compaction_monitor.loop.rebalancing import rebalance
from compaction_monitor.loop.step import Step
from compaction_monitor.state.nodes import Node
from compaction_monitor.state.retention import Trial, effective_entropy_bits, exact, measure
from compaction_monitor.tree.suspicions import looping

MAX_ANCESTORS: Final = 16
MAX_OSCILLATING: Final = 20
_SURELY_EQUAL: Final = 1e-9


def count_regeneration(step: Step, name: str, node: Node, before: int) -> bool:
    """Two committed regenerations of a node without recovery, and no rebalance between them: a loop.

    Args:
        before: What the version before retained, as a mask; of nothing nothing is said.

    Returns:
        Whether it recovered.
    """
    tree = step.tree
    if not before:
        return False
    trial = Trial(tree.retained(node))
    if recovered(measure(frozenset(tree.tracked.names(before)), [trial])):
        tree.changed[name] = node._replace(unrecovered=0, flipped=0, flipped_back=0)
        subjects.drop(step, "regeneration_loop", name, {"node_id": name, "recovered": True})
        return True
    changed = before ^ node.retained
    node = tree.changed[name] = node._replace(
        unrecovered=node.unrecovered + 1,
        flipped=node.flipped | changed,
        flipped_back=node.flipped_back | (node.flipped & changed),
    )
    if looping(step, node):
        _raise_loop(step, name, node)
    return False


def _raise_loop(step: Step, name: str, node: Node) -> None:
    tree = step.tree
    both_ways = list(tree.tracked.names(node.flipped_back))
    oscillating = tuple(dict.fromkeys([*both_ways, *tree.tracked.names(node.flipped)]))[:MAX_OSCILLATING]
    evidence = {
        "node_id": name,
        "level": node.level,
        "version": node.version,
        "regenerations": node.unrecovered,
        "oscillating": list(oscillating),
        "back_and_forth": len(both_ways),
        "complete": tree.complete,
    }
    basis = "measured" if node.measured else "inferred"
    severity = Severity.critical if node.measured else Severity.warning
    stop = StopRegenerating(node_id=name, oscillating=oscillating)
    for order in step.session.orders:  # for good: until the node was rebalanced, none may come again
        if order.subject == name and order.action == Action.regenerate_parent.value:
            orders.withdraw(step, order, "contradicted")
    alert = subjects.add(step, "regeneration_loop", name, severity, basis, evidence, stop, exempt=True)
    wanted = any(order.action == "rebalance" and order.subject == name for order in step.session.orders)
    if alert is not None and not wanted and not step.rules.observe:
        concern = orders.Concern("regeneration_loop", alert.id)
        given = subjects.count_order(tree, name)
        orders.request(step, concern, rebalance(tree, name, node), {**evidence, **given}, name, beside=True)


def check_silent_loss(step: Step, name: str, old: Node | None) -> None:
    """Look at this node, and at those above it if its own deficit may have changed."""
    tree = step.tree
    node = tree.node(name)
    if node is None or "silent_composed_loss" in step.rules.off:
        return
    alert = step.session.alert("silent_composed_loss")
    if alert is not None and node.room.deficit_bits == 0:  # it has room: whatever it was about, nobody need give it any
        orders.subject_closed(step, alert, name, "recovered")
    if node.children:
        _silent_composed_loss(step, name, node)
    if not node.room.deficit_bits and not (old and old.room.deficit_bits):
        return
    seen = {name}
    above = node.parent_id
    while above is not None and above not in seen and len(seen) <= MAX_ANCESTORS:
        seen.add(above)
        parent = tree.node(above)
        if parent is None:
            return
        _silent_composed_loss(step, above, parent)
        above = parent.parent_id


def _silent_composed_loss(step: Step, name: str, node: Node) -> None:
    """A node whose own books balance over descendants that lost what it never saw."""
    check = "silent_composed_loss"
    if node.room.deficit_bits is None or node.room.entropy_bits is None:
        step.count("checks_skipped", check, "capacity_unknown")
        return
    tree = step.tree
    below = [(child, found) for child, found in tree.descendants(name, node) if found.room.deficit_bits]
    lost = sum(found.room.deficit_bits or 0.0 for _, found in below)
    if node.room.deficit_bits > 0 or not _exceeds(step, node, [found for _, found in below], lost):
        subjects.drop(step, check, name, {"node_id": name, "lost_bits": round(lost, 3)})
        return
    worst, worst_node = max(below, key=lambda entry: (entry[1].room.deficit_bits or 0.0, entry[0]))
    measured = node.measured and all(found.measured for _, found in below)
    evidence = {
        "node_id": name,
        "level": node.level,
        "effective_entropy_bits": round(node.room.entropy_bits, 3),
        "lost_bits": round(lost, 3),
        "lost_ratio": round(lost / (node.room.entropy_bits + lost), 4),
        "composed_loss_ratio": step.rules.thresholds.composed_loss_ratio,
        "descendants_short": len(below),
        "worst": worst,
        "worst_deficit_bits": round(worst_node.room.deficit_bits or 0.0, 3),
        "complete": tree.complete,
    }
    severity = Severity.critical if measured else Severity.warning
    basis = "measured" if measured else "inferred"
    plan = rebalance(tree, worst, worst_node)
    subjects.add(step, check, name, severity, basis, evidence, plan, order_subject=worst)


def _exceeds(step: Step, node: Node, below: Sequence[Node], lost: float) -> bool:
    """Whether the deficits below are more than their share of the composed entropy; exact where it is close."""
    ratio = step.rules.thresholds.composed_loss_ratio
    composed = (node.room.entropy_bits or 0.0) + lost
    if abs(lost - ratio * composed) > _SURELY_EQUAL * composed:
        return lost > ratio * composed
    exactly = sum((_deficit(found) for found in below), Fraction(0))
    own = effective_entropy_bits(node.joint_bits, node.redundancy)
    assert own is not None
    return exactly > exact(ratio) * (own + exactly)


def _deficit(node: Node) -> Fraction:
    need = effective_entropy_bits(node.joint_bits, node.redundancy)
    assert need is not None and node.budget_tokens is not None and node.bits_per_token is not None
    return need - node.budget_tokens * exact(node.bits_per_token)
