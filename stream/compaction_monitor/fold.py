"""The fold: one session's state and one fact in, the next state and the findings out. Pure and incremental.

How time runs here: a round earlier than the session's clock is late, one with the clock's own time and no higher
number is a duplicate; both are counted and change nothing. A round not above the last but later opens a new life of
the session, as does a start with a later `started_at`: numbering and window begin anew, while the floor's base, open
alerts and the clock stay. A fact more than a day after the last one closes the session and opens it anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple

from compaction_events.facts import (
    CheckpointRegenerated,
    CheckpointWritten,
    Fact,
    PropositionMissed,
    PropositionStated,
    RemediationAcknowledged,
    RoundCompleted,
    SessionEnded,
    SessionStarted,
)
from compaction_events.findings import Finding
from compaction_monitor.loop import episodes, orders
from compaction_monitor.loop.step import Step
from compaction_monitor.rules import WINDOW_ROUNDS, Rules
from compaction_monitor.state.session import Round, Session, microseconds
from compaction_monitor.state.tree import NO_TREE, Ledger, Node, NodeRows
from compaction_monitor.tree import checkpoints, constraints, suspicions, tracking, trials

LAST_US = microseconds(datetime(2199, 1, 1, tzinfo=UTC))  # what follows from a fact is later, and must stay writable
FIRST_MS, LAST_MS = microseconds(datetime(2000, 1, 2, tzinfo=UTC)) // 1_000, LAST_US // 1_000


class Folded(NamedTuple):
    """What a fact led to.

    Attributes:
        session: None when nothing is known of it (any more).
        counted: What was counted, one by one: `counts` adds it up.
        nodes: Checkpoint nodes to write, or (None) to delete.
        ledger: To write; None: as it was.
        ledger_gone: The ledger is to be deleted.
    """

    session: Session | None
    findings: Sequence[Finding]
    counted: Sequence[tuple[str, ...]]
    nodes: Mapping[str, Node | None] = MappingProxyType({})
    ledger: Ledger | None = None
    ledger_gone: bool = False

    @property
    def counts(self) -> Counter[tuple[str, ...]]:
        """How often what was counted: a metric's name and its label values."""
        return Counter(self.counted)


def fold(
    session: Session | None,
    fact: Fact,
    ce_id: str,
    rules: Rules,
    appended_ms: int | None = None,
    rows: NodeRows = NO_TREE,
) -> Folded:
    """Fold one fact into its session.

    Args:
        session: The state so far; it is not changed.
        fact: An event or an outcome of this session.
        ce_id: The fact's id; ids of findings derive from it.
        rules: The operator's settings.
        appended_ms: When the broker appended the record, epoch ms; None where there is no broker (files).
        rows: The session's checkpoints.
    """
    at = fact.occurred_at
    if appended_ms is not None and not FIRST_MS <= appended_ms <= LAST_MS:
        # A broker whose clock is wrong, or a topic with its producers' own times.
        appended_ms = min(max(appended_ms, FIRST_MS), LAST_MS)
    at_us = _event_time(at, session, rules, appended_ms)
    base_ms = at_us // 1_000 if appended_ms is None else appended_ms
    expired: Folded | None = None
    if session is not None and at is not None and _has_expired(session, at_us, rules):
        expired = expire(fact.session_id, session, rules, rows)
        session, rows = None, NO_TREE
    if session is not None:
        working = session.copy()
    elif type(fact) is RemediationAcknowledged:  # `isinstance` of a model that it is not takes as long as a check
        gone = expired or Folded(None, (), ())
        return gone._replace(counted=[*gone.counted, ("answers", "none", "unknown_session")])
    else:
        working = Session(agent=getattr(fact, "agent", None) or "unknown")
    working.appended_ms = base_ms
    step = Step(fact.session_id, working, rules, at_us, ce_id, base_ms, rows)
    _apply(step, fact)
    folded = _folded(step)
    if expired is None:
        return folded
    return folded._replace(
        findings=[*expired.findings, *folded.findings],
        counted=[*expired.counted, *folded.counted],
        nodes={**expired.nodes, **folded.nodes},
        ledger_gone=expired.ledger_gone and folded.ledger is None,
    )


def _folded(step: Step) -> Folded:
    tree = step.touched
    if tree is None:
        return Folded(step.session, step.findings, step.counted)
    return Folded(step.session, step.findings, step.counted, tree.changed, tree.ledger if tree.ledger_changed else None)


def expire(session_id: str, session: Session, rules: Rules, rows: NodeRows = NO_TREE) -> Folded:
    """Close a session that has been silent for too long; at its own time, so that it does not matter when."""
    at_us = session.last_us + round(rules.expiry_s * 1_000_000)
    step = Step(session_id, session.copy(), rules, at_us, f"expired:{at_us}", session.appended_ms)
    episodes.end(step, "expired")
    step.count("sessions_expired")
    nodes = {name: None for name, _ in rows.nodes()} if session.has_tree else {}
    return Folded(None, step.findings, step.counted, nodes, ledger_gone=session.has_tree)


def tick(session_id: str, session: Session, now_ms: int, rules: Rules) -> Folded:
    """Do what is due by the wall clock: order deadlines, never an alert of a check.

    Args:
        now_ms: The wall clock, epoch ms.
    """
    current = session
    findings: list[Finding] = []
    counted: list[tuple[str, ...]] = []
    for order_id in [order.id for order in session.orders if order.due_ms <= now_ms]:
        order = next((known for known in current.orders if known.id == order_id), None)
        if order is None or order.due_ms > now_ms:
            continue  # another one's tick has ended or moved it
        at_us = order.requested_at_us + (now_ms - order.base_ms) * 1_000
        step = Step(session_id, current.copy(), rules, at_us, order.id, now_ms)
        orders.tick(step, order, now_ms)
        orders.release(step)
        current = step.session
        findings += step.findings
        counted += step.counted
    return Folded(current, findings, counted)


def _event_time(at: datetime | None, session: Session | None, rules: Rules, appended_ms: int | None) -> int:
    """The fact's time; far ahead of the broker's clock it is taken back; without one, the session's clock."""
    if at is None:
        return session.clock_us if session is not None else (appended_ms or 0) * 1_000
    at_us = min(microseconds(at), LAST_US)
    if appended_ms is not None and at_us > appended_ms * 1_000:
        at_us = min(at_us, appended_ms * 1_000 + round(rules.clock_ahead_s * 1_000_000))
    return at_us


def _has_expired(session: Session, at_us: int, rules: Rules) -> bool:
    last_us = session.last_us
    return last_us != 0 and at_us - last_us > rules.expiry_s * 1_000_000


def _apply(step: Step, fact: Fact) -> None:
    match fact:
        case RoundCompleted():
            _round(step, fact)
            return
        case SessionStarted():
            _started(step, fact)
            return
        case SessionEnded():
            _ended(step)
            return
        case RemediationAcknowledged():
            orders.answer(step, fact)
        case PropositionStated():
            tracking.stated(step, fact)
        case PropositionMissed():
            suspicions.missed(step, fact)
        case CheckpointRegenerated(trial_number=int()):
            trials.trial(step, fact)
        case CheckpointWritten() | CheckpointRegenerated():
            checkpoints.written(step, fact)
    if fact.occurred_at is not None:
        step.session.active_us = max(step.session.active_us, step.at_us)
        orders.release(step)


def _started(step: Step, fact: SessionStarted) -> None:
    """A start tells what the session is; a later one begins a new life, a repeat only fills what was not known."""
    session = step.session
    started_us = microseconds(fact.started_at)  # not taken back, so that a repeat of it is still known as one
    joined_late = session.started_at_us is None and bool(session.window)
    fresh = session.started_at_us is None or started_us > session.started_at_us
    if fresh and not (joined_late and step.at_us <= session.window[-1].at_us):
        _new_life(session)
        session.complete = True
        session.ended = False
    if fresh:
        session.started_at_us = started_us
        session.active_us = max(session.active_us, step.at_us)
        step.belongs_to(fact.agent)
    scorer = fact.scorer
    told = {
        "agent_version": fact.agent_version,
        "topology": fact.topology,
        "max_depth": fact.max_depth,
        "token_budget": fact.token_budget,
        "scorer": scorer.name if scorer else None,
        "depth_penalty": scorer.depth_penalty if scorer else None,
        "recency_decay": scorer.recency_decay if scorer else None,
        "eviction": fact.eviction,
        "controller": fact.controller,
    }
    for name, value in told.items():
        if value is not None and value != "other" and (fresh or getattr(session, name) is None):
            setattr(session, name, str(value) if isinstance(value, str) else value)
    if session.source_spans is None:  # the floor's base is set once, whatever later lives begin with
        session.source_spans = fact.source_spans
    step.count("facts", fact.type, "new" if fresh else "repeat")


def _ended(step: Step) -> None:
    session = step.session
    if step.at_us < session.clock_us or (session.ended_at_us is not None and step.at_us <= session.ended_at_us):
        step.count("facts", "session.ended", "late")
        return
    session.clock_us = session.ended_at_us = step.at_us
    session.ended = True
    episodes.end(step, "ended")
    step.count("facts", "session.ended", "new")


def _round(step: Step, fact: RoundCompleted) -> None:
    session = step.session
    last = session.window[-1] if session.window else None
    if step.at_us < session.clock_us or (last is None and step.at_us == session.clock_us):
        step.count("facts", fact.type, "late")
        return
    if last is not None and fact.round <= last.number and (step.at_us == last.at_us or _taken_back_again(step, fact)):
        step.count("facts", fact.type, "duplicate")
        return
    if last is not None and fact.round <= last.number:
        _new_life(session)
        last = None
    session.gap = last is not None and fact.round != last.number + 1
    if session.gap:
        step.count("facts", fact.type, "gap")
    step.count("facts", fact.type, "new")
    if session.started_at_us is None:
        step.belongs_to(fact.agent)
    _add_round(session, fact, step.at_us)
    _advance(session, fact, step)
    episodes.judge(step, fact)
    constraints.constraint_lost(step, fact)
    if fact.cause == "compaction":
        orders.after_round(step, fact.round)
    orders.release(step)


def _taken_back_again(step: Step, fact: RoundCompleted) -> bool:
    """A time that was ahead is taken back, and a repeat of it less far: then the number and what it says tell."""
    if microseconds(fact.at) == step.at_us:
        return False
    again = _entry(step.session, fact, step.at_us)
    return any(again._replace(at_us=known.at_us) == known for known in step.session.window)


def _new_life(session: Session) -> None:
    """Numbering and window begin anew, with all that is derived from them."""
    session.window = ()
    session.gap = session.below_half = False
    session.pinned = session.deepest = session.failed = 0


def _add_round(session: Session, fact: RoundCompleted, at_us: int) -> None:
    if fact.topology is not None and fact.topology != "other":
        session.topology = str(fact.topology)
    session.max_depth = fact.max_depth if fact.max_depth is not None else session.max_depth
    session.token_budget = fact.token_budget if fact.token_budget is not None else session.token_budget
    session.window = (*session.window[-(WINDOW_ROUNDS - 1) :], _entry(session, fact, at_us))
    session.clock_us = at_us
    session.ended = False


def _entry(session: Session, fact: RoundCompleted, at_us: int) -> Round:
    after, budget = fact.after, session.token_budget
    # By position: names would cost as much as all the rest of it.
    return Round(
        fact.round,
        at_us,
        fact.cause == "compaction",
        fact.trigger == "manual",
        fact.basis == "measured",
        after.raw_tokens,
        after.summary_tokens,
        after.distinct_source_spans,
        after.query_cosine_retained,
        after.summary_depth_max,
        (after.raw_tokens + after.summary_tokens) / budget if budget else None,
    )


def _advance(session: Session, fact: RoundCompleted, step: Step) -> None:
    """What is counted from round to round: the half-way latch, the pin count, failures in a row."""
    limits = step.rules.thresholds
    now = session.window[-1]
    raw_ratio = now.raw_ratio
    if raw_ratio < limits.risk_below_ratio:
        session.below_half = True
    elif raw_ratio >= limits.risk_over_ratio:
        session.below_half = False
    if now.depth is not None:
        _count_pinned(session, now)
    if not now.compaction:
        return
    session.compactions += 1
    if fact.summary_kind in ("error", "empty", "fallback"):
        session.failed += 1
    elif fact.summary_kind == "ok":
        session.failed = 0


def _count_pinned(session: Session, now: Round) -> None:
    assert now.depth is not None
    if session.max_depth is None and now.depth > session.deepest:
        session.pinned = 0
    session.deepest = max(session.deepest, now.depth)
    if now.depth < (session.deepest if session.max_depth is None else session.max_depth):
        session.pinned = 0
    elif now.compaction:
        session.pinned += 1
