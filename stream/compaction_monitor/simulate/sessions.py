"""Sessions of the saturating run: built up to the root, and worked with for forty hours, without the loop or with it.

Source: "How should an instance distinguish checkpoint staleness from summary-space saturation in hierarchical agent
compaction", What Was Observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from compaction_events.facts import Fact
from compaction_monitor.simulate.keeper import Keeper
from compaction_monitor.simulate.loop import Watched
from compaction_monitor.simulate.rebalancing import KeepController

HALF_TURNS: Final = 1_280
"""Twenty hours: the loop is switched on then."""
TURNS: Final = 2 * HALF_TURNS
Also = Callable[[Fact], object]


def built(seed: int) -> Keeper:
    """A session up to its root."""
    keeper = Keeper(seed)
    drain(keeper.build())
    return keeper


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


def drain(facts: Iterator[Fact]) -> None:
    for _ in facts:
        pass
