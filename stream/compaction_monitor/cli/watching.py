"""Findings of a stream: which to show, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from rich.text import Text

from compaction_events.codec import Decoded
from compaction_events.facts import Fact
from compaction_events.findings import Alert, AlertRaised, RemediationRequested, RemediationWithdrawn, Severity
from compaction_monitor.cli.charts import glyphs
from compaction_monitor.cli.render import OUTCOME, STYLE
from compaction_monitor.cli.wording import plan
from compaction_monitor.report.document import reaches, stamp

MAX_KEPT = 100_000


@dataclass(slots=True)
class Filter:
    """Which findings are wanted. An order is wanted where its alert is, so that both are seen or neither."""

    session: str | None = None
    agent: str | None = None
    severity: Severity | None = None
    _mild: dict[str, None] = field(default_factory=dict)

    def takes(self, finding: Fact) -> bool:
        """Whether to show a finding; call it for each, in order."""
        if self.session is not None and finding.session_id != self.session:
            return False
        if self.agent is not None and not fnmatchcase(getattr(finding, "agent", ""), self.agent):
            return False
        return self.severity is None or self._bad_enough(finding, self.severity)

    def _bad_enough(self, finding: Fact, limit: Severity) -> bool:
        match finding:
            case Alert():
                if reaches(finding.severity, limit):
                    self._mild.pop(finding.id, None)
                    return True
                self._keep(finding.id)
                return False
            case RemediationRequested():
                if finding.reason.alert_id in self._mild:
                    self._keep(finding.id)
                    return False
                return True
            case RemediationWithdrawn():
                return finding.id not in self._mild
        return False

    def _keep(self, id: str) -> None:  # noqa: A002 - it is the finding's
        self._mild[id] = None
        if len(self._mild) > MAX_KEPT:
            del self._mild[next(iter(self._mild))]


def finding_document(decoded: Decoded) -> dict[str, Any]:
    """A finding as it is on the wire, with the id of this publication."""
    return {"ce_id": decoded.ce_id, **decoded.event.model_dump(mode="json", exclude_none=True)}


def finding_text(finding: Fact, encoding: str) -> Text:
    """A finding in a line or two."""
    at = finding.occurred_at
    head = Text(f"{stamp(at)[:19].replace('T', ' ') if at else '-'}  {finding.session_id}  ", style="dim")
    return head.append_text(finding_words(finding, encoding))


def finding_words(finding: Fact, encoding: str) -> Text:
    """What a finding says, without when and where."""
    of = glyphs(encoding)
    match finding:
        case AlertRaised():
            again = f" (again, {finding.attempt})" if finding.attempt > 1 else ""
            style = STYLE[finding.severity]
            return Text.assemble((f"{of.mark} {finding.severity} {finding.name}{again}", style), f": {finding.message}")
        case Alert():
            because = OUTCOME.get(finding.resolved_because or "", "over")
            return Text.assemble((f"{of.mark} resolved {finding.name}", "green"), f": {because}")
        case RemediationRequested():
            found = finding.plan.model_dump(mode="json", exclude_none=True)
            return Text.assemble((f"{of.arrow} order ", "magenta"), plan(found), (f" ({finding.mode})", "dim"))
        case RemediationWithdrawn():
            return Text(f"{of.arrow} withdrawn {finding.action}: {finding.because}", style="dim")
    return Text(finding.type)
