"""From conditions to alerts: one open alert per session and check, the grounding family, hysteresis.

A condition that holds opens its alert once. It is published again, under the same id, only when it gets worse or
finds a new subject. It closes when its check says so, when a worse one of its family takes its place, or when the
session ends or expires. A rehydration closes, and never opens.
"""

from __future__ import annotations

from collections.abc import Sequence

from compaction_events.facts import Basis, RoundCompleted
from compaction_events.findings import HaltAndRehydrate, Plan, Severity
from compaction_monitor.checks.evidence import round_evidence
from compaction_monitor.checks.rounds import CHECKS, CLEAR, GROUNDING, INFERRED_MAY_BE_CRITICAL, NEVER_APPLIES, OVER, Verdict
from compaction_monitor.loop import orders
from compaction_monitor.loop.remedies import remedy
from compaction_monitor.loop.step import Because, Step
from compaction_monitor.rules import AgentRules
from compaction_monitor.state.session import OpenAlert


def judge(step: Step, event: RoundCompleted) -> None:
    """Run every round check on the round that was just added to the session, and publish what follows."""
    verdicts, holding = _verdicts(step, event)
    before = step.session.alerts
    for alert in before:
        if alert.check in CHECKS:
            _close(step, event, alert, verdicts.get(alert.check))
        elif alert.check in step.rules.off:
            step.resolve_alert(alert, "ended", {})
            orders.alert_closed(step, alert, "ended")
    if not holding or event.cause != "compaction":
        return
    for check in holding:
        if not _outranked(check, {alert.check for alert in (*before, *step.session.alerts)}):
            _open(step, event, check, verdicts[check])


def end(step: Step, because: Because) -> None:
    """Close everything: the session ended or expired."""
    for check in [alert.check for alert in step.session.alerts]:
        if (alert := step.session.alert(check)) is not None:  # the loop's own may have gone with the one they are about
            step.resolve_alert(alert, because, {})
            orders.alert_closed(step, alert, because)
    orders.end_all(step, because)


def _verdicts(step: Step, event: RoundCompleted) -> tuple[dict[str, Verdict], list[str]]:
    """What every check says, and which of them hold."""
    rules, session, counted = step.rules, step.session, step.counted
    off, limits = rules.off, rules.thresholds
    found = {}
    holding = []
    for check, rule in CHECKS.items():
        if check in off:
            continue
        found[check] = verdict = rule(session, event, limits)
        if verdict is CLEAR or verdict is OVER:  # nine checks for every event: the usual answers first
            continue
        if verdict.skipped:
            counted.append(("checks_skipped", check, verdict.skipped))
        if verdict.holds:
            holding.append(check)
    return found, holding


def _close(step: Step, event: RoundCompleted, alert: OpenAlert, verdict: Verdict | None) -> None:
    """Resolve an alert whose check says it is over, does not apply to such a session, or was switched off."""
    over = verdict is not None and verdict.over
    if verdict is not None and not over and verdict.skipped not in NEVER_APPLIES:
        return
    because: Because = "recovered" if over else "ended"
    step.resolve_alert(alert, because, round_evidence(alert.check, step.session, event, step.rules.thresholds))
    if alert.check == "salience_inversion":
        step.session.relapse_from = step.session.compactions
    orders.alert_closed(step, alert, because)


def _outranked(check: str, open_checks: set[str]) -> bool:
    """A worse one of the family is open, or was until this round."""
    if check not in GROUNDING:
        return False
    return any(worse in open_checks for worse in GROUNDING[: GROUNDING.index(check)])


def _open(step: Step, event: RoundCompleted, check: str, verdict: Verdict) -> None:
    severity = effective_severity(check, verdict, event.basis, step.rules)
    known = step.session.alert(check)
    if known is not None and not _worth_repeating(step, known, severity, verdict):
        _keep_subjects(step, known, verdict)
        return
    if known is not None and severity.rank > Severity(known.severity).rank:
        severity = Severity(known.severity)  # an open alert never becomes milder
    concerned = tuple(s for s in verdict.subjects if known is None or s not in known.subjects) or verdict.subjects
    evidence = round_evidence(check, step.session, event, step.rules.thresholds)
    about = concerned[0] if concerned else ""
    plan = None if step.rules.observe else _remedy(step, event, check, severity, concerned)
    order_id = orders.order_id(step, check, plan, about) if plan else None
    alert = step.raise_alert(check, severity, event.basis, evidence, verdict.subjects, remediation_id=order_id)
    if alert is None:
        return
    _supersede_milder(step, event, alert)
    if plan is not None:
        concern, valid_through = orders.Concern(check, alert.id), orders.valid_through_round(step)
        next_lever = check == "summary_failed" and step.session.failed > 1
        orders.request(step, concern, plan, evidence, about, valid_through, at_once=next_lever)


def _remedy(step: Step, event: RoundCompleted, check: str, severity: Severity, concerned: Sequence[str]) -> Plan | None:
    plan = remedy(check, step.session, event, step.rules.thresholds, severity, concerned, step.tree)
    known = step.session.alert(check)
    if known is not None and known.remediation_id and isinstance(plan, HaltAndRehydrate):
        return None  # it was asked to halt, and one halt wants one resume
    return plan


def effective_severity(check: str, verdict: Verdict, basis: Basis, rules: AgentRules) -> Severity:
    """The operator's setting, else the check's own; what was inferred is no worse than a warning."""
    if check in rules.severity:
        return rules.severity[check]
    assert verdict.severity is not None
    inferred = basis is not Basis.measured and check not in INFERRED_MAY_BE_CRITICAL
    return Severity.warning if inferred and verdict.severity is Severity.critical else verdict.severity


def _worth_repeating(step: Step, known: OpenAlert, severity: Severity, verdict: Verdict) -> bool:
    if severity.rank < Severity(known.severity).rank:
        return True
    if known.check == "summary_failed" and step.session.failed == 2:
        return True  # the second in a row: recompacting did not help, so the order changes
    return any(subject not in known.subjects for subject in verdict.subjects)


def _keep_subjects(step: Step, known: OpenAlert, verdict: Verdict) -> None:
    """Forget subjects that no longer hold, so that one that comes back is new again."""
    left = tuple(subject for subject in known.subjects if subject in verdict.subjects)
    if left != known.subjects:
        kept = known._replace(subjects=left)
        step.session.alerts = tuple(kept if alert.id == known.id else alert for alert in step.session.alerts)


def _supersede_milder(step: Step, event: RoundCompleted, worse: OpenAlert) -> None:
    if worse.check not in GROUNDING:
        return
    milder = GROUNDING[GROUNDING.index(worse.check) + 1 :]
    for alert in step.session.alerts:
        if alert.check in milder:
            evidence = round_evidence(alert.check, step.session, event, step.rules.thresholds)
            step.resolve_alert(alert, "superseded", evidence, superseded_by=worse.id)
            orders.alert_closed(step, alert, "superseded")
