"""The guard in the agent's own process: the monitor's fold over one session, called after each eviction pass.

It runs no second set of rules: a pass is a `round.completed`, folded as the worker folds it; what the worker would
publish as an alert is raised or returned. It gives no orders, the plan comes with the finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar, Unpack

from pydantic import ValidationError

from compaction_events.codec import ce_id, contract_error
from compaction_events.facts import Composition, Fact, RoundCompleted, SessionStarted
from compaction_events.findings import AlertRaised, AlertResolved, Plan, Severity
from compaction_events.session import AFTER, RoundFields, StartFields, composition, native
from compaction_monitor.checks.rounds import CHECKS
from compaction_monitor.fold import fold
from compaction_monitor.guard.errors import CompactionInvariantError, Fall, GuardFinding, SalienceInversionError
from compaction_monitor.guard.regeneration import Regeneration, judge_alone
from compaction_monitor.loop.remedies import remedy
from compaction_monitor.rules import DEFAULT_RULES, AgentRules, Rules
from compaction_monitor.state.retention import Before
from compaction_monitor.state.session import Session, moment

PASS_RAISES: Final = frozenset({"salience_inversion", "provenance_floor", "depth_pinned", "orphaned_summary", "summary_failed"})
"""What a pass raises for unless told otherwise."""
REGENERATION_RAISES: Final = frozenset({"saturated", "unstable", "ambiguous"})
"""What a regeneration raises for unless told otherwise."""
_VERDICTS: Final = REGENERATION_RAISES | {"stale", "undecided"}
_TICK: Final = timedelta(microseconds=1)
_Model = TypeVar("_Model", bound=Fact)


class GuardReport(NamedTuple):
    """What a pass led to that was not raised.

    Attributes:
        findings: Alerts that opened, got worse, or are over.
        open: Checks whose alert is open after the pass, accepted ones included.
        fall: See `Fall`; None where the state before the pass was not given.
    """

    findings: tuple[GuardFinding, ...]
    open: tuple[str, ...]
    fall: Fall | None


class CompactionGuard:
    """Raises when a compaction pass goes wrong. Safe in any thread; never waits, so it can be called in async code.

    A check raises when its alert opens or gets worse. A pass that raised is as if it had not been, so undo it and go
    on; or keep it with `accept()`: then its check is silent until it gets worse, or is over and comes back.

    Args:
        agent: Whose rules hold.
        rules: Thresholds, switches, severities.
        raise_on: Checks and verdicts that raise; the others are returned. None: `PASS_RAISES`, `REGENERATION_RAISES`.
        clock: For passes without `at`.
        start: What is known of the session: `source_spans`, `max_depth`, `topology`, `scorer`, `token_budget`, …

    >>> from compaction_monitor import CompactionGuard, SalienceInversionError
    >>> guard = CompactionGuard(source_spans=214, max_depth=3)
    >>> guard.after_pass(raw_tokens=60_000, summary_tokens=90_000, spans=120, cosine=0.45, depth=2).open
    ()
    >>> try:
    ...     _ = guard.after_pass(raw_tokens=30_000, summary_tokens=120_000, spans=80, cosine=0.52, depth=2)
    ... except SalienceInversionError as error:
    ...     print(error.check, error.plan.action, error.plan.target_raw_ratio)  # undo the pass, then rehydrate
    salience_inversion halt_and_rehydrate 0.3
    """

    def __init__(
        self,
        agent: str = "agent",
        *,
        session_id: str = "in-process",
        rules: AgentRules = DEFAULT_RULES,
        raise_on: Iterable[str] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        **start: Unpack[StartFields],
    ) -> None:
        self._raises = PASS_RAISES | REGENERATION_RAISES if raise_on is None else frozenset(raise_on)
        if unknown := self._raises - CHECKS.keys() - _VERDICTS:
            allowed = ", ".join(sorted(CHECKS.keys() | _VERDICTS))
            raise ValueError(f"raise_on: {', '.join(sorted(unknown))} (allowed: {allowed})")
        self.agent = agent
        self.session_id = session_id
        # No orders: nobody here answers them. No expiry: the session lives as long as the agent.
        self._rules = Rules(default=replace(rules, observe=True), expiry_s=math.inf)
        self._clock = clock
        self._lock = Lock()
        self._rejected: Session | None = None
        known = {"started_at": self._clock(), **start}
        self._session = self._fold(None, self._fact(SessionStarted, known))[0]

    def after_pass(self, **fields: Unpack[RoundFields]) -> GuardReport:
        """Judge the working set as a pass left it.

        Args:
            fields: The state after the pass (`raw_tokens`, `summary_tokens`, `spans`, `cosine`, `depth`), the state
                `before` it if known, and what else is known of it: `summaries`, `summary_kind`, …
                A rehydration (`cause="rehydration"`) raises nothing.

        Raises:
            SalienceInversionError: A check of `raise_on` opened or got worse; the worst one, if several did.
            ContractError: The numbers make no sense; nothing was changed.
        """
        with self._lock:
            known = self._session
            event = self._round(known, dict(fields))
            session, alerts = self._fold(known, event)
            fall = _fall(known, event)
            findings = tuple(GuardFinding(alert, self._plan(alert, known, session, event)) for alert in alerts)
            order = list(CHECKS)
            raised = [f for f in findings if isinstance(f.alert, AlertRaised) and f.check in self._raises]
            self._rejected = session if raised else None
            if raised:
                raise SalienceInversionError(min(raised, key=lambda f: order.index(f.check)), findings, fall)
            self._session = session
            return GuardReport(findings, tuple(alert.check for alert in session.alerts), fall)

    def accept(self) -> None:
        """Keep the pass that just raised: it was not undone. Without one, nothing happens."""
        with self._lock:
            self._session, self._rejected = self._rejected or self._session, None

    def regeneration(
        self,
        before: Iterable[str],
        *after: Iterable[str],
        node_id: str = "checkpoint",
        budget_tokens: int | None = None,
        child_joint_entropy_bits: float | None = None,
        child_redundancy: float | None = None,
        bits_per_token: float | None = None,
        children_rewritten: bool | None = None,
        children: Iterable[str] = (),
        from_raw: bool = False,
        inferred: bool = False,
    ) -> Regeneration:
        """Judge a regenerated checkpoint before it is committed.

        Args:
            before: Ids of the propositions that the committed version states.
            after: The same of each trial regeneration, up to three; they are judged together.
            node_id: Its name.
            budget_tokens, child_joint_entropy_bits, child_redundancy, bits_per_token: Its room, where known.
            children_rewritten: Whether a child was written after it; None: not known.
            children: To look at where the children are the cause.
            from_raw: It is written from the raw log: there is nothing to judge.
            inferred: The numbers are estimates.

        Raises:
            CompactionInvariantError: A decided verdict of `raise_on`.
        """
        room = (budget_tokens, child_joint_entropy_bits, child_redundancy, bits_per_token)
        baseline = Before(frozenset(before), *room, from_raw, inferred)
        found = judge_alone(node_id, baseline, after, children_rewritten, tuple(children), self._rules.default.loop.trials_max)
        if found.judgement.severity is not None and found.judgement.verdict in self._raises:
            raise CompactionInvariantError(found.message(node_id), found.judgement, found.plan)
        return found

    def _fact(self, model: type[_Model], fields: Mapping[str, Any]) -> _Model:
        told = {name: native(value) for name, value in fields.items()}
        try:
            return model(**{"session_id": self.session_id, "agent": self.agent, **told})
        except ValidationError as error:
            raise contract_error(error) from None

    def _round(self, session: Session, fields: dict[str, Any]) -> RoundCompleted:
        """The pass as a fact: numbered here, and later than the one before even if the clock was set back."""
        after = composition({name: fields.pop(name) for name in AFTER if name in fields})
        if isinstance(fields.get("before"), Mapping):
            fields["before"] = composition(fields["before"])
        at = fields.pop("at", None) or self._clock()
        if isinstance(at, datetime) and at.tzinfo is not None:  # what has no zone is refused below
            at = max(at, moment(session.last_us) + _TICK)
        number = session.window[-1].number + 1 if session.window else 1
        return self._fact(RoundCompleted, {**fields, "after": after, "at": at, "round": number})

    def _fold(self, session: Session | None, fact: Fact) -> tuple[Session, list[AlertRaised | AlertResolved]]:
        folded = fold(session, fact, ce_id(fact), self._rules)
        assert folded.session is not None
        return folded.session, [found for found in folded.findings if isinstance(found, AlertRaised | AlertResolved)]

    def _plan(self, alert: AlertRaised | AlertResolved, before: Session, after: Session, event: RoundCompleted) -> Plan | None:
        if isinstance(alert, AlertResolved):
            return None
        known = before.alert(alert.name)
        fresh = [subject for subject in alert.subjects if known is None or subject not in known.subjects]
        limits = self._rules.default.thresholds
        return remedy(alert.name, after, event, limits, Severity(alert.severity), fresh or alert.subjects)


def _fall(session: Session, event: RoundCompleted) -> Fall | None:
    if event.before is None:
        return None
    last, before, after = session.window[-1] if session.window else None, event.before, event.after
    now = _raw_ratio(after)
    return Fall(
        raw_ratio=last.raw_ratio - now if last else None,
        raw_ratio_in_pass=_raw_ratio(before) - now,
        spans=_less(last.spans if last else None, after.distinct_source_spans),
        spans_in_pass=_less(before.distinct_source_spans, after.distinct_source_spans),
    )


def _raw_ratio(part: Composition) -> float:
    total = part.raw_tokens + part.summary_tokens
    return part.raw_tokens / total if total else 0.0


def _less(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else before - after
