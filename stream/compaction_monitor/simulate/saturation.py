"""The saturating run and its variants, one seed at a time: what came of each, in plain numbers.

Source: "How should an instance distinguish checkpoint staleness from summary-space saturation in hierarchical agent
compaction", What Was Observed and Operational Effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

from compaction_events.facts import CheckpointRegenerated, CheckpointWritten, Fact, PropositionMissed
from compaction_monitor.checks.plans import plan_rebalance
from compaction_monitor.checks.regeneration import Limits, judge
from compaction_monitor.simulate.hierarchy import BITS_PER_TOKEN, Budgets, Node, entropy, need_tokens
from compaction_monitor.simulate.keeper import ROOT, Keeper
from compaction_monitor.simulate.loop import Watched
from compaction_monitor.simulate.rebalancing import KeepController, Remedy
from compaction_monitor.state.retention import Before, Trial, churn, member_loss

HALF_TURNS: Final = 1_280
"""Twenty hours: the loop is switched on then."""
TURNS: Final = 2 * HALF_TURNS
REGENERATIONS: Final = 4
"""As often as the observed sequence recurred."""
ROOMY_TOKENS: Final = 1_400
"""Of a root that holds everything: what is said comes to about 830 tokens, at most 1,200."""
LATE_LEAVES: Final = {"recovers a little": 4, "recovers much": 2}
"""Of the 8 leaves of each mid, how many it had when the root read it."""
ROOMY: Final = Budgets(root_tokens=ROOMY_TOKENS)
REMEDIES: Final[tuple[Remedy, ...]] = ("raise", "split", "halves")
Also = Callable[[Fact], object]


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
        _drain(work(keeper, 0, HALF_TURNS))
    first = alone.regenerations
    _drain(work(alone, HALF_TURNS, TURNS))
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


def whole(seed: int, *, loop: bool, also: Also | None = None) -> tuple[Keeper, Watched]:
    """A session of forty hours, watched; with the loop its orders are obeyed, without it a miss forces a regeneration."""
    keeper = Keeper(seed, controlled=loop, session_id=f"saturation-{seed}-{'loop' if loop else 'alone'}")
    watch = Watched(KeepController(keeper).obey if loop else None, also)
    watch.report([keeper.started(), *keeper.stated()])
    for fact in keeper.build():
        watch.report([fact])
    if loop:
        looped(keeper, watch, 0, TURNS)
    else:
        for fact in work(keeper, 0, TURNS):
            watch.report([fact])
    watch.report([keeper.ended()])
    return keeper, watch


def rebalanced(seed: int) -> dict[str, Any]:
    """Each way to give the root room, and then four more regenerations: what is held, and what is lost again."""
    found: dict[str, Any] = {}
    for remedy in REMEDIES:
        keeper = built(seed)
        root = keeper.nodes[ROOT]
        KeepController(keeper, remedy).rebalance(plan_rebalance(ROOT, root.budget_tokens, need_tokens(keeper.facts, root), []))
        lost = keeper.lost_again
        for _ in range(REGENERATIONS):
            for node in keeper.roots:
                keeper.regenerate(node)
        budget = sum(node.budget_tokens for node in keeper.roots)
        held, parts = len(keeper.held), len(keeper.roots)
        found[remedy] = {"lost_again": keeper.lost_again - lost, "held": held, "parts": parts, "tokens": budget}
    return found


def stale(seed: int) -> dict[str, Any]:
    """A root with room that was written before its mids were: what one regeneration by the loop recovers."""
    found: dict[str, Any] = {}
    for name, leaves in LATE_LEAVES.items():
        keeper = Keeper(seed, ROOMY, controlled=True)
        watch = Watched(KeepController(keeper).obey)
        watch.report([keeper.started(), *keeper.stated(), *keeper.build(leaves_per_mid=leaves), *keeper.finish_mids()])
        before = keeper.held
        looped(keeper, watch, 0, TURNS)
        after = keeper.held
        keeper.regenerate(keeper.nodes[ROOT])
        found[name] = {
            "before": len(before),
            "after": len(after),
            "superset": before <= after,
            "settled": keeper.held == after,
            "regenerations": keeper.regenerations - 1,
            "stale": "stale" in watch.firsts(),
            "gain": (len(after) - len(before)) / len(before),
        }
    return found


def silent(seed: int) -> dict[str, Any]:
    """A root with room, over mids without, over one, and over healthy ones: what the monitor says, and what is done."""
    mids = range(ROOMY.root_turns // ROOMY.mid_turns)
    healthy = built(seed)
    largest = max(mids, key=lambda place: need_tokens(healthy.facts, healthy.nodes[f"mid-{place + 1}"]))
    return {
        name: _silent(seed, places) for name, places in {"all mids": tuple(mids), "one mid": (largest,), "healthy": ()}.items()
    }


def _silent(seed: int, tight: tuple[int, ...]) -> dict[str, Any]:
    keeper = Keeper(seed, ROOMY, controlled=True, tight_mids=tight)
    seen, controller = Watched(), KeepController(keeper)
    facts = [keeper.started(), *keeper.stated(), *keeper.build()]
    seen.report(facts)
    root, held = keeper.nodes[ROOT], keeper.held
    below = frozenset[int]().union(*root.heard)
    fits = need_tokens(keeper.facts, root) <= root.budget_tokens
    keeper.regenerate(root)
    same = keeper.held == held
    watch = Watched(controller.obey)
    watch.report(facts)
    keeper.regenerate(root)
    return {
        "raised": "silent_composed_loss" in seen.firsts(),
        "root_fits": fits,
        "held": len(held),
        "lost_below": not (keeper.facts.constraints - held) & below,
        "regeneration_changes_nothing": same,
        "ways": controller.rebalanced,
        "held_after": len(keeper.held),
    }


def built(seed: int) -> Keeper:
    """A session up to its root."""
    keeper = Keeper(seed)
    _drain(keeper.build())
    return keeper


def work(keeper: Keeper, first: int, last: int) -> Iterator[Fact]:
    """Ask as the work goes on; a miss is taken for staleness, and the root is regenerated."""
    for _ in keeper.asks(first, last):
        if (node := keeper.ask()) is not None:
            yield keeper.missed(node)
            yield keeper.regenerate(node)


def looped(keeper: Keeper, watch: Watched, first: int, last: int) -> int:
    """Ask as the work goes on; a miss is reported, and what is done about it the monitor says. Returns the misses."""
    misses = 0
    for _ in keeper.asks(first, last):
        if (node := keeper.ask()) is not None:
            misses += 1
            watch.report([keeper.missed(node)])
    return misses


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


def _drain(facts: Iterator[Fact]) -> None:
    for _ in facts:
        pass


PARTS: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    "regenerated": regenerated,
    "judged": judged,
    "forty_hours": forty_hours,
    "from_start": from_start,
    "rebalanced": rebalanced,
    "stale": stale,
    "silent": silent,
}
