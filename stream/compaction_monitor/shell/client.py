"""What the command line does with a broker: send facts, follow findings. Its errors are ours, not the client library's."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

from compaction_events.codec import MAX_RECORD_BYTES, Decoded, decode, encode
from compaction_events.errors import ContractError
from compaction_events.facts import Fact, RemediationAcknowledged
from compaction_monitor.shell import topics
from compaction_monitor.shell.settings import Settings

MAX_IN_FLIGHT = 2_000
POLL_MS = 200
# A person waits. A broker that is there answers at once; the library itself waits for its request time-out, 40 s.
CONNECT_S = 10.0


class BrokerError(RuntimeError):
    """The broker refused something. `unreachable`: nobody answers at all."""

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable


class SilentBrokerError(BrokerError):
    """Somebody takes the connection and says nothing: no broker, one with another listener there, or one that hangs."""

    def __init__(self, settings: Settings) -> None:
        where = ", ".join(settings.brokers)
        super().__init__(f"no broker answers at {where} within {CONNECT_S:g} s, though the port is open", unreachable=True)


class MissingTopicsError(BrokerError):
    """Topics that have to be there are not."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"topics missing: {', '.join(names)}")
        self.names = tuple(names)


@contextmanager
def translated(settings: Settings) -> Iterator[None]:
    """The client library's errors as ours."""
    try:
        yield
    except (KafkaConnectionError, KafkaTimeoutError) as error:
        raise BrokerError(f"no broker answers at {', '.join(settings.brokers)}", unreachable=True) from error
    except (KafkaError, topics.TopicsError) as error:
        raise BrokerError(str(error)) from error


@asynccontextmanager
async def admin(settings: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client.

    Raises:
        BrokerError: No broker answers, or it refused.
    """
    with translated(settings):
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(CONNECT_S):
                    connected = await stack.enter_async_context(topics.connect(**settings.client_options()))
            except TimeoutError as error:
                raise SilentBrokerError(settings) from error
            yield connected


async def require_topics(settings: Settings, names: Sequence[str]) -> None:
    """Check that topics are there: a record sent to a missing one waits, and a reader of one waits for ever.

    Raises:
        MissingTopicsError: One is not.
        BrokerError: No broker answers.
    """
    async with admin(settings) as connected:
        present = {topic["topic"] for topic in await connected.describe_topics()}
    missing = [name for name in names if name not in present]
    if missing:
        raise MissingTopicsError(missing)


class Sender:
    """Sends facts in order, each to the topic of its kind, keyed by its session; idempotent, confirmed by all replicas.

    Leaving the context waits until everything is confirmed.

    Attributes:
        sent: Facts handed to the broker.
        too_large: Facts over what a record may hold; they were not sent.
    """

    def __init__(self, settings: Settings, source: str) -> None:
        self._settings = settings
        self._source = source
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self.sent = 0
        self.too_large = 0

    async def __aenter__(self) -> Self:
        await require_topics(self._settings, [self._settings.events_topics[0], self._settings.outcomes_topic])
        self._producer = AIOKafkaProducer(enable_idempotence=True, acks="all", linger_ms=2, **self._settings.client_options())
        try:
            with translated(self._settings):
                await self._producer.start()
        except BaseException:
            await self._producer.stop()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self._producer.stop()

    async def send(self, fact: Fact, ce_id: str | None = None) -> None:
        """Send one fact; waits only when much is on its way.

        Raises:
            BrokerError: The broker did not take it, or one before it.
        """
        record = encode(fact, source=self._source, id=ce_id)
        if len(record.value) > MAX_RECORD_BYTES:
            self.too_large += 1
            return
        answers = isinstance(fact, RemediationAcknowledged)
        topic = self._settings.outcomes_topic if answers else self._settings.events_topics[0]
        with translated(self._settings):
            self._waiting.append(await self._producer.send(topic, record.value, key=record.key, headers=record.headers))
            self.sent += 1
            if len(self._waiting) >= MAX_IN_FLIGHT:
                await self._waiting.popleft()

    async def flush(self) -> None:
        """Wait until everything sent is confirmed."""
        with translated(self._settings):
            while self._waiting:
                await self._waiting.popleft()


@asynccontextmanager
async def findings(settings: Settings, *, from_start: bool, follow: bool = True) -> AsyncIterator[AsyncIterator[Decoded]]:
    """The committed findings, partition by partition in log order.

    On entry the position is taken: what is published from then on is read.

    Args:
        from_start: From the oldest that the log still has, not from now on.
        follow: Wait for more at the end; otherwise stop there.

    Raises:
        BrokerError: No broker answers, or the topic is missing.
    """
    await require_topics(settings, [settings.findings_topic])
    async with reader(settings, settings.findings_topic) as consumer:
        with translated(settings):
            await position(consumer, from_start=from_start)
        yield _read(settings, consumer, follow=follow)


@asynccontextmanager
async def reader(settings: Settings, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of all of a topic's committed records, without a group.

    Raises:
        BrokerError: No broker answers, or it refused.
    """
    consumer = AIOKafkaConsumer(
        topic,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=settings.fetch_wait_ms,
        **settings.client_options(),
    )
    try:
        with translated(settings):
            await consumer.start()
        yield consumer
    finally:
        await consumer.stop()


async def position(consumer: AIOKafkaConsumer, *, from_start: bool) -> None:
    """Go to the start or the end that the topic has now."""
    partitions = consumer.assignment()  # without a group: all
    if from_start:
        await consumer.seek_to_beginning(*partitions)
    else:
        await consumer.seek_to_end(*partitions)
    for partition in partitions:
        # A seek is lazy: only a position that was asked for is taken now.
        await consumer.position(partition)


async def _read(settings: Settings, consumer: AIOKafkaConsumer, *, follow: bool) -> AsyncIterator[Decoded]:
    with translated(settings):
        ends = {} if follow else await consumer.end_offsets(consumer.assignment())
        while follow or any([await consumer.position(partition) < end for partition, end in ends.items()]):
            for batch in (await consumer.getmany(timeout_ms=POLL_MS)).values():
                for record in batch:
                    try:
                        yield decode(record.value, record.headers, record.key)
                    except ContractError:
                        continue  # not ours; whoever may write there may write anything
