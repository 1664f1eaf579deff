"""Ten thousand malformed records among ten thousand good ones, in batches of every codec: each where it belongs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from compaction_events.errors import Reason
from compaction_monitor.harness import EVENTS, OUTCOMES, LogRecord, Offline
from compaction_monitor.shell.embedded import EmbeddedBroker
from compaction_monitor.shell.undecodable import reread
from tests.e2e import judging, workers
from tests.e2e.fleet import CHECKS, fleet, rules
from tests.e2e.judging import RIGHT, Ready, Sent
from tests.e2e.malformed import malformed
from tests.e2e.watch import Watch
from tests.e2e.workers import Monitor

GOOD = BAD = 10_000
SESSIONS = 100
PARTITIONS = 4
SLICE = 1_000
# In the order of their numbers in a batch.
CODECS = (None, "gzip", "snappy", "lz4", "zstd")
CONNECT = "__connect.errors."
Eventually = Callable[..., Awaitable[Any]]


@pytest.fixture
def monitor(embedded_broker: EmbeddedBroker, app_id: str, tmp_path: Path) -> Iterator[Monitor]:
    checks = tmp_path / "checks.toml"
    checks.write_text(CHECKS)
    made = Monitor(embedded_broker.address, app_id, tmp_path, partitions=PARTITIONS, checks_file=checks)
    yield made
    made.kill()


class Producer:
    """A producer whose batches may hold what aiokafka's fast builder refuses to write."""

    def __init__(self, out: Any, codec: int) -> None:
        self._out, self._codec = out, codec
        self.send_batch = out.send_batch

    def create_batch(self) -> Any:
        batch = self._out.create_batch()
        batch._builder = _DefaultRecordBatchBuilderPy(2, self._codec, False, -1, -1, 0, judging.BATCH_BYTES)
        return batch


def mixed(app_id: str) -> list[tuple[Reason | None, Ready]]:
    """Good records in their order, malformed ones anywhere between them."""
    good = iter(judging.ready(fleet(GOOD, SESSIONS), app_id, PARTITIONS))
    bad = malformed(BAD, f"{app_id}.events", PARTITIONS)
    turns = [True] * GOOD + [False] * BAD
    random.Random(1).shuffle(turns)
    return [(None, next(good)) if turn else next(bad) for turn in turns]


async def test_good_ones_are_processed_and_bad_ones_are_named(
    embedded_broker: EmbeddedBroker,
    app_id: str,
    make_topics: Callable[..., Awaitable[Any]],
    monitor: Monitor,
    eventually: Eventually,
) -> None:
    broker = embedded_broker.address
    await make_topics(embedded_broker, app_id, partitions=PARTITIONS)
    monitor.start()
    log = mixed(app_id)
    wanted: dict[tuple[str, int, int], Reason] = {}
    good: list[Sent] = []
    async with Watch(broker, app_id, PARTITIONS) as watch:
        for at in range(0, len(log), SLICE):
            number = at // SLICE % len(CODECS)
            async with workers.producer(broker, compression_type=CODECS[number], max_request_size=2**21) as out:
                sent = await judging.send(Producer(out, number), [record for _, record in log[at : at + SLICE]])
            reasons = {id(record): reason for reason, record in log[at : at + SLICE]}
            for one in sent:
                watch.sent(one.record.topic, one.record.partition, one.offset + 1)
                reason = reasons[id(one.record)]
                if reason is None:
                    good.append(one)
                else:
                    wanted[one.record.topic, one.record.partition, one.offset] = reason
        assert len(wanted) == BAD
        await eventually(watch.at_the_end, 240, what="everything read")

    letters = await workers.read_all(broker, f"{app_id}.dead-letters", PARTITIONS)
    found = [named(dict(letter.headers)) for letter in letters]
    assert Counter(reason for _, reason in found) == Counter(wanted.values())
    assert sorted(found) == sorted(wanted.items())
    assert set(wanted.values()) == set(Reason) - {Reason.internal_error}
    await judge_good(broker, app_id, good)
    assert monitor.running()
    assert await monitor.get("/live") == (200, b'{"live":true}')


def named(headers: dict[str, bytes]) -> tuple[tuple[str, int, int], Reason]:
    """Where a dead letter came from, and why."""
    topic, partition, offset = (headers[CONNECT + name].decode() for name in ("topic", "partition", "offset"))
    return (topic, int(partition), int(offset)), Reason(headers["x-reason"].decode())


async def stamps(broker: str, topic: str) -> dict[tuple[int, int], int]:
    """When each record was appended. The embedded broker leaves a batch that it cannot read as its producer made it."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker)
    await consumer.start()
    try:
        tps = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        consumer.assign(tps)
        found = {}
        for tp, end in (await consumer.end_offsets(tps)).items():
            at = 0
            while at < end:
                read = await reread(consumer, tp, at)
                found.update({(tp.partition, record.offset): record.timestamp for record in read.records})
                at = read.end
        return found
    finally:
        await consumer.stop()


async def judge_good(broker: str, app_id: str, good: list[Sent]) -> None:
    """Findings and rows are those of the good records alone."""
    rows = await judging.tables(broker, app_id, PARTITIONS)
    offline = Offline(rules(), PARTITIONS)
    for topic, name in ((EVENTS, f"{app_id}.events"), (OUTCOMES, f"{app_id}.outcomes")):
        stamped = await stamps(broker, name)
        ours = [(at, record) for at, record in good if record.topic == name]
        log = (LogRecord(topic, r.partition, at, stamped[r.partition, at], r.key, r.value, r.headers) for at, r in ours)
        offline.feed_records(log, batch=200)
    assert judging.compare(offline, await judging.published(broker, app_id, PARTITIONS), rows) == RIGHT
