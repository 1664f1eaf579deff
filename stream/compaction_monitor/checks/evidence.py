"""What a finding says: its numbers (`evidence`), its one-line message, and why it matters.

Session text never gets here: everything is ids, counts and ratios.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from compaction_events.facts import MAX_COUNT, RoundCompleted
from compaction_monitor.checks.rounds import bursts, deepest_allowed, drift_cause, span_floor, stays_full
from compaction_monitor.rules import Thresholds
from compaction_monitor.state.session import Session

Evidence = dict[str, Any]


def round_evidence(check: str, session: Session, event: RoundCompleted, limits: Thresholds) -> Evidence:
    """The values and thresholds behind a round check, after the round: counts, ratios 0..1, levels."""
    now = session.window[-1]
    before = session.window[-2] if len(session.window) > 1 else None
    found: Evidence = {
        "round": now.number,
        "raw_ratio": round(now.raw_ratio, 4),
        "raw_tokens": now.raw_tokens,
        "summary_tokens": now.summary_tokens,
        "spans": now.spans,
        "cosine": now.cosine,
        "depth": now.depth,
        "previous_round": before.number if before else None,
        "previous_raw_ratio": round(before.raw_ratio, 4) if before else None,
        "previous_spans": before.spans if before else None,
        "previous_cosine": before.cosine if before else None,
        "recency_decay": session.recency_decay,
        "complete": session.complete and session.topology is not None and not session.gap,
    }
    found.update(_EXTRA[check](session, event, limits))
    return {name: value for name, value in found.items() if value is not None}


def _inversion(_: Session, __: RoundCompleted, limits: Thresholds) -> Evidence:
    return {"raw_ratio_floor": limits.raw_ratio_floor, "raw_ratio_recovered": limits.raw_ratio_recovered}


def _floor(session: Session, event: RoundCompleted, limits: Thresholds) -> Evidence:
    if session.topology != "chain":
        return {"span_floor": span_floor(session, limits), "source_spans": session.source_spans}
    before = event.before.distinct_source_spans if event.before else None
    kept = session.window[-1].spans
    return {
        "span_floor_fraction": limits.span_floor_fraction,
        "spans_before_pass": before,
        "spans_kept_fraction": round(kept / before, 4) if before and kept is not None else None,
        "source_spans_seen": event.source_spans_seen,
    }


def _risk(session: Session, _: RoundCompleted, limits: Thresholds) -> Evidence:
    first, now = session.window[0], session.window[-1]
    slope = (now.raw_ratio - first.raw_ratio) / max(1, now.number - first.number)
    to_go = now.raw_ratio - limits.raw_ratio_floor
    return {
        "risk_below_ratio": limits.risk_below_ratio,
        "window_first_round": first.number,
        "window_first_raw_ratio": round(first.raw_ratio, 4),
        "window_first_spans": first.spans,
        "raw_ratio_per_round": round(slope, 4),
        "rounds_left": 0 if to_go <= 0 else min(MAX_COUNT, math.ceil(round(to_go / -slope, 6))) if slope < 0 else None,
    }


def _drift(session: Session, _: RoundCompleted, limits: Thresholds) -> Evidence:
    return {"raw_ratio_floor": limits.raw_ratio_floor, "no_inversion_because": drift_cause(session, limits)}


def _pinned(session: Session, _: RoundCompleted, limits: Thresholds) -> Evidence:
    return {
        "rounds_at_depth": session.pinned,
        "pinned_rounds": limits.pinned_rounds,
        "deepest_allowed": deepest_allowed(session),
        "max_depth_known": session.max_depth is not None,
        "window_first_spans": session.window[0].spans,
    }


def _orphans(_: Session, event: RoundCompleted, __: Thresholds) -> Evidence:
    summaries = event.summaries or ()
    return {
        "orphaned": sum(item.leaf_spans == 0 for item in summaries),
        "summaries": event.summaries_total if event.summaries_total is not None else len(summaries),
    }


def _coverage(_: Session, event: RoundCompleted, limits: Thresholds) -> Evidence:
    return {
        "claimed_records": event.claimed_records,
        "read_records": event.read_records,
        "coverage_floor": limits.coverage_floor,
    }


def _failed(session: Session, event: RoundCompleted, _: Thresholds) -> Evidence:
    return {"summary_kind": event.summary_kind, "failed_in_a_row": session.failed}


def _thrash(session: Session, _: RoundCompleted, limits: Thresholds) -> Evidence:
    full = session.window[-1].full_ratio
    return {
        "token_budget": session.token_budget,
        "full_ratio": round(full, 4) if full is not None else None,
        "stays_full": stays_full(session, limits),
        "bursts": bursts(session, limits),
        "thrash_full_ratio": limits.thrash_full_ratio,
        "thrash_burst_s": limits.thrash_burst_s,
    }


_EXTRA: Final[dict[str, Callable[[Session, RoundCompleted, Thresholds], Evidence]]] = {
    "salience_inversion": _inversion,
    "provenance_floor": _floor,
    "inversion_risk": _risk,
    "drift": _drift,
    "depth_pinned": _pinned,
    "orphaned_summary": _orphans,
    "coverage_gap": _coverage,
    "summary_failed": _failed,
    "compaction_thrash": _thrash,
}


class Words(NamedTuple):
    """The message (a format over the evidence) and the description of one check."""

    message: str
    description: str


WORDS: Final[dict[str, Words]] = {
    "salience_inversion": Words(
        "raw_ratio {raw_ratio:.2f} is below {raw_ratio_floor}, reachable spans fell {previous_spans} -> {spans} while "
        "the scorer's cosine rose {previous_cosine:.2f} -> {cosine:.2f}",
        "The scorer now prefers summaries to the evidence under them: its score improves while the ground is lost, and "
        "the set cannot show it from inside. Halt compaction and expand summaries until the raw share is back; "
        "retuning the scorer does not help, its inputs are the problem.",
    ),
    "provenance_floor": Words(
        "{spans} source spans are still reachable, fewer than the floor allows",
        "Most of what the summaries stand on can no longer be fetched, so what they claim cannot be checked. Bring "
        "evicted spans back, or go to the raw log where nothing is left to expand.",
    ),
    "inversion_risk": Words(
        "raw_ratio {raw_ratio:.2f} and reachable spans ({spans}) have been falling since round {window_first_round}",
        "At this slope the working set will be mostly summary soon, and the scorer's signal inverts with it. Nothing "
        "is broken yet.",
    ),
    "drift": Words(
        "raw_ratio {raw_ratio:.2f} is below {raw_ratio_floor}, but this is no inversion: {no_inversion_because}",
        "The set is mostly summary; its paraphrase drifts, its ground holds. Watch it.",
    ),
    "depth_pinned": Words(
        "the hierarchy has been at depth {depth} for {rounds_at_depth} rounds in a row",
        "A hierarchy that stays at its deepest level summarises its own summaries again and again; inversion becomes "
        "structural. Cap it at depth 2 and accept the token cost.",
    ),
    "orphaned_summary": Words(
        "{orphaned} of {summaries} retained summaries have no reachable source",
        "What such a summary says can no longer be supported by anything the agent can fetch.",
    ),
    "coverage_gap": Words(
        "the summariser read {read_records} of the {claimed_records} records that this pass evicted as covered",
        "Records were evicted that no summary has ever seen. They can only come back from the raw log.",
    ),
    "summary_failed": Words(
        "the pass ended with summary_kind {summary_kind} ({failed_in_a_row} in a row)",
        "The pass evicted its sources and left no sound summary in their place.",
    ),
    "compaction_thrash": Words(
        "compaction frees too little or comes too often (full: {stays_full}, burst: {bursts})",
        "The budget is too small for the work: each pass costs a summary's loss and buys no room.",
    ),
    "constraint_lost": Words(
        "{lost} of {pinned} pinned propositions stated by nothing in the set after round {round}: {proposition} (turn {turn}) "
        "is new among them",
        "A constraint that must hold is no longer in front of the agent; it will act as if it had never been said.",
    ),
    "upstream_loss": Words(
        "{proposition} is in no child of {node_id}; it was lost at level {lost_at_level}",
        "The loss lies below: regenerating this node cannot bring it back. Go to the raw log for its span.",
    ),
    "stale": Words(
        "regenerating {node_id} keeps what it had and gains (delta {delta_ratio:+.2f}, loss {member_loss_ratio:.2f})",
        "The checkpoint was written before its children. One regeneration recovers it.",
    ),
    "saturated": Words(
        "{node_id} cannot hold its children: regenerated it keeps other members (churn {churn_ratio:.2f}, loss "
        "{member_loss_ratio:.2f})",
        "Its budget is smaller than what its children say; every regeneration loses something else. Give it room: raise "
        "the budget, split it by need, or move detail to a sibling.",
    ),
    "unstable": Words(
        "{node_id} has room, but regenerated it keeps other members (churn {churn_ratio:.2f})",
        "The node is not the cause: look at its children, the most suspicious first.",
    ),
    "ambiguous": Words(
        "{node_id} could not be judged after {trials} trials: {reason}",
        "Neither staleness nor saturation explains what its regenerations retain. The raw log tells.",
    ),
    "over_capacity": Words(
        "{node_id} keeps its members, though its budget is below what its children say",
        "A lucky draw, or an entropy estimated too high. Watch it.",
    ),
    "silent_composed_loss": Words(
        "{node_id} looks healthy, but {descendants_short} nodes below it lost {lost_ratio:.0%} of what it stands for",
        "Every level is within its own budget, and the whole has lost what no level can see. Give the worst one room.",
    ),
    "regeneration_loop": Words(
        "{node_id} was regenerated {regenerations} times without recovering",
        "Each regeneration loses another constraint, and the agent's behaviour oscillates with it. Stop regenerating "
        "and give the node room.",
    ),
    "remediation_unacknowledged": Words(
        "order {remediation_id} ({action}) was sent {attempt} times (status {status}) and no answer has ended it",
        "The controller does not listen, or has lost the order. The condition behind it goes on.",
    ),
    "remediation_ineffective": Words(
        "order {remediation_id} ({action}) was completed, but {check} still fires after {rounds} compaction rounds",
        "The remedy did not do what it was for, or was not carried out. The next lever is asked for.",
    ),
}


def message_of(check: str, evidence: Mapping[str, Any]) -> str:
    """The message of a firing alert."""
    return WORDS[check].message.format_map(evidence)
