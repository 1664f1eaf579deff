"""What a trial regeneration says of a checkpoint: stale, saturated, or neither.

A stale checkpoint regenerated from fresh children keeps what it had and gains; a saturated one keeps about as much
but other members, because its budget cannot hold what it must cover. They look alike and want opposite remedies.

The verdict is one table, `ROWS`, first match; row 0 is `unfit`. A ratio that equals its limit is within it.
Pure: no clock, no input or output, no state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from compaction_events.findings import Action, Severity
from compaction_monitor.state.retention import Before, Capacity, Measures, Trial, exact, measure

Verdict = Literal["none", "stale", "saturated", "unstable", "stable", "undecided", "ambiguous"]
Reason = Literal[
    "raw_sources",  # written from the raw log: nothing of a hierarchy to judge
    "empty_baseline",  # nothing was retained before
    "no_budget",
    "no_trial",
    "recovered",
    "recovered_over_capacity",
    "resampled",
    "resampled_within_capacity",
    "kept",
    "over_capacity",
    "capacity_unknown",
    "shrank",
    "lost_members",
    "trials_disagree",
    "children_unchanged",
]
Row = Literal["0", "1", "1'", "2", "2'", "3", "3'", "4"]


class Limits(NamedTuple):
    """Where the verdicts divide. `noise`: of cardinality and member loss; `trials_max`: at most so many, 1 = the reference."""

    noise: float = 0.15
    churn: float = 0.25
    trials_max: int = 3


DEFAULTS = Limits()


def recovered(measures: Measures, limits: Limits = DEFAULTS) -> bool:
    """It gained more than noise and lost no more than noise.

    Source: D1, member loss instead of churn: pure gain is no churn.

    >>> recovered(measure(frozenset("ab"), [Trial(frozenset("abcdef"))]))
    True
    """
    return measures.delta > exact(limits.noise) and measures.member_loss <= exact(limits.noise)


class Seen(NamedTuple):
    """The answers that the rows are written in. `churned` is between the trials from the second on."""

    recovered: bool
    same_size: bool
    churned: bool
    trials_agree: bool
    capacity: Capacity
    children_rewritten: bool | None


class Rule(NamedTuple):
    """One row: where `holds` is true, this is the verdict, how bad it is when measured, and what it asks for."""

    row: Row
    holds: Callable[[Seen], bool]
    verdict: Verdict
    reason: Reason
    severity: Severity | None
    action: Action | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and what follows from it.

    Attributes:
        row: The row of the table that held.
        reason: Why, in one word; for row 0 what was missing.
        severity: Of the alert to raise; None: nothing to say, or not yet.
        next: What to order; `run_trial_regeneration` means that it is not decided yet.
        inferred: It rests on numbers that were not measured, or on an unknown capacity.
        keep_trial: Number of the trial that lost least, where they recovered: the text worth committing.
        measures: None in row 0.
    """

    verdict: Verdict
    row: Row
    reason: Reason
    severity: Severity | None = None
    next: Action | None = None
    inferred: bool = False
    keep_trial: int | None = None
    measures: Measures | None = None


def stale(s: Seen) -> bool:
    """Row 1. It lost nothing, gained, and has room: it was only written too early.

    >>> j = judge(Before(frozenset("ab"), 90, 90.0, 0.0, 1.0), [Trial(frozenset("abcdef"))], children_rewritten=True)
    >>> j.row, j.verdict, j.next.value
    ('1', 'stale', 'regenerate_parent')
    """
    fresh = s.children_rewritten is not False
    return s.recovered and s.trials_agree and fresh and s.capacity is not Capacity.short


def recovered_over_capacity(s: Seen) -> bool:
    """Row 1'. It gained this time, but its budget is too small: the next one may lose again.

    >>> j = judge(Before(frozenset("ab"), 89, 90.0, 0.0, 1.0), [Trial(frozenset("abcdef"))], children_rewritten=False)
    >>> j.row, j.verdict, j.next.value, j.keep_trial
    ("1'", 'saturated', 'rebalance', 1)
    """
    return s.recovered and s.capacity is Capacity.short


def saturated(s: Seen) -> bool:
    """Row 2. As much as before but other members, and no room for all of them.

    >>> j = judge(Before(frozenset("abcd"), 89, 90.0, 0.0, 1.0), [Trial(frozenset("abcx"))])
    >>> j.row, j.verdict, j.severity.value
    ('2', 'saturated', 'critical')
    """
    return s.same_size and s.churned and s.capacity is not Capacity.holds


def unstable(s: Seen) -> bool:
    """Row 2'. Other members although there is room: something is wrong with the children.

    >>> j = judge(Before(frozenset("abcd"), 90, 90.0, 0.0, 1.0), [Trial(frozenset("abcx"))])
    >>> j.row, j.verdict, j.next.value
    ("2'", 'unstable', 'inspect_children')
    """
    return s.same_size and s.churned and s.capacity is Capacity.holds


def stable(s: Seen) -> bool:
    """Row 3. The same again, and there is room: normal lossy summarisation.

    >>> j = judge(Before(frozenset("abcd"), 90, 90.0, 0.0, 1.0), [Trial(frozenset("abcd"))])
    >>> j.row, j.verdict, j.next
    ('3', 'stable', None)
    """
    return s.same_size and not s.churned and s.capacity is not Capacity.short


def undecided(s: Seen) -> bool:
    """Row 3'. The same again, though there is no room for all: a lucky draw, or an entropy estimated too high.

    >>> b, t = Before(frozenset("abcd"), 89, 90.0, 0.0, 1.0), Trial(frozenset("abcd"))
    >>> [(j.row, j.next and j.next.value, j.severity and j.severity.value) for j in (judge(b, [t]), judge(b, [t] * 3))]
    [("3'", 'run_trial_regeneration', None), ("3'", None, 'info')]
    """
    return s.same_size and not s.churned and s.capacity is Capacity.short


def ambiguous(_: Seen) -> bool:
    """Row 4. Anything else: it shrank, or gained by losing, or its trials disagree, or no child was rewritten.

    >>> b, t = Before(frozenset("abcd"), 90, 90.0, 0.0, 1.0), Trial(frozenset("ab"))
    >>> [(j.row, j.verdict, j.next.value) for j in (judge(b, [t]), judge(b, [t] * 3))]
    [('4', 'ambiguous', 'run_trial_regeneration'), ('4', 'ambiguous', 'escalate_to_raw')]
    """
    return True


_CRITICAL, _WARNING, _INFO = Severity.critical, Severity.warning, Severity.info

ROWS = (
    Rule("1", stale, "stale", "recovered", _WARNING, Action.regenerate_parent),
    Rule("1'", recovered_over_capacity, "saturated", "recovered_over_capacity", _CRITICAL, Action.rebalance),
    Rule("2", saturated, "saturated", "resampled", _CRITICAL, Action.rebalance),
    Rule("2'", unstable, "unstable", "resampled_within_capacity", _WARNING, Action.inspect_children),
    Rule("3", stable, "stable", "kept", None, None),
    Rule("3'", undecided, "undecided", "over_capacity", _INFO, None),
    Rule("4", ambiguous, "ambiguous", "shrank", _INFO, Action.escalate_to_raw),
)


def unfit(before: Before, trials: Sequence[Trial]) -> Reason | None:
    """Row 0. Why this cannot be judged at all; worth asking before a trial is ordered (`no_trial`: it can).

    >>> unfit(Before(frozenset()), []), unfit(Before(frozenset("a"), budget_tokens=0), []), unfit(Before(frozenset("a")), [])
    ('empty_baseline', 'no_budget', 'no_trial')
    """
    if before.from_raw:
        return "raw_sources"
    if not before.retained:
        return "empty_baseline"
    if before.budget_tokens is not None and before.budget_tokens <= 0:
        return "no_budget"
    return None if trials else "no_trial"


def judge(
    before: Before, trials: Sequence[Trial], *, children_rewritten: bool | None = None, limits: Limits = DEFAULTS
) -> Judgement:
    """Classify one to `limits.trials_max` trial regenerations of a checkpoint together; their order does not matter.

    Args:
        before: The last committed version.
        trials: What regenerating it retained. None yet: the judgement says whether a trial is worth its cost.
        children_rewritten: Whether a child was written after `before` was; None: versions not known, counts as yes.
        limits: Where the verdicts divide.

    Source: the reference's decision boundary and function, with D1 to D3, D5 and D11 to D15 (README, Decisions).
    """
    if (why := unfit(before, trials)) is not None:
        return Judgement("none", "0", why, next=Action.run_trial_regeneration if why == "no_trial" else None)
    measures = measure(before.retained, trials)
    seen = _seen(before, measures, children_rewritten, limits)
    rule = next(rule for rule in ROWS if rule.holds(seen))
    inferred = seen.capacity is Capacity.unknown or before.inferred or any(trial.inferred for trial in trials)
    decided = rule.verdict not in ("undecided", "ambiguous") or len(trials) >= limits.trials_max
    return Judgement(
        verdict=rule.verdict,
        row=rule.row,
        reason=_reason(rule, seen, measures),
        severity=_severity(rule, inferred) if decided else None,
        next=rule.action if decided else Action.run_trial_regeneration,
        inferred=inferred,
        keep_trial=_least_lossy(before.retained, trials) if seen.recovered else None,
        measures=measures,
    )


def _seen(before: Before, measures: Measures, children_rewritten: bool | None, limits: Limits) -> Seen:
    limit = exact(limits.churn)
    return Seen(
        recovered=recovered(measures, limits),
        same_size=abs(measures.delta) <= exact(limits.noise),
        churned=(measures.churn if measures.between is None else measures.between) > limit,
        trials_agree=measures.between is None or measures.between <= limit,
        capacity=before.capacity,
        children_rewritten=children_rewritten,
    )


def _severity(rule: Rule, inferred: bool) -> Severity | None:
    """Nothing inferred is worse than a warning."""
    return _WARNING if inferred and rule.severity is _CRITICAL else rule.severity


def _reason(rule: Rule, seen: Seen, measures: Measures) -> Reason:
    if rule.row != "4":
        return "capacity_unknown" if seen.capacity is Capacity.unknown else rule.reason
    if measures.delta < 0:
        return "shrank"
    if not seen.recovered:
        return "lost_members"
    return "children_unchanged" if seen.trials_agree else "trials_disagree"


def _least_lossy(before: frozenset[str], trials: Sequence[Trial]) -> int:
    return min(trials, key=lambda trial: (len(before - trial.retained), -len(trial.retained), trial.number)).number
