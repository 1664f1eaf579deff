"""What a session's facts come to, as one JSON document: its rounds, its findings, and which checks were blind.

The same fold as in the worker, fed from files. Pure: a report holds only plain JSON values, `None` where an input
was absent, and no text of the session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from compaction_events.codec import ce_id as derived_id
from compaction_events.facts import Composition, Fact, RoundCompleted, SessionStarted
from compaction_events.findings import (
    AlertRaised,
    AlertResolved,
    Finding,
    RemediationRequested,
    RemediationWithdrawn,
    Severity,
)
from compaction_monitor.fold import Folded, fold
from compaction_monitor.rules import Rules
from compaction_monitor.state.session import Session
from compaction_monitor.state.tree import Ledger, Node

Document = dict[str, Any]

LASTING: Final = frozenset({"open", "ended", "expired"})
"""Outcomes of an alert that never recovered: it still fires, or the session was over before it did."""


def stamp(at: datetime) -> str:
    """A time as ISO 8601 in UTC.

    >>> stamp(datetime(2026, 1, 5, 9, tzinfo=UTC))
    '2026-01-05T09:00:00Z'
    """
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


class _Checkpoints:
    """A session's tree in memory, as the fold reads it."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._nodes: dict[str, Node] = {}

    def ledger(self) -> Ledger:
        return self._ledger

    def node(self, node_id: str) -> Node | None:
        return self._nodes.get(node_id)

    def nodes(self) -> Iterable[tuple[str, Node]]:
        return list(self._nodes.items())

    def keep(self, folded: Folded) -> None:
        """Take over what a fact changed."""
        if folded.ledger is not None or folded.ledger_gone:
            self._ledger = folded.ledger or Ledger()
        for name, node in folded.nodes.items():
            if node is None:
                self._nodes.pop(name, None)
            else:
                self._nodes[name] = node


class SessionReport:
    """One session, fact by fact.

    Args:
        session_id: Whose facts follow.
        source: What was read: an adapter's name, or `events` for recorded events.
        files: The files they came from, as they are to be named.
    """

    def __init__(self, session_id: str, source: str, files: Sequence[str] = ()) -> None:
        self.session_id = session_id
        self.source = source
        self.files = list(files)
        self.facts: Counter[str] = Counter()
        self.counts: Counter[tuple[str, ...]] = Counter()
        self._session: Session | None = None
        self._checkpoints = _Checkpoints()
        self._agent: tuple[str, str | None] = ("unknown", None)
        self._rounds: list[Document] = []
        self._alerts: dict[str, Document] = {}
        self._orders: dict[str, Document] = {}
        self._round: int | None = None

    def add(
        self, fact: Fact, rules: Rules, ce_id: str | None = None, quoted: Sequence[tuple[int, int]] | None = None
    ) -> Sequence[Finding]:
        """Fold one fact; return what was published for it.

        Args:
            fact: The next one of the session.
            rules: The operator's settings.
            ce_id: Its id; derived where not given.
            quoted: Of a round, (still quoted, typed) for the user's messages of each stretch between passes, oldest first.
        """
        id_ = derived_id(fact) if ce_id is None else ce_id
        folded = fold(self._session, fact, id_, rules, rows=self._checkpoints)
        self._session = folded.session
        self._checkpoints.keep(folded)
        self.facts[fact.type] += 1
        self.counts.update(folded.counts)
        if isinstance(fact, SessionStarted):
            self._agent = (fact.agent, fact.agent_version)
        if isinstance(fact, RoundCompleted):
            self._agent = self._agent if self._agent[0] != "unknown" else (fact.agent, None)
            self._round = fact.round
            self._rounds.append(_round(fact, folded, quoted))
        for finding in folded.findings:
            self._note(finding)
        return folded.findings

    def document(self) -> Document:
        """The report so far."""
        findings = [*self._alerts.values(), *self._orders.values()]
        severities = [alert["severity"] for alert in self._alerts.values()]
        return {
            "session_id": self.session_id,
            "agent": self._agent[0],
            "agent_version": self._agent[1],
            "topology": self._session.topology if self._session else None,
            "token_budget": self._session.token_budget if self._session else None,
            "source": self.source,
            "files": list(self.files),
            "rounds": self._rounds,
            "findings": findings,
            "unresolved": [alert["name"] for alert in self._alerts.values() if alert["outcome"] in LASTING],
            "worst_severity": worst(severities),
            "checks_skipped": skipped(self.counts),
        }

    def _note(self, finding: Finding) -> None:
        match finding:
            case AlertRaised():
                known = self._alerts.get(finding.id)
                self._alerts[finding.id] = _alert(finding, known["round"] if known else self._round)
            case AlertResolved():
                self._alerts[finding.id] |= {
                    "status": "resolved",
                    "outcome": finding.resolved_because,
                    "resolved_at": stamp(finding.lastReceived),
                    "superseded_by": finding.superseded_by,
                }
            case RemediationRequested():
                self._orders.setdefault(finding.id, _order(finding, self._round))
            case RemediationWithdrawn():
                self._orders[finding.id] |= {"status": "withdrawn", "withdrawn_because": finding.because}


def scan_document(sessions: Iterable[Document], warnings: Sequence[str] = ()) -> Document:
    """One document over all sessions, with totals."""
    listed = list(sessions)
    alerts = [finding for session in listed for finding in session["findings"] if finding["kind"] == "alert"]
    orders = [finding for session in listed for finding in session["findings"] if finding["kind"] == "order"]
    return {
        "sessions": listed,
        "totals": {
            "sessions": len(listed),
            "sessions_with_rounds": sum(bool(session["rounds"]) for session in listed),
            "rounds": sum(len(session["rounds"]) for session in listed),
            "alerts": {severity.value: sum(alert["severity"] == severity for alert in alerts) for severity in Severity},
            "unresolved": sum(len(session["unresolved"]) for session in listed),
            "orders": len(orders),
        },
        "worst_severity": worst(alert["severity"] for alert in alerts),
        "warnings": list(warnings),
    }


def worst(severities: Iterable[str]) -> str | None:
    """The worst of some severities, None of none.

    >>> worst(["info", "critical", "warning"])
    'critical'
    """
    return min(severities, key=lambda severity: Severity(severity).rank, default=None)


def reaches(found: str | None, limit: Severity) -> bool:
    """Whether a severity is at least as bad as the limit.

    >>> reaches("warning", Severity.critical), reaches("critical", Severity.warning), reaches(None, Severity.info)
    (False, True, False)
    """
    return found is not None and Severity(found).rank <= limit.rank


def skipped(counts: Mapping[tuple[str, ...], int]) -> dict[str, dict[str, int]]:
    """How often each check could not be run, by reason."""
    found: dict[str, dict[str, int]] = {}
    for name, *labels in counts:
        if name == "checks_skipped":
            check, reason = labels
            found.setdefault(check, {})[reason] = counts[name, check, reason]
    return found


def total_tokens(part: Composition | None) -> int | None:
    """Everything in the context, overhead included."""
    return None if part is None else part.raw_tokens + part.summary_tokens + (part.overhead_tokens or 0)


def _round(fact: RoundCompleted, folded: Folded, quoted: Sequence[tuple[int, int]] | None) -> Document:
    after = fact.after
    kept = after.raw_tokens + after.summary_tokens
    took = {labels[1] for name, *labels in folded.counts if name == "facts" and labels[0] == fact.type}
    return {
        "round": fact.round,
        "at": stamp(fact.at),
        "cause": fact.cause.value,
        "trigger": fact.trigger and fact.trigger.value,
        "basis": fact.basis.value,
        "before_tokens": total_tokens(fact.before),
        "after_tokens": total_tokens(after),
        "raw_tokens": after.raw_tokens,
        "summary_tokens": after.summary_tokens,
        "overhead_tokens": after.overhead_tokens,
        "raw_ratio": round(after.raw_tokens / kept, 4) if kept else 0.0,
        "spans": after.distinct_source_spans,
        "spans_before": fact.before.distinct_source_spans if fact.before else None,
        "cosine": after.query_cosine_retained,
        "depth": after.summary_depth_max,
        "read_records": fact.read_records,
        "claimed_records": fact.claimed_records,
        "summary_kind": fact.summary_kind and fact.summary_kind.value,
        "quoted": None if quoted is None else [list(stretch) for stretch in quoted],
        "skipped": {check: reason for name, *labels in folded.counts if name == "checks_skipped" for check, reason in [labels]},
        "ignored": next((why for why in ("late", "duplicate") if why in took), None),
    }


def _alert(finding: AlertRaised, round_number: int | None) -> Document:
    return {
        "kind": "alert",
        "id": finding.id,
        "name": finding.name,
        "severity": finding.severity.value,
        "status": "firing",
        "outcome": "open",
        "round": round_number,
        "raised_at": stamp(finding.startsAt),
        "resolved_at": None,
        "superseded_by": None,
        "subjects": list(finding.subjects),
        "message": finding.message,
        "description": finding.description,
        "evidence": finding.model_dump(mode="json")["evidence"],
        "basis": finding.basis.value,
        "attempt": finding.attempt,
        "remediation_id": finding.remediation_id,
        "url": finding.url,
    }


def _order(finding: RemediationRequested, round_number: int | None) -> Document:
    return {
        "kind": "order",
        "id": finding.id,
        "action": finding.action.value,
        "status": "requested",
        "withdrawn_because": None,
        "round": round_number,
        "subject": finding.subject,
        "check": finding.reason.check,
        "alert_id": finding.reason.alert_id,
        "plan": finding.plan.model_dump(mode="json", exclude_none=True),
        "mode": finding.mode,
        "requested_at": stamp(finding.requested_at),
        "expires_at": stamp(finding.expires_at),
        "valid_through_round": finding.valid_through_round,
    }
