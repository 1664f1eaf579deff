"""Alerts about parts of a session: one alert a check, which lists the nodes or propositions it is about.

It is published again when a new one joins, with an order of its own for it; it closes when the last one leaves.
What it says never depends on orders and answers, so what it counts of those goes into the order alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from compaction_events.findings import MAX_SUBJECTS, Plan, Severity
from compaction_events.ids import finding_id
from compaction_monitor.loop import orders
from compaction_monitor.loop.step import Because, Step
from compaction_monitor.state.session import OpenAlert
from compaction_monitor.state.tree import Tree

ABOUT_NODES: Final = frozenset(
    {"stale", "saturated", "unstable", "ambiguous", "over_capacity", "regeneration_loop", "silent_composed_loss"}
)


def add(
    step: Step,
    check: str,
    concerned: str | Sequence[str],
    severity: Severity,
    basis: str,
    evidence: Mapping[str, Any],
    plan: Plan | None,
    *,
    order_subject: str | None = None,
    node: str | None = None,
    exempt: bool = False,
) -> OpenAlert | None:
    """Raise a check about one more subject, or some, with its order; None if there is nothing new to say, or no room.

    Args:
        concerned: The subjects; those that are listed already are passed over.
        order_subject: Whom the order is about, where that is not the first subject.
        node: At which node the order is counted, where that is not whom it is about.
        exempt: See `orders.request`.
    """
    if check in step.rules.off:
        return None
    names = [concerned] if isinstance(concerned, str) else concerned
    severity = step.rules.severity.get(check, severity)
    known = step.session.alert(check)
    listed = known.subjects if known else ()
    new = [name for name in names if name not in listed]
    fitting = new[: MAX_SUBJECTS - len(listed)]
    if len(fitting) < len(new):
        step.count("findings_dropped", check)
    worse = known is None or severity.rank < Severity(known.severity).rank
    if not fitting and (new or not worse):
        return None
    if known is not None and not worse:
        severity = Severity(known.severity)
    plan = None if step.rules.observe else plan
    about = names[0] if order_subject is None else order_subject
    found = {name: value for name, value in evidence.items() if value is not None}
    order_id = orders.order_id(step, check, plan, about) if plan else None
    alert = step.raise_alert(check, severity, basis, found, (*listed, *fitting), names[0], remediation_id=order_id)
    if alert is not None and plan is not None:
        given = count_order(step.tree, about if node is None else node)
        concern = orders.Concern(check, alert.id)
        orders.request(step, concern, plan, {**found, **given}, about, exempt=exempt)
    return alert


def alert_id(step: Step, check: str, subject: str) -> str | None:
    """The id that the check's alert has, or gets if it is raised now; None if it is switched off."""
    if check in step.rules.off:
        return None
    known = step.session.alert(check)
    return known.id if known else finding_id(step.session_id, check, subject, step.cause_id)


def drop(
    step: Step,
    check: str,
    subject: str,
    evidence: Mapping[str, Any],
    because: Because = "recovered",
    superseded_by: str | None = None,
) -> None:
    """A subject is no longer concerned; with the last one the alert is over. Its open orders are called back."""
    alert = step.session.alert(check)
    if alert is None or subject not in alert.subjects:
        return
    left = tuple(other for other in alert.subjects if other != subject)
    if not left:
        found = {name: value for name, value in evidence.items() if value is not None}
        step.resolve_alert(alert, because, found, superseded_by)
        orders.alert_closed(step, alert, because)
        return
    kept = alert._replace(subjects=left)
    step.session.alerts = tuple(kept if other.id == alert.id else other for other in step.session.alerts)
    orders.subject_closed(step, alert, subject, because)


def count_order(tree: Tree, name: str) -> dict[str, int]:
    """Count an order at a node: a healthy one is split once and regenerated once. Returns how many it is now."""
    node = tree.node(name)
    if node is None:
        return {}
    tree.changed[name] = node._replace(orders=node.orders + 1)
    return {"orders": node.orders + 1}
