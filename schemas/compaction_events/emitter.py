"""What an agent reports with: five lines, no wait, no exception, and exact books of what was lost.

```python
emitter = Emitter("localhost:9092", agent="coder")            # or "file:events.jsonl": no broker
session = emitter.session("session-1", topology="tree", source_spans=214)
session.round(raw_tokens=61_000, summary_tokens=3_000, spans=190, cosine=0.41, depth=1)
session.ended()
emitter.close()                                               # or leave it to the interpreter's end
```
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from pydantic import ValidationError

from compaction_events.bounded import Bounded
from compaction_events.codec import MAX_RECORD_BYTES, contract_error, encode
from compaction_events.delivery import KafkaDelivery
from compaction_events.errors import ContractError, Fault, Reason, shown
from compaction_events.facts import EVENT_TYPES, OUTCOME_TYPES, Fact
from compaction_events.file_delivery import FileDelivery
from compaction_events.outbox import Delivery, Drop, Outbox, Stats
from compaction_events.security import Security, secured
from compaction_events.session import Session, StartFields
from compaction_events.topics import EVENTS, OUTCOMES

__all__ = ["Drop", "Emitter", "Session", "Stats"]

log = logging.getLogger(__name__)

MAX_SESSIONS = 10_000
_MAX_TOLD = 100
_FILE = "file:"


class Emitter:
    """Sends events from an agent to Kafka, or appends them to a file. Safe in any thread, and after a fork.

    `emit` and the methods of a session put the event into a bounded queue and return; a thread delivers. They raise
    nothing: an event that breaks the contract is counted and logged (its fields, never its text). When the queue is
    full the oldest waiting event goes. What is queued at the interpreter's end is delivered within `exit_timeout_s`;
    a child of `multiprocessing` ends without that: call `close` there.

    Args:
        target: `HOST:PORT` (several with commas between), or `file:PATH`.
        agent: The agent's name, in every event of a session.
        agent_version: Its version.
        topic: Where events go. `outcomes_topic`: where acknowledgements go.
        source: `ce_source`; by default the agent's name.
        max_events: How many events may wait. `max_bytes`: how many bytes.
        delivery_timeout_s: How long an event may wait for its broker.
        exit_timeout_s: How long `close` waits for delivery.
        strict: Raise `ContractError` for an invalid event: for tests of an agent.
        clock: Gives the time of events that have none, aware; by default the machine's.
        traceparent: Gives the W3C trace context of an event, in the thread that reports it;
            `compaction_events.tracing.traceparent` gives that of OpenTelemetry's current span.
        security: What is shown to the broker.
        kafka: Arguments of `aiokafka.AIOKafkaProducer`: `compression_type`, `request_timeout_ms`, …

    Raises:
        ImportError: The target is a broker and the extra `[emitter]` is not installed.
        TypeError, ValueError: An argument is wrong. Nothing is raised later.
    """

    _started: bool

    def __init__(
        self,
        target: str,
        *,
        agent: str,
        agent_version: str | None = None,
        topic: str = EVENTS.name,
        outcomes_topic: str = OUTCOMES.name,
        source: str | None = None,
        max_events: int = 10_000,
        max_bytes: int = 32 * 1024 * 1024,
        delivery_timeout_s: float = 3_600.0,
        exit_timeout_s: float = 5.0,
        strict: bool = False,
        clock: Callable[[], datetime] | None = None,
        traceparent: Callable[[], bytes | None] | None = None,
        security: Security | None = None,
        **kafka: Any,
    ) -> None:
        self.agent = agent
        self.agent_version = agent_version
        self.clock = clock or partial(datetime.now, UTC)
        if self.clock().tzinfo is None:
            raise ValueError("the clock gives a time without zone; allowed: aware times")
        self._topics = dict.fromkeys(EVENT_TYPES, topic) | dict.fromkeys(OUTCOME_TYPES, outcomes_topic)
        self._source = source or agent
        self._traceparent = traceparent
        self._limits = (max_events, max_bytes)
        self._exit_timeout_s = exit_timeout_s
        self._strict = strict
        self._new_delivery = _delivery_to(target, secured(kafka, security), delivery_timeout_s)
        self._sessions: Bounded[str, Session] = Bounded(MAX_SESSIONS)
        self._told: set[str] = set()
        self._begin()
        self._start()
        atexit.register(self.close)
        _LIVE.add(self)

    def session(self, session_id: str, **start: Unpack[StartFields]) -> Session:
        """The handle of a session. The first call reports its start; a later one returns the same handle."""
        with self.lock:
            if session_id not in self._sessions:
                self._sessions[session_id] = Session(self, session_id, start)
            self._sessions.move_to_end(session_id)
            return self._sessions[session_id]

    def emit(self, fact: Fact, *, traceparent: bytes | None = None) -> bool:
        """Queue an event; False when it was dropped at once (`stats` has the reason).

        Args:
            fact: What happened.
            traceparent: W3C trace context; by default what the emitter's `traceparent` gives.

        Raises:
            ContractError: It is no event an agent reports, or too large; only when `strict`.
        """
        topic = self._topics.get(type(fact))
        if topic is None:
            allowed = "a fact of an agent or a controller"
            return self._refuse(ContractError(Reason.unknown_type, [Fault("event", type(fact).__name__, allowed)]))
        try:
            if traceparent is None and self._traceparent is not None:
                traceparent = self._traceparent()
            record = encode(fact, source=self._source, traceparent=traceparent)
        except Exception as error:  # noqa: BLE001 - an observer must never break the agent
            log.warning("an event could not be encoded: %s", type(error).__name__)
            self._outbox.refuse(Drop.failed)
            return False
        if len(record.value) > MAX_RECORD_BYTES:
            fault = Fault("value", f"{len(record.value)} bytes", f"at most {MAX_RECORD_BYTES} bytes")
            return self._refuse(ContractError(Reason.record_too_large, [fault]), Drop.too_large)
        if not self._started:
            self._start()
        return self._outbox.put(topic, *record)

    def report(self, model: type[Fact], fields: Mapping[str, Any]) -> bool:
        """Make an event of `fields` and queue it; False when it is invalid.

        Raises:
            ContractError: With every fault; only when `strict`.
        """
        if unknown := sorted(fields.keys() - model.model_fields.keys()):
            if self._strict:
                known = ", ".join(model.model_fields)
                raise ContractError(Reason.invalid_field, [Fault(name, shown(fields[name]), known) for name in unknown])
            self._tell(f"{model.__name__} has no field {', '.join(unknown)}; sent without")
        try:
            fact = model.model_validate(dict(fields))
        except ValidationError as error:
            return self._refuse(contract_error(error))
        except Exception as error:  # noqa: BLE001 - what an agent hands in may do anything when it is looked at
            return self._refuse(ContractError(Reason.invalid_field, [Fault("event", type(error).__name__, "plain values")]))
        return self.emit(fact)

    def forget(self, session_id: str) -> None:
        """Drop the handle of a session; a later one with its id is a new life of it."""
        with self.lock:
            self._sessions.pop(session_id, None)

    @property
    def stats(self) -> Stats:
        """What was emitted, delivered, is pending, and was dropped for which reason."""
        return self._outbox.stats

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until everything emitted so far is delivered or dropped; False at the time-out."""
        return self._outbox.wait_settled(timeout_s)

    def close(self, timeout_s: float | None = None) -> bool:
        """Deliver what is queued, within `timeout_s` (by default `exit_timeout_s`), and end; False when something was lost."""
        atexit.unregister(self.close)
        self._outbox.close()
        if self._started:
            self._delivery.hurry()
            self._outbox.wait_settled(self._exit_timeout_s if timeout_s is None else timeout_s)
            self._delivery.stop(timeout_s=2.0)
            self._started = False
        self._outbox.abandon()
        return not self._outbox.stats.lost

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _begin(self) -> None:
        """Empty books and new locks: at construction, and in a child, which has neither the thread nor its events."""
        self.lock = threading.RLock()
        self._delivery: Delivery = self._new_delivery()
        self._outbox = Outbox(*self._limits, self._delivery.wake)
        self._started = False

    def _start(self) -> None:
        with self.lock:
            if self._started or self._outbox.closed:
                return
            try:
                self._delivery.start(self._outbox)
                self._started = True
            except RuntimeError as error:  # no thread to be had: events wait, and are counted at the end
                self._tell(f"the emitter could not start: {error}")

    def _refuse(self, error: ContractError, reason: Drop = Drop.invalid) -> bool:
        self._outbox.refuse(reason)
        if self._strict:
            raise error
        faults = "; ".join(f"{fault.field}: {fault.allowed}" for fault in error.faults[:10])
        self._tell(f"an event was dropped, {error.reason}: {faults}")
        return False

    def _tell(self, what: str) -> None:
        """Once each: the same mistake is made at every round."""
        if what not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add(what)
            log.warning("%s", what)


def _delivery_to(target: str, kafka: Mapping[str, Any], timeout_s: float) -> Callable[[], Delivery]:
    if not target.startswith(_FILE):
        if not target.strip():
            raise ValueError("the target is empty; allowed: HOST:PORT, several with commas between, or file:PATH")
        return partial(KafkaDelivery, target, kafka, timeout_s)
    if kafka:
        raise TypeError(f"not an option of a file: {', '.join(sorted(kafka))}")
    if target == _FILE:
        raise ValueError("the target has no path; allowed: file:PATH")
    return partial(FileDelivery, Path(target.removeprefix(_FILE)).expanduser().absolute())


_LIVE: weakref.WeakSet[Emitter] = weakref.WeakSet()


def _after_fork() -> None:
    for emitter in list(_LIVE):
        if not emitter._outbox.closed:
            emitter._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
