"""What the controller of a checkpoint hierarchy does with an order: trials, regenerations, and room for a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from compaction_events.facts import Fact
from compaction_events.findings import (
    EscalateToRaw,
    InspectChildren,
    Rebalance,
    RebalanceOption,
    RegenerateParent,
    RemediationRequested,
    RunTrialRegeneration,
    StopRegenerating,
)
from compaction_monitor.simulate.answering import Done, Handler, answered
from compaction_monitor.simulate.hierarchy import Node, overflow, parts_by_need
from compaction_monitor.simulate.keeper import Keeper

Remedy = Literal["cheapest", "raise", "split", "promote", "halves"]


class KeepController:
    """Obeys orders about one session.

    Args:
        agent: The session's agent.
        remedy: Which way of a rebalance it takes, the cheapest where that one is not offered. `halves` is none of the
            plan's: it splits in two, whatever the need.

    Attributes:
        trials: Trial regenerations that were asked for.
        rebalanced: The ways taken.
    """

    def __init__(self, agent: Keeper, remedy: Remedy = "cheapest") -> None:
        self._agent, self._remedy = agent, remedy
        self.trials = 0
        self.rebalanced: list[str] = []
        self._texts: dict[tuple[str, int], frozenset[int]] = {}
        self.handlers: Mapping[str, Handler] = {
            "run_trial_regeneration": self._try,
            "regenerate_parent": self._regenerate,
            "rebalance": self.rebalance,
            "stop_regenerating": self._stop,
            "inspect_children": self._inspect,
            "escalate_to_raw": self._escalate,
        }

    def obey(self, order: RemediationRequested) -> Iterable[Fact]:
        """What is reported when an order is obeyed."""
        return answered(order, self.handlers, self._agent.at)

    def _try(self, plan: RunTrialRegeneration, order_id: str) -> Done | None:
        """Ask the summariser once, keep the text, commit nothing."""
        node = self._agent.nodes.get(plan.node_id)
        if node is None:
            return None
        self._agent.read(node)
        self.trials += 1
        text = self._agent.summariser.write(node)
        self._texts[node.name, plan.trial_number] = text
        return Done((self._agent.tried(node, text, order_id, plan.trial_number),), "tried")

    def _regenerate(self, plan: RegenerateParent, _: str) -> Done | None:
        node = self._agent.nodes.get(plan.node_id)
        if node is None:
            return None
        kept = self._texts.get((node.name, plan.commit_trial or 0))
        return Done((self._agent.regenerate(node, kept),), "regenerated")

    def rebalance(self, plan: Rebalance, _: str = "") -> Done | None:
        """Give a node room, by one of the plan's ways."""
        node, way = self._agent.nodes.get(plan.node_id), self._way(plan)
        if node is None or way is None:
            return None
        self.rebalanced.append("halves" if self._remedy == "halves" else way.method)
        return Done(tuple(self._give_room(node, way)), self.rebalanced[-1])

    def _way(self, plan: Rebalance) -> RebalanceOption | None:
        wanted = [way for way in plan.options if way.method == self._remedy]
        return next(iter(wanted or plan.options), None)

    def _give_room(self, node: Node, way: RebalanceOption) -> Iterator[Fact]:
        agent = self._agent
        if self._remedy == "halves":
            middle = (node.first + node.last) // 2
            yield from agent.split(node, [(node.first, middle, None), (middle + 1, node.last, None)])
        elif way.method == "raise":
            assert way.budget_tokens is not None
            node.budget_tokens = way.budget_tokens
            yield agent.regenerate(node)
        elif way.method == "split":
            parts = parts_by_need(agent.facts, node.content, node.budget_tokens)
            yield from agent.split(node, [self._part(part) for part in parts])
        else:
            yield from self._promote(node, way)

    def _part(self, covers: frozenset[int]) -> tuple[int, int, frozenset[int]]:
        """A part over the turns in which its facts were first said."""
        turns = [self._agent.facts.all[number].turn for number in covers]
        return min(turns), max(turns), covers

    def _promote(self, node: Node, way: RebalanceOption) -> Iterator[Fact]:
        """What the node cannot say, a sibling says for it."""
        agent = self._agent
        assert way.sibling_id is not None
        given = overflow(agent.facts, node)
        sibling = agent.nodes[way.sibling_id]
        node.covers = node.content - given
        sibling.taken |= given
        yield agent.regenerate(sibling)
        yield agent.regenerate(node)

    def _stop(self, _: StopRegenerating, __: str) -> Done:
        self._agent.regenerating = False
        return Done((), "stopped")

    def _inspect(self, _: InspectChildren, __: str) -> Done:
        return Done((), "inspected")

    def _escalate(self, _: EscalateToRaw, __: str) -> Done:
        """The raw log holds everything that was said."""
        return Done((), "read from the raw log")
