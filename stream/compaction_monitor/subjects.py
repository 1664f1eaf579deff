"""Alerts about parts of a session: one alert a check, which lists the nodes or propositions it is about.

It is published again when a new one joins, with an order of its own for it; it closes when the last one leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from compaction_events.findings import MAX_SUBJECTS, Plan, Severity
from compaction_monitor import orders
from compaction_monitor.state import OpenAlert
from compaction_monitor.step import Because, Step
from compaction_monitor.tree import Tree


def add(
    step: Step,
    check: str,
    subject: str,
    severity: Severity,
    basis: str,
    evidence: Mapping[str, Any],
    plan: Plan | None,
    *,
    order_subject: str | None = None,
    exempt: bool = False,
) -> OpenAlert | None:
    """Raise a check about one more subject, with its order; None if there is nothing new to say, or no room.

    Args:
        order_subject: Whom the order is about, where that is not the subject itself.
        exempt: See `orders.request`.
    """
    if check in step.rules.off:
        return None
    severity = step.rules.severity.get(check, severity)
    known = step.session.alert(check)
    if known is not None and subject in known.subjects and severity.rank >= Severity(known.severity).rank:
        return None
    listed = tuple(dict.fromkeys([*(known.subjects if known else ()), subject]))
    if len(listed) > MAX_SUBJECTS:
        step.count("findings_dropped", check)
        return None
    if known is not None and severity.rank > Severity(known.severity).rank:
        severity = Severity(known.severity)
    plan = None if step.rules.observe else plan
    about = subject if order_subject is None else order_subject
    found = {name: value for name, value in evidence.items() if value is not None}
    order_id = orders.order_id(step, check, plan, about) if plan else None
    alert = step.raise_alert(check, severity, basis, found, listed, subject, remediation_id=order_id)
    if alert is not None and plan is not None:
        _count_order(step.tree, about)
        orders.request(step, orders.Concern(check, alert.id), plan, found, about, exempt=exempt)
    return alert


def drop(step: Step, check: str, subject: str, evidence: Mapping[str, Any], because: Because = "recovered") -> None:
    """A subject is no longer concerned; with the last one the alert is over. Its open orders are called back."""
    alert = step.session.alert(check)
    if alert is None or subject not in alert.subjects:
        return
    left = tuple(other for other in alert.subjects if other != subject)
    if not left:
        step.resolve_alert(alert, because, {name: value for name, value in evidence.items() if value is not None})
        orders.alert_closed(step, alert, because)
        return
    kept = alert._replace(subjects=left)
    step.session.alerts = tuple(kept if other.id == alert.id else other for other in step.session.alerts)
    orders.subject_closed(step, alert, subject, because)


def _count_order(tree: Tree, name: str) -> None:
    """Orders are counted per node: a healthy one is split once and regenerated once."""
    node = tree.node(name)
    if node is not None:
        tree.changed[name] = replace(node, orders=node.orders + 1)
