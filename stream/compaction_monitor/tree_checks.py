"""The checks on a committed checkpoint: is it regenerated in a loop, and did those below it lose what it never saw?"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from compaction_events.findings import Severity, StopRegenerating
from compaction_monitor import orders, subjects
from compaction_monitor.rebalancing import rebalance
from compaction_monitor.regeneration import recovered
from compaction_monitor.retention import Trial, measure
from compaction_monitor.step import Step
from compaction_monitor.tree import Node

MAX_ANCESTORS: Final = 16


def count_regeneration(step: Step, name: str, node: Node, before: int) -> None:
    """Two committed regenerations of a node without recovery, and no rebalance between them: a loop."""
    tree = step.tree
    retained = frozenset(tree.names(before))
    if not retained:
        return
    if recovered(measure(retained, [Trial(frozenset(tree.names(node.retained)))])):
        tree.changed[name] = replace(node, unrecovered=0, flipped=0, flipped_back=0)
        subjects.drop(step, "regeneration_loop", name, {"node_id": name, "recovered": True})
        return
    changed = before ^ node.retained
    node = tree.changed[name] = replace(
        node,
        unrecovered=node.unrecovered + 1,
        flipped=node.flipped | changed,
        flipped_back=node.flipped_back | (node.flipped & changed),
    )
    if node.unrecovered >= step.rules.loop.loop_regenerations:
        _raise_loop(step, name, node)


def _raise_loop(step: Step, name: str, node: Node) -> None:
    tree = step.tree
    both_ways = list(tree.names(node.flipped_back))
    oscillating = tuple(dict.fromkeys([*both_ways, *tree.names(node.flipped)]))[:20]
    evidence = {
        "node_id": name,
        "level": node.level,
        "version": node.version,
        "regenerations": node.unrecovered,
        "oscillating": list(oscillating),
        "back_and_forth": len(both_ways),
        "orders": node.orders,
    }
    basis = "measured" if node.measured else "inferred"
    severity = Severity.critical if node.measured else Severity.warning
    stop = StopRegenerating(node_id=name, oscillating=oscillating)
    alert = subjects.add(step, "regeneration_loop", name, severity, basis, evidence, stop, exempt=True)
    wanted = any(order.action == "rebalance" and order.subject == name for order in step.session.orders)
    if alert is not None and not wanted and not step.rules.observe:
        concern = orders.Concern("regeneration_loop", alert.id)
        orders.request(step, concern, rebalance(tree, name, node), evidence, name, beside=True)


def check_silent_loss(step: Step, name: str, old: Node | None) -> None:
    """Look at this node, and at those above it if its own deficit may have changed."""
    tree = step.tree
    node = tree.node(name)
    assert node is not None
    if node.children:
        _silent_composed_loss(step, name, node)
    if not node.deficit_bits and not (old and old.deficit_bits):
        return
    above = node.parent_id
    for _ in range(MAX_ANCESTORS):
        parent = tree.node(above) if above else None
        if above is None or parent is None:
            return
        _silent_composed_loss(step, above, parent)
        above = parent.parent_id


def _silent_composed_loss(step: Step, name: str, node: Node) -> None:
    """A node whose own books balance over descendants that lost what it never saw."""
    check = "silent_composed_loss"
    if node.deficit_bits is None or node.entropy_bits is None:
        step.count("checks_skipped", check, "capacity_unknown")
        return
    tree = step.tree
    below = [(child, found) for child, found in tree.descendants(node) if found.deficit_bits]
    lost = sum(found.deficit_bits or 0.0 for _, found in below)
    composed = node.entropy_bits + lost
    if node.deficit_bits > 0 or lost <= step.rules.thresholds.composed_loss_ratio * composed:
        subjects.drop(step, check, name, {"node_id": name, "lost_bits": round(lost, 3)})
        return
    worst, worst_node = max(below, key=lambda entry: (entry[1].deficit_bits or 0.0, entry[0]))
    measured = node.measured and all(found.measured for _, found in below)
    evidence = {
        "node_id": name,
        "level": node.level,
        "effective_entropy_bits": node.entropy_bits,
        "lost_bits": round(lost, 3),
        "lost_ratio": round(lost / composed, 4),
        "composed_loss_ratio": step.rules.thresholds.composed_loss_ratio,
        "descendants_short": len(below),
        "worst": worst,
        "worst_deficit_bits": worst_node.deficit_bits,
        "complete": not tree.ledger.forgotten,
    }
    severity = Severity.critical if measured else Severity.warning
    basis = "measured" if measured else "inferred"
    plan = rebalance(tree, worst, worst_node)
    subjects.add(step, check, name, severity, basis, evidence, plan, order_subject=worst)
