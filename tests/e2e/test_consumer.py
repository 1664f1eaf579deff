"""Findings are read committed, once each, and from where the last run stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaTimeoutError
from aiokafka.record.util import calc_crc32c

from compaction_events import builders
from compaction_events.codec import encode
from compaction_events.consumer import FindingsConsumer
from compaction_events.examples import EXAMPLES
from compaction_events.facts import Fact
from compaction_events.findings import AlertRaised, Finding
from compaction_monitor.shell import topics
from tests.e2e.brokers import Broker, Kafka

MakeTopics = Callable[..., Awaitable[Sequence[topics.Topic]]]
DEADLINE_S = 30
ALERT = next(event for event in EXAMPLES if isinstance(event, AlertRaised))


def alert(number: int, session_id: str = "s") -> AlertRaised:
    identity = f"alert-{number}" if session_id == "s" else f"alert-{session_id}-{number}"
    return ALERT.model_copy(update={"session_id": session_id, "id": identity, "attempt": 1})


def ids(found: Sequence[Finding]) -> list[str]:
    return [finding.id for finding in found]


async def some(findings: FindingsConsumer, count: int) -> list[Finding]:
    """The next findings; the last of them is being worked on."""
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(findings) for _ in range(count)]


class Log:
    """A findings topic and a producer on it."""

    def __init__(self, address: str, topic: str, producer: AIOKafkaProducer) -> None:
        self.address, self.topic, self.producer = address, topic, producer

    async def publish(self, *findings: Fact) -> int:
        """Returns the partition of the last one."""
        for finding in findings:
            record = encode(finding)
            written = await self.producer.send_and_wait(self.topic, record.value, record.key, headers=record.headers)
        return int(written.partition)

    async def garbage(self, value: bytes) -> None:
        await self.producer.send_and_wait(self.topic, value, b"s")

    async def unreadable(self) -> None:
        """A record with a header key that is not UTF-8."""
        batch = self.producer.create_batch()
        batch.append(timestamp=None, key=b"s", value=b"x", headers=[("KEYKEY", b"value")])
        build = batch._build

        def spoilt() -> bytes:
            data = bytearray(build()).replace(b"KEYKEY", b"\xff\xfeKEY\xff")
            # Base offset, length, epoch and magic come before the checksum, and the checksum is of what comes after it.
            data[17:21] = calc_crc32c(bytes(data[21:])).to_bytes(4, "big")
            return bytes(data)

        batch._build = spoilt
        await (await self.producer.send_batch(batch, self.topic, partition=0))

    def consumer(self, **options: Any) -> FindingsConsumer:
        return FindingsConsumer(self.address, topic=self.topic, **({"start": "earliest"} | options))


@asynccontextmanager
async def open_log(broker: Broker, topic: str, **options: Any) -> AsyncIterator[Log]:
    producer = AIOKafkaProducer(bootstrap_servers=broker.address, **options)
    await producer.start()
    try:
        yield Log(broker.address, topic, producer)
    finally:
        await producer.stop()


@pytest.fixture
async def log(any_broker: Broker, app_id: str, make_topics: MakeTopics) -> AsyncIterator[Log]:
    await make_topics(any_broker, app_id, partitions=2)
    async with open_log(any_broker, f"{app_id}.findings") as opened:
        yield opened


async def test_repeats_and_what_is_no_finding_are_dropped_and_counted(log: Log) -> None:
    await log.publish(alert(1), alert(1))
    await log.garbage(b"{")
    await log.publish(builders.started("s"), alert(2), alert(1))
    async with log.consumer() as findings:
        assert ids(await some(findings, 2)) == ["alert-1", "alert-2"]
        await log.publish(alert(3))
        assert ids(await some(findings, 1)) == ["alert-3"]
        assert findings.stats == (3, 2, 2)


async def test_a_later_run_goes_on(log: Log, app_id: str) -> None:
    group = {"group_id": app_id, "group_instance_id": app_id}
    await log.publish(alert(1), alert(2), alert(3))
    async with log.consumer(**group) as findings:
        assert ids(await some(findings, 2)) == ["alert-1", "alert-2"]
    # A repeat of what the run before handled is still one.
    await log.publish(alert(2), alert(4))
    async with log.consumer(**group) as findings:
        assert ids(await some(findings, 2)) == ["alert-3", "alert-4"]
        assert findings.stats.repeats == 1


async def test_nothing_is_read_while_the_partitions_are_looked_at(
    log: Log, app_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is slow to say what was committed: a repeat is known as one all the same."""
    group = {"group_id": app_id, "group_instance_id": app_id}
    await log.publish(alert(1), alert(2))
    async with log.consumer(**group) as findings:
        await some(findings, 2)
    await log.publish(alert(2), alert(3))
    committed = AIOKafkaConsumer.committed

    async def slow(self: AIOKafkaConsumer, partition: TopicPartition) -> Any:
        await asyncio.sleep(0.5)  # the fault itself
        return await committed(self, partition)

    monkeypatch.setattr(AIOKafkaConsumer, "committed", slow)
    async with log.consumer(**group) as findings:
        assert ids(await some(findings, 1)) == ["alert-3"]
        assert findings.stats == (1, 1, 0)


async def test_what_a_run_died_of_comes_again(log: Log, app_id: str) -> None:
    group = {"group_id": app_id, "group_instance_id": app_id}
    await log.publish(alert(1), alert(2))

    async def page() -> None:
        async with log.consumer(**group) as findings:
            await some(findings, 2)
            raise RuntimeError("the pager is broken")

    with pytest.raises(RuntimeError, match="pager is broken"):
        await page()
    async with log.consumer(**group) as findings:
        assert ids(await some(findings, 1)) == ["alert-2"]


async def test_from_a_given_position_without_a_group(log: Log) -> None:
    await log.publish(alert(1), alert(2))
    async with log.consumer() as findings:
        await some(findings, 2)
        findings.handled()
        positions = findings.positions
    assert list(positions.values()) == [2]
    await log.publish(alert(3))
    async with log.consumer(start=positions) as findings:
        assert ids(await some(findings, 1)) == ["alert-3"]


async def test_latest_means_from_now_on(log: Log) -> None:
    await log.publish(alert(1))
    async with log.consumer(start="latest") as findings:
        await log.publish(alert(2))
        assert ids(await some(findings, 1)) == ["alert-2"]


async def test_for_without_a_loop(log: Log) -> None:
    await log.publish(alert(1), alert(2))

    def read() -> list[str]:
        consumer, found = log.consumer(), []
        for finding in consumer:
            found.append(finding.id)
            if len(found) == 2:
                consumer.handled()
                break
        assert set(consumer.positions.values()) == {2}
        return found

    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.to_thread(read) == ["alert-1", "alert-2"]


async def test_only_what_was_committed(any_broker: Broker, app_id: str, make_topics: MakeTopics) -> None:
    await make_topics(any_broker, app_id, partitions=1)
    async with open_log(any_broker, f"{app_id}.findings", transactional_id=app_id) as log:
        await log.producer.begin_transaction()
        await log.publish(alert(1))
        await log.producer.abort_transaction()
        async with log.producer.transaction():
            await log.publish(alert(2))
        async with log.consumer() as findings:
            assert ids(await some(findings, 1)) == ["alert-2"]


async def test_two_share_a_group_and_one_takes_over(kafka_broker: Kafka, app_id: str, make_topics: MakeTopics) -> None:
    await make_topics(kafka_broker, app_id, partitions=2)
    sessions = ("a", "b", "c", "d", "e", "f")
    async with open_log(kafka_broker, f"{app_id}.findings") as log:
        found: dict[str, list[str]] = {"one": [], "other": []}

        async def work(name: str, findings: FindingsConsumer) -> None:
            async for finding in findings:
                found[name].append(finding.id)

        async with log.consumer(group_id=app_id) as other:
            async with log.consumer(group_id=app_id) as one:
                tasks = [asyncio.create_task(work("one", one)), asyncio.create_task(work("other", other))]
                await log.publish(*(alert(n, session) for n in range(10) for session in sessions))
                async with asyncio.timeout(DEADLINE_S):
                    while len(found["one"]) + len(found["other"]) < 60:
                        await asyncio.wait(tasks, timeout=0.05)
                tasks[0].cancel()
                await asyncio.wait(tasks[:1])
            await log.publish(*(alert(n, session) for n in range(10, 12) for session in sessions))
            async with asyncio.timeout(DEADLINE_S):
                while len(found["one"]) + len(found["other"]) < 72:
                    await asyncio.wait(tasks[1:], timeout=0.05)
            tasks[1].cancel()
            await asyncio.wait(tasks)
        assert len(found["one"] + found["other"]) == 72


async def test_a_record_the_client_library_cannot_read(kafka_broker: Kafka, app_id: str, make_topics: MakeTopics) -> None:
    await make_topics(kafka_broker, app_id, partitions=1)
    async with open_log(kafka_broker, f"{app_id}.findings") as log:
        await log.publish(alert(1))
        await log.unreadable()
        await log.publish(alert(2))
        async with log.consumer() as findings:
            assert ids(await some(findings, 2)) == ["alert-1", "alert-2"]
            assert findings.stats.undecodable == 1


async def test_what_is_kept_in_memory_alone_is_read_again(log: Log, app_id: str) -> None:
    """A later run begins where the first says it must, and knows when it has read what was there."""
    kept: dict[int, int] = {}
    group: dict[str, Any] = {"group_id": app_id, "group_instance_id": app_id, "keep_from": kept.get}
    await log.publish(alert(1), alert(2), alert(3))
    async with log.consumer(**group) as findings:
        assert ids(await some(findings, 2)) == ["alert-1", "alert-2"]
        assert findings.place is not None
        assert (findings.place.offset, findings.caught_up) == (1, False)
        kept[findings.place.partition] = 1
        assert ids(await some(findings, 1)) == ["alert-3"]
    async with log.consumer(**group) as findings:
        assert ids(await some(findings, 2)) == ["alert-2", "alert-3"]
        assert not findings.caught_up
        waiting = asyncio.create_task(anext(findings))
        async with asyncio.timeout(DEADLINE_S):
            while not findings.caught_up:
                await asyncio.wait([waiting], timeout=0.05)
        await log.publish(alert(4))
        async with asyncio.timeout(DEADLINE_S):
            assert (await waiting).id == "alert-4"


async def test_partitions_that_cannot_be_looked_at_end_it(log: Log, app_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client only logs what its listener raises: a reader would go on that never knows where it stands."""

    async def ends(*_: object) -> None:
        raise KafkaTimeoutError

    monkeypatch.setattr(AIOKafkaConsumer, "end_offsets", ends)
    async with log.consumer(group_id=app_id) as findings, asyncio.timeout(DEADLINE_S):
        with pytest.raises(KafkaTimeoutError):
            await anext(findings)


async def test_what_is_written_after_a_log_lost_its_end_is_new(log: Log, app_id: str) -> None:
    """What was handled was more than there is now; the offsets between come a second time."""
    partition = await log.publish(alert(1), alert(2))
    before = AIOKafkaConsumer(bootstrap_servers=log.address, group_id=app_id, enable_auto_commit=False)
    before.assign([TopicPartition(log.topic, partition)])
    await before.start()
    await before.commit({TopicPartition(log.topic, partition): 1_000})
    await before.stop()
    async with log.consumer(group_id=app_id) as findings:
        waiting = asyncio.create_task(anext(findings))
        async with asyncio.timeout(DEADLINE_S):
            while not findings.caught_up:
                await asyncio.wait([waiting], timeout=0.05)
        await log.publish(alert(3))
        async with asyncio.timeout(DEADLINE_S):
            assert (await waiting).id == "alert-3"


async def test_who_loses_its_partitions_is_told(kafka_broker: Kafka, app_id: str, make_topics: MakeTopics) -> None:
    await make_topics(kafka_broker, app_id, partitions=2)
    lost: list[bool] = []
    async with open_log(kafka_broker, f"{app_id}.findings") as log:
        await log.publish(alert(1))
        async with log.consumer(group_id=app_id, on_revoked=lambda: lost.append(True)) as one:
            await some(one, 1)
            before = len(lost)
            waiting = asyncio.create_task(anext(one))
            async with log.consumer(group_id=app_id):
                async with asyncio.timeout(DEADLINE_S):
                    while len(lost) == before:
                        await asyncio.wait([waiting], timeout=0.05)
            waiting.cancel()
            await asyncio.wait([waiting])
