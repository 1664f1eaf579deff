"""A transaction that nobody ends, in a changelog or in the findings: the worker waits, says so, reads no shorter state."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from compaction_monitor.shell import topics
from tests.e2e import workers
from tests.e2e.brokers import Kafka
from tests.e2e.test_worker import PARTITIONS, Eventually, judge, keys_of
from tests.e2e.workers import WorkerProcess


@pytest.mark.parametrize("where", ["changelog", "findings"])
async def test_recovery_waits_for_its_end(
    kafka_broker: Kafka,
    app_id: str,
    make_topics: Callable[..., Awaitable[Any]],
    tmp_path: Path,
    eventually: Eventually,
    *,
    where: str,
) -> None:
    """The store is lost too, so that the state can only come from the changelog that is cut off in the middle."""
    await make_topics(kafka_broker, app_id, partitions=PARTITIONS)
    broker = kafka_broker.address
    topic = topics.changelog(app_id, "sessions-v1") if where == "changelog" else f"{app_id}.findings"
    keys = keys_of(1_000)
    worker = WorkerProcess(broker, app_id, tmp_path, partitions=PARTITIONS, store="memory")
    try:
        worker.start()
        await workers.send(broker, f"{app_id}.events", keys[:500], PARTITIONS)
        await judge(kafka_broker, app_id, keys[:500], eventually)
        async with workers.producer(broker, transactional_id=f"{app_id}-stranger") as stranger:
            await stranger.begin_transaction()
            await stranger.send_and_wait(topic, b"x", key=b"stranger", partition=1)
            # What is committed after it is hidden behind it.
            await workers.send(broker, f"{app_id}.events", keys[500:], PARTITIONS)

            async def all_read() -> bool:
                reached = await workers.progress(broker, app_id, PARTITIONS, f"{app_id}.events")
                return sum(reached.values()) == len(keys)

            await eventually(all_read, 30, what="everything read", every_s=0.1)
            seen = await workers.total(broker, app_id, PARTITIONS)
            assert seen < len(keys) if where == "changelog" else seen == len(keys)
            worker.signal(signal.SIGKILL)
            await worker.ended(5)
            worker.start()

            async def says_why() -> bool:
                status, page = await worker.get("/ready")
                return status == 503 and f"{topic} partition 1: a transaction is open".encode() in page

            await eventually(says_why, 30, what="/ready with the open transaction", every_s=0.1)
            await stranger.abort_transaction()
        await eventually(worker.ready, 30, what="/ready after its end")
        await judge(kafka_broker, app_id, keys, eventually)
    finally:
        worker.kill()
