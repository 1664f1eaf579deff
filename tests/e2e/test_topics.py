"""Topics on both brokers: created as planned, never altered, inputs with append time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from aiokafka import AIOKafkaProducer

from compaction_monitor.shell import topics
from tests.e2e.brokers import Broker, own_topics

MakeTopics = Callable[..., Awaitable[Sequence[topics.Topic]]]


async def test_apply_creates_what_is_missing_and_then_nothing(any_broker: Broker, app_id: str) -> None:
    wanted = own_topics(app_id, events=[f"{app_id}.a", f"{app_id}.b"], partitions=3)
    async with topics.connect(bootstrap_servers=any_broker.address) as admin:
        first = await topics.apply(admin, wanted)
        second = await topics.apply(admin, wanted)
    assert {f"{app_id}.a", f"{app_id}.b", f"{app_id}-progress-v1-changelog"} <= {t.name for t in first.missing}
    assert not first.differences
    assert not second


async def test_apply_reports_a_difference_and_alters_nothing(any_broker: Broker, app_id: str, make_topics: MakeTopics) -> None:
    made = await make_topics(any_broker, app_id, partitions=2)
    wanted = own_topics(app_id, partitions=4, retention=topics.Retention(events_s=60))
    async with topics.connect(bootstrap_servers=any_broker.address) as admin:
        reported = (await topics.apply(admin, wanted)).differences
        actual = await topics.read(admin, made)
    assert topics.Difference(made[0].name, "partitions", "4", "2") in reported
    assert topics.Difference(made[0].name, "retention.ms", "60000", "604800000") in reported
    assert actual[made[0].name] == made[0]


async def test_two_at_once_create_each_topic_once(any_broker: Broker, app_id: str) -> None:
    wanted = own_topics(app_id)
    async with topics.connect(bootstrap_servers=any_broker.address) as admin:
        await asyncio.gather(topics.apply(admin, wanted), topics.apply(admin, wanted))
        assert not topics.plan(wanted, await topics.read(admin, wanted))


async def test_every_topic_carries_append_time(any_broker: Broker, app_id: str, make_topics: MakeTopics) -> None:
    """Also where the writer's clock is hours ahead: Kafka refuses such a time where it is the sender's (INVALID_TIMESTAMP)."""
    made = await make_topics(any_broker, app_id)
    ahead_ms = round(time.time() * 1000) + 10 * 3_600_000
    async with AIOKafkaProducer(bootstrap_servers=any_broker.address) as producer:
        for topic in made:
            for time_ms in (1, ahead_ms):
                stored = await producer.send_and_wait(topic.name, b"{}", key=b"key", timestamp_ms=time_ms)
                assert abs(stored.timestamp / 1000 - time.time()) < 60, topic.name
