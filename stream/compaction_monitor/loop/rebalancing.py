"""The costed ways to give a node of a session's tree the room it needs."""

from __future__ import annotations

from collections.abc import Iterator

from compaction_events.findings import Rebalance
from compaction_monitor.checks.plans import needed_tokens, plan_rebalance
from compaction_monitor.state.nodes import Node
from compaction_monitor.state.tree import Tree


def rebalance(tree: Tree, name: str, node: Node, keep_trial: int | None = None) -> Rebalance:
    """The costed ways to give a node room; siblings are the other children of its parent."""
    needed = needed_tokens(node.joint_bits, node.redundancy, node.bits_per_token)
    return plan_rebalance(name, node.budget_tokens, needed, list(_siblings(tree, name, node)), keep_trial)


def _siblings(tree: Tree, name: str, node: Node) -> Iterator[tuple[str, int]]:
    parent = tree.node(node.parent_id) if node.parent_id else None
    for sibling, found in tree.children(parent) if parent else ():
        if sibling == name or found is None or found.budget_tokens is None:
            continue
        needed = needed_tokens(found.joint_bits, found.redundancy, found.bits_per_token)
        if needed is not None and needed < found.budget_tokens:
            yield sibling, found.budget_tokens - needed
