"""The life of an order: held back or sent, answered or not, ended exactly once.

    waiting --> sent --> accepted --> completed (watched until its alert is over)
                 |  ^       |
                 v  |       v
              deferred    failed, rejected, expired, withdrawn

An order expects an answer only where the session said `controller: expected` or one was ever seen; elsewhere it is
sent once and expires. Answers, deadlines and ticks change orders and the loop's own two alerts, and nothing else:
what the checks say never depends on what a controller says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import orjson

from compaction_events.facts import MAX_COUNT, AckStatus, RemediationAcknowledged
from compaction_events.findings import (
    Action,
    CapDepth,
    EscalateToRaw,
    OrderReason,
    Plan,
    Rebalance,
    RemediationRequested,
    RemediationWithdrawn,
    Resume,
    Severity,
)
from compaction_events.ids import finding_id
from compaction_monitor.loop.conflicts import HALT, STANDING, broken, contradict, held_back, rank, spend, stands
from compaction_monitor.loop.rebalancing import rebalance
from compaction_monitor.loop.step import Because, Step
from compaction_monitor.state.session import NEVER_MS, OpenAlert, OpenOrder, moment

MAX_PAYLOAD_BYTES = 64 * 1024  # of all orders kept for sending again, so that a row stays well below its bound
MAX_ORDERS = 64
UNANSWERED: Final = ("sent", "deferred")
_WITHDRAWN: Final[Mapping[str, Literal["resolved", "superseded", "ended", "expired"]]] = {
    "recovered": "resolved",
    "superseded": "superseded",
    "ended": "ended",
    "expired": "expired",
}


class Concern(NamedTuple):
    """What an order is for: the check, and the id of its alert."""

    check: str
    alert_id: str


def order_id(step: Step, check: str, plan: Plan, subject: str) -> str:
    """The id of the order this step would give for a check: two checks may ask for the same action at once."""
    kind = f"{plan.action} for {check}"
    trial = plan.trial_number if plan.action == "run_trial_regeneration" else 0
    return finding_id(step.session_id, kind, subject, step.cause_id, trial)


def _expands(plan: Plan) -> tuple[str, ...]:
    """The summaries whose raw sources a plan brings back in, or which it drops."""
    if plan.action == "halt_and_rehydrate" or plan.action == "rehydrate":
        return tuple([planned.summary_id for planned in plan.steps])
    return plan.summary_ids if plan.action == "drop_summary" else ()


def request(
    step: Step,
    concern: Concern,
    plan: Plan,
    evidence: Mapping[str, Any],
    subject: str = "",
    valid_through_round: int | None = None,
    *,
    exempt: bool = False,
    at_once: bool = False,
    beside: bool = False,
) -> None:
    """Give an order for an alert: send it, or keep it waiting while something holds it back.

    Args:
        exempt: Neither cool-down nor breaker hold it back, and it counts for neither.
        at_once: The cool-down does not hold it back (a next lever), the breaker does.
        beside: It stands beside the alert's other orders on the subject, and does not replace them.
    """
    if len(step.session.orders) >= MAX_ORDERS:
        step.count("orders", step.session.agent, plan.action, "dropped")
        return
    same = [o for o in step.session.orders if o.alert_id == concern.alert_id and o.subject == subject]
    replaced = [] if beside else [order for order in same if order.action != HALT]
    finding = RemediationRequested(
        session_id=step.session_id,
        id=order_id(step, concern.check, plan, subject),
        action=Action(plan.action),
        agent=step.session.agent,
        subject=subject,
        plan=plan,
        reason=OrderReason(check=concern.check, alert_id=concern.alert_id or None, evidence=dict(evidence)),
        requested_at=moment(step.at_us),
        expires_at=moment(step.at_us + _us(step.rules.loop.expires_s)),
        valid_through_round=valid_through_round,
        supersedes=tuple(o.id for o in replaced if o.status in STANDING),
        mode=step.rules.mode,
    )
    for order in replaced:
        if order.status not in STANDING:  # one that stands, stands until this one is sent
            withdraw(step, order, "superseded", finding.id)
    order = OpenOrder(
        id=finding.id,
        action=plan.action,
        check=concern.check,
        alert_id=concern.alert_id,
        subject=subject,
        status="waiting",
        attempt=0,
        requested_at_us=step.at_us,
        base_ms=step.base_ms,
        due_ms=NEVER_MS,
        valid_through_round=valid_through_round,
        done_round=None,
        expands=_expands(plan),
        payload="",
        exempt=exempt,
        at_once=at_once,
    )
    step.session.orders = (*step.session.orders, order)
    held = held_back(step, order)
    if held or _contradicted(step, order, finding.supersedes):
        step.count("orders_held", plan.action, held or "contradiction")
        _put(step, order._replace(payload=finding.model_dump_json(exclude_none=True)))
        if _payload_bytes(step, "") > MAX_PAYLOAD_BYTES:
            _end(step, order, "dropped")
        return
    spend(step, order)
    send(step, order, finding)


def valid_through_round(step: Step) -> int | None:
    """The last round for which an order about the session's last round is worth obeying."""
    window = step.session.window
    return min(MAX_COUNT, window[-1].number + step.rules.loop.valid_rounds) if window else None


def send(step: Step, order: OpenOrder, finding: RemediationRequested) -> None:
    """Publish an order, for the first time or again (same id, next attempt)."""
    loop = step.rules.loop
    attempt = order.attempt + 1
    times: dict[str, Any] = {"attempt": attempt}
    if order.attempt == 0:  # it may have waited: its time begins now
        valid_through = None if order.valid_through_round is None else valid_through_round(step)
        times["requested_at"] = moment(step.at_us)
        times["expires_at"] = moment(step.at_us + _us(loop.expires_s))
        times["valid_through_round"] = valid_through
        order = order._replace(requested_at_us=step.at_us, base_ms=step.base_ms, valid_through_round=valid_through)
    finding = finding.model_copy(update=times)
    for old in step.session.orders:
        if old.id in finding.supersedes:
            withdraw(step, old, "superseded", order.id)
    step.findings.append(finding)
    step.count("orders", step.session.agent, order.action, "sent" if attempt == 1 else "sent_again")
    due_ms = _expires_ms(step, order)
    payload = ""
    if step.session.expects_answers:
        due_ms = min(due_ms, step.base_ms + _ms(loop.deadline_s * loop.backoff ** (attempt - 1)))
        payload = finding.model_dump_json(exclude_none=True)
        if _payload_bytes(step, order.id) + len(orjson.dumps(payload)) > MAX_PAYLOAD_BYTES:
            payload = ""
    _put(step, order._replace(status="sent", attempt=attempt, due_ms=due_ms, payload=payload))


def answer(step: Step, fact: RemediationAcknowledged) -> None:
    """A controller says something of an order; any word from it proves that somebody listens."""
    step.session.answered = True
    if (alert := step.session.alert("remediation_unacknowledged")) is not None:
        step.resolve_alert(alert, "recovered", {"answer": fact.status.value})
    order = next((o for o in step.session.orders if o.id == fact.remediation_id), None)
    if order is None or order.status not in STANDING:
        step.count("answers", "none" if order is None else order.action, "too_late")
        return
    step.count("answers", order.action, fact.status.value)
    if order.status == "sent":
        step.count("answer_delay", order.action, str(max(0, step.base_ms - order.base_ms)))
    match fact.status:
        case AckStatus.accepted:
            _put(step, order._replace(status="accepted", due_ms=_expires_ms(step, order)))
        case AckStatus.deferred:
            wait = _ms(step.rules.loop.deadline_s * step.rules.loop.backoff ** (order.attempt - 1))
            due_ms = min(_expires_ms(step, order), step.base_ms + wait)
            _put(step, order._replace(status="deferred", due_ms=due_ms))
        case AckStatus.completed:
            _complete(step, order)
        case AckStatus.rejected | AckStatus.failed:
            _end(step, order, fact.status.value)
            _next_lever(step, order, fact.status.value)
        case AckStatus.other:
            pass


def after_round(step: Step, round_number: int) -> None:
    """What a further round does to orders: those about an old round are void, completed ones must have worked."""
    for order in step.session.orders:
        if order not in step.session.orders:
            continue  # another one's next lever has taken its place
        if order.status == "completed" and order.done_round is not None:
            _check_effect(step, order)
        elif order.status in UNANSWERED and _is_void(order, round_number):
            if order.status == "sent" and step.session.expects_answers:
                _unacknowledged(step, order)
            if order.action == HALT:  # whoever halted waits for a resume, so this one stays until then
                _put(step, order._replace(payload="", due_ms=_expires_ms(step, order), valid_through_round=None))
            else:
                _end(step, order, "expired")


def release(step: Step) -> None:
    """Send what waited and is held back no longer."""
    if not step.session.orders or step.rules.observe:  # since it was asked for
        return
    waiting = [order for order in step.session.orders if order.status == "waiting"]
    if waiting and broken(step):  # looked at once: this runs with every fact
        waiting = [order for order in waiting if order.attempt or order.exempt]
    for order in waiting:
        if order.attempt == 0 and held_back(step, order):
            continue
        finding = _finding(order)
        if not _contradicted(step, order, finding.supersedes):
            if order.attempt == 0:
                spend(step, order)
            send(step, order, finding)


def tick(step: Step, order: OpenOrder, now_ms: int) -> None:
    """An order's time has come: it expires, or is sent again, or nobody is there."""
    loop = step.rules.loop
    if now_ms >= _expires_ms(step, order):
        if order.status in STANDING and step.session.expects_answers:
            _unacknowledged(step, order, f"{order.id}:expired")
        _end(step, order, "completed" if order.status == "completed" else "expired")
        if order.action == HALT:
            _resume(step, order, "expired")
    elif order.status in UNANSWERED and order.payload and order.attempt <= loop.resends_max:
        send(step, order, _finding(order))
    else:
        if order.status == "sent" and step.session.expects_answers:
            _unacknowledged(step, order)
        _put(step, order._replace(due_ms=_expires_ms(step, order)))


def alert_closed(step: Step, alert: OpenAlert, because: Because) -> None:
    """An alert is over, and so are its orders; who halted may go on."""
    for order in step.session.orders:
        if order.alert_id != alert.id:
            continue
        if order.action == HALT and order.attempt:  # called back or not: whoever halted waits for a resume
            _end(step, order, "completed" if order.status == "completed" else "withdrawn")
            _resume(step, order, "resolved")
        else:
            withdraw(step, order, _WITHDRAWN[because])
    _effective_again(step, alert.check, because if because in ("ended", "expired") else "recovered")


def subject_closed(step: Step, alert: OpenAlert, subject: str, because: Because) -> None:
    """An alert goes on, but no longer about this subject."""
    for order in step.session.orders:
        if order.alert_id == alert.id and order.subject == subject:
            withdraw(step, order, _WITHDRAWN[because])


def fulfil(step: Step, order: OpenOrder) -> None:
    """What an order asked for has been seen to happen, whatever its controller says."""
    _end(step, order, "completed")


def end_all(step: Step, because: Because) -> None:
    """The session is over: nothing is asked of it any more, but a resume still goes out."""
    for order in step.session.orders:
        if order.action != Action.resume.value:
            withdraw(step, order, _WITHDRAWN[because])
        elif because == "expired":
            _end(step, order, "expired")


def withdraw(
    step: Step,
    order: OpenOrder,
    because: Literal["resolved", "superseded", "ended", "expired", "contradicted"],
    superseded_by: str | None = None,
) -> None:
    """End an order that has not ended; call it back if it was sent, and is not called back already."""
    if order.status == "completed":
        _end(step, order, "completed")
        return
    _end(step, order, "withdrawn")
    if order.status != "waiting":
        _call_back(step, order, because, superseded_by)


def _call_back(step: Step, order: OpenOrder, because: Any, superseded_by: str | None = None) -> None:
    step.findings.append(
        RemediationWithdrawn(
            session_id=step.session_id,
            id=order.id,
            action=Action(order.action),
            agent=step.session.agent,
            subject=order.subject,
            attempt=order.attempt,
            because=because,
            withdrawn_at=moment(step.at_us),
            superseded_by=superseded_by,
        )
    )


def _put(step: Step, order: OpenOrder) -> None:
    step.session.orders = tuple(order if known.id == order.id else known for known in step.session.orders)


def _end(step: Step, order: OpenOrder, outcome: str) -> None:
    step.session.orders = tuple(known for known in step.session.orders if known.id != order.id)
    step.count("orders_ended", order.action, outcome)


def _complete(step: Step, order: OpenOrder) -> None:
    """`completed` ends it; it is only watched until its alert is over (a halt: until the resume)."""
    alert = step.session.alert(order.check)
    if (alert is None or alert.id != order.alert_id) and order.action != HALT:
        _end(step, order, "completed")
        return
    due_ms = _expires_ms(step, order) if order.action == HALT else NEVER_MS
    done = order._replace(status="completed", due_ms=due_ms, done_round=step.session.compactions, payload="")
    _put(step, done)


def _check_effect(step: Step, order: OpenOrder) -> None:
    rounds = step.session.compactions - (order.done_round or 0)
    if rounds < step.rules.loop.ineffective_rounds:
        return
    if order.action == HALT:
        _put(step, order._replace(done_round=None))
    else:
        _end(step, order, "completed")
    _ineffective(step, order, rounds)
    _next_lever(step, order, "ineffective")


def _ineffective(step: Step, order: OpenOrder, rounds: int) -> None:
    check = "remediation_ineffective"
    known = step.session.alert(check)
    listed = known.subjects if known else ()
    if order.check in listed:
        return
    evidence = {"remediation_id": order.id, "action": order.action, "check": order.check, "rounds": rounds}
    subjects = (*listed, order.check)
    step.raise_alert(check, Severity.warning, "measured", evidence, subjects, order.check, remediation_id=order.id)


def _effective_again(step: Step, check: str, because: Because) -> None:
    alert = step.session.alert("remediation_ineffective")
    if alert is None or check not in alert.subjects:
        return
    left = tuple(subject for subject in alert.subjects if subject != check)
    if left:
        kept = alert._replace(subjects=left)
        step.session.alerts = tuple(kept if a.id == alert.id else a for a in step.session.alerts)
    else:
        step.resolve_alert(alert, because, {"check": check})


def _next_lever(step: Step, order: OpenOrder, outcome: str) -> None:
    alert = step.session.alert(order.check)
    if alert is None or alert.id != order.alert_id or step.rules.observe:
        return
    plan: Plan
    match order.action:
        case "halt_and_rehydrate":
            plan = CapDepth(max_depth=step.rules.thresholds.cap_depth)
        case "rehydrate":
            plan = EscalateToRaw(what="spans")
        case "recompact":
            plan = EscalateToRaw(what="records")
        case "regenerate_parent":
            node = step.tree.node(order.subject)
            plan = rebalance(step.tree, order.subject, node) if node else Rebalance(node_id=order.subject)
        case _:
            return
    evidence = {"previous_remediation_id": order.id, "previous_action": order.action, "previous_outcome": outcome}
    valid_through = valid_through_round(step)
    request(step, Concern(alert.check, alert.id), plan, evidence, order.subject, valid_through, at_once=True)


def _resume(step: Step, halt: OpenOrder, because: Literal["resolved", "expired"]) -> None:
    halt_concern = Concern(halt.check, halt.alert_id)
    request(step, halt_concern, Resume(halted_by=halt.id, because=because), {"halted_by": halt.id}, halt.id, exempt=True)


def _unacknowledged(step: Step, order: OpenOrder, id_subject: str = "") -> None:
    """Nobody answered. An order may be missed twice, at its deadline and when it expires: `id_subject` tells them apart."""
    known = step.session.alert("remediation_unacknowledged")
    if step.session.ended or (known is not None and order.id in known.subjects):
        return  # of a session that has ended nobody need answer
    subjects = (*(known.subjects if known else ()), order.id)
    evidence = {"remediation_id": order.id, "action": order.action, "attempt": order.attempt, "status": order.status}
    step.raise_alert(
        "remediation_unacknowledged",
        Severity.warning,
        "measured",
        evidence,
        subjects,
        id_subject or order.id,
        remediation_id=order.id,
    )


def _payload_bytes(step: Step, but: str) -> int:
    """What the payloads take in the row: text in JSON in JSON."""
    return sum(len(orjson.dumps(order.payload)) for order in step.session.orders if order.id != but)


def _is_void(order: OpenOrder, round_number: int) -> bool:
    return order.valid_through_round is not None and round_number > order.valid_through_round


def _finding(order: OpenOrder) -> RemediationRequested:
    """An order as it was, or is to be, published."""
    return RemediationRequested.model_validate_json(order.payload)


def _contradicted(step: Step, order: OpenOrder, supersedes: Sequence[str]) -> bool:
    """Whether a standing order keeps this one waiting; those of milder findings are called back and wait instead."""
    own = rank(step, order)
    spared = {order.id, *supersedes}
    rivals = [o for o in step.session.orders if o.id not in spared and stands(o) and contradict(o, order)]
    if any(rank(step, rival) <= own for rival in rivals):
        return True
    for rival in rivals:
        _give_way(step, rival, order.id)
    return False


def _give_way(step: Step, order: OpenOrder, to: str) -> None:
    """Call an order back for a worse finding's; it waits if it can be sent again, and else a halt is over for good."""
    if order.status != "completed":
        _call_back(step, order, "contradicted", to)
    if order.payload and order.action != Action.resume.value:
        _put(step, order._replace(status="waiting", due_ms=_expires_ms(step, order)))  # by its word it is void then
        return
    _end(step, order, "completed" if order.status == "completed" else "withdrawn")
    if order.action == HALT:
        _resume(step, order, "resolved")


def _expires_ms(step: Step, order: OpenOrder) -> int:
    return order.base_ms + _ms(step.rules.loop.expires_s)


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)
