"""Checkpoint facts into the tree: what was written, what that is compared with, and what it puts an end to."""

from __future__ import annotations

from compaction_events.facts import CheckpointRegenerated, CheckpointWritten
from compaction_monitor.loop import orders, subjects
from compaction_monitor.loop.step import Step
from compaction_monitor.state.nodes import Node, Room, node_name
from compaction_monitor.state.tree import Tree, kept_children
from compaction_monitor.tree import checks as tree_checks
from compaction_monitor.tree import forgetting, suspicions
from compaction_monitor.tree.tracking import track_retained
from compaction_monitor.tree.trials import VERDICTS, close_trial_orders

Committed = CheckpointWritten | CheckpointRegenerated


def written(step: Step, fact: Committed) -> None:
    """A checkpoint was written, or regenerated and committed."""
    tree = step.tree
    name = node_name(fact.node_id)
    old = tree.node(name)
    explicit = fact.before_retained if isinstance(fact, CheckpointRegenerated) else None
    if old is None and step.at_us <= tree.ledger.horizon_us:
        step.count("facts", fact.type, "forgotten")
        return
    if old is not None and (why := _passed(step, fact, old)):
        step.count("facts", fact.type, why)
        return
    track_retained(step, (*fact.retained, *(explicit or ())))
    node = tree.changed[name] = _committed(step, fact, old)
    step.session.commits += 1
    step.session.has_tree = True
    step.count("facts", fact.type, "new")
    if node.level >= tree.ledger.root_level and tree.ledger.root != name:
        tree.ledger = tree.ledger._replace(root=name, root_level=node.level)
    _adopt(step, name, node, new=old is None)
    if old is None:
        forgetting.make_room(step, name)
    before = tree.tracked.mask(explicit) if explicit is not None else old.retained if old else 0
    _compare(step, name, old, before, regenerated=isinstance(fact, CheckpointRegenerated))
    suspicions.found_again(step, name)
    tree_checks.check_silent_loss(step, name, old)


def _passed(step: Step, fact: Committed, old: Node) -> str:
    """Why this is no news: `late`, `duplicate`, empty if it is."""
    assert fact.version is not None
    if step.at_us < old.at_us:
        return "late"
    if step.at_us == old.at_us and fact.version <= old.version:
        return "duplicate"
    if fact.version != old.version:
        return ""
    # A time that was ahead is taken back, and a repeat of it less far: then the version and what it holds tell.
    same = (kept_children(fact.children), step.tree.tracked.mask(fact.retained)) == (old.children, old.retained)
    return "duplicate" if same and fact.level == old.level else ""


def _committed(step: Step, fact: Committed, old: Node | None) -> Node:
    assert fact.version is not None
    base = old or Node(level=fact.level, version=fact.version, at_us=step.at_us)
    children = kept_children(fact.children)
    joint, redundancy = fact.child_joint_entropy_bits, fact.child_redundancy
    if joint is None and children == base.children:  # otherwise what was known is of other children
        joint, redundancy = base.joint_bits, base.redundancy
    budget_tokens = base.budget_tokens if fact.budget_tokens is None else fact.budget_tokens
    bits_per_token = base.bits_per_token if fact.bits_per_token is None else fact.bits_per_token
    return base._replace(
        level=fact.level,
        version=fact.version,
        at_us=step.at_us,
        parent_id=node_name(fact.parent_id) if fact.parent_id else base.parent_id,
        children=children,
        retained=step.tree.tracked.mask(fact.retained),
        from_raw=fact.sources == "raw",
        measured=fact.basis == "measured",
        budget_tokens=budget_tokens,
        joint_bits=joint,
        redundancy=redundancy,
        bits_per_token=bits_per_token,
        room=Room.of(joint, redundancy, budget_tokens, bits_per_token),
        turns=(fact.turns.first, fact.turns.last) if fact.turns else base.turns,
        trials=(),
        judged_at_us=base.trialled_at_us,
        judged=False,
    )


def _adopt(step: Step, name: str, node: Node, *, new: bool) -> None:
    """Children that named no parent have one now. A new node that takes over children divides the one they had."""
    tree = step.tree
    divided = set()
    for child, found in tree.children(node):
        if found is None or child == name or found.parent_id == name:
            continue
        if found.parent_id is None:
            tree.changed[child] = found._replace(parent_id=name)
        elif new and _divides(tree, node, found.parent_id):
            divided.add(found.parent_id)
            tree.changed[child] = found._replace(parent_id=name)
    for other in sorted(divided):
        was = tree.node(other)
        assert was is not None
        _rebalance_seen(step, other, was)
        _clear_verdicts(step, other, {"node_id": other, "divided_by": name})


def _divides(tree: Tree, part: Node, name: str) -> bool:
    """A node of the same level whose children are some of the other's, not all."""
    whole = tree.node(name)
    if whole is None or whole.level != part.level:
        return False
    return {child for child, _ in part.children} < {child for child, _ in whole.children}


def _compare(step: Step, name: str, old: Node | None, before: int, *, regenerated: bool) -> None:
    """What a commit means beside the version before it, and which alerts about the node it ends."""
    tree = step.tree
    close_trial_orders(step, name)
    node = tree.node(name)
    assert node is not None
    rebalanced = old is not None and _rebalanced(old, node)
    if rebalanced:
        node = _rebalance_seen(step, name, node)
    recovered = regenerated and tree_checks.count_regeneration(step, name, node, before)
    short = node.room.deficit_bits
    if short == 0 or (short is None and (rebalanced or recovered)):
        _clear_verdicts(step, name, {"node_id": name, "version": node.version})


def _rebalanced(old: Node, new: Node) -> bool:
    """It got a larger budget, or was divided: some of its children are no longer its own, and no new ones are."""
    if old.budget_tokens is not None and new.budget_tokens is not None and new.budget_tokens > old.budget_tokens:
        return True
    before, after = {child for child, _ in old.children}, {child for child, _ in new.children}
    return bool(after) and after < before


def _rebalance_seen(step: Step, name: str, node: Node) -> Node:
    """It has room, or was given some: what was counted against it begins anew."""
    node = step.tree.changed[name] = node._replace(unrecovered=0, flipped=0, flipped_back=0)
    for order in step.session.orders:
        if order.subject == name and order.action == "rebalance":
            orders.fulfil(step, order)
    subjects.drop(step, "regeneration_loop", name, {"node_id": name, "rebalanced": True})
    return node


def _clear_verdicts(step: Step, name: str, evidence: dict[str, object]) -> None:
    """What trials said of the version before is over; its regeneration was carried out."""
    for order in step.session.orders:
        if order.subject == name and order.action == "regenerate_parent":
            orders.fulfil(step, order)
    for verdict in VERDICTS:
        subjects.drop(step, verdict, name, evidence)
