"""Which order a finding leads to. Never the scorer's retuning, never switching compaction off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from compaction_events.facts import MAX_COUNT, RoundCompleted
from compaction_events.findings import CapDepth, DropSummary, EscalateToRaw, Plan, RaiseBudget, Recompact, Severity
from compaction_monitor.checks.plans import plan_halt, plan_rehydrate
from compaction_monitor.checks.rounds import span_floor
from compaction_monitor.rules import Thresholds
from compaction_monitor.state.nodes import node_name
from compaction_monitor.state.session import Session
from compaction_monitor.state.tree import NoTree, Tree


def remedy(
    check: str,
    session: Session,
    event: RoundCompleted,
    limits: Thresholds,
    severity: Severity,
    subjects: Sequence[str],
    tree: Tree | None = None,
) -> Plan | None:
    """The plan of the order that answers a round check now, or None where the check asks for nothing."""
    match check:
        case "salience_inversion":
            return _inversion(session, event, limits)
        case "provenance_floor":
            return _floor(session, event, limits)
        case "depth_pinned":
            return CapDepth(max_depth=limits.cap_depth) if severity is not Severity.info else None
        case "orphaned_summary":
            return _orphans(tree or Tree(NoTree()), event, subjects)
        case "coverage_gap":
            unread = (event.claimed_records or 0) - (event.read_records or 0)
            return EscalateToRaw(what="records", count=unread, round=event.round)
        case "summary_failed":
            return _failed(session, event)
        case "compaction_thrash":
            return _thrash(session, limits)
        case _:
            return None


def _inversion(session: Session, event: RoundCompleted, limits: Thresholds) -> Plan:
    """Rehydrate; but an inversion that soon came back would only come back again: then the loop must change."""
    if session.relapse_from is not None and session.compactions - session.relapse_from <= limits.relapse_rounds:
        return CapDepth(max_depth=limits.cap_depth, reachability=True)
    return plan_halt(event.after, event.summaries, limits.raw_ratio_recovered, session.token_budget)


def _floor(session: Session, event: RoundCompleted, limits: Thresholds) -> Plan:
    """Reload while the inventory has leaves to reload; a chain keeps none, its sources are only in the raw log."""
    reachable = event.after.distinct_source_spans or 0
    if session.topology == "chain":
        before = event.before.distinct_source_spans if event.before else None
        return EscalateToRaw(what="spans", count=max(0, (before or 0) - reachable), round=event.round)
    target = span_floor(session, limits) or 1
    plan = plan_rehydrate(event.after, event.summaries, target, session.token_budget)
    if event.summaries is not None and not plan.steps:
        return EscalateToRaw(what="spans", count=max(0, target - reachable), round=event.round)
    return plan


def _orphans(tree: Tree, event: RoundCompleted, orphans: Sequence[str]) -> Plan:
    """Drop them where what else is retained covers all their turns, as far as the checkpoints tell; else the raw log."""
    others = [item.summary_id for item in event.summaries or () if item.leaf_spans]
    held = sorted(node.turns for node in map(tree.node, map(node_name, others)) if node is not None and node.turns)
    lost = [node.turns if node else None for node in map(tree.node, map(node_name, orphans))]
    if all(turns is not None and covers(held, turns) for turns in lost):
        return DropSummary(summary_ids=tuple(orphans))
    return EscalateToRaw(what="summaries", ids=tuple(orphans), round=event.round)


def covers(ranges: Iterable[tuple[int, int]], turns: tuple[int, int]) -> bool:
    """Whether sorted ranges of turns, both ends included, leave none of these turns out.

    >>> covers([(1, 8), (9, 16)], (5, 12)), covers([(1, 8), (10, 16)], (5, 12))
    (True, False)
    """
    next_turn, last = turns
    for first, end in ranges:
        if first > next_turn:
            return False
        next_turn = max(next_turn, end + 1)
        if next_turn > last:
            return True
    return False


def _failed(session: Session, event: RoundCompleted) -> Plan:
    if session.failed > 1:
        return EscalateToRaw(what="records", count=event.claimed_records, round=event.round)
    return Recompact(round=event.round)


def _thrash(session: Session, limits: Thresholds) -> RaiseBudget:
    """The budget under which what the last pass left would have been acceptable, where it left too much."""
    now = session.window[-1]
    wanted = min(MAX_COUNT, math.ceil((now.raw_tokens + now.summary_tokens) / limits.thrash_full_ratio))
    more = session.token_budget is not None and wanted > session.token_budget
    return RaiseBudget(token_budget=session.token_budget, suggested_token_budget=wanted if more else None)
