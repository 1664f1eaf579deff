"""A broker that dies under load and comes back: the same worker process says so, waits, and goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.e2e import workers
from tests.e2e.brokers import Kafka
from tests.e2e.test_two_workers import send_slowly
from tests.e2e.test_worker import PARTITIONS, Eventually, judge, keys_of
from tests.e2e.workers import WorkerProcess


async def test_killed_under_load(
    own_broker: Kafka,
    app_id: str,
    make_topics: Callable[..., Awaitable[Any]],
    tmp_path: Path,
    eventually: Eventually,
) -> None:
    await make_topics(own_broker, app_id, partitions=PARTITIONS)
    worker = WorkerProcess(own_broker.address, app_id, tmp_path, partitions=PARTITIONS, fetch_max_bytes=65536)
    worker.start()
    try:
        await eventually(worker.ready, 30, what="/ready")
        keys = keys_of(20_000)
        load = asyncio.create_task(send_slowly(own_broker, app_id, keys))

        async def under_way() -> bool:
            return await workers.total(own_broker.address, app_id, PARTITIONS) > 1_000

        await eventually(under_way, 30, what="work under way")
        assert own_broker.pid is not None
        os.killpg(own_broker.pid, signal.SIGKILL)  # its supervisor and itself
        own_broker.stop()

        async def unready() -> bool:
            status, page = await worker.get("/ready")
            return status == 503 and b"reasons" in page

        await eventually(unready, 30, what="/ready says no")
        assert await worker.get("/live") == (200, b'{"live":true}')
        own_broker.start()
        await load
        await judge(own_broker, app_id, keys, eventually)
        await eventually(worker.ready, 30, what="/ready again")
        worker.signal(signal.SIGTERM)
        assert await worker.ended(10) == 0
    finally:
        worker.kill()
