"""The saturating run and its variants, one seed at a time: what came of each, in plain numbers.

Source: "How should an instance distinguish checkpoint staleness from summary-space saturation in hierarchical agent
compaction", What Was Observed and Operational Effect.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from compaction_events.facts import CheckpointRegenerated, CheckpointWritten, Fact, PropositionMissed
from compaction_monitor.checks.regeneration import Limits, judge
from compaction_monitor.simulate.hierarchy import BITS_PER_TOKEN, Node, entropy, need_tokens
from compaction_monitor.simulate.keeper import ROOT, Keeper
from compaction_monitor.simulate.loop import Watched
from compaction_monitor.simulate.rebalancing import KeepController
from compaction_monitor.simulate.sessions import HALF_TURNS, TURNS, built, drain, looped, whole, work
from compaction_monitor.simulate.variants import REGENERATIONS, rebalanced, silent, stale
from compaction_monitor.state.retention import Before, Trial, churn, member_loss


def measure(seed: int, progress: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Everything about one seed, in plain numbers.

    Args:
        progress: Called after each part.
    """
    found: dict[str, Any] = {"seed": seed}
    for name, part in PARTS.items():
        found[name] = part(seed)
        progress()
    return found


def regenerated(seed: int) -> dict[str, Any]:
    """The saturated root, generated anew four times from the same children."""
    keeper = built(seed)
    root, constraints = keeper.nodes[ROOT], keeper.facts.constraints
    retained = [root.retained & constraints]
    for _ in range(REGENERATIONS):
        keeper.regenerate(root)
        retained.append(root.retained & constraints)
    names = [frozenset(map(str, kept)) for kept in retained]
    pairs = list(pairwise(names))
    return {
        "retained": [len(kept) for kept in names],
        "churn": [float(churn(a, b)) for a, b in pairs],
        "member_loss": [float(member_loss(a, b)) for a, b in pairs],
        "delta": [(len(b) - len(a)) / len(a) for a, b in pairs],
        "need_tokens": need_tokens(keeper.facts, root),
    }


def judged(seed: int) -> dict[str, Any]:
    """What up to three trials say of the root, and what one alone says."""
    keeper = built(seed)
    root = keeper.nodes[ROOT]
    before = _before(keeper, root)
    trials: list[Trial] = []
    verdicts: list[str] = []
    for number in range(1, Limits().trials_max + 1):
        trials.append(Trial(frozenset(keeper.facts.names(keeper.summariser.write(root))), number))
        judgement = judge(before, trials, children_rewritten=False)
        verdicts.append(judgement.verdict)
        if judgement.next != "run_trial_regeneration":
            break
    return {"first": verdicts[0], "last": verdicts[-1], "trials": len(trials)}


def forty_hours(seed: int) -> dict[str, Any]:
    """Twenty hours in which every miss forces a regeneration, and twenty more: so again, or with the loop on."""
    alone, helped = built(seed), built(seed)
    for keeper in (alone, helped):
        drain(work(keeper, 0, HALF_TURNS))
    first = alone.regenerations
    drain(work(alone, HALF_TURNS, TURNS))
    controller = KeepController(helped)
    watch = Watched(controller.obey)
    helped.controlled = True
    watch.report([helped.started(), *helped.stated(), *helped.announced()])
    lost = helped.lost_again
    misses = looped(helped, watch, HALF_TURNS, TURNS)
    return {
        "first_half": first,
        "second_half_alone": alone.regenerations - first,
        "second_half": helped.regenerations - first,
        "rebalances": len(controller.rebalanced),
        "rewrites": helped.regenerations - first + sum(way == "split" for way in controller.rebalanced),
        "trials": controller.trials,
        "misses": misses,
        "lost_again": helped.lost_again - lost,
        "held": len(helped.held),
        "checks": list(watch.firsts()),
    }


def from_start(seed: int) -> dict[str, Any]:
    """Forty hours without the loop and with it, both under the monitor's eyes from the first turn."""
    found: dict[str, Any] = {}
    for loop in (False, True):
        keeper, watch = whole(seed, loop=loop)
        found["with_loop" if loop else "alone"] = {
            "regenerations": keeper.regenerations,
            "held": keeper.history,
            "checks": {check: _kind(keeper, fact) for check, fact in watch.firsts().items()},
            "orders": dict(watch.orders()),
        }
    return found


def _before(keeper: Keeper, node: Node) -> Before:
    joint, redundancy = entropy(keeper.facts, node)
    return Before(frozenset(keeper.facts.names(node.retained)), node.budget_tokens, joint, redundancy, BITS_PER_TOKEN)


def _kind(keeper: Keeper, fact: Fact) -> dict[str, Any]:
    """At which event of the run something happened, and when."""
    at = fact.occurred_at
    assert at is not None
    kinds = {PropositionMissed: "miss", CheckpointRegenerated: "regeneration", CheckpointWritten: "checkpoint"}
    hour = (at - keeper.start).total_seconds() / 3_600
    return {"kind": kinds.get(type(fact), fact.type), "hour": round(hour, 2)}


PARTS: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    "regenerated": regenerated,
    "judged": judged,
    "forty_hours": forty_hours,
    "from_start": from_start,
    "rebalanced": rebalanced,
    "stale": stale,
    "silent": silent,
}
