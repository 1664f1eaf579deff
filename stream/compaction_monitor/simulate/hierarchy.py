"""A hierarchy of checkpoints (8, 64, 512 turns), and the summariser that writes them: it keeps what fits its budget.

Nothing tells the summariser what to drop. It ranks what its children say by importance, by how often it was said, and
by a chance that is drawn anew in every call, as two calls of a language model differ; then it writes until it is full.

Source: "How should an instance distinguish checkpoint staleness from summary-space saturation in hierarchical agent
compaction", What Was Observed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from compaction_monitor.simulate.notes import Facts

BITS_PER_TOKEN: Final = 10.0  # of plain English under a compressor; it is on both sides of every comparison
NEED_ROUNDING: Final = 10**9


@dataclass(frozen=True, slots=True)
class Budgets:
    """What nodes may hold, and how the summariser ranks. *Fitted* are those so marked, on the fitting seeds.

    Attributes:
        leaf_turns, mid_turns, root_turns: Observed.
        leaf_tokens: A leaf holds everything that is said in its turns: the loss is to be above it.
        mid_tokens: Three times what a mid has to say: not saturated.
        root_tokens: *Fitted* to the 11.2 of 19 that were retained.
        reinforcement: What each doubling of the mentions is worth beside importance.
        chance: *Fitted* to the churn of 0.30: standard deviation of what differs between two calls. (Members drawn at
            random would churn by 0.58, so the summariser is far from random: it keeps four in five.)
    """

    leaf_turns: int = 8
    mid_turns: int = 64
    root_turns: int = 512
    leaf_tokens: int = 240
    mid_tokens: int = 600
    root_tokens: int = 186
    reinforcement: float = 0.3
    chance: float = 0.4


@dataclass(slots=True)
class Node:
    """A checkpoint.

    Attributes:
        reads: Its children, and the version of each that it was written from.
        heard: What those said, each child's facts for themselves.
        covers: What it is told to cover; None: everything its children say.
        taken: What it says for a sibling that has no room for it.
        retained: What it says.
    """

    name: str
    level: int
    first: int
    last: int
    budget_tokens: int
    parent: str | None = None
    version: int = 0
    reads: dict[str, int] = field(default_factory=dict)
    heard: tuple[frozenset[int], ...] = ()
    covers: frozenset[int] | None = None
    taken: frozenset[int] = frozenset()
    retained: frozenset[int] = frozenset()

    @property
    def content(self) -> frozenset[int]:
        """What it has to say, each fact once."""
        said = frozenset[int]().union(*self.heard)
        return self.taken | (said if self.covers is None else said & self.covers)


class Summariser:
    """Writes checkpoints.

    Args:
        seed: Of its chance.

    Attributes:
        calls: How often it was asked.
    """

    def __init__(self, facts: Facts, budgets: Budgets, seed: int) -> None:
        self.calls = 0
        self._facts, self._budgets = facts, budgets
        self._draw = np.random.default_rng([seed, 4])

    def write(self, node: Node) -> frozenset[int]:
        """What a new version of a node would retain, from what its children say."""
        self.calls += 1
        content = sorted(node.content)
        chance = self._budgets.chance * self._draw.standard_normal(len(content))
        worth = {number: self._worth(number, node) + luck for number, luck in zip(content, chance, strict=True)}
        left = node.budget_tokens
        kept = []
        for number in sorted(content, key=lambda number: -worth[number]):
            if (size := self._facts.all[number].tokens) <= left:
                kept.append(number)
                left -= size
        return frozenset(kept)

    def _worth(self, number: int, node: Node) -> float:
        said = self._facts.all[number]
        return said.importance + self._budgets.reinforcement * math.log2(1 + said.times(node.first, node.last))


def need_tokens(facts: Facts, node: Node) -> int:
    """The budget in which a node could say everything it has to."""
    return facts.tokens(node.content)


def entropy(facts: Facts, node: Node) -> tuple[float, float]:
    """The joint entropy of what a node covers, in bits, and the share of it that its children repeat of each other."""
    covered = node.content
    alone = sum(facts.tokens(said & covered) for said in (*node.heard, node.taken))
    if not alone:
        return 0.0, 0.0
    repeated = 1 - facts.tokens(covered) / alone
    # Up, so that a budget that is exactly the need is not short by the last bit of a float.
    return alone * BITS_PER_TOKEN, min(1.0, math.ceil(repeated * NEED_ROUNDING) / NEED_ROUNDING)


def listen(node: Node, children: Iterable[Node]) -> None:
    """Read the children as they are now."""
    read = list(children)
    node.reads = {child.name: child.version for child in read}
    node.heard = tuple(child.retained for child in read)


def parts_by_need(facts: Facts, content: Iterable[int], budget_tokens: int) -> list[frozenset[int]]:
    """Facts in the order in which they were stated, cut into as few parts of one budget as hold them all."""
    ordered = sorted(content, key=lambda number: (facts.all[number].turn, number))
    parts = max(1, math.ceil(facts.tokens(ordered) / budget_tokens))
    while max(map(facts.tokens, cut := _cut(facts, ordered, parts))) > budget_tokens:
        parts += 1  # whole facts do not always fill a part
    return [frozenset(part) for part in cut if part]


def _cut(facts: Facts, ordered: Sequence[int], parts: int) -> list[list[int]]:
    share = facts.tokens(ordered) / parts
    cut: list[list[int]] = [[] for _ in range(parts)]
    before = 0
    for number in ordered:
        size = facts.all[number].tokens
        cut[min(parts - 1, int((before + size / 2) / share))].append(number)
        before += size
    return cut


def overflow(facts: Facts, node: Node) -> frozenset[int]:
    """What a node would have to give away to say all of the rest: the least important of what it covers."""
    ranked = sorted(node.content, key=lambda number: facts.all[number].importance)
    excess = need_tokens(facts, node) - node.budget_tokens
    given: list[int] = []
    for number in ranked:
        if facts.tokens(given) >= excess:
            break
        given.append(number)
    return frozenset(given)
