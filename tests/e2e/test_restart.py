"""One worker, ended in the middle of its work: what comes out is that of a run without an end, and of the pure fold."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compaction_events.findings import Alert, RemediationRequested
from compaction_monitor.harness import Published
from tests.e2e import judging, workers
from tests.e2e.brokers import Kafka
from tests.e2e.fleet import CHECKS, STEADY, agent_of, fleet
from tests.e2e.judging import RIGHT, Ready
from tests.e2e.watch import Watch
from tests.e2e.workers import Monitor

EVENTS = 50_000
SESSIONS = 400
PARTITIONS = 4
SLICE = 2_500
Eventually = Callable[..., Awaitable[Any]]


@pytest.fixture
def monitors(kafka_broker: Kafka, tmp_path: Path) -> Iterator[Callable[[str], Monitor]]:
    checks = tmp_path / "checks.toml"
    checks.write_text(CHECKS)
    made: list[Monitor] = []

    def new(app_id: str) -> Monitor:
        settings = {"partitions": PARTITIONS, "fetch_max_bytes": 65536, "checks_file": checks}
        made.append(Monitor(kafka_broker.address, app_id, tmp_path, app_id, **settings))
        return made[-1]

    yield new
    for monitor in made:
        monitor.kill()


async def feed(broker: str, log: list[Ready], watch: Watch) -> None:
    async with workers.producer(broker, linger_ms=0, max_batch_size=judging.BATCH_BYTES) as out:
        for at in range(0, len(log), SLICE):
            for offset, record in await judging.send(out, log[at : at + SLICE]):
                watch.sent(record.topic, record.partition, offset + 1)


def has_read(watch: Watch, events: int) -> bool:
    return watch.total >= events


def told(found: list[Published]) -> tuple[dict[str, list[str]], Counter[str]]:
    """The alerts of the checks, by session; and the orders of sessions that no tick concerns."""
    alerts: dict[str, list[str]] = {}
    orders: Counter[str] = Counter()
    for one in found:
        if isinstance(one.finding, Alert) and one.finding.name not in judging.LOOP:
            alerts.setdefault(one.finding.session_id, []).append(one.ce_id)
        elif isinstance(one.finding, RemediationRequested) and agent_of(one.finding.session_id) == STEADY:
            orders[one.finding.id] += 1
    return alerts, orders


@pytest.mark.timeout(900)
async def test_ended_in_the_middle_is_as_never_ended(
    kafka_broker: Kafka,
    app_id: str,
    make_topics: Callable[..., Awaitable[Any]],
    monitors: Callable[[str], Monitor],
    eventually: Eventually,
) -> None:
    """SIGTERM, then SIGKILL, each with a third of the log to go or more; the other run is left alone."""
    broker, ended, whole = kafka_broker.address, app_id, f"{app_id}-whole"
    facts = fleet(EVENTS, SESSIONS)
    for app in (ended, whole):
        await make_topics(kafka_broker, app, partitions=PARTITIONS)
    struck = monitors(ended)
    struck.start()
    async with Watch(broker, ended, PARTITIONS) as watch:
        load = asyncio.create_task(feed(broker, judging.ready(facts, ended, PARTITIONS), watch))
        for number, goal in ((signal.SIGTERM, EVENTS // 5), (signal.SIGKILL, EVENTS // 2)):
            await eventually(partial(has_read, watch, goal), 120, what=f"{goal} events read")
            struck.signal(number)
            assert await struck.ended(15) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
            assert watch.total < EVENTS * 0.95, "the end came in the middle"
            struck.start()
        await load
        await eventually(watch.at_the_end, 300, what="everything read")

    async def sent_again() -> bool:
        page = (await struck.get("/metrics"))[1].decode()
        return re.search(r'^compaction_orders_total\{.*status="sent_again"\} [1-9]', page, re.MULTILINE) is not None

    await eventually(sent_again, 60, what="an order sent again by a tick", every_s=0.2)
    struck.signal(signal.SIGTERM)
    assert await struck.ended(15) == 0
    monitors(whole).start()
    async with Watch(broker, whole, PARTITIONS) as watch:
        await feed(broker, judging.ready(facts, whole, PARTITIONS), watch)
        await eventually(watch.at_the_end, 300, what="everything read")

    assert await judging.judge(broker, ended, PARTITIONS) == RIGHT
    found = [await judging.published(broker, app, PARTITIONS) for app in (ended, whole)]
    assert told(found[0]) == told(found[1])
    assert set(told(found[0])[1].values()) == {1}
    assert {"remediation.requested", "remediation.withdrawn", "alert.resolved"} < {one.finding.type for one in found[0]}
