"""The compaction loop of an inverting run, with its switches: roll up, rewrite, summarise, evict.

A summary does not replace its sources: both are in the working set until the scorer evicts them. (Where roll-ups replace
their sources nothing competes, and nothing inverts.) Nothing here knows of rounds to come or of figures to reach.

Source: "What structural signals indicate that hierarchical context compaction has crossed the salience inversion
boundary", What Was Observed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compaction_monitor.simulate.material import Floats, Ints
from compaction_monitor.simulate.memory import Flags, Memory


@dataclass(frozen=True, slots=True)
class Compaction:
    """How the loop works. The defaults are the observed run; a switch makes it another.

    Attributes:
        max_depth: Observed.
        summary_ratio: Tokens of a first summary per token read: 1 / 0.71 - 1, so that round 1, in which everything has
            been summarised once and nothing evicted yet, fills the budget at the observed raw share.
        roll_up_ratio: The same for summaries of summaries, which are dense already. *Fitted*: at 0.4 deep summaries are
            so small that the onset comes after round 35, at 0.7 in round 15.
        chunk: At most so many spans of one sub-topic to a summary: what a summariser is commonly given at once. From 3 to 8
            only depth 3 moves, from round 5 to 9, and the onset without decay.
        fan_in: So many summaries are rolled up into one. 3 puts depth 3 at round 8, 2 at round 3, 4 at round 16.
        wording_noise: *Fitted*: a summary is worded anew each time it is written, which costs it some relevance; without,
            the onset without decay comes three rounds earlier.
        recency_weight, recency_rounds: Salience is the cosine + weight * exp(-age / rounds); weight 0: no decay.
            *Fitted*, loosely: with 2 to 15 rounds, and weights of 0.15 to 0.8, the onset stays in rounds 10 to 14.
        tail_spans: The newest spans are not evicted, as compactors commonly keep the newest turns verbatim. *Fitted*, so
            that the raw share ends flat where it was observed to: a tail this long is the ground that the loop cannot take.
            Without one it goes on falling, to 0.03 in round 40.
        rewrites: Each pass writes the deep summaries of the sub-topics that got material anew, the new material in them.
        depth_penalty: What the scorer takes off for each level of a summary.
        overflow_only: Summarise and evict only once the set is over the budget, and then down to `overflow_target`.
        overflow_target: *Chosen*, not observed. At 0.6 and at 0.8 the signature is as rare, and the ground as lost.
        grounded: The hard invariant: no kept summary loses the last span it was first written from (new material that a
            rewrite adds grounds no claim made before), and spans never fall below `span_floor`.
        span_floor: A fifth of those at the start, the document's own fraction.
    """

    max_depth: int = 3
    summary_ratio: float = 1 / 0.71 - 1
    roll_up_ratio: float = 0.85
    chunk: int = 5
    fan_in: int = 3
    wording_noise: float = 0.19
    recency_weight: float = 0.53
    recency_rounds: float = 6.0
    tail_spans: int = 32
    rewrites: bool = True
    depth_penalty: float = 0.0
    overflow_only: bool = False
    overflow_target: float = 0.7
    grounded: bool = False
    span_floor: int = 42


def summarise(memory: Memory, spans: Ints, how: Compaction, now: int) -> Ints:
    """First summaries of new spans, each of one sub-topic."""
    groups = [
        same[start : start + how.chunk]
        for same in _by_topic(memory, spans)
        for start in range(0, len(same), how.chunk)
    ]  # fmt: skip
    return _write(memory, groups, how.summary_ratio, np.ones(len(groups), np.int64), now)


def roll_up(memory: Memory, how: Compaction, now: int) -> None:
    """Summaries that were there before this pass, `fan_in` of one sub-topic and level, into one a level deeper."""
    before = memory.summaries
    groups: list[Ints] = []
    for level in range(how.max_depth - 1, 0, -1):
        ready = before[memory.open[before] & (memory.level[before] == level)]
        for same in _by_topic(memory, ready):
            whole = len(same) - len(same) % how.fan_in
            groups += list(same[:whole].reshape(-1, how.fan_in))
    levels = np.array([memory.level[group[0]] + 1 for group in groups], np.int64)
    _write(memory, groups, how.roll_up_ratio, levels, now)
    for group in groups:
        memory.open[group] = False


def rewrite(memory: Memory, new: Ints, deep: Ints, now: int) -> None:
    """Write deep summaries anew: what each said, and what is new in its sub-topic. It keeps to the length it had.

    Args:
        new: This pass's first summaries.
        deep: The summaries of level 2 and deeper from before this pass.
    """
    by_topic = {int(memory.topic[same[0]]): same for same in _by_topic(memory, new)}
    old = np.array([item for item in deep if int(memory.topic[item]) in by_topic], np.int64)
    groups = [np.concatenate([[item], by_topic[int(memory.topic[item])]]) for item in old]
    made = memory.write(groups, memory.level[old], memory.tokens[old], now)
    memory.open[made] = memory.open[old]
    memory.founding[made] = memory.founding[old]
    memory.supported[made] = memory.supported[old]
    memory.kept[old] = False


def salience(memory: Memory, items: Ints, how: Compaction, now: int) -> Floats:
    """What the scorer says of items: relevance to the query, and how recently each was written."""
    age = now - memory.written[items]
    scored: Floats = (
        memory.cosine[items]
        + how.recency_weight * np.exp(-age / how.recency_rounds)
        - how.depth_penalty * memory.level[items]
    )  # fmt: skip
    return scored


def evict(memory: Memory, how: Compaction, limit: int, now: int) -> int:
    """Evict the least salient until the set is within `limit` tokens.

    Returns:
        Tokens that the scorer would have evicted and the invariant kept.
    """
    items = memory.items
    spans = memory.spans
    newest = spans[len(spans) - how.tail_spans :] if how.tail_spans else spans[:0]
    free = items[~np.isin(items, newest)]
    order = free[np.argsort(salience(memory, free, how, now), kind="stable")]
    if how.grounded:
        return _evict_grounded(memory, order, how, limit)
    excess = memory.total_tokens - limit
    if excess > 0:
        enough = int(np.searchsorted(np.cumsum(memory.tokens[order]), excess)) + 1
        memory.kept[order[:enough]] = False
    return 0


def _evict_grounded(memory: Memory, order: Ints, how: Compaction, limit: int) -> int:
    """As `evict`, but a span stays while a kept summary has no other of those it was first written from, or at the floor."""
    excess = memory.total_tokens - limit
    summaries = memory.summaries
    leaves = memory.founding_leaves(summaries)
    rests_on: Flags = memory.flags(memory.founding[summaries])
    standing = np.ones(len(summaries), np.bool_)
    place = {int(item): at for at, item in enumerate(summaries)}
    reachable = len(memory.spans)
    pinned: set[int] = set()
    went = True
    while excess > 0 and went:  # a summary that goes may set spans free that were passed over
        went = False
        for item in map(int, order):
            if excess <= 0:
                break
            if not memory.kept[item]:
                continue
            if item in place:
                standing[place[item]] = False
            else:
                above = rests_on[:, item] & standing
                if reachable <= how.span_floor or bool((leaves[above] <= 1).any()):
                    pinned.add(item)
                    continue
                leaves -= rests_on[:, item]
                reachable -= 1
            memory.kept[item] = False
            excess -= int(memory.tokens[item])
            went = True
    return sum(int(memory.tokens[item]) for item in pinned if memory.kept[item])


def _by_topic(memory: Memory, items: Ints) -> list[Ints]:
    """The items of each sub-topic, in their order."""
    if not len(items):
        return []
    topics = memory.topic[items]
    order = np.argsort(topics, kind="stable")
    cuts = np.flatnonzero(np.diff(topics[order])) + 1
    return list(np.split(items[order], cuts))


def _write(memory: Memory, groups: list[Ints], ratio: float, levels: Ints, now: int) -> Ints:
    sizes = np.array([int(ratio * int(memory.tokens[group].sum())) for group in groups], np.int64)
    return memory.write(groups, levels, sizes, now)
