"""Two workers on a real Kafka: whatever is done to them under load, state and findings equal the oracle's."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import workers
from tests.e2e.brokers import Kafka
from tests.e2e.test_worker import PARTITIONS, Eventually, judge, keys_of
from tests.e2e.workers import WorkerProcess

EVENTS = 40_000


@pytest.fixture
async def made(kafka_broker: Kafka, app_id: str, make_topics: Callable[..., Awaitable[Any]]) -> Kafka:
    await make_topics(kafka_broker, app_id, partitions=PARTITIONS)
    return kafka_broker


@pytest.fixture
def pair(kafka_broker: Kafka, app_id: str, tmp_path: Path) -> Iterator[list[WorkerProcess]]:
    settings = {"partitions": PARTITIONS, "fetch_max_bytes": 65536}
    both = [WorkerProcess(kafka_broker.address, app_id, tmp_path, name, **settings) for name in ("one", "two")]
    yield both
    for worker in both:
        worker.kill()


async def owned(worker: WorkerProcess) -> int:
    """How many partition numbers it works on."""
    _, page = await worker.get("/metrics")
    found = re.search(rb"^compaction_partitions_owned (\d+)", page, re.MULTILINE)
    return int(found[1]) if found else 0


async def shared_out(pair: list[WorkerProcess], eventually: Eventually) -> None:
    for worker in pair:
        worker.start()

    async def both_own() -> bool:
        return [await owned(worker) for worker in pair] == [PARTITIONS // 2] * 2

    await eventually(both_own, 60, what="both workers with half of the partitions", every_s=0.2)


async def test_each_says_what_it_is_ready_for(made: Kafka, pair: list[WorkerProcess], eventually: Eventually) -> None:
    del made
    await shared_out(pair, eventually)

    def told() -> list[list[int]]:
        last = [line for worker in pair for line in worker.told_ready()[-1:]]
        return [json.loads(part) for line in last for part in re.findall(r"^partitions (\[.*\]) of 4;", line)]

    def shared() -> bool:
        return sorted(partition for owned in told() for partition in owned) == list(range(PARTITIONS))

    await eventually(shared, 10, what="two lines that name all partitions between them")


async def send_slowly(broker: Kafka, app_id: str, keys: list[bytes]) -> None:
    """A load that lasts: a few hundred records at a time, each delivery awaited."""
    async with workers.producer(broker.address, enable_idempotence=True, linger_ms=5) as out:
        for at in range(0, len(keys), 200):
            chunk = keys[at : at + 200]
            partitions = [workers.partition_of(key, PARTITIONS) for key in chunk]
            sent = [
                await out.send(f"{app_id}.events", b"x", key=key, partition=partition)
                for key, partition in zip(chunk, partitions, strict=True)
            ]
            await asyncio.gather(*sent)


async def test_a_zombie_is_fenced(made: Kafka, app_id: str, pair: list[WorkerProcess], eventually: Eventually) -> None:
    """Paused until the other has taken over, then woken in the middle of its work: exits 75, and nothing differs."""
    await shared_out(pair, eventually)
    zombie, other = pair
    keys = keys_of(EVENTS)
    load = asyncio.create_task(send_slowly(made, app_id, keys))

    async def under_way() -> bool:
        return await workers.total(made.address, app_id, PARTITIONS) > 1_000

    await eventually(under_way, 30, what="work under way")
    zombie.signal(signal.SIGSTOP)

    async def taken_over() -> bool:
        return await owned(other) == PARTITIONS

    await eventually(taken_over, 60, what="its partitions taken over", every_s=0.2)
    zombie.signal(signal.SIGCONT)
    assert await zombie.ended(15) == 75, zombie.tail()
    zombie.start()
    await load
    await judge(made, app_id, keys, eventually)


@pytest.mark.parametrize("seed", [1])
async def test_killed_and_terminated_at_random(
    made: Kafka, app_id: str, pair: list[WorkerProcess], eventually: Eventually, seed: int
) -> None:
    """SIGTERM and SIGKILL by turns, at random moments of the load; each restarts at once."""
    await shared_out(pair, eventually)
    chosen = random.Random(seed)
    keys = keys_of(EVENTS)
    load = asyncio.create_task(send_slowly(made, app_id, keys))
    for number in (signal.SIGTERM, signal.SIGKILL) * 3:
        goal = await workers.total(made.address, app_id, PARTITIONS) + chosen.randrange(1, 2_000)

        async def reached(goal: int = min(goal, len(keys))) -> bool:
            return await workers.total(made.address, app_id, PARTITIONS) >= goal

        await eventually(reached, 60, what="the next moment to strike", every_s=0.05)
        worker = chosen.choice(pair)
        worker.signal(number)
        assert await worker.ended(10) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        worker.start()
        await eventually(worker.ready, 60, what=f"/ready after {number.name}")
    await load
    await judge(made, app_id, keys, eventually)
    findings = await workers.read_all(made.address, f"{app_id}.findings", PARTITIONS)
    assert max(Counter(record.value for record in findings).values()) == 1
