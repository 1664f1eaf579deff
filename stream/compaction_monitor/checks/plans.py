"""What an order asks for, worked out: which summaries to expand, and how to give a node room.

Plans are functions of the inventory that came with the event, in any order; nothing of it is kept.
Without an inventory a plan names its target only. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from compaction_events.facts import MAX_COUNT, Composition, SummaryItem
from compaction_events.findings import (
    EscalateToRaw,
    ExpandStep,
    HaltAndRehydrate,
    InspectChildren,
    Plan,
    Rebalance,
    RebalanceOption,
    RegenerateParent,
    Rehydrate,
)
from compaction_monitor.checks.regeneration import Judgement
from compaction_monitor.state.retention import effective_entropy_bits, exact

MAX_STEPS = 128
MAX_STEPS_BYTES = 32 * 1024  # of a finding's 64 KiB: ids may be long
MARGIN_PERCENT = 115  # a raised budget holds the need and a little more


class _Set(NamedTuple):
    """A working set as the plan would leave it, in tokens, and how many spans the plan has brought back at least.

    Summaries of one depth share no source, those of different depths may share all: so the most at one depth counts.
    """

    raw: int
    summary: int
    depth: int = 0
    spans_at_depth: int = 0
    spans: int = 0

    @property
    def total(self) -> int:
        return self.raw + self.summary

    @property
    def raw_ratio(self) -> float:
        return self.raw / self.total if self.total else 0.0

    def expanded(self, item: SummaryItem) -> _Set:
        at_depth = item.leaf_spans + (self.spans_at_depth if item.depth == self.depth else 0)
        raw, summary = self.raw + item.expanded_tokens, max(0, self.summary - item.tokens)
        return _Set(raw, summary, item.depth, at_depth, max(self.spans, at_depth))


class _Expansion(NamedTuple):
    """One summary expanded, and what that leaves."""

    item: SummaryItem
    left: _Set

    @property
    def step(self) -> ExpandStep:
        return ExpandStep(
            summary_id=self.item.summary_id,
            depth=self.item.depth,
            leaf_spans=self.item.leaf_spans,
            adds_raw_tokens=self.item.expanded_tokens,
            removes_summary_tokens=self.item.tokens,
            projected_raw_ratio=self.left.raw_ratio,
        )


def plan_halt(
    after: Composition, summaries: Sequence[SummaryItem] | None, target_raw_ratio: float, token_budget: int | None
) -> HaltAndRehydrate:
    """Expand summaries until `target_raw_ratio` is reached.

    Args:
        after: The working set now, in tokens.
        summaries: What is retained of summaries, in any order; None: no inventory came.
        target_raw_ratio: Raw tokens over raw and summary tokens to reach (0..1); equality reaches it.
        token_budget: What the set must fit into with its overhead, in tokens; None: not known.

    Returns:
        All steps count for `complete` and `tokens_over_budget`; at most `MAX_STEPS` of them, and `MAX_STEPS_BYTES`,
        are listed, so that a finding stays small. The rest goes on in the same order.

    Source: "What structural signals indicate …", Decision Boundary: "expanding the lowest-depth summary with the highest
    provenance fan-out".

    >>> items = [SummaryItem(summary_id="a", depth=1, tokens=50, leaf_spans=4, expanded_tokens=150)]
    >>> plan = plan_halt(Composition(raw_tokens=100, summary_tokens=500), items, 0.3, 600)
    >>> [step.summary_id for step in plan.steps], plan.complete, plan.tokens_over_budget
    (['a'], True, 100)
    """
    if summaries is None:
        return HaltAndRehydrate(target_raw_ratio=target_raw_ratio)
    target = exact(target_raw_ratio)
    now = _Set(after.raw_tokens, after.summary_tokens)
    done, complete = _expand(now, summaries, lambda left: left.total > 0 and left.raw >= target * left.total)
    return HaltAndRehydrate(
        steps=_listed(done),
        tokens_over_budget=_over_budget(after, done, token_budget),
        complete=complete,
        target_raw_ratio=target_raw_ratio,
    )


def plan_rehydrate(
    after: Composition, summaries: Sequence[SummaryItem] | None, target_spans: int, token_budget: int | None
) -> Rehydrate:
    """Reload evicted spans, the sources of retained summaries first, until `target_spans` stand raw.

    Spans are counted from below: `complete` is never claimed where it might not be. Where it is False the controller
    finds the rest in its log.
    Arguments, and how steps are cut, as for `plan_halt`.

    >>> items = [SummaryItem(summary_id="a", depth=1, tokens=50, leaf_spans=4, expanded_tokens=150)]
    >>> plan = plan_rehydrate(Composition(raw_tokens=100, summary_tokens=500, distinct_source_spans=2), items, 5, None)
    >>> [step.summary_id for step in plan.steps], plan.complete
    (['a'], False)
    """
    if summaries is None:
        return Rehydrate(target_spans=target_spans)
    now = _Set(after.raw_tokens, after.summary_tokens, spans=after.distinct_source_spans or 0)
    done, complete = _expand(now, summaries, lambda left: left.spans >= target_spans)
    return Rehydrate(
        steps=_listed(done),
        tokens_over_budget=_over_budget(after, done, token_budget),
        complete=complete,
        target_spans=target_spans,
    )


def in_plan_order(summaries: Iterable[SummaryItem]) -> list[SummaryItem]:
    """Those that expand to something, each once: the least compressed first, of these the one with most sources."""
    usable = [item for item in summaries if item.leaf_spans > 0 and item.expanded_tokens > 0]
    first: dict[str, SummaryItem] = {}
    for item in sorted(usable, key=lambda s: (s.depth, -s.leaf_spans, s.summary_id, s.tokens, s.expanded_tokens)):
        first.setdefault(item.summary_id, item)
    return list(first.values())


def _expand(now: _Set, summaries: Iterable[SummaryItem], reached: Callable[[_Set], bool]) -> tuple[list[_Expansion], bool]:
    """The expansions up to the target, or all there are; and whether it is reached."""
    done: list[_Expansion] = []
    for item in in_plan_order(summaries):
        if reached(now):
            break
        now = now.expanded(item)
        done.append(_Expansion(item, now))
    return done, reached(now)


def _listed(done: Sequence[_Expansion]) -> tuple[ExpandStep, ...]:
    return tuple(_within_bytes(expansion.step for expansion in done[:MAX_STEPS]))


def _within_bytes(steps: Iterable[ExpandStep]) -> Iterator[ExpandStep]:
    left = MAX_STEPS_BYTES
    for step in steps:
        left -= len(step.model_dump_json().encode()) + 1
        if left < 0:
            return
        yield step


def _over_budget(after: Composition, done: Sequence[_Expansion], token_budget: int | None) -> int | None:
    if token_budget is None:
        return None
    total = done[-1].left.total if done else after.raw_tokens + after.summary_tokens
    return min(MAX_COUNT, max(0, total + (after.overhead_tokens or 0) - token_budget))


def needed_tokens(joint_bits: float | None, redundancy: float | None, bits_per_token: float | None) -> int | None:
    """The budget that just holds the effective entropy, in tokens; None: not known.

    >>> needed_tokens(1000.0, 0.7, 2.0), needed_tokens(1000.0, 0.7, None)
    (150, None)
    """
    bits = effective_entropy_bits(joint_bits, redundancy)
    return None if bits is None or bits_per_token is None else min(MAX_COUNT, math.ceil(bits / exact(bits_per_token)))


def plan_rebalance(
    node_id: str,
    budget_tokens: int | None,
    needed_tokens: int | None,
    siblings: Sequence[tuple[str, int]],
    keep_trial: int | None = None,
) -> Rebalance:
    """The ways to give a node room, cheapest first; each alone is enough.

    Raise its budget to 1.15 times the need; split it into as many parts of its budget as the need takes; or promote
    what does not fit to the sibling with most headroom, if one has enough. Each costs the tokens that it adds.
    Without both numbers no way is named, and none where the need fits.

    Args:
        node_id: The saturated node.
        budget_tokens: Its budget.
        needed_tokens: Its effective entropy in tokens, without margin (`needed_tokens()`).
        siblings: (node, headroom in tokens), in any order.
        keep_trial: The trial whose text is worth keeping.

    Source: "How should an instance distinguish checkpoint staleness …", Core Distinction: "splitting a saturated node,
    raising its budget, or promoting detail to a sibling".

    >>> [(o.method, o.cost_tokens, o.budget_tokens, o.parts) for o in plan_rebalance("root", 190, 794, []).options]
    [('raise', 724, 914, None), ('split', 760, 190, 5)]
    """
    ways: list[RebalanceOption] = []
    if budget_tokens is not None and needed_tokens is not None and needed_tokens > budget_tokens:
        ways = list(_ways(budget_tokens, needed_tokens, siblings))
    return Rebalance(
        node_id=node_id,
        needed_tokens=needed_tokens,
        options=tuple(sorted(ways, key=lambda way: way.cost_tokens)),
        keep_trial=keep_trial,
    )


def _ways(budget: int, needed: int, siblings: Sequence[tuple[str, int]]) -> Iterator[RebalanceOption]:
    """In the order of least disturbance, which decides between equal costs."""
    raised = min(MAX_COUNT, -(-needed * MARGIN_PERCENT // 100))
    yield RebalanceOption(method="raise", cost_tokens=raised - budget, budget_tokens=raised)
    if budget > 0:
        parts = -(-needed // budget)
        yield RebalanceOption(method="split", cost_tokens=(parts - 1) * budget, budget_tokens=budget, parts=parts)
    sibling, headroom = min(siblings, key=lambda s: (-s[1], s[0]), default=("", 0))
    if headroom >= needed - budget:
        yield RebalanceOption(method="promote", cost_tokens=needed - budget, sibling_id=sibling, headroom_tokens=headroom)


def plan_judged(
    judgement: Judgement,
    node_id: str,
    rebalanced: Callable[[], Rebalance],
    children: Callable[[], Sequence[str]],
    *,
    looping: bool = False,
) -> Plan | None:
    """What to do about a node whose trials have been judged; None where the verdict asks for nothing.

    Args:
        judgement: It is decided: it asks for no further trial.
        node_id: The node.
        rebalanced: Makes the plan that gives it room.
        children: Names those to inspect, the most suspicious first.
        looping: It was regenerated again and again, so it gets room instead of one more regeneration.
    """
    match judgement.next:
        case "regenerate_parent":
            return rebalanced() if looping else RegenerateParent(node_id=node_id, commit_trial=judgement.keep_trial)
        case "rebalance":
            return rebalanced()
        case "inspect_children":
            return InspectChildren(node_id=node_id, children=tuple(children()))
        case "escalate_to_raw":
            return EscalateToRaw(what="node", node_id=node_id)
        case _:
            return None
