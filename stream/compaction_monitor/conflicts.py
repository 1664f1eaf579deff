"""What holds an order back: cool-down, breaker, and an order that contradicts it."""

from __future__ import annotations

from typing import Final

from compaction_events.findings import Action, Severity
from compaction_monitor.state import OpenOrder
from compaction_monitor.step import Step

STANDING: Final = ("sent", "deferred", "accepted")
HALT: Final = Action.halt_and_rehydrate.value
_REGENERATES: Final = {Action.run_trial_regeneration.value, Action.regenerate_parent.value}
_SETTLES: Final = {Action.stop_regenerating.value, Action.rebalance.value}


def held_back(step: Step, order: OpenOrder, *, cooldown: bool) -> str:
    """`cooldown` or `breaker`, empty if neither holds the order back."""
    loop = step.rules.loop
    last = dict(step.session.cooling).get(order.check)
    if cooldown and last is not None and step.session.compactions - last < loop.cooldown_rounds:
        return "cooldown"
    recent = [at for at in step.session.ordered_us if step.at_us - at < loop.breaker_s * 1_000_000]
    return "breaker" if len(recent) >= loop.breaker_orders else ""


def spend(step: Step, order: OpenOrder) -> None:
    """Count an order for cool-down and breaker."""
    session = step.session
    session.cooling = (*(entry for entry in session.cooling if entry[0] != order.check), (order.check, session.compactions))
    horizon = step.at_us - step.rules.loop.breaker_s * 1_000_000
    session.ordered_us = (*(at for at in session.ordered_us if at > horizon), step.at_us)


def stands(order: OpenOrder) -> bool:
    return order.status in STANDING or (order.action == HALT and order.status == "completed")


def contradict(a: OpenOrder, b: OpenOrder) -> bool:
    """Two orders that cannot both be obeyed."""
    actions = {a.action, b.action}
    if actions in ({HALT, Action.recompact.value}, {HALT, Action.resume.value}):
        return True
    if a.subject == b.subject and (
        (a.action in _SETTLES and b.action in _REGENERATES) or (b.action in _SETTLES and a.action in _REGENERATES)
    ):
        return True
    return Action.drop_summary.value in actions and len(actions) == 2 and bool(set(a.expands) & set(b.expands))


def rank(step: Step, order: OpenOrder) -> int:
    """How bad the finding behind an order is, 0 worst; an order whose alert is over ranks last."""
    alert = next((a for a in step.session.alerts if a.id == order.alert_id), None)
    return Severity(alert.severity).rank if alert else len(Severity)
