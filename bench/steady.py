"""A long time at a steady load: nothing may grow.

    python -m bench.steady                            half an hour, 1,000 events a second, two workers
    python -m bench.steady --minutes 240 --rate 200   longer, on demand

Sessions of 20 rounds, 50 side by side, each ended, then the next 50: alerts and orders open and close all the time. Every
ten seconds: resident memory, open files and threads of the workers, records not yet committed, CPU. In the first half what
is bounded fills up (write buffers, 2,000 decoded sessions a partition); what counts is the median of the third quarter
against that of the last. RocksDB's write buffers fill up and are emptied every few minutes at this rate, at a lower one
every quarter of an hour: run it longer then. Its block cache is as small as can be: at the size that is usual it goes on
filling up for as long as there are new sessions, half an hour and more, up to `store_cache_mb`.

The last line of stdout is one JSON object; exit 1 when something has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvloop
from aiokafka import AIOKafkaProducer

from bench import cluster, machine
from bench.load import event, session_id
from bench.worker import App, Worker
from compaction_events.builders import EPOCH
from compaction_events.codec import Encoded, encode
from compaction_events.facts import SessionEnded
from compaction_monitor.partitioner import partition_of

SIDE_BY_SIDE = 50
ROUNDS = 20
SLICE_S = 0.05
SAMPLE_S = 10.0
RSS_TOLERANCE = 1.05
CACHE_MB = 8
FEW = 3  # files or threads more: RocksDB opens and closes tables all the time


def facts() -> Iterator[Encoded]:
    """Events without end."""
    group = 0
    while True:
        sessions = range(group * SIDE_BY_SIDE, (group + 1) * SIDE_BY_SIDE)
        for number in range(1, ROUNDS + 1):
            for index in sessions:
                yield encode(event(index, number), source="bench")
        for index in sessions:
            ended = SessionEnded(session_id=session_id(index), ended_at=EPOCH + timedelta(seconds=30 * (ROUNDS + 1)))
            yield encode(ended, source="bench")
        group += 1


async def send(app: App, rate: int, seconds: float) -> int:
    """Hand events over when they are due.

    Returns:
        How many.
    """
    producer = AIOKafkaProducer(bootstrap_servers=app.address, linger_ms=0, acks="all")
    await producer.start()
    waiting = facts()
    sent = 0
    begun = time.monotonic()
    try:
        while (now := time.monotonic() - begun) < seconds:
            under_way = []
            for _ in range(min(int(now * rate) - sent, rate)):  # behind: no more than a second's at once
                found = next(waiting)
                partition = partition_of(found.key, app.partitions)
                value, headers = found.value, found.headers
                under_way.append(await producer.send(app.events, value, found.key, partition=partition, headers=headers))
            await asyncio.gather(*under_way)
            sent += len(under_way)
            await asyncio.sleep(SLICE_S)
    finally:
        await producer.stop()
    return sent


async def sample(workers: Sequence[Worker], begun: float) -> dict[str, float]:
    """Sums over the workers."""
    pids = [worker.process.pid for worker in workers]
    return {
        "at_s": round(time.monotonic() - begun, 1),
        "rss_mb": round(sum(map(machine.rss_mb, pids)), 1),
        "files": sum(map(machine.open_files, pids)),
        "threads": sum(map(machine.threads, pids)),
        "lag_records": sum([await worker.metric("compaction_lag_records") for worker in workers]),
        "cpu_s": round(sum(map(machine.cpu_s, pids)), 1),
    }


async def watch(workers: Sequence[Worker], seconds: float) -> list[dict[str, float]]:
    """A sample every ten seconds."""
    begun = time.monotonic()
    samples = []
    while time.monotonic() - begun < seconds:
        await asyncio.sleep(min(SAMPLE_S, seconds / 40))
        samples.append(await sample(workers, begun))
        print(f"{samples[-1]}", file=sys.stderr, flush=True)
    return samples


def verdict(samples: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The third quarter against the last."""
    quarter = len(samples) // 4
    found: dict[str, Any] = {}
    for name in ("rss_mb", "files", "threads", "lag_records"):
        parts = samples[-2 * quarter : -quarter], samples[-quarter:]
        found[name] = [statistics.median(entry[name] for entry in part) for part in parts]
    found["lag_records_highest"] = max(entry["lag_records"] for entry in samples[-2 * quarter :])
    (rss, rss_last), lag_last = found["rss_mb"], found["lag_records"][1]
    grown = {
        "rss_mb": rss_last > rss * RSS_TOLERANCE,
        "files": found["files"][1] > found["files"][0] + FEW,
        "threads": found["threads"][1] > found["threads"][0] + FEW,
        "lag_records": lag_last > 2 * max(found["lag_records"][0], 100),
    }
    return {**found, "grown": [name for name, is_so in grown.items() if is_so]}


async def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.steady", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=int, default=1_000, metavar="EVENTS_PER_S")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    seconds = given.minutes * 60
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, cluster.Broker(Path(folder), None) as broker:
        app = App(broker.address, None)
        await app.create()
        try:
            async with AsyncExitStack() as stack:
                workers = [
                    await stack.enter_async_context(app.worker(f"worker-{n}", store_cache_mb=CACHE_MB))
                    for n in range(given.workers)
                ]
                for worker in workers:
                    await worker.ready()
                watching = asyncio.create_task(watch(workers, seconds))
                sent = await send(app, given.rate, seconds)
                samples = await watching
                consumed = sum([await worker.metric("compaction_records_consumed_total") for worker in workers])
        finally:
            await app.delete()
    found = {"minutes": given.minutes, "rate": given.rate, "sent": sent, "consumed": int(consumed), **verdict(samples)}
    print(json.dumps({"machine": machine.describe(), **found, "samples": samples}))
    return 1 if found["grown"] else 0


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    sys.exit(uvloop.run(main()))
