"""The inverting run and its variants, one seed at a time: what came of each, in plain numbers.

Source: "What structural signals indicate that hierarchical context compaction has crossed the salience inversion
boundary", What Was Observed and Condition of Validity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from compaction_events.facts import Fact, RoundCompleted
from compaction_monitor.rules import Thresholds
from compaction_monitor.simulate.compaction import Compaction
from compaction_monitor.simulate.loop import Watched
from compaction_monitor.simulate.material import World
from compaction_monitor.simulate.rehydration import ResearchController
from compaction_monitor.simulate.researcher import COMPACTION, WORLD, Researcher, Row

LIMITS: Final = Thresholds()
OBSERVED: Final = COMPACTION
# Nothing but a number to count with where the onset never came: after the last round.
NEVER: Final = WORLD.rounds + 1
EVEN: Final = replace(WORLD, topic_spread=0.0)
NO_DECAY: Final = replace(OBSERVED, recency_weight=0.0)


class Variant(NamedTuple):
    """A loop, and what it works on."""

    how: Compaction
    world: World = WORLD


VARIANTS: Final[dict[str, Variant]] = {
    "as observed": Variant(OBSERVED),
    "no recency decay": Variant(NO_DECAY),
    "reachability, depth 2": Variant(replace(OBSERVED, grounded=True, max_depth=2)),
    "reachability, depth 3": Variant(replace(OBSERVED, grounded=True)),
    "depth 2 alone": Variant(replace(OBSERVED, max_depth=2)),
    "depth 1": Variant(replace(OBSERVED, max_depth=1)),
    "depth penalty 0.05": Variant(replace(OBSERVED, depth_penalty=0.05)),
    "depth penalty 0.10": Variant(replace(OBSERVED, depth_penalty=0.10)),
    "depth penalty 0.15": Variant(replace(OBSERVED, depth_penalty=0.15)),
    "depth penalty 0.20": Variant(replace(OBSERVED, depth_penalty=0.20)),
    "eviction only at overflow": Variant(replace(OBSERVED, overflow_only=True)),
}
"""By name. What the observed run is compared with; the seed's material is the same in all of them."""

ABLATION: Final[dict[str, tuple[Variant, Variant]]] = {
    "rewrites; relevance differs between sub-topics": (Variant(OBSERVED), Variant(NO_DECAY)),
    "rewrites; relevance the same": (Variant(OBSERVED, EVEN), Variant(NO_DECAY, EVEN)),
    "no rewrites; relevance differs": (
        Variant(replace(OBSERVED, rewrites=False)),
        Variant(replace(NO_DECAY, rewrites=False)),
    ),
    "no rewrites; relevance the same": (
        Variant(replace(OBSERVED, rewrites=False), EVEN),
        Variant(replace(NO_DECAY, rewrites=False), EVEN),
    ),
    "rewrites, no verbatim tail; relevance differs": (
        Variant(replace(OBSERVED, tail_spans=0)),
        Variant(replace(NO_DECAY, tail_spans=0)),
    ),
    "no rewrites, no verbatim tail; relevance differs": (
        Variant(replace(OBSERVED, rewrites=False, tail_spans=0)),
        Variant(replace(NO_DECAY, rewrites=False, tail_spans=0)),
    ),
    "the same, decay strong and slow (0.8 over 15 rounds)": (
        Variant(replace(OBSERVED, rewrites=False, tail_spans=0, recency_weight=0.8, recency_rounds=15.0)),
        Variant(replace(NO_DECAY, rewrites=False, tail_spans=0)),
    ),
}
"""When a recency decay brings the onset forward, and when it puts it off: each with and without the decay.

It helps whatever is fresh. Where deep summaries are rewritten, those are; where nothing is rewritten and no tail keeps the
newest spans anyway, what is fresh is mostly raw, and a decay that is strong and slow enough keeps it.
"""

Progress = Callable[[], object]


def run(agent: Researcher) -> list[Row]:
    """A whole session, unwatched."""
    while not agent.done:
        agent.step()
    return agent.rows


def watched(seed: int, *, loop: bool, also: Callable[[Fact], object] | None = None) -> tuple[Researcher, Watched, list[Row]]:
    """A whole session as observed, under the monitor's eyes; with the loop its orders are obeyed.

    Returns:
        The agent, what was heard, and the set after each round, what the controller did to it included.
    """
    agent = Researcher(seed, controlled=loop, session_id=f"inversion-{seed}-{'loop' if loop else 'alone'}")
    watch = Watched(ResearchController(agent).obey if loop else None, also)
    watch.report([agent.started()])
    after: list[Row] = []
    while not agent.done and not agent.halted:
        row = agent.step()
        watch.report([agent.completed(row)])
        after.append(agent.measured())
    watch.report([agent.ended()])
    return agent, watch, after


def signature(before: Row, now: Row) -> bool:
    """The inversion's condition, whatever the monitor's gates say: mostly summary, ground falling, scorer pleased."""
    deep = now.depth >= 2 and now.raw_ratio < LIMITS.raw_ratio_floor
    return deep and now.spans < before.spans and now.cosine > before.cosine


def onset(rows: Sequence[Row]) -> int:
    """The first round with the signature, `NEVER` where there is none."""
    return next((now.number for before, now in pairwise(rows) if signature(before, now)), NEVER)


def measure(seed: int, progress: Progress = lambda: None) -> dict[str, Any]:
    """Everything about one seed, in plain numbers.

    Args:
        progress: Called after each run.
    """
    found: dict[str, Any] = {"seed": seed, "variants": {}, "ablation": {}}
    for loop in (False, True):
        _, watch, rows = watched(seed, loop=loop)
        found["with_loop" if loop else "alone"] = _watched(watch, rows)
        progress()
    known: dict[Variant, list[Row]] = {}

    def rows_of(variant: Variant) -> list[Row]:
        if variant not in known:
            known[variant] = run(Researcher(seed, variant.how, variant.world))
            progress()
        return known[variant]

    for name, variant in VARIANTS.items():
        found["variants"][name] = _plain(rows_of(variant))
    for name, (decay, none) in ABLATION.items():
        found["ablation"][name] = [onset(rows_of(decay)), onset(rows_of(none))]
    return found


def runs_per_seed() -> int:
    """How often `measure` calls its `progress`."""
    ablated = [variant for pair in ABLATION.values() for variant in pair]
    return 2 + len({*VARIANTS.values(), *ablated})


def _watched(watch: Watched, rows: Sequence[Row]) -> dict[str, Any]:
    rounds = {check: fact.round for check, fact in watch.firsts().items() if isinstance(fact, RoundCompleted)}
    return {**_series(rows), "first_round": rounds, "orders": dict(watch.orders())}


def _series(rows: Iterable[Row]) -> dict[str, Any]:
    listed = list(rows)
    return {
        "raw_ratio": [round(row.raw_ratio, 5) for row in listed],
        "spans": [row.spans for row in listed],
        "cosine": [row.cosine for row in listed],
        "depth": [row.depth for row in listed],
        "orphans": [row.orphans for row in listed],
    }


def _plain(rows: Sequence[Row]) -> dict[str, Any]:
    """What the tables need of a run."""
    budget = WORLD.token_budget
    late = [row.pinned_tokens / budget for row in rows[11:]]
    return {
        **_series(rows),
        "onset": onset(rows),
        "signature_rounds": sum(signature(before, now) for before, now in pairwise(rows)),
        "full": [round(row.tokens / budget, 5) for row in rows],
        "pressure": sum(late) / len(late),
        "cited_ungrounded": [row.cited_ungrounded for row in rows],
        "cited_gone_rounds": [row.cited_gone_rounds for row in rows],
    }
