"""What the broker takes away, and what the worker makes of it: retention of the inputs, compaction of the changelogs."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

from compaction_monitor.shell import topics
from tests.e2e import workers
from tests.e2e.brokers import Kafka, own_topics
from tests.e2e.test_worker import PARTITIONS, Eventually, judge, keys_of
from tests.e2e.workers import WorkerProcess

MakeTopics = Callable[..., Awaitable[Any]]


@pytest.fixture
def worker(kafka_broker: Kafka, app_id: str, tmp_path: Path) -> Iterator[WorkerProcess]:
    made = WorkerProcess(kafka_broker.address, app_id, tmp_path, partitions=PARTITIONS)
    yield made
    made.kill()


async def test_records_deleted_before_they_were_read_are_counted(
    kafka_broker: Kafka, app_id: str, worker: WorkerProcess, make_topics: MakeTopics, eventually: Eventually
) -> None:
    """Retention overtakes a stopped worker: exactly the deleted records are lost, and said to be."""
    await make_topics(kafka_broker, app_id, partitions=PARTITIONS)
    events = f"{app_id}.events"
    keys = [b"k%d" % (n % 20) for n in range(400)]
    worker.start()
    await workers.send(kafka_broker.address, events, keys, PARTITIONS)
    await judge(kafka_broker, app_id, keys, eventually)
    worker.signal(signal.SIGTERM)
    assert await worker.ended(10) == 0
    before = await workers.ends(kafka_broker.address, events, PARTITIONS)
    await workers.send(kafka_broker.address, events, keys, PARTITIONS)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker.address)
    await admin.start()
    cut = {TopicPartition(events, partition): RecordsToDelete(before_offset=at + 5) for partition, at in before.items()}
    await admin.delete_records(cut)
    await admin.close()
    worker.start()
    lost = 5 * PARTITIONS

    async def counted() -> bool:
        return await workers.total(kafka_broker.address, app_id, PARTITIONS) >= 2 * len(keys) - lost

    await eventually(counted, 30, what="the rest counted")
    page = (await worker.get("/metrics"))[1].decode()
    assert f'compaction_records_lost_total{{topic="{events}"}} {float(lost)}' in page
    assert await workers.total(kafka_broker.address, app_id, PARTITIONS) == 2 * len(keys) - lost


async def test_a_compacted_changelog_is_recovered(
    kafka_broker: Kafka, app_id: str, worker: WorkerProcess, eventually: Eventually
) -> None:
    """Compaction leaves gaps between offsets; recovery without a store finds the same state."""
    changelog, events = topics.changelog(app_id, "sessions-v1"), f"{app_id}.events"
    quickly = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    wanted = [
        replace(topic, config=quickly) if topic.name == changelog else topic
        for topic in own_topics(app_id, partitions=PARTITIONS)
    ]
    async with topics.connect(bootstrap_servers=kafka_broker.address) as admin:
        await topics.apply(admin, wanted)
    worker.start()
    sent: list[bytes] = []

    async def one_more() -> None:
        sent.extend(keys_of(200, distinct=20))
        await workers.send(kafka_broker.address, events, sent[-200:], PARTITIONS)
        await judge(kafka_broker, app_id, sent, eventually)

    async def compacted() -> bool:
        # A segment is closed by the first write after its time, and the cleaner looks every 15 s.
        await one_more()
        written = sum((await workers.ends(kafka_broker.address, changelog, PARTITIONS)).values())
        return len(await workers.read_all(kafka_broker.address, changelog, PARTITIONS)) < written / 2

    await eventually(compacted, 90, what="the changelog compacted", every_s=0.5)
    worker.signal(signal.SIGKILL)
    await worker.ended(5)
    shutil.rmtree(worker.folder / "data")
    worker.start()
    await eventually(worker.ready, 30, what="/ready after recovery")
    await one_more()
