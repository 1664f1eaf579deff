"""Brokers for the tests that need one: each started once a session, topics and apps named by the test."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from compaction_monitor.shell import topics
from compaction_monitor.shell.embedded import EmbeddedBroker, EmbeddedBrokerError
from tests.absent import skip_or_fail
from tests.e2e.brokers import Broker, Kafka, KafkaUnavailableError, own_topics
from tests.e2e.secured import SecuredKafka

# A test that takes the fixture is marked by it, so that `-m "not broker and not kafka"` is what runs anywhere.
_MARKED_BY_FIXTURE = {"embedded_broker": "broker", "kafka_broker": "kafka", "secured_broker": "kafka"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in _MARKED_BY_FIXTURE:
                item.add_marker(_MARKED_BY_FIXTURE[fixture])


@pytest.fixture(scope="session")
def embedded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """The embedded broker: one worker with a fixed instance id per app."""
    broker = EmbeddedBroker(tmp_path_factory.mktemp("embedded"))
    try:
        broker.start()
    except EmbeddedBrokerError as error:
        skip_or_fail(str(error))
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A real Kafka 4.4: several workers, kills, fencing."""
    broker = Kafka(tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
    except KafkaUnavailableError as unavailable:
        skip_or_fail(str(unavailable))
    yield broker
    broker.stop()


@pytest.fixture
def own_broker(kafka_broker: Kafka, tmp_path: Path) -> Iterator[Kafka]:
    """A Kafka of the test's own, to be stopped or killed; the shared one is taken to skip where there is none to be had."""
    broker = Kafka(tmp_path / "kafka")
    broker.folder.mkdir()
    with broker:
        yield broker
        if broker.pid is not None:
            os.killpg(broker.pid, signal.SIGCONT)


@pytest.fixture(scope="session")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A real Kafka that asks who somebody is; nobody but its operator has any rights yet."""
    broker = SecuredKafka(tmp_path_factory.mktemp("secured"))
    try:
        broker.start()
    except KafkaUnavailableError as unavailable:
        skip_or_fail(str(unavailable))
    yield broker
    broker.stop()


@pytest.fixture(params=[pytest.param("embedded", marks=pytest.mark.broker), pytest.param("kafka", marks=pytest.mark.kafka)])
def any_broker(request: pytest.FixtureRequest) -> Broker:
    """For a test that must hold on both brokers."""
    broker: Broker = request.getfixturevalue(f"{request.param}_broker")
    return broker


@pytest.fixture
def app_id(request: pytest.FixtureRequest) -> str:
    """A name of this test's own, so that tests share a broker and nothing else; prefix topics with it."""
    word = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:40].strip("-")
    return f"{word}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_topics() -> Callable[..., Awaitable[Sequence[topics.Topic]]]:
    """Create every topic of one app: `events, outcomes, … = await make_topics(broker, app_id, partitions=4)`.

    Names are those of `own_topics`; keywords go to `topics.expected`. Returns the topics in the plan's order.
    """

    async def make(broker: Broker, app_id: str, **wanted: Any) -> Sequence[topics.Topic]:
        made = own_topics(app_id, **wanted)
        async with topics.connect(bootstrap_servers=broker.address) as admin:
            await topics.apply(admin, made)
        return made

    return make


@pytest.fixture
def eventually() -> Callable[..., Awaitable[Any]]:
    """Wait for a condition, never for a time: `await eventually(lambda: condition(), deadline_s=10)`.

    The condition may be a plain or an async function; its first true result is returned. At the deadline the test
    fails with `what` and the last result.
    """

    async def wait(
        condition: Callable[[], Any], deadline_s: float = 10.0, *, what: str = "the condition", every_s: float = 0.02
    ) -> Any:
        deadline = time.monotonic() + deadline_s
        while True:
            result = condition()
            if isinstance(result, Awaitable):
                result = await result
            if result:
                return result
            if time.monotonic() >= deadline:
                pytest.fail(f"{what} did not come true within {deadline_s:g} s; the last result was {result!r}")
            await asyncio.sleep(every_s)

    return wait
