"""The broker of a benchmark and what is asked of it: a real Kafka 4.4 on a core of its own, topics, preloading, offsets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from bench import machine
from compaction_events.codec import Encoded, Headers
from compaction_monitor.partitioner import partition_of
from compaction_monitor.shell import topics
from compaction_monitor.shell.lanes import decode_progress
from tests.e2e.brokers import Kafka

PARTITIONS = 8
IN_FLIGHT = 64


class Broker(Kafka):
    """Kafka with the heap and the compiler of a server, pinned to one core."""

    def __init__(self, folder: Path, core: int | None) -> None:
        super().__init__(folder)
        self._core = core

    def start(self) -> None:
        with machine.on_core(self._core):
            super().start()

    def _java(self) -> list[str]:
        tuned = {"-Xms256m": "-Xms1g", "-Xmx512m": "-Xmx1g"}
        flags = [tuned.get(flag, flag) for flag in super()._java()]
        return [flag for flag in flags if flag != "-XX:TieredStopAtLevel=1"]


async def create(address: str, wanted: Sequence[topics.Topic]) -> None:
    async with topics.connect(bootstrap_servers=address) as admin:
        await topics.apply(admin, wanted)


async def delete(address: str, prefix: str) -> None:
    """Delete every topic of a run, so that a long session does not fill the disk."""
    async with topics.connect(bootstrap_servers=address) as admin:
        mine = [name for name in await admin.list_topics() if name.startswith(prefix)]
        if mine:
            await admin.delete_topics(mine)


def input_topic(name: str) -> topics.Topic:
    """An events topic as `topics apply` makes it."""
    return topics.expected(app_id="bench", events=(name,), partitions=PARTITIONS)[0]


async def preload(address: str, topic: str, events: Iterable[Encoded], *, by_row: bool = False) -> int:
    """Write events in order, partitioned as an emitter does, uncompressed like its default.

    Args:
        by_row: Keys are those of rows: the session's id is what follows its length.

    Returns:
        How many.
    """
    producer = AIOKafkaProducer(bootstrap_servers=address, linger_ms=0, max_batch_size=256 * 1024)
    await producer.start()
    written = 0
    under_way: set[asyncio.Future[Any]] = set()

    async def send(partition: int) -> None:
        future = await producer.send_batch(batches.pop(partition), topic, partition=partition)
        under_way.add(future)
        if len(under_way) >= IN_FLIGHT:
            await asyncio.gather(*under_way)
            under_way.clear()

    batches: dict[int, Any] = {}
    try:
        for key, value, headers in events:
            partition = partition_of(key[2:] if by_row else key, PARTITIONS)
            batch = batches.get(partition)
            if batch is None or batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
                if batch is not None:
                    await send(partition)
                batch = batches[partition] = producer.create_batch()
                batch.append(timestamp=None, key=key, value=value, headers=headers)
            written += 1
        for partition in list(batches):
            await send(partition)
        await asyncio.gather(*under_way)
    finally:
        await producer.stop()
    return written


async def ends(address: str, topic: str) -> dict[int, int]:
    consumer = AIOKafkaConsumer(bootstrap_servers=address)
    await consumer.start()
    try:
        found = await consumer.end_offsets([TopicPartition(topic, number) for number in range(PARTITIONS)])
        return {tp.partition: offset for tp, offset in found.items()}
    finally:
        await consumer.stop()


async def group_reaches(address: str, group: str, topic: str, wanted: dict[int, int]) -> int:
    """Wait until a group has committed these offsets.

    Returns:
        When, on the monotonic clock, ns.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        while True:
            offsets = await admin.list_consumer_group_offsets(group)
            now = time.monotonic_ns()
            found = {tp.partition: at.offset for tp, at in offsets.items() if tp.topic == topic}
            if all(found.get(partition, 0) >= end for partition, end in wanted.items()):
                return now
            await asyncio.sleep(0.005)
    finally:
        await admin.close()


async def progress_reaches(address: str, app_id: str, topic: str, wanted: dict[int, int]) -> int:
    """Wait until our worker has committed these offsets: what its progress rows, read committed, say.

    Returns:
        When, on the monotonic clock, ns.
    """
    changelog = topics.changelog(app_id, "progress-v1")
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address, isolation_level="read_committed", auto_offset_reset="earliest", fetch_max_wait_ms=100
    )
    await consumer.start()
    try:
        parts = [TopicPartition(changelog, number) for number in range(PARTITIONS)]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        reached: dict[int, int] = {}
        while any(reached.get(partition, 0) < end for partition, end in wanted.items()):
            found = await consumer.getmany(timeout_ms=200)
            now = time.monotonic_ns()
            for records in found.values():
                for record in records:
                    if record.key == topic.encode():
                        reached[record.partition] = decode_progress(record.value)
        return now
    finally:
        await consumer.stop()


def is_alert(headers: Headers) -> bool:
    """Whether a finding with these headers is an alert, and not an order."""
    return b".alert." in (dict(headers)["ce_type"] or b"")


async def count_findings(address: str, topic: str) -> tuple[int, int]:
    """Committed records of a findings topic, and how many of them are alerts."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address, isolation_level="read_committed", auto_offset_reset="earliest", fetch_max_wait_ms=100
    )
    await consumer.start()
    try:
        parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        limits = await consumer.end_offsets(parts)
        findings = alerts = 0
        while any([await consumer.position(tp) < end for tp, end in limits.items()]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                findings += len(records)
                alerts += sum(is_alert(record.headers) for record in records)
        return findings, alerts
    finally:
        await consumer.stop()
