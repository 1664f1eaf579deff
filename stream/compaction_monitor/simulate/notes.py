"""What is said in a saturating run: 19 constraints and the filler around them, each with the turns that mention it.

Source: "How should an instance distinguish checkpoint staleness from summary-space saturation in hierarchical agent
compaction", What Was Observed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from compaction_events.ids import text_hash


@dataclass(frozen=True, slots=True)
class Talk:
    """What is said. Every figure has its reason; those marked *fitted* were chosen on the fitting seeds.

    Attributes:
        constraints: Observed.
        turns: One root's: observed. What is said later goes into later roots.
        first_turn, last_first_turn: Constraints are stated while the work is being set up, the last one early enough to
            be in the last mid but one.
        reinforcements: Mean number of later mentions; the one constraint of which it is told had two.
        filler: Other facts per leaf. *Fitted*: so few that one raise of the root's budget can hold them all.
        fact_tokens, fact_spread: A short sentence.
        importance, importance_spread: Of a constraint to the summariser, and of anything; filler has mean 0. A constraint
            outranks most filler and not all of it.
    """

    constraints: int = 19
    turns: int = 512
    first_turn: int = 4
    last_first_turn: int = 429
    reinforcements: float = 2.0
    filler: float = 0.6
    fact_tokens: float = 14.0
    fact_spread: float = 4.0
    importance: float = 1.5
    importance_spread: float = 0.8


@dataclass(frozen=True, slots=True)
class Said:
    """One fact. `mentions`: the turns that say it, in order."""

    number: int
    name: str
    tokens: int
    importance: float
    mentions: tuple[int, ...]

    @property
    def turn(self) -> int:
        """When it was first said."""
        return self.mentions[0]

    def times(self, first: int, last: int) -> int:
        """How often it is said within these turns."""
        return sum(first <= turn <= last for turn in self.mentions)


class Facts:
    """Everything that is said up to the root.

    Args:
        seed: The same seed says the same.

    Attributes:
        all: The constraints first, in the order in which they are stated, then the filler.
        constraints: Numbers of the constraints.
    """

    def __init__(self, talk: Talk, seed: int, leaf_turns: int) -> None:
        draw = np.random.default_rng([seed, 3])
        self._seed = seed
        stated = np.sort(draw.integers(talk.first_turn, talk.last_first_turn + 1, talk.constraints))
        mentions = [(int(turn), *_later(draw, talk, int(turn))) for turn in stated]
        for first in range(1, talk.turns + 1, leaf_turns):
            mentions += [(int(draw.integers(first, first + leaf_turns)),) for _ in range(draw.poisson(talk.filler))]
        count = len(mentions)
        tokens = np.maximum(4, np.rint(draw.normal(talk.fact_tokens, talk.fact_spread, count))).astype(int)
        importance = draw.normal(0.0, talk.importance_spread, count)
        importance[: talk.constraints] += talk.importance
        self.constraints = frozenset(range(talk.constraints))
        self.all = [
            Said(number, text_hash(f"fact {number} of {seed}"), int(tokens[number]), float(importance[number]), turns)
            for number, turns in enumerate(mentions)
        ]

    def tokens(self, numbers: Iterable[int]) -> int:
        """The size of these facts, each said once."""
        return sum(self.all[number].tokens for number in numbers)

    def names(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """The ids of the constraints among these facts, in the order in which they were stated."""
        return tuple(self.all[number].name for number in sorted(self.constraints.intersection(numbers)))


def _later(draw: np.random.Generator, talk: Talk, stated: int) -> list[int]:
    count = int(draw.poisson(talk.reinforcements))
    return sorted(int(turn) for turn in draw.integers(stated, talk.turns + 1, count))
