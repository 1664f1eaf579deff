"""What the controller of an inverting session does with an order. It stands outside the agent and has the raw log.

So it can bring back what the agent cannot reach any more. What it brings in has to fit the budget: for that, summaries
go, first those that nothing supports, then the deepest, then the least relevant. A raw span never goes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

import numpy as np

from compaction_events.facts import Cause, Fact
from compaction_events.findings import (
    CapDepth,
    DropSummary,
    EscalateToRaw,
    HaltAndRehydrate,
    Rehydrate,
    RemediationRequested,
    Resume,
)
from compaction_monitor.checks.plans import in_plan_order
from compaction_monitor.simulate.answering import Done, Handler, answered
from compaction_monitor.simulate.material import Ints
from compaction_monitor.simulate.researcher import Researcher

WORK: Final = timedelta(seconds=30)  # later than what asked for it, and well within the round


class ResearchController:
    """Obeys orders about one session.

    Args:
        agent: The session's agent.
    """

    def __init__(self, agent: Researcher) -> None:
        self._agent = agent
        self.handlers: Mapping[str, Handler] = {
            "halt_and_rehydrate": self._halt,
            "resume": self._resume,
            "rehydrate": self._reload,
            "cap_depth": self._cap,
            "drop_summary": self._drop,
            "escalate_to_raw": self._escalate,
        }

    def obey(self, order: RemediationRequested) -> Iterable[Fact]:
        """What is reported when an order is obeyed."""
        self._agent.at += WORK
        return answered(order, self.handlers, self._agent.at)

    def _halt(self, plan: HaltAndRehydrate, order_id: str) -> Done:
        """Expand the plan's summaries, then more in the same order: the log has what the plan could not count on."""
        self._agent.halted = True
        wanted = [*(step.summary_id for step in plan.steps), *(i.summary_id for i in in_plan_order(self._agent.inventory()))]
        return self._expand(wanted, lambda: self._agent.measured().raw_ratio >= plan.target_raw_ratio, order_id)

    def _reload(self, plan: Rehydrate, order_id: str) -> Done:
        wanted = [*(step.summary_id for step in plan.steps), *(i.summary_id for i in in_plan_order(self._agent.inventory()))]
        return self._expand(wanted, lambda: len(self._agent.memory.spans) >= plan.target_spans, order_id)

    def _expand(self, wanted: Iterable[str], reached: Callable[[], bool], order_id: str) -> Done:
        """One summary after the other: its sources come back in, itself goes, and the set is made to fit."""
        memory, expanded = self._agent.memory, 0
        for name in dict.fromkeys(wanted):
            item = int(name.rpartition("-")[2])
            if reached():
                break
            if not memory.kept[item]:
                continue
            memory.kept[item] = False
            memory.bring_in(self._absent(np.array([item])), self._agent.now)
            self._fit()
            expanded += 1
        return self._rehydrated(order_id, f"expanded {expanded} summaries")

    def _cap(self, plan: CapDepth, order_id: str) -> Done:
        """From now on no deeper summary; those there are give way to the most relevant of their sources."""
        agent, memory = self._agent, self._agent.memory
        agent.how = replace(agent.how, max_depth=plan.max_depth, grounded=agent.how.grounded or plan.reachability)
        deeper = memory.summaries[memory.level[memory.summaries] > plan.max_depth]
        memory.kept[deeper] = False
        room = agent.world.token_budget - memory.total_tokens
        lost = self._absent(deeper)
        back = lost[np.argsort(-memory.cosine[lost], kind="stable")]
        fits = back[np.cumsum(memory.tokens[back]) <= room]
        memory.bring_in(fits, agent.now)
        if plan.reachability:
            self._ground(memory.summaries)
        return self._rehydrated(order_id, f"{len(deeper)} deeper summaries replaced by {len(fits)} of their sources")

    def _drop(self, plan: DropSummary, order_id: str) -> Done:
        items = np.array([int(name.rpartition("-")[2]) for name in plan.summary_ids], np.int64)
        self._agent.memory.kept[items] = False
        return self._rehydrated(order_id, f"dropped {len(items)} summaries")

    def _escalate(self, plan: EscalateToRaw, order_id: str) -> Done:
        """Of summaries without ground, the most relevant source of each; else the most relevant spans of all."""
        agent, memory = self._agent, self._agent.memory
        if plan.what == "summaries":
            named = np.array([int(name.rpartition("-")[2]) for name in plan.ids], np.int64)
            back = self._ground(named[memory.kept[named]])
        else:
            known = np.flatnonzero((memory.written[: memory.span_count] > 0) & ~memory.kept[: memory.span_count])
            chosen = known[np.argsort(-memory.cosine[known], kind="stable")][: plan.count or 0]
            memory.bring_in(chosen, agent.now)
            self._fit()
            back = len(chosen)
        return self._rehydrated(order_id, f"{back} spans brought back")

    def _resume(self, _: Resume, __: str) -> Done:
        self._agent.halted = False
        return Done((), "compaction goes on")

    def _ground(self, items: Ints) -> int:
        """Give each of these summaries that nothing supports the most relevant span it was first written from back."""
        memory = self._agent.memory
        back = 0
        for item in items[memory.founding_leaves(items) == 0]:
            sources = np.flatnonzero(memory.flags(memory.founding[[item]])[0])
            best = sources[[int(np.argmax(memory.cosine[sources]))]]
            back += int(not memory.kept[best[0]])
            memory.bring_in(best, self._agent.now)
        self._fit()
        return back

    def _absent(self, items: Ints) -> Ints:
        """The spans under these items that are not in the set."""
        memory = self._agent.memory
        return np.flatnonzero(memory.sources(items).any(axis=0) & ~memory.kept[: memory.span_count])

    def _fit(self) -> None:
        memory = self._agent.memory
        excess = memory.total_tokens - self._agent.world.token_budget
        if excess > 0:
            items = memory.summaries
            order = items[np.lexsort((memory.cosine[items], -memory.level[items], memory.leaves(items) > 0))]
            memory.kept[order[: int(np.searchsorted(np.cumsum(memory.tokens[order]), excess)) + 1]] = False

    def _rehydrated(self, order_id: str, detail: str) -> Done:
        round_ = self._agent.completed(self._agent.measured(), Cause.rehydration, order_id)
        return Done((round_,), detail)
