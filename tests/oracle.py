"""The reference's rules, to compare with: what its two guards say of a round and of a trial regeneration.

Written from the rules, as decision tables over exact numbers (a float stands for the decimal that was written), so
that agreement is no accident of shared code or shared rounding. The deviations (README, Decisions) are not in here.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

RoundAnswer = Literal["inversion", "floor", "pinned"]
RegenerationAnswer = Literal["stale", "saturated", "ambiguous", "error:empty", "error:budget", "error:churn_with_room"]


class RoundState(NamedTuple):
    """A working set as the reference knows it; `rounds_at_max_depth` is counted by the agent."""

    raw_tokens: int
    summary_tokens: int
    spans: int
    cosine: float
    depth: int
    rounds_at_max_depth: int = 0


@lru_cache(maxsize=1_024)
def written(number: float) -> Fraction:
    """The decimal that was written."""
    return Fraction(str(number))


def reference_round(prev: RoundState, curr: RoundState, session_start_spans: int) -> RoundAnswer | None:
    """Which of its three round checks the reference raises for, in its order; None: it lets the round pass.

    Nothing is said below depth 2. Inversion: less than a quarter raw, fewer spans, higher cosine. Floor: fewer spans
    than a whole fifth of those at the start, at least one. Pinned: more than five rounds at the maximum.

    >>> reference_round(RoundState(40, 60, 50, 0.4, 2), RoundState(20, 80, 49, 0.5, 2), 100)
    'inversion'
    """
    ground_gone = 4 * curr.raw_tokens < curr.raw_tokens + curr.summary_tokens or curr.raw_tokens + curr.summary_tokens == 0
    least = session_start_spans // 5 or 1
    answers: tuple[tuple[RoundAnswer, bool], ...] = (
        ("inversion", ground_gone and curr.spans < prev.spans and curr.cosine > prev.cosine),
        ("floor", curr.spans < least),
        ("pinned", curr.rounds_at_max_depth >= 6),
    )
    if curr.depth <= 1:
        return None
    return next((answer for answer, raised in answers if raised), None)


def reference_regeneration(
    before: AbstractSet[str],
    after: AbstractSet[str],
    budget: int,
    joint_entropy: float,
    redundancy: float,
    noise: float = 0.15,
    limit: float = 0.25,
) -> RegenerationAnswer:
    """What the reference calls one trial regeneration; `error:...` where it raises. Tokens count as bits.

    An empty baseline or a budget that is not positive cannot be judged. Grown by more than noise with churn within its
    limit: stale. As large within noise with churn over the limit: saturated without room, an error with room.

    >>> reference_regeneration(set("abcd"), set("abcx"), 9, 10.0, 0.0)
    'saturated'
    """
    if not before or budget <= 0:
        return "error:empty" if not before else "error:budget"
    kept, either = len(before & after), len(before | after)
    churned = Fraction(either - kept, either) > written(limit)
    growth = Fraction(len(after), len(before)) - 1
    size = "same" if abs(growth) <= written(noise) else "grown" if growth > 0 else "shrunk"
    room = budget >= written(joint_entropy) * (1 - written(redundancy))
    table: dict[tuple[str, bool], RegenerationAnswer] = {
        ("grown", False): "stale",
        ("same", True): "error:churn_with_room" if room else "saturated",
    }
    return table.get((size, churned), "ambiguous")
