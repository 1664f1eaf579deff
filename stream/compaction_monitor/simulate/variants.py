"""Variants of the saturating run: room for the root, a root that is only stale, and one that never saw what was lost.

Source: "How should an instance distinguish checkpoint staleness from summary-space saturation in hierarchical agent
compaction", Condition of Validity and Decision Boundary.
"""

from __future__ import annotations

from typing import Any, Final

from compaction_monitor.checks.plans import plan_rebalance
from compaction_monitor.simulate.hierarchy import Budgets, need_tokens
from compaction_monitor.simulate.keeper import ROOT, Keeper
from compaction_monitor.simulate.loop import Watched
from compaction_monitor.simulate.rebalancing import KeepController, Remedy
from compaction_monitor.simulate.sessions import TURNS, built, looped

REGENERATIONS: Final = 4
"""As often as the observed sequence recurred."""
ROOMY_TOKENS: Final = 1_400
"""Of a root that holds everything: what is said comes to about 830 tokens, at most 1,200."""
LATE_LEAVES: Final = {"recovers a little": 4, "recovers much": 2}
"""Of the 8 leaves of each mid, how many it had when the root read it."""
ROOMY: Final = Budgets(root_tokens=ROOMY_TOKENS)
REMEDIES: Final[tuple[Remedy, ...]] = ("raise", "split", "halves")


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
