"""Events to Kafka: one thread with an event loop and an idempotent producer, which is replaced when it goes wrong.

A broker that is down for seconds is aiokafka's business: it retries, in order, without duplicates. When it answers
with an error, or confirms nothing for long, the producer is dropped, and a new one sends again what was not confirmed
(an event may then arrive twice, with the same `ce_id`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from compaction_events.errors import AccessError
from compaction_events.outbox import BACKOFF_S, CHUNK, MAX_BACKOFF_S, THREAD, Drop, Item, Outbox, log
from compaction_events.security import why_denied, why_kept_out

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer

MAX_IN_FLIGHT = 500
TURN_PAUSE_S = 0.001
GATHER_S = 0.005  # lets the agent go on first, and a burst come together
TICK_S = 1.0
START_TIMEOUT_S = 15.0
STALLED_AFTER_S = 20.0
GOODBYE_S = 0.5
MISSING = "sending to Kafka needs the extra: pip install 'compaction-monitor[emitter]' (a file needs none: 'file:events.jsonl')"
# What a monitor rests on: one session in one partition, in order.
OURS = frozenset({"bootstrap_servers", "acks", "enable_idempotence", "transactional_id", "partitioner", "loop"})
OURS |= {"key_serializer", "value_serializer", "api_version", "transaction_timeout_ms"}
DEFAULTS = {"request_timeout_ms": 10_000, "retry_backoff_ms": 250, "client_id": "compaction-emitter"}
_NOISY = ("aiokafka", "aiokafka.conn", "aiokafka.cluster", "aiokafka.producer.producer", "aiokafka.producer.sender")


class KafkaDelivery:
    """Sends to Kafka.

    Args:
        servers: `HOST:PORT`, several with commas between.
        options: More arguments of `AIOKafkaProducer`: security, compression, time-outs.
        delivery_timeout_s: How long an event may wait.

    Raises:
        ImportError: aiokafka is not installed; names the extra.
        TypeError: An option that the producer does not have, or that is not the user's to set.
    """

    def __init__(self, servers: str, options: Mapping[str, Any], delivery_timeout_s: float) -> None:
        try:
            # Here, not in the thread: an import is the longest turn of all.
            from aiokafka import AIOKafkaProducer, errors
        except ImportError as error:
            raise ImportError(MISSING) from error
        unknown = sorted(options.keys() - (inspect.signature(AIOKafkaProducer).parameters.keys() - OURS))
        if unknown:
            raise TypeError(f"not an option of the emitter: {', '.join(unknown)}")
        self._options = {**DEFAULTS, **options, "bootstrap_servers": servers}
        self._new_producer = partial(AIOKafkaProducer, acks="all", enable_idempotence=True, **self._options)
        # Of the broker's errors, those that concern the record itself: sent again, it meets the same.
        self._rejections = (
            errors.MessageSizeTooLargeError,
            errors.RecordListTooLargeError,
            errors.UnsupportedForMessageFormatError,
        )
        self._broker_trouble = (errors.KafkaError, OSError, TimeoutError)
        self._servers = servers
        self._timeout_s = delivery_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hurried = False
        self._stopping = False
        self._down = False
        self._told: set[str] = set()
        for name in _NOISY:
            logging.getLogger(name).addFilter(_audible)

    def start(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._call(lambda: self._awake.set())

    def hurry(self) -> None:
        self._hurried = True
        self._call(lambda: self._hurry.set())

    def stop(self, timeout_s: float) -> None:
        self._stopping = True
        self._call(lambda: self._task.cancel())
        self._thread.join(timeout_s)

    def _call(self, what: Any) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(what)

    def _run(self) -> None:
        with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._awake, self._hurry = asyncio.Event(), asyncio.Event()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _, context: log.debug("in the loop: %s", context.get("message")))
        self._backoff_s = BACKOFF_S
        while not self._stopping:
            try:
                await self._deliver()
            except Exception as error:  # noqa: BLE001 - whatever it is, the agent must not see it, and the next try may work
                await self._note_down(error)
            self._expire()
            await self._pause()

    async def _deliver(self) -> None:
        """Connect and send for as long as it goes well."""
        self._failure: BaseException | None = None
        producer = self._new_producer()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await producer.start()
            await self._pump(producer)
        finally:
            await _let_go(producer, gracefully=not self._outbox.in_flight)
            self._outbox.take_back()

    async def _pump(self, producer: AIOKafkaProducer) -> None:
        self._progress_at = time.monotonic()
        while True:
            if not self._outbox.in_flight:
                self._progress_at = time.monotonic()
            items = self._outbox.take(CHUNK, MAX_IN_FLIGHT)
            for item in items:
                await self._send(producer, item)
            if self._failure is not None:
                raise self._failure
            if items:
                await asyncio.sleep(TURN_PAUSE_S)
            else:
                await self._rest()

    async def _send(self, producer: AIOKafkaProducer, item: Item) -> None:
        try:
            future = await producer.send(item.topic, item.value, item.key, headers=list(item.headers))
        except self._rejections:
            self._outbox.drop(item, Drop.rejected)
        except self._broker_trouble:
            raise
        except Exception as error:  # noqa: BLE001 - one event must not hold up all others for ever
            self._tell_once(type(error).__name__)
            self._outbox.drop(item, Drop.failed)
        else:
            future.add_done_callback(partial(self._done, item))

    def _done(self, item: Item, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._outbox.confirm(item)
            self._progress_at = time.monotonic()
            self._note_up()
        else:
            if isinstance(error, self._rejections):
                self._outbox.drop(item, Drop.rejected)
            # Its sequence is broken, for the others too: only a new producer can go on.
            self._failure = error
        self._awake.set()

    async def _rest(self) -> None:
        """Nothing can be sent now: wait for an event, a confirmation, or the next look at the clock."""
        self._awake.clear()
        if not self._outbox.ready(MAX_IN_FLIGHT):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._awake.wait()
        if not self._hurried:
            await asyncio.sleep(GATHER_S)
        self._expire()
        if self._outbox.in_flight and time.monotonic() - self._progress_at > STALLED_AFTER_S:
            raise TimeoutError(f"nothing confirmed for {STALLED_AFTER_S:g} s")

    def _expire(self) -> None:
        self._outbox.expire(time.monotonic() - self._timeout_s)

    async def _pause(self) -> None:
        """Back off, half of it by chance, so that a fleet does not come back as one."""
        wait_s = BACKOFF_S if self._hurried else self._backoff_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)
        self._hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._hurry.wait()

    def _tell_once(self, what: str) -> None:
        if what not in self._told:
            log.warning("an event could not be sent: %s", what)
        self._told.add(what)

    async def _note_down(self, error: Exception) -> None:
        if not self._down:
            kept_out = await self._why_kept_out(error)
            text = str(kept_out) if kept_out else str(error)[:200] or type(error).__name__
            log.warning("%s: events wait, trying again: %s", self._servers, text)
        self._down = True

    async def _why_kept_out(self, error: Exception) -> AccessError | None:
        """Asked once, not at each attempt: too many of them lock an account."""
        try:
            return why_denied(error) or await why_kept_out(self._options)
        except Exception as failed:  # noqa: BLE001 - looking for a reason must not keep events from being sent
            log.debug("no reason found: %r", failed)
            return None

    def _note_up(self) -> None:
        self._backoff_s = BACKOFF_S
        if self._down:
            log.warning("%s: events are delivered again", self._servers)
        self._down = False


class _Loop(asyncio.SelectorEventLoop):
    """Resolves names in its own thread: at the interpreter's end, when a short agent has just begun to connect,
    no executor takes work any more.
    """  # noqa: D205 - one sentence

    async def getaddrinfo(self, host: Any, port: Any, **hints: Any) -> Any:
        return socket.getaddrinfo(host, port, **hints)


async def _let_go(producer: AIOKafkaProducer, *, gracefully: bool) -> None:
    """Stop a producer in bounded time: by itself it waits for its broker for ever.

    The loop is ours, so every task beside our own is the producer's.
    """
    if not gracefully:
        await _cancel_others()
    for farewell in (producer.stop, producer.client.close):
        with suppress(Exception):
            async with asyncio.timeout(GOODBYE_S):
                await farewell()
    await _cancel_others()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=GOODBYE_S)


def _audible(record: logging.LogRecord) -> bool:
    """Not a line for each attempt on a broker that is down, unless somebody debugs the emitter; ours says it once.

    And never a connection's requests and responses: passwords and events are in them.
    """
    if record.name == "aiokafka.conn" and record.levelno <= logging.DEBUG:
        return record.threadName != THREAD
    return record.threadName != THREAD or log.isEnabledFor(logging.DEBUG)
