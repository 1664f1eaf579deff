"""A controller: takes the orders for its sessions, lets a handler obey each, and answers.

```python
controller = Controller("localhost:9092", agent="coder", group_id="coder", current_round=rounds.get)

@controller.on("halt_and_rehydrate")
def halt(order):
    agent.halt(order.session_id)
    for step in order.plan.steps:
        agent.expand(step.summary_id)

@controller.on("resume")
async def resume(order):
    await agent.resume(order.session_id)

with controller:               # in a thread of its own; or `await controller.run()`
    agent.work()
```
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

from compaction_events.background import Background
from compaction_events.bounded import Bounded
from compaction_events.codec import decode
from compaction_events.consumer import LOOK_BACK, POLL_MS, FindingsConsumer
from compaction_events.emitter import Emitter
from compaction_events.errors import CompactionEventsError, ContractError
from compaction_events.facts import AckStatus, RemediationAcknowledged
from compaction_events.findings import Action, Finding, RemediationRequested, RemediationWithdrawn
from compaction_events.security import Security, let_in, secured
from compaction_events.topics import FINDINGS, OUTCOMES

log = logging.getLogger(__name__)

Handler = Callable[[RemediationRequested], Awaitable[str | None] | str | None]
FINAL = frozenset({AckStatus.completed, AckStatus.failed, AckStatus.rejected})
REMEMBERED_ORDERS = 10_000
MAX_DETAIL_CHARS = 1_024
FLUSH_S = 5.0


class OrderRejectedError(CompactionEventsError):
    """Raised by a handler: this order will not be obeyed. The monitor goes on to its next lever."""


class OrderDeferredError(CompactionEventsError):
    """Raised by a handler: not now. The monitor sends the same order again later."""


class Controller:
    """Obeys orders, one after the other, and answers each: accepted, then completed, failed, rejected or deferred.

    An order is dropped without an answer when it has expired, was withdrawn, or its session has moved past it. One that
    is sent again is answered as before, across restarts too: the answers are in the outcomes topic. One that a run died
    of is run again, so a handler should bear that. A handler that is no coroutine runs in a thread.

    Args:
        servers: `HOST:PORT`, several with commas between.
        agent: Take the orders of this agent's sessions only.
        sessions: Take these sessions' orders only: their ids, or a function of an id. In an agent's own process.
        group_id: Controllers with one id share the orders. Not together with `sessions`: each would see a part.
        current_round: Gives the last round of a session, or None when it is not known.
        precondition: Why an order cannot be obeyed now, or None: it is then rejected with that detail.
        modes: Which orders to obey; others are left to people.
        findings_topic: Where orders come from. `outcomes_topic`: where answers go.
        clock: Gives the time, aware; by default the machine's.
        consumer: More arguments of the consumer, `group_instance_id` say.
        security: What is shown to the broker.
        kafka: Arguments of consumer and producer both.

    Raises:
        ImportError: The extra `[emitter]` is not installed.
        ValueError: `group_id` and `sessions` were both given.
    """

    def __init__(
        self,
        servers: str,
        *,
        agent: str | None = None,
        sessions: Collection[str] | Callable[[str], bool] | None = None,
        group_id: str | None = None,
        current_round: Callable[[str], int | None] | None = None,
        precondition: Callable[[RemediationRequested], str | None] | None = None,
        modes: Collection[str] = ("advisory", "enforce"),
        findings_topic: str = FINDINGS.name,
        outcomes_topic: str = OUTCOMES.name,
        clock: Callable[[], datetime] | None = None,
        consumer: Mapping[str, Any] | None = None,
        security: Security | None = None,
        **kafka: Any,
    ) -> None:
        if group_id is not None and sessions is not None:
            raise ValueError(
                "group_id shares all orders between controllers; with sessions each has to see all: give one of them"
            )
        self._agent = agent
        self._is_mine = sessions if callable(sessions) or sessions is None else frozenset(sessions).__contains__
        self._current_round = current_round
        self._precondition = precondition
        self._modes = frozenset(modes)
        self._clock = clock or partial(datetime.now, UTC)
        kafka = secured(kafka, security)
        self._servers, self._outcomes, self._kafka = servers, outcomes_topic, kafka
        options = {"group_id": group_id, "topic": findings_topic, **kafka, **(consumer or {})}
        self._new_consumer = partial(FindingsConsumer, servers, **options)
        self._new_emitter = partial(Emitter, servers, agent=agent or "controller", outcomes_topic=outcomes_topic, **kafka)
        self._handlers: dict[Action, Handler] = {}
        self._answers: Bounded[str, RemediationAcknowledged] = Bounded(REMEMBERED_ORDERS)
        # The last publication that was taken back: an order that had to give way comes again, as the next.
        self._withdrawn: Bounded[str, float] = Bounded(REMEMBERED_ORDERS)
        self._traceparent: bytes | None = None  # of the order at hand
        self.stats: Counter[str] = Counter()
        self._ready = threading.Event()

    def on(self, action: Action | str) -> Callable[[Handler], Handler]:
        """Decorator: the handler of an action. What it returns becomes the detail of `completed`."""

        def register(handler: Handler) -> Handler:
            self._handlers[Action(action)] = handler
            return handler

        return register

    async def run(self) -> None:
        """Take orders until cancelled."""
        with self._new_emitter() as emitter:
            await self._recall()
            async with self._new_consumer() as findings:
                self._ready.set()
                async for finding in findings:
                    if isinstance(finding, RemediationWithdrawn):
                        self._withdrawn[finding.id] = finding.attempt
                    elif isinstance(finding, RemediationRequested):
                        await self._take(finding, findings, emitter)

    def __enter__(self) -> Self:
        self._ready.clear()
        self._background = Background("compaction-controller")
        self._background.__enter__()
        self._running = self._background.submit(self.run())
        self._running.add_done_callback(self._note_end)
        self._ready.wait()
        if self._running.done():  # it could not even begin
            self._background.__exit__(None, None, None)
            self._running.result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._background.__exit__(kind, error, trace)

    def _note_end(self, running: Future[None]) -> None:
        self._ready.set()
        if not running.cancelled() and (error := running.exception()):
            log.error("the controller has ended: %s", error)

    async def _take(self, order: RemediationRequested, findings: FindingsConsumer, emitter: Emitter) -> None:
        if not self._mine(order):
            return
        self._traceparent = findings.traceparent
        known = self._answers.get(order.id)
        if known is not None and known.status in FINAL:
            self.stats["repeated"] += 1
            emitter.emit(known, traceparent=self._traceparent)
        elif dropped := self._why_dropped(order, findings):
            self.stats[dropped] += 1
            return
        else:
            await self._obey(order, emitter)
        # The answer first, then the position: a crash between the two repeats the answer.
        await asyncio.to_thread(emitter.flush, FLUSH_S)

    def _mine(self, order: RemediationRequested) -> bool:
        of_my_agent = self._agent is None or order.agent == self._agent
        return of_my_agent and order.mode in self._modes and (self._is_mine is None or self._is_mine(order.session_id))

    def _why_dropped(self, order: RemediationRequested, findings: FindingsConsumer) -> str | None:
        if order.expires_at <= self._clock():
            return "expired"
        if order.attempt <= self._withdrawn.get(order.id, 0) or any(_ends(order, finding) for finding in findings.ahead):
            return "withdrawn"
        if self._current_round is not None and order.valid_through_round is not None:
            current = self._current_round(order.session_id)
            if current is not None and current > order.valid_through_round:
                return "moved_on"
        return None

    async def _obey(self, order: RemediationRequested, emitter: Emitter) -> None:
        handler = self._handlers.get(order.action)
        if handler is None:
            return self._answer(emitter, order, AckStatus.rejected, f"no handler for {order.action}")
        why_not = self._precondition(order) if self._precondition is not None else None
        if why_not is not None:
            return self._answer(emitter, order, AckStatus.rejected, why_not)
        self._answer(emitter, order, AckStatus.accepted)
        for superseded in order.supersedes:
            self._withdrawn[superseded] = math.inf
        try:
            detail = await _call(handler, order)
        except OrderRejectedError as error:
            self._answer(emitter, order, AckStatus.rejected, str(error))
        except OrderDeferredError as error:
            self._answer(emitter, order, AckStatus.deferred, str(error))
        except Exception as error:
            log.exception("the handler of %s failed", order.action)
            # Its type only: the message of an exception may be text of the session.
            self._answer(emitter, order, AckStatus.failed, type(error).__name__)
        else:
            self._answer(emitter, order, AckStatus.completed, detail)
        return None

    def _answer(self, emitter: Emitter, order: RemediationRequested, status: AckStatus, detail: str | None = None) -> None:
        answer = RemediationAcknowledged(
            session_id=order.session_id,
            remediation_id=order.id,
            status=status,
            detail=detail[:MAX_DETAIL_CHARS] if isinstance(detail, str) and detail else None,
            at=self._clock(),
        )
        self._answers[order.id] = answer
        self.stats[status] += 1
        emitter.emit(answer, traceparent=self._traceparent)

    async def _recall(self) -> None:
        """What earlier runs answered lately, from the outcomes themselves."""
        from aiokafka import AIOKafkaConsumer

        options = {**self._kafka, "bootstrap_servers": self._servers}
        consumer = AIOKafkaConsumer(self._outcomes, **options)
        try:
            async with let_in(options):
                await consumer.start()
            first = await consumer.beginning_offsets(consumer.assignment())
            ends = await consumer.end_offsets(consumer.assignment())
            for tp, end in ends.items():
                consumer.seek(tp, max(first[tp], end - LOOK_BACK))
            while [tp for tp, end in ends.items() if await consumer.position(tp) < end]:
                for records in (await consumer.getmany(timeout_ms=POLL_MS)).values():
                    for record in records:
                        self._remember(record)
        finally:
            await consumer.stop()

    def _remember(self, record: Any) -> None:
        try:
            event = decode(record.value, record.headers, record.key).event
        except ContractError:
            return
        if isinstance(event, RemediationAcknowledged):
            self._answers[event.remediation_id] = event


def _ends(order: RemediationRequested, finding: Finding) -> bool:
    """Whether a later finding takes an order back."""
    if isinstance(finding, RemediationWithdrawn):
        return finding.id == order.id
    return isinstance(finding, RemediationRequested) and order.id in finding.supersedes


async def _call(handler: Handler, order: RemediationRequested) -> str | None:
    # Which kind it is can be unknown before it is called (a partial, a callable object).
    call: Callable[[], Any] = partial(handler, order)
    result = call() if inspect.iscoroutinefunction(handler) else await asyncio.to_thread(call)
    detail: str | None = await result if inspect.isawaitable(result) else result
    return detail
