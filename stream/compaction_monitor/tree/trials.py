"""Trial before commit: what trial regenerations retained is judged together; only then a remedy goes out.

Source: "How should an instance distinguish checkpoint staleness from summary-space saturation in hierarchical agent
compaction", Decision Boundary; where this differs, `regeneration` says so.
"""

from __future__ import annotations

from typing import Final

from compaction_events.facts import CheckpointRegenerated
from compaction_events.findings import MAX_SUBJECTS
from compaction_monitor.checks.plans import plan_judged
from compaction_monitor.checks.regeneration import Judgement, Limits, judge
from compaction_monitor.loop import orders, subjects
from compaction_monitor.loop.rebalancing import rebalance
from compaction_monitor.loop.step import Step
from compaction_monitor.state.nodes import Node, TrialSeen, node_name
from compaction_monitor.state.retention import Trial
from compaction_monitor.state.tree import Tree, rewritten
from compaction_monitor.tree.suspicions import TRIAL, ask_for_trial, looping
from compaction_monitor.tree.tracking import track_retained

VERDICTS: Final = ("stale", "saturated", "unstable", "ambiguous", "over_capacity")
"""Alerts that a judged trial raises about a node; a node has one of them at a time."""


def trial(step: Step, fact: CheckpointRegenerated) -> None:
    """A trial regeneration was reported: judge it with those before it."""
    assert fact.trial_number is not None
    tree = step.tree
    name = node_name(fact.node_id)
    node = tree.node(name)
    if node is None:
        step.count("facts", fact.type, "unknown_node")
        return
    if step.at_us <= max(node.at_us, node.judged_at_us):
        step.count("facts", fact.type, "late")
        return
    if any(seen.number == fact.trial_number for seen in node.trials):
        step.count("facts", fact.type, "duplicate")
        return
    step.count("facts", fact.type, "trial")
    track_retained(step, (*fact.retained, *(fact.before_retained or ())))
    seen = TrialSeen(fact.trial_number, tree.tracked.mask(fact.retained), fact.basis == "measured")
    node = tree.changed[name] = node._replace(
        trials=(*node.trials, seen),
        trialled_at_us=max(step.at_us, node.trialled_at_us),
        trials_spent=node.trials_spent + 1,
    )
    close_trial_orders(step, name, fact.remediation_id)
    _act_on(step, name, node, _judged(step, node, fact))


def _judged(step: Step, node: Node, fact: CheckpointRegenerated) -> Judgement:
    tree = step.tree
    before = node.retained if fact.before_retained is None else tree.tracked.mask(fact.before_retained)
    return judge(
        node.before(frozenset(tree.tracked.names(before))),
        [Trial(frozenset(tree.tracked.names(seen.retained)), seen.number, not seen.measured) for seen in node.trials],
        children_rewritten=rewritten(tree, node, fact.children),
        limits=Limits(trials_max=step.rules.loop.trials_max),
    )


def _act_on(step: Step, name: str, node: Node, judgement: Judgement) -> None:
    """A judgement into the next trial, or an alert with its remedy, or silence."""
    step.count("verdicts", judgement.verdict, judgement.reason)
    if judgement.next == "run_trial_regeneration":
        ask_for_trial(step, name)
        return
    step.tree.changed[name] = node = node._replace(trials=(), judged_at_us=node.trialled_at_us, judged=True)
    if judgement.verdict == "none":  # nothing could be judged, so nothing that was said before is over
        return
    check = "over_capacity" if judgement.verdict == "undecided" else judgement.verdict
    evidence = _evidence(step, name, node, judgement)
    for other in VERDICTS:
        if other != check:
            _replace_verdict(step, other, name, check, evidence)
    if judgement.severity is not None and check in VERDICTS:
        basis = "inferred" if judgement.inferred else "measured"
        plan = plan_judged(
            judgement,
            name,
            lambda: rebalance(step.tree, name, node, judgement.keep_trial),
            lambda: _by_suspicion(step.tree, node),
            looping=looping(step, node),
        )
        subjects.add(step, check, name, judgement.severity, basis, evidence, plan, exempt=True)


def _replace_verdict(step: Step, old: str, name: str, new: str, evidence: dict[str, object]) -> None:
    if new == "stable":
        subjects.drop(step, old, name, evidence)
    else:
        subjects.drop(step, old, name, evidence, "superseded", subjects.alert_id(step, new, name))


def _evidence(step: Step, name: str, node: Node, judgement: Judgement) -> dict[str, object]:
    entropy = node.room.entropy_bits
    return {
        "node_id": name,
        "level": node.level,
        "version": node.version,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        **(judgement.measures.evidence() if judgement.measures else {}),
        "budget_tokens": node.budget_tokens,
        "bits_per_token": node.bits_per_token,
        "effective_entropy_bits": None if entropy is None else round(entropy, 3),
        "noise": Limits().noise,
        "churn_limit": Limits().churn,
        "trials_spent": node.trials_spent,
        "complete": step.tree.complete,
    }


def _by_suspicion(tree: Tree, node: Node) -> list[str]:
    """Children, the most suspicious first: not known, then the largest deficit, then the latest written."""
    found = sorted(tree.children(node), key=lambda child: _innocence(child[1]))
    return [child for child, _ in found[:MAX_SUBJECTS]]


def _innocence(child: Node | None) -> tuple[float, ...]:
    return () if child is None else (-(child.room.deficit_bits or 0.0), -child.at_us)


def close_trial_orders(step: Step, name: str, answered: str | None = None) -> None:
    """A trial that was reported, or a node that was committed, answers the open orders for a trial.

    Args:
        answered: The order that the trial names; another one need not be carried out any more.
    """
    for order in step.session.orders:
        if order.check == TRIAL and order.subject == name:
            if answered is None or order.id == answered:
                orders.fulfil(step, order)
            else:
                orders.withdraw(step, order, "superseded")
