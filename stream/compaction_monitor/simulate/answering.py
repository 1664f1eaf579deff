"""How a simulated agent answers an order: it accepts, does what is asked, and says that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from compaction_events.facts import AckStatus, Fact, RemediationAcknowledged
from compaction_events.findings import RemediationRequested


class Done(NamedTuple):
    """What obeying an order led to: the events to report, and a word for the answer."""

    facts: tuple[Fact, ...] = ()
    detail: str = ""


Handler = Callable[[Any, str], Done | None]
"""Takes the order's plan and its id; None: what the order is about is not there (any more)."""


def answered(order: RemediationRequested, handlers: Mapping[str, Handler], at: datetime) -> Iterable[Fact]:
    """Obey an order: its answers and what it led to, in the order in which they are reported.

    The answer comes last, so that whoever waits for it finds the rest already reported. An action without a handler
    is rejected, and the monitor goes on to its next lever.
    """
    handler = handlers.get(order.action)
    if handler is None:
        return [_answer(order, AckStatus.rejected, at, f"no handler for {order.action}")]
    done = handler(order.plan, order.id)
    if done is None:
        return [_answer(order, AckStatus.rejected, at, f"no {order.subject}")]
    accepted = _answer(order, AckStatus.accepted, at)
    return [accepted, *done.facts, _answer(order, AckStatus.completed, at, done.detail)]


def _answer(order: RemediationRequested, status: AckStatus, at: datetime, detail: str = "") -> RemediationAcknowledged:
    return RemediationAcknowledged(
        session_id=order.session_id, remediation_id=order.id, status=status, detail=detail or None, at=at
    )
