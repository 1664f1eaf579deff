"""Checkpoint facts into the tree: what is tracked, what was written, what is forgotten for room."""

from __future__ import annotations

from dataclasses import replace

from compaction_events.facts import CheckpointRegenerated, CheckpointWritten
from compaction_monitor import subjects, suspicions, tree_checks
from compaction_monitor.state import microseconds
from compaction_monitor.step import Step
from compaction_monitor.tracking import track, unstated
from compaction_monitor.tree import FORGET_NODES, MAX_NODES, Node, Tree, kept_children, short
from compaction_monitor.trials import VERDICTS, close_trial_orders


def written(step: Step, fact: CheckpointWritten | CheckpointRegenerated) -> None:
    """A checkpoint was written, or regenerated and committed."""
    assert fact.version is not None
    tree = step.tree
    at_us = microseconds(fact.written_at if isinstance(fact, CheckpointWritten) else fact.at)
    name = short(fact.node_id)
    old = tree.node(name)
    if old is not None and (at_us, fact.version) <= (old.at_us, old.version):
        step.count("facts", fact.type, "late" if at_us < old.at_us else "duplicate")
        return
    track(step, unstated(step, fact.retained))
    node = _committed(tree, fact, fact.version, at_us, old)
    tree.changed[name] = node
    step.session.commits += 1
    step.session.has_tree = True
    step.count("facts", fact.type, "new")
    if node.level >= tree.ledger.root_level and tree.ledger.root != name:
        tree.ledger = replace(tree.ledger, root=name, root_level=node.level)
    if old is None:
        _make_room(step)
    else:
        close_trial_orders(step, name)
        if _rebalanced(old, node):
            node = tree.changed[name] = replace(node, unrecovered=0, flipped=0, flipped_back=0)
            subjects.drop(step, "regeneration_loop", name, {"node_id": name, "rebalanced": True})
        if isinstance(fact, CheckpointRegenerated):
            before = old.retained if fact.before_retained is None else tree.mask(fact.before_retained)
            tree_checks.count_regeneration(step, name, node, before)
        node = tree.node(name) or node
    if node.deficit_bits == 0:
        for verdict in VERDICTS:
            subjects.drop(step, verdict, name, {"node_id": name, "version": node.version})
    suspicions.found_again(step, name)
    tree_checks.check_silent_loss(step, name, old)


def _committed(tree: Tree, fact: CheckpointWritten | CheckpointRegenerated, version: int, at_us: int, old: Node | None) -> Node:
    base = old or Node(level=fact.level, version=version, at_us=at_us)
    children = kept_children(fact.children)
    told = fact.child_joint_entropy_bits is not None
    if not told and children != base.children:
        base = replace(base, joint_bits=None, redundancy=None)  # it was of other children
    return replace(
        base,
        level=fact.level,
        version=version,
        at_us=at_us,
        parent_id=short(fact.parent_id) if fact.parent_id else base.parent_id,
        children=children,
        retained=tree.mask(fact.retained),
        from_raw=fact.sources == "raw",
        measured=fact.basis == "measured",
        budget_tokens=fact.budget_tokens if fact.budget_tokens is not None else base.budget_tokens,
        joint_bits=fact.child_joint_entropy_bits if told else base.joint_bits,
        redundancy=fact.child_redundancy if told else base.redundancy,
        bits_per_token=fact.bits_per_token if fact.bits_per_token is not None else base.bits_per_token,
        turns=(fact.turns.first, fact.turns.last) if fact.turns else base.turns,
        trials=(),
        trials_asked=0,
    )


def _rebalanced(old: Node, new: Node) -> bool:
    """It got a larger budget, or was divided: some of its children are another's now, and no new ones its own."""
    if old.budget_tokens is not None and new.budget_tokens is not None and new.budget_tokens > old.budget_tokens:
        return True
    before, after = {child for child, _ in old.children}, {child for child, _ in new.children}
    return bool(after) and after < before


def _make_room(step: Step) -> None:
    """One node more; when there are too many, the oldest leaves are forgotten, a portion at once."""
    tree = step.tree
    ledger = tree.ledger
    tree.ledger = replace(ledger, nodes=ledger.nodes + 1)
    if ledger.nodes + 1 <= MAX_NODES:
        return
    known = {name: node for name, node in tree.rows.nodes() if name not in tree.changed}
    oldest = sorted(known, key=lambda name: (known[name].level, known[name].at_us, name))[:FORGET_NODES]
    for name in oldest:
        tree.changed[name] = None
    tree.ledger = replace(tree.ledger, nodes=len(known) + 1 - len(oldest), forgotten=ledger.forgotten + len(oldest))
    step.count("nodes_forgotten")
