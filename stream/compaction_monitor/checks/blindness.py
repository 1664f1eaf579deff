"""Why a check could not run, in words: what it lacks, and what to send so that it can. For `lint` and for people.

A reason is of one of three kinds. `missing`: an input is absent, and with it the check would run: the check is blind.
`warming_up`: it needs more rounds of the same. `not_applicable`: it has nothing to look at in such a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["missing", "warming_up", "not_applicable"]


class Why(NamedTuple):
    """One reason: its kind, what it means, and what to send (empty where nothing helps, or nothing is wrong)."""

    kind: Kind
    means: str
    send: str = ""


REASONS: Final[Mapping[str, Why]] = {
    "no_cosine": Why("missing", "the scorer's cosine is absent", "after.query_cosine_retained in every round"),
    "no_reachability": Why(
        "missing", "a rising cosine means nothing without reachable spans", "after.distinct_source_spans in every round"
    ),
    "no_depth": Why("missing", "the depth of the summaries is absent", "after.summary_depth_max in every round"),
    "no_scorer": Why("not_applicable", "the session says that nothing is scored (scorer name `none`)"),
    "no_source_spans": Why("missing", "the floor has no base", "source_spans in session.started"),
    "no_before": Why("missing", "a chain's floor compares within the pass", "before.distinct_source_spans in every round"),
    "no_inventory": Why("missing", "the retained summaries are not listed", "summaries in every round"),
    "no_pointers": Why("missing", "reachable leaves are not counted by pointers", "spans_method `pointer`, if they are"),
    "no_records": Why("missing", "what the summariser read is not told", "claimed_records and read_records"),
    "no_summary_kind": Why("missing", "how the summariser ended is not told", "summary_kind in every round"),
    "no_eviction": Why("missing", "when the agent evicts is not told", "eviction in session.started"),
    "no_propositions": Why("missing", "what is still stated is not told", "propositions_retained in every round"),
    "no_previous": Why("warming_up", "there is no round before to compare with"),
    "few_rounds": Why("warming_up", "a slope needs more rounds"),
    "no_summary": Why("not_applicable", "the pass wrote no summary"),
    "chain": Why("not_applicable", "each summary is rewritten from the one before: there are no levels"),
    "flat": Why("not_applicable", "a flat window has no levels"),
    "continuous": Why("not_applicable", "eviction is continuous: passes are meant to come often"),
}


def why(reason: str) -> Why:
    """A reason in words; one without an entry counts as a missing input.

    >>> why("no_cosine").kind
    'missing'
    """
    return REASONS.get(reason, Why("missing", reason.replace("_", " ")))


def coverage(checks: Mapping[str, bool], rounds: int, skipped: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Any]]:
    """For each check: in how many rounds it ran, in how many not and why, and what that comes to.

    Args:
        checks: Every check, and whether it is switched on.
        rounds: Rounds that were judged.
        skipped: Rounds by check and reason.

    Returns:
        By check `state`: `runs` (in every round it could), `partly` (an input was missing in some), `blind` (an input
        was missing whenever it could have run), `not_applicable`, `waiting` (for more rounds), or `off`.
    """
    return {check: _one(on, rounds, dict(skipped.get(check, {}))) for check, on in checks.items()}


def _one(on: bool, rounds: int, reasons: dict[str, int]) -> dict[str, Any]:
    ran = max(0, rounds - sum(reasons.values())) if on else 0
    kinds = {why(reason).kind for reason in reasons}
    if not on:
        state = "off"
    elif "missing" in kinds:
        state = "partly" if ran else "blind"
    elif ran:
        state = "runs"
    else:
        state = "waiting" if "warming_up" in kinds or not reasons else "not_applicable"
    return {
        "state": state,
        "ran": ran,
        "skipped": reasons,
        "send": [why(reason).send for reason in sorted(reasons) if why(reason).send],
    }
