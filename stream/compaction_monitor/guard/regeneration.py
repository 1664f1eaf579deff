"""A regenerated checkpoint judged by itself, without the tree around it: for the guard in the agent's process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from compaction_events.findings import Plan, RunTrialRegeneration
from compaction_monitor.checks.plans import needed_tokens, plan_judged, plan_rebalance
from compaction_monitor.checks.regeneration import Judgement, Limits, judge
from compaction_monitor.state.retention import Before, Trial


class Regeneration(NamedTuple):
    """What was judged of a regenerated checkpoint, and what to do: `run_trial_regeneration` where it is not decided."""

    judgement: Judgement
    plan: Plan | None

    def message(self, node_id: str) -> str:
        """What was found, numbers included."""
        numbers = self.judgement.measures.evidence() if self.judgement.measures else {}
        said = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        return f"{node_id} is {self.judgement.verdict} ({self.judgement.reason}): {said}"


def judge_alone(
    node_id: str,
    before: Before,
    after: Sequence[Iterable[str]],
    children_rewritten: bool | None,
    children: Sequence[str],
    trials_max: int,
) -> Regeneration:
    """Judge trial regenerations of a node together.

    Args:
        node_id: Its name.
        before: The committed version.
        after: What each trial retained.
        children_rewritten: Whether a child was written after it; None: not known.
        children: To look at where they are the cause.
        trials_max: After so many it is decided.

    >>> room = dict(budget_tokens=90, child_joint_entropy_bits=90.0, child_redundancy=0.0, bits_per_token=1.0)
    >>> judge_alone("root", Before(frozenset("ab"), **room), ["abcdef"], True, (), 3).plan
    RegenerateParent(action='regenerate_parent', node_id='root', commit_trial=1)
    """
    limits = Limits(trials_max=trials_max)
    trials = [Trial(frozenset(retained), number, before.inferred) for number, retained in enumerate(after, 1)]
    judgement = judge(before, trials, children_rewritten=children_rewritten, limits=limits)
    return Regeneration(judgement, _plan(judgement, node_id, before, len(trials), limits, tuple(children)))


def _plan(
    judgement: Judgement, node_id: str, before: Before, trials: int, limits: Limits, children: tuple[str, ...]
) -> Plan | None:
    if judgement.next == "run_trial_regeneration":
        return RunTrialRegeneration(node_id=node_id, trial_number=trials + 1, trials_max=limits.trials_max)
    needed = needed_tokens(before.child_joint_entropy_bits, before.child_redundancy, before.bits_per_token)
    return plan_judged(
        judgement,
        node_id,
        lambda: plan_rebalance(node_id, before.budget_tokens, needed, (), judgement.keep_trial),
        lambda: children,
    )
