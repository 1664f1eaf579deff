"""What holds an order back: cool-down, breaker, and an order that contradicts it."""

from __future__ import annotations

from typing import Final

from compaction_events.findings import Action, Severity
from compaction_monitor.loop.step import Step
from compaction_monitor.state.session import OpenOrder

STANDING: Final = ("sent", "deferred", "accepted")
HALT: Final = Action.halt_and_rehydrate.value
PER_SUBJECT: Final = frozenset({"trial", "upstream_loss", "silent_composed_loss", "regeneration_loop"})
"""What queues for each node or proposition by itself; the remedies of trials are not held back at all."""
MAX_LANES: Final = 64
_REGENERATES: Final = {Action.run_trial_regeneration.value, Action.regenerate_parent.value}
_SETTLES: Final = {Action.stop_regenerating.value, Action.rebalance.value}


def _lane(step: Step, order: OpenOrder) -> tuple[str, int]:
    """Where an order queues, and the clock there: a check by its rounds, a node's or proposition's by commits."""
    if order.check in PER_SUBJECT:
        return f"{order.check}:{order.subject}", step.session.commits
    return order.check, step.session.compactions


def held_back(step: Step, order: OpenOrder) -> str:
    """`cooldown` or `breaker`, empty if neither holds the order back."""
    if order.exempt:
        return ""
    lane, clock = _lane(step, order)
    last = dict(step.session.cooling).get(lane)
    if not order.at_once and last is not None and clock - last < step.rules.loop.cooldown_rounds:
        return "cooldown"
    return "breaker" if broken(step) else ""


def broken(step: Step) -> bool:
    """The session has had as many orders as it may within the time."""
    loop = step.rules.loop
    recent = [at for at in step.session.ordered_us if step.at_us - at < loop.breaker_s * 1_000_000]
    return len(recent) >= loop.breaker_orders


def spend(step: Step, order: OpenOrder) -> None:
    """Count an order for cool-down and breaker, if they hold for it."""
    if order.exempt:
        return
    session = step.session
    lane, clock = _lane(step, order)
    session.cooling = (*(entry for entry in session.cooling if entry[0] != lane), (lane, clock))[-MAX_LANES:]
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
