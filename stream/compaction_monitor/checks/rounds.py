"""The round checks: one free function per rule, worst first.

Each looks at the session as it is after this round (the round is `session.window[-1]`) and at the round's own event,
and says whether its condition holds now, is over, or cannot be told because an input is absent. Nothing here knows
of alerts: what a condition leads to is decided in `episodes`.

An absent input skips a check with its reason; it is never guessed. A rising cosine counts only beside reachability.
Chains (each summary rewritten from the one before) and flat windows have no levels, so the checks that compare
levels skip them.

Source: "What structural signals indicate that hierarchical context compaction has crossed the salience inversion
boundary", Condition of Validity and Decision Boundary; where this differs, it says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Final, NamedTuple

from compaction_events.facts import RoundCompleted
from compaction_events.findings import MAX_SUBJECTS, Severity
from compaction_monitor.rules import Thresholds
from compaction_monitor.state.session import Round, Session

CRITICAL, WARNING, INFO = Severity.critical, Severity.warning, Severity.info


class Verdict(NamedTuple):
    """What a check says of one round.

    Attributes:
        holds: The condition holds now.
        over: What was raised by it is over (never together with `holds`).
        skipped: Which input is missing to tell whether it holds, empty if none is; it may be over all the same.
        severity: How bad, before the session's basis and the operator's settings.
        subjects: What it is about beside the session, at most 20; empty for the session itself.
    """

    holds: bool = False
    over: bool = False
    skipped: str = ""
    severity: Severity | None = None
    subjects: tuple[str, ...] = ()


CLEAR: Final = Verdict()
OVER: Final = Verdict(over=True)


@cache
def blind(reason: str, *, over: bool = False) -> Verdict:
    """An input is missing; one verdict for each of the few reasons."""
    return Verdict(over=over, skipped=reason)


Check = Callable[[Session, RoundCompleted, Thresholds], Verdict]


def falls(before: Round, after: Round, limits: Thresholds) -> bool:
    """Spans fell; inferred ones only when by more than the margin. Both rounds have spans."""
    assert before.spans is not None and after.spans is not None
    if after.measured and before.measured:
        return after.spans < before.spans
    return before.spans - after.spans > limits.inferred_spans_margin * before.spans


def rises(before: Round, after: Round, limits: Thresholds) -> bool:
    """The cosine rose; an inferred one only when by more than the margin. Both rounds have a cosine."""
    assert before.cosine is not None and after.cosine is not None
    if after.measured and before.measured:
        return after.cosine > before.cosine
    return round(after.cosine - before.cosine, 9) > limits.inferred_cosine_margin  # 0.43 - 0.41 is 0.02


def no_levels(session: Session) -> str:
    """Why checks that compare levels do not apply: `chain` or `flat`; empty for a tree or an unknown topology."""
    return session.topology if session.topology in ("chain", "flat") else ""


def gate(session: Session) -> str:
    """Why the loop cannot invert (D5): the scorer penalises depth, or eviction happens only at overflow."""
    if session.depth_penalty:
        return "depth_penalty"
    return "overflow" if session.eviction == "overflow" else ""


def salience_inversion(session: Session, _: RoundCompleted, limits: Thresholds) -> Verdict:
    """Mostly summary, ground falling, and the scorer likes it better than before."""
    now = session.window[-1]
    raw_ratio = now.raw_ratio
    over = raw_ratio >= limits.raw_ratio_recovered
    if reason := _inversion_blind(session):
        return blind(reason, over=over)
    before = session.window[-2]
    deep = now.depth is not None and now.depth >= 2
    if deep and raw_ratio < limits.raw_ratio_floor and not gate(session):
        if falls(before, now, limits) and rises(before, now, limits):
            return Verdict(holds=True, severity=CRITICAL)
    return OVER if over else CLEAR


def _inversion_blind(session: Session) -> str:
    """Why an inversion could not be seen in this round."""
    now = session.window[-1]
    if reason := no_levels(session):
        return reason
    if session.scorer == "none":
        return "no_scorer"
    if now.depth is None:
        return "no_depth"
    if len(session.window) < 2:
        return "no_previous"
    before = session.window[-2]
    if now.spans is None or before.spans is None:
        return "no_reachability"
    return "no_cosine" if now.cosine is None or before.cosine is None else ""


def provenance_floor(session: Session, event: RoundCompleted, limits: Thresholds) -> Verdict:
    """Too little of the ground is still reachable: of the session's start in a tree, of this pass in a chain."""
    now = session.window[-1]
    if session.topology == "flat":
        return blind("flat")
    chain = session.topology == "chain"
    floor = _chain_floor(event, limits) if chain else span_floor(session, limits)
    enough = floor is not None and now.spans is not None and now.spans >= floor
    over = enough and (now.compaction or not chain)  # a chain is over it at the next pass that holds
    if now.depth is None:
        return Verdict(over=over, skipped="no_depth")
    if now.spans is None:
        return blind("no_reachability")
    if floor is None:
        return blind("no_before" if chain else "no_source_spans")
    if enough:
        return OVER if over else CLEAR
    return Verdict(holds=True, severity=CRITICAL) if now.depth >= 2 else CLEAR


def span_floor(session: Session, limits: Thresholds) -> int | None:
    """The fewest spans a tree may reach, or None where the count at its start is not known."""
    if session.source_spans is None:
        return None
    return max(1, int(limits.span_floor_fraction * session.source_spans))


def _chain_floor(event: RoundCompleted, limits: Thresholds) -> float | None:
    """A chain replaces its whole context, so each pass answers only for what stood before it (D7)."""
    if event.before is None or event.before.distinct_source_spans is None:
        return None
    return limits.span_floor_fraction * event.before.distinct_source_spans


def inversion_risk(session: Session, _: RoundCompleted, limits: Thresholds) -> Verdict:
    """On the way to inversion: less than half raw for a while, and both ground and raw share falling."""
    window = session.window
    now = window[-1]
    if reason := no_levels(session):
        return blind(reason)
    over = now.raw_ratio >= limits.risk_over_ratio
    if now.depth is None:
        return blind("no_depth", over=over)
    if over:
        return OVER
    recent = window[-limits.risk_fall_rounds - 1 :]
    if any(entry.spans is None for entry in (*recent, window[0])):
        return blind("no_reachability")
    fell = any(falls(a, b, limits) for a, b in pairwise(recent))
    if not fell:
        return OVER if len(recent) > limits.risk_fall_rounds else _few(session, limits)
    if len(window) < limits.risk_rounds_min:
        return _few(session, limits)
    sinking = session.below_half and now.raw_ratio < window[0].raw_ratio and falls(window[0], now, limits)
    return Verdict(holds=True, severity=WARNING) if sinking and now.depth >= 2 else CLEAR


def _few(session: Session, limits: Thresholds) -> Verdict:
    if len(session.window) < 2:
        return blind("no_previous")
    return blind("few_rounds") if len(session.window) < limits.risk_rounds_min else CLEAR


def drift(session: Session, event: RoundCompleted, limits: Thresholds) -> Verdict:
    """Mostly summary, but no inversion: `drift_cause` says what is missing for one."""
    now = session.window[-1]
    if reason := no_levels(session):
        return blind(reason)
    raw_ratio = now.raw_ratio
    if raw_ratio >= limits.raw_ratio_recovered:
        return OVER
    if now.depth is None:
        return blind("no_depth")
    if now.depth < 2 or raw_ratio >= limits.raw_ratio_floor or not now.raw_tokens + now.summary_tokens:
        return CLEAR
    if salience_inversion(session, event, limits).holds:
        return CLEAR
    cause = drift_cause(session, limits)
    if cause.startswith("no_"):
        return blind(cause)
    return Verdict(holds=True, severity=WARNING if _fell(session, limits) else INFO)


def _fell(session: Session, limits: Thresholds) -> bool:
    """Spans are known to have fallen in this round."""
    if len(session.window) < 2:
        return False
    before, now = session.window[-2:]
    return before.spans is not None and now.spans is not None and falls(before, now, limits)


def drift_cause(session: Session, limits: Thresholds) -> str:
    """Why a set that is mostly summary is no inversion, or (`no_…`) which input is missing to tell."""
    if closed := gate(session):
        return closed
    if session.scorer == "none":
        return "scorer_none"
    if len(session.window) < 2:
        return "no_previous"
    before, now = session.window[-2:]
    if before.spans is None or now.spans is None:
        return "no_reachability"
    if not falls(before, now, limits):
        return "spans_stable"
    return "no_cosine" if before.cosine is None or now.cosine is None else "cosine_not_rising"


def depth_pinned(session: Session, _: RoundCompleted, limits: Thresholds) -> Verdict:
    """The hierarchy stays at its deepest level; from depth 3 (D4), as bad as what falls beside it."""
    now = session.window[-1]
    if reason := no_levels(session):
        return blind(reason)
    if now.depth is None:
        return blind("no_depth")
    if now.depth < deepest_allowed(session):
        return OVER
    if session.pinned <= limits.pinned_rounds or now.depth < limits.pinned_depth_min:
        return CLEAR
    first = session.window[0]
    sinks = first.spans is not None and now.spans is not None and falls(first, now, limits)
    worse = sinks or now.raw_ratio < limits.raw_ratio_floor
    return Verdict(holds=True, severity=WARNING if worse else INFO)


def deepest_allowed(session: Session) -> int:
    """The depth at which a hierarchy counts as pinned: its maximum, else the deepest level seen."""
    return session.deepest if session.max_depth is None else session.max_depth


def orphaned_summary(_: Session, event: RoundCompleted, __: Thresholds) -> Verdict:
    """A retained summary without one reachable leaf: nothing in the set can support it. A hard invariant."""
    if event.summaries is None:
        return blind("no_inventory")
    if event.spans_method != "pointer":
        return blind("no_pointers")
    orphans = sorted(item.summary_id for item in event.summaries if item.leaf_spans == 0)
    if orphans:
        return Verdict(holds=True, severity=CRITICAL, subjects=tuple(orphans[:MAX_SUBJECTS]))
    whole = event.summaries_total is None or event.summaries_total <= len(event.summaries)
    return OVER if whole else CLEAR


def coverage_gap(_: Session, event: RoundCompleted, limits: Thresholds) -> Verdict:
    """The pass evicted as covered what its summariser never read."""
    if event.summary_kind is not None and event.summary_kind in ("none", "empty", "error"):
        return blind("no_summary")
    if not event.claimed_records or event.read_records is None:
        return blind("no_records")
    if event.read_records < limits.coverage_floor * event.claimed_records:
        return Verdict(holds=True, severity=CRITICAL)
    return OVER if event.cause == "compaction" else CLEAR


def summary_failed(_: Session, event: RoundCompleted, __: Thresholds) -> Verdict:
    """The summariser failed, or fell back to something cruder, and the pass went on."""
    if event.summary_kind is None or event.summary_kind == "other":
        return blind("no_summary_kind")
    if event.summary_kind in ("error", "empty"):
        return Verdict(holds=True, severity=CRITICAL)
    if event.summary_kind == "fallback":
        return Verdict(holds=True, severity=WARNING)
    return OVER if event.summary_kind == "ok" and event.cause == "compaction" else CLEAR


def compaction_thrash(session: Session, _: RoundCompleted, limits: Thresholds) -> Verdict:
    """Passes that free too little, or come too often: the budget is too small for the work."""
    if session.eviction != "overflow" and session.topology != "chain":
        return blind("continuous" if session.eviction == "continuous" else "no_eviction")
    if not session.window[-1].compaction:
        return CLEAR
    if stays_full(session, limits) or bursts(session, limits):
        return Verdict(holds=True, severity=WARNING)
    return OVER


def stays_full(session: Session, limits: Thresholds) -> bool:
    """The last passes, none asked for by hand, each left more of the budget than they may."""
    last = [entry for entry in session.window if entry.compaction][-limits.thrash_full_rounds :]
    full = [e for e in last if not e.manual and e.full_ratio is not None and e.full_ratio > limits.thrash_full_ratio]
    return len(full) == limits.thrash_full_rounds


def bursts(session: Session, limits: Thresholds) -> bool:
    """So many passes, none asked for by hand, within so short a time, this one the last of them."""
    last = [e for e in session.window if e.compaction and not e.manual][-limits.thrash_burst_rounds :]
    if len(last) < limits.thrash_burst_rounds or last[-1] is not session.window[-1]:
        return False
    return last[-1].at_us - last[0].at_us <= limits.thrash_burst_s * 1_000_000


GROUNDING: Final = ("salience_inversion", "provenance_floor", "inversion_risk", "drift")
"""One family, worst first: while a worse one is open, no milder one is raised."""

CHECKS: Final[dict[str, Check]] = {
    "salience_inversion": salience_inversion,
    "provenance_floor": provenance_floor,
    "inversion_risk": inversion_risk,
    "drift": drift,
    "depth_pinned": depth_pinned,
    "orphaned_summary": orphaned_summary,
    "coverage_gap": coverage_gap,
    "summary_failed": summary_failed,
    "compaction_thrash": compaction_thrash,
}
"""Every round check by the one word that names it everywhere, in the order in which they are looked at."""

NEVER_APPLIES: Final = frozenset({"chain", "flat", "continuous", "no_scorer"})
"""Reasons to skip that hold for the whole session, not for a round: what was raised before they were known is over."""

INFERRED_MAY_BE_CRITICAL: Final = frozenset({"coverage_gap", "summary_failed"})
"""Nothing inferred is worse than a warning, these apart: they rest on records of what was read, not on estimates."""
