"""What is forgotten of a tree for room: the oldest nodes without known children, a portion at once.

So whole branches go from their leaves upwards, the oldest first. What is forgotten is counted, findings about it are
closed, and what rests on the tree says `complete: false` from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from compaction_monitor.loop import orders, subjects
from compaction_monitor.loop.step import Step
from compaction_monitor.state.nodes import Node

MAX_NODES: Final = 4_096
FORGET_NODES: Final = 1_024  # at once: finding the oldest reads every node


def make_room(step: Step, new: str) -> None:
    """One node more; when there are too many, the oldest are forgotten, never the new one."""
    tree = step.tree
    ledger = tree.ledger
    tree.ledger = ledger._replace(nodes=ledger.nodes + 1)
    if ledger.nodes < MAX_NODES:
        return
    known = tree.nodes()
    gone = [name for name in oldest(known, FORGET_NODES + 1) if name != new][:FORGET_NODES]
    for name in gone:
        tree.changed[name] = None
    root_gone = ledger.root in gone
    tree.ledger = ledger._replace(
        nodes=len(known) - len(gone),
        forgotten=ledger.forgotten + len(gone),
        horizon_us=max(ledger.horizon_us, *(known[name].at_us for name in gone)),
        root=None if root_gone else ledger.root,
        root_level=0 if root_gone else ledger.root_level,
        missing={proposition: name for proposition, name in ledger.missing.items() if name not in gone},
    )
    step.counted += [("nodes_forgotten",)] * len(gone)
    _close(step, set(gone), [proposition for proposition, name in ledger.missing.items() if name in gone])


def oldest(nodes: Mapping[str, Node], count: int) -> list[str]:
    """The oldest nodes that have no known children, each time one is gone; of a ring without leaves, the oldest."""
    parents: dict[str, list[str]] = {}
    below: Counter[str] = Counter()
    for name, node in nodes.items():
        for child in {child for child, _ in node.children if child in nodes and child != name}:
            parents.setdefault(child, []).append(name)
            below[name] += 1
    leaves = [(node.at_us, node.level, name) for name, node in nodes.items() if not below[name]]
    heapify(leaves)
    gone: dict[str, None] = {}
    while leaves and len(gone) < count:
        _, _, name = heappop(leaves)
        gone[name] = None
        for parent in parents.get(name, ()):
            below[parent] -= 1
            if not below[parent]:
                heappush(leaves, (nodes[parent].at_us, nodes[parent].level, parent))
    ring = sorted((node.at_us, node.level, name) for name, node in nodes.items() if name not in gone)
    return [*gone, *(name for _, _, name in ring[: count - len(gone)])]


def _close(step: Step, nodes: set[str], propositions: list[str]) -> None:
    for alert in step.session.alerts:
        about = propositions if alert.check == "upstream_loss" else nodes if alert.check in subjects.ABOUT_NODES else ()
        for subject in (subject for subject in alert.subjects if subject in about):
            subjects.drop(step, alert.check, subject, {"forgotten": True}, because="expired")
    for order in step.session.orders:
        if not order.alert_id and order.subject in nodes:
            orders.withdraw(step, order, "expired")
