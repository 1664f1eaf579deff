"""What a checkpoint retained and what it has room for, counted exactly.

Ratios are `Fraction`s, and a float is taken as the decimal that was written: a ratio that equals its limit equals it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple


class Capacity(StrEnum):
    """Whether a node's budget can hold the distinct content of its children."""

    holds = "holds"
    short = "short"
    unknown = "unknown"


@lru_cache(maxsize=256)  # the same few settings, asked for every time
def exact(number: float) -> Fraction:
    """The decimal that was written, not its binary neighbour: 0.7 is 7/10.

    >>> exact(0.7)
    Fraction(7, 10)
    """
    return Fraction(str(number))


def effective_entropy_bits(joint_bits: float | None, redundancy: float | None) -> Fraction | None:
    """What the children say once, in bits: joint * (1 - redundancy); None when either is not known.

    Source: the reference's function (its text divides by the redundancy: D10).

    >>> effective_entropy_bits(1000.0, 0.7)
    Fraction(300, 1)
    """
    if joint_bits is None or redundancy is None:
        return None
    return exact(joint_bits) * (1 - exact(redundancy))


class Before(NamedTuple):
    """The checkpoint as last committed, with what is known of its room.

    Attributes:
        retained: Ids of the tracked propositions that it states.
        budget_tokens: Its size limit in tokens; None: not known.
        child_joint_entropy_bits: Entropy of its children together, in bits.
        child_redundancy: Share of that entropy that the children repeat of each other (0..1).
        bits_per_token: What turns its budget into bits.
        from_raw: It was written from the raw log, not from its children.
        inferred: These numbers were not measured by the agent.
    """

    retained: frozenset[str]
    budget_tokens: int | None = None
    child_joint_entropy_bits: float | None = None
    child_redundancy: float | None = None
    bits_per_token: float | None = None
    from_raw: bool = False
    inferred: bool = False

    @property
    def capacity(self) -> Capacity:
        """Whether budget * bits_per_token covers the effective entropy; equality holds.

        >>> Before(frozenset(), 300, 1000.0, 0.7, 1.0).capacity
        <Capacity.holds: 'holds'>
        """
        need = effective_entropy_bits(self.child_joint_entropy_bits, self.child_redundancy)
        if need is None or self.budget_tokens is None or self.bits_per_token is None:
            return Capacity.unknown
        return Capacity.holds if self.budget_tokens * exact(self.bits_per_token) >= need else Capacity.short


class Trial(NamedTuple):
    """What one regeneration from the current children retained. `number` names it in the order that commits it."""

    retained: frozenset[str]
    number: int = 1
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class Measures:
    """What was counted, as exact ratios: means over the trials. `between`: churn between them, None with one."""

    delta: Fraction
    member_loss: Fraction
    churn: Fraction
    between: Fraction | None
    trials: int

    def evidence(self) -> dict[str, float | int]:
        """The same for an alert: plain numbers, no entry for what one trial cannot tell."""
        values: dict[str, float | int] = {
            "delta_ratio": float(self.delta),
            "member_loss_ratio": float(self.member_loss),
            "churn_ratio": float(self.churn),
            "trials": self.trials,
        }
        return values if self.between is None else {**values, "churn_between_trials_ratio": float(self.between)}


def churn(a: frozenset[str], b: frozenset[str]) -> Fraction:
    """The share of all members of two sets that are in one of them only; two empty sets agree.

    That is 1 - |intersection| / |union|, the Jaccard distance.

    >>> churn(frozenset("abc"), frozenset("bcd"))
    Fraction(1, 2)
    """
    return Fraction(len(a ^ b), len(a | b)) if a or b else Fraction(0)


def member_loss(before: frozenset[str], after: frozenset[str]) -> Fraction:
    """The share of `before` (not empty) that is not in `after`.

    >>> member_loss(frozenset("abcd"), frozenset("abcxyz"))
    Fraction(1, 4)
    """
    return Fraction(len(before - after), len(before))


def measure(before: frozenset[str], trials: Sequence[Trial]) -> Measures:
    """Means over one or more trials; `before` not empty."""
    afters = [trial.retained for trial in trials]
    pairs = [churn(a, b) for a, b in combinations(afters, 2)]
    return Measures(
        delta=_mean([Fraction(len(after) - len(before), len(before)) for after in afters]),
        member_loss=_mean([member_loss(before, after) for after in afters]),
        churn=_mean([churn(before, after) for after in afters]),
        between=_mean(pairs) if pairs else None,
        trials=len(afters),
    )


def _mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)
