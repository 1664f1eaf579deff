"""Trial before commit: what trial regenerations retained is judged together; only then a remedy goes out.

Source: "How should an instance distinguish checkpoint staleness from summary-space saturation in hierarchical agent
compaction", Decision Boundary; where this differs, `regeneration` says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from compaction_events.facts import CheckpointRegenerated
from compaction_events.findings import EscalateToRaw, InspectChildren, Plan, RegenerateParent
from compaction_monitor import orders, subjects
from compaction_monitor.rebalancing import rebalance
from compaction_monitor.regeneration import Judgement, Limits, judge
from compaction_monitor.retention import Trial
from compaction_monitor.state import microseconds
from compaction_monitor.step import Step
from compaction_monitor.suspicions import TRIAL, ask_for_trial, looping
from compaction_monitor.tracking import track, unstated
from compaction_monitor.tree import Node, Tree, TrialSeen, kept_children, short

VERDICTS: Final = ("stale", "saturated", "unstable", "ambiguous", "over_capacity")
"""Alerts that a judged trial raises about a node; a node has one of them at a time."""


def trial(step: Step, fact: CheckpointRegenerated) -> None:
    """A trial regeneration was reported: judge it with those before it."""
    assert fact.trial_number is not None
    tree = step.tree
    name = short(fact.node_id)
    node = tree.node(name)
    if node is None:
        step.count("facts", fact.type, "unknown_node")
        return
    at_us = microseconds(fact.at)
    if at_us <= node.trialled_at_us or at_us < node.at_us or any(t.number == fact.trial_number for t in node.trials):
        step.count("facts", fact.type, "duplicate")
        return
    step.count("facts", fact.type, "trial")
    track(step, unstated(step, fact.retained))
    seen = TrialSeen(fact.trial_number, tree.mask(fact.retained), fact.basis == "measured")
    node = replace(node, trials=(*node.trials, seen), trialled_at_us=at_us, trials_spent=node.trials_spent + 1)
    before = node.retained if fact.before_retained is None else tree.mask(fact.before_retained)
    judgement = judge(
        node.before(frozenset(tree.names(before))),
        [Trial(frozenset(tree.names(t.retained)), t.number, not t.measured) for t in node.trials],
        children_rewritten=children_rewritten(tree, node, fact),
        limits=Limits(trials_max=step.rules.loop.trials_max),
    )
    tree.changed[name] = node
    close_trial_orders(step, name)
    _act_on(step, name, node, judgement)


def _act_on(step: Step, name: str, node: Node, judgement: Judgement) -> None:
    """A judgement into the next trial, or an alert with its remedy, or silence."""
    step.count("verdicts", judgement.verdict, judgement.reason)
    if judgement.next == "run_trial_regeneration":
        ask_for_trial(step, name, len(node.trials) + 1)
        return
    step.tree.changed[name] = node = replace(node, trials=(), trials_asked=0)
    check = "over_capacity" if judgement.verdict == "undecided" else judgement.verdict
    evidence = _verdict_evidence(name, node, judgement)
    for other in VERDICTS:
        if other != check:
            subjects.drop(step, other, name, evidence, because="recovered" if check == "stable" else "superseded")
    if judgement.severity is None or check not in VERDICTS:
        return
    plan = _remedy(step, name, node, judgement)
    basis = "inferred" if judgement.inferred else "measured"
    subjects.add(step, check, name, judgement.severity, basis, evidence, plan, exempt=True)


def _verdict_evidence(name: str, node: Node, judgement: Judgement) -> dict[str, object]:
    return {
        "node_id": name,
        "level": node.level,
        "version": node.version,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        **(judgement.measures.evidence() if judgement.measures else {}),
        "budget_tokens": node.budget_tokens,
        "bits_per_token": node.bits_per_token,
        "effective_entropy_bits": node.entropy_bits,
        "noise": Limits().noise,
        "churn_limit": Limits().churn,
        "trials_spent": node.trials_spent,
        "orders": node.orders,
    }


def _remedy(step: Step, name: str, node: Node, judgement: Judgement) -> Plan | None:
    tree = step.tree
    match judgement.next:
        case "regenerate_parent":
            if looping(step, name):
                return rebalance(tree, name, node, judgement.keep_trial)
            return RegenerateParent(node_id=name, commit_trial=judgement.keep_trial)
        case "rebalance":
            return rebalance(tree, name, node, judgement.keep_trial)
        case "inspect_children":
            return InspectChildren(node_id=name, children=tuple(_by_suspicion(tree, node)))
        case "escalate_to_raw":
            return EscalateToRaw(what="node", node_id=name)
        case _:
            return None


def _by_suspicion(tree: Tree, node: Node) -> list[str]:
    """Children, the most suspicious first: not known, then the largest deficit, then the latest written."""
    found = tree.children(node)
    found.sort(key=lambda child: (0, 0.0, 0) if child[1] is None else (1, -(child[1].deficit_bits or 0.0), -child[1].at_us))
    return [child for child, _ in found]


def children_rewritten(tree: Tree, node: Node, fact: CheckpointRegenerated | None = None) -> bool | None:
    """Whether a child is newer than the one this node was written from; None when the versions do not tell."""
    current = {child: found.version if found else None for child, found in tree.children(node)}
    if fact is not None:
        current |= {child: version for child, version in kept_children(fact.children) if version is not None}
        if any(child not in dict(node.children) for child in current):
            return True
    pairs = [(read, current.get(child)) for child, read in node.children]
    if any(read is not None and now is not None and now != read for read, now in pairs):
        return True
    return None if not pairs or any(read is None or now is None for read, now in pairs) else False


def close_trial_orders(step: Step, name: str) -> None:
    """A trial that was reported, or a node that was committed, answers the open orders for a trial."""
    for order in step.session.orders:
        if order.check == TRIAL and order.subject == name:
            orders.fulfil(step, order)
