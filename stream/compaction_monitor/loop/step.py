"""One fact on its way through a session: what it changes, what it publishes, what is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from compaction_events.facts import Basis
from compaction_events.findings import MAX_SUBJECTS, AlertRaised, AlertResolved, Finding, Severity
from compaction_events.ids import finding_id
from compaction_monitor.checks.evidence import WORDS, message_of
from compaction_monitor.rules import AgentRules, Rules
from compaction_monitor.state.session import MAX_OPEN_FINDINGS, OpenAlert, Session, moment
from compaction_monitor.state.tree import NO_TREE, NodeRows, Tree

Because = Literal["recovered", "superseded", "ended", "expired"]


@dataclass(slots=True)
class Step:
    """The working place of one fact (or one tick) and one session.

    Attributes:
        session: A copy that this step may change.
        at_us: Event time, µs since 1970.
        cause_id: The `ce_id` of the fact; for a tick the id of the order it is about.
        base_ms: Append time of the record (for a tick: now), epoch ms.
        rows: The session's checkpoints.
        rules: The rules of the session's agent.
    """

    session_id: str
    session: Session
    everywhere: Rules
    at_us: int
    cause_id: str
    base_ms: int
    rows: NodeRows = NO_TREE
    findings: list[Finding] = field(default_factory=list)
    counted: list[tuple[str, ...]] = field(default_factory=list)
    rules: AgentRules = field(init=False)
    touched: Tree | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.rules = self.everywhere.of(self.session.agent)

    @property
    def tree(self) -> Tree:
        """The session's checkpoints as this step makes them; most facts never look at them."""
        if self.touched is None:
            self.touched = Tree(self.rows)
        return self.touched

    def belongs_to(self, agent: str) -> None:
        """The session is of this agent, and its rules hold."""
        if agent != self.session.agent:
            self.session.agent = agent
            self.rules = self.everywhere.of(agent)

    def count(self, *name: str) -> None:
        """Count one of something: a metric's name and its label values."""
        self.counted.append(name)

    def raise_alert(
        self,
        check: str,
        severity: Severity,
        basis: str,
        evidence: Mapping[str, Any],
        subjects: Sequence[str] = (),
        id_subject: str = "",
        remediation_id: str | None = None,
    ) -> OpenAlert | None:
        """Open the alert of a check, or publish it again (worse, or a new subject); None when too many are open."""
        known = self.session.alert(check)
        if known is None and len(self.session.alerts) >= MAX_OPEN_FINDINGS:
            self.count("findings_dropped", check)
            return None
        alert = OpenAlert(
            check=check,
            id=known.id if known else finding_id(self.session_id, check, id_subject, self.cause_id),
            severity=severity.value,
            subjects=tuple(subjects[:MAX_SUBJECTS]),
            started_at_us=known.started_at_us if known else self.at_us,
            attempt=known.attempt + 1 if known else 1,
            remediation_id=remediation_id or (known.remediation_id if known else None),
            basis=basis,
        )
        self.session.alerts = (*(a for a in self.session.alerts if a.check != check), alert)
        self.findings.append(
            AlertRaised(**self._payload(alert), status="firing", message=message_of(check, evidence), evidence=evidence)
        )
        self.count("findings", self.session.agent, check, alert.severity, "raised_again" if known else "raised")
        return alert

    def resolve_alert(
        self, alert: OpenAlert, because: Because, evidence: Mapping[str, Any], superseded_by: str | None = None
    ) -> None:
        """Close an alert and say why."""
        self.session.alerts = tuple(a for a in self.session.alerts if a.id != alert.id)
        self.findings.append(
            AlertResolved(
                **self._payload(alert),
                status="resolved",
                message=f"{alert.check} is over: {because}",
                evidence=evidence,
                resolved_because=because,
                superseded_by=superseded_by,
            )
        )
        self.count("findings", self.session.agent, alert.check, alert.severity, "resolved")

    def _payload(self, alert: OpenAlert) -> dict[str, Any]:
        return {
            "id": alert.id,
            "session_id": self.session_id,
            "name": alert.check,
            "severity": Severity(alert.severity),
            "agent": self.session.agent,
            "subjects": alert.subjects,
            "startsAt": moment(alert.started_at_us),
            "lastReceived": moment(self.at_us),
            "fingerprint": alert.id,
            "service": self.session.agent,
            "description": WORDS[alert.check].description,
            "basis": Basis(alert.basis),
            "attempt": alert.attempt,
            "remediation_id": alert.remediation_id,
            "url": f"{self.everywhere.runbook_url}{alert.check}",
        }
