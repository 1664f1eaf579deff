"""How long it takes from an event that is written to the finding that can be read.

    python -m bench.latency [--rate 1000 10000] [--seconds 20] [--orders]
    python -m bench.latency --rolling [--rate 500]     two workers, restarted one after the other meanwhile

One worker with all its input topics, events at a steady rate whether or not anybody keeps up, every fifth one the last of
its session and with a fallback summary, which raises one alert. Time runs from the moment at which an event is due to the
moment its alert is in the hands of a consumer that reads committed records: what holds up the sender, which has the broker's
core, counts. Without `--orders` the checks only observe: exactly one finding for every fifth event; with it each alert has its
order as well. With `--rolling` each worker gets a SIGTERM and is started again, as a deployment does it: the next one when this
one is ready.

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench import cluster, machine
from bench.load import event
from bench.worker import App, Worker
from compaction_events.codec import Encoded, encode
from compaction_monitor.partitioner import partition_of

EVERY = 5
SLICE_S = 0.02  # events are handed over in slices of this length
SETTLE_S = 10.0  # at the beginning, not counted: connections, and the compilers of a broker that has just started
DRAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of latencies, ms."""

    p50: float
    p99: float
    p999: float
    highest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        ordered = sorted(seconds)
        at = [ordered[min(len(ordered) - 1, int(len(ordered) * p))] for p in (0.5, 0.99, 0.999, 1.0)]
        return cls(*(round(1e3 * value, 1) for value in at))


def prepare(rate: int, seconds: float) -> list[tuple[float, Encoded]]:
    """Events with the time at which each is due, seconds from the start. Sessions of five rounds, side by side."""
    found = []
    for number in range(int(rate * seconds)):
        # 50 sessions at a time go through their rounds together, then the next 50.
        group, place = divmod(number, 50 * EVERY)
        turn, index = divmod(place, 50)
        made = event(group * 50 + index, turn + 1, failed=turn == EVERY - 1)
        later = made.model_copy(update={"at": made.at + timedelta(minutes=group)})
        found.append((number / rate, encode(later, source="bench")))
    return found


async def send(app: App, events: Sequence[tuple[float, Encoded]], sent: dict[bytes, float]) -> float:
    """Hand the events over when they are due.

    Returns:
        How far behind its timetable the sender was at most, seconds.
    """
    producer = AIOKafkaProducer(bootstrap_servers=app.address, linger_ms=0, max_batch_size=512 * 1024)
    await producer.start()
    under_way = []
    behind = 0.0
    place = 0
    begun = time.monotonic()
    try:
        while place < len(events):
            batches: dict[int, Any] = {}
            now = time.monotonic()
            behind = max(behind, now - begun - events[place][0])
            while place < len(events) and events[place][0] <= now - begun:
                key, value, headers = events[place][1]
                partition = partition_of(key, app.partitions)
                batch = batches.get(partition)
                if batch is None:
                    batch = batches[partition] = producer.create_batch()
                if batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
                    break  # the rest goes with the next slice
                sent[key] = begun + events[place][0]  # the last of a session counts: that is the one that raises
                place += 1
            for partition, batch in batches.items():
                under_way.append(await producer.send_batch(batch, app.events, partition=partition))
            await asyncio.sleep(SLICE_S)
        await asyncio.gather(*under_way)
    finally:
        await producer.stop()
    return behind


async def receive(app: App, expected: int, read: dict[bytes, float], deadline: asyncio.Event) -> None:
    """Note when each session's alert can be read."""
    consumer = AIOKafkaConsumer(bootstrap_servers=app.address, isolation_level="read_committed", auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(app.findings, number) for number in range(app.partitions)])
        while len(read) < expected and not deadline.is_set():
            found = await consumer.getmany(timeout_ms=100)
            now = time.monotonic()
            for records in found.values():
                for record in records:
                    if dict(record.headers)["ce_type"].endswith(b".alert.raised.v1"):
                        read.setdefault(record.key, now)
    finally:
        await consumer.stop()


async def roll(app: App, stack: AsyncExitStack, running: dict[str, Worker]) -> list[dict[str, float]]:
    """Restart the workers one after the other."""
    found = []
    await asyncio.sleep(SETTLE_S + 1.0)
    for name in running:
        begun = time.monotonic()
        await asyncio.to_thread(running[name].process.stop)
        stopped = time.monotonic()
        running[name] = await stack.enter_async_context(app.worker(name))
        await running[name].ready()
        found.append({"stopped_s": round(stopped - begun, 2), "ready_again_s": round(time.monotonic() - begun, 2)})
    return found


async def measure(app: App, worker: Worker, rate: int, seconds: float) -> dict[str, Any]:
    events = prepare(rate, SETTLE_S + seconds)
    raising = {encoded.key for _, encoded in events if b'"fallback"' in encoded.value}
    sent: dict[bytes, float] = {}
    read: dict[bytes, float] = {}
    over = asyncio.Event()
    gc.collect()
    gc.freeze()
    receiver = asyncio.create_task(receive(app, len(raising), read, over))
    await worker.ready()
    pid = worker.process.pid
    cpu, begun = machine.cpu_s(pid), time.monotonic()
    behind = await send(app, events, sent)
    busy = (machine.cpu_s(pid) - cpu) / (time.monotonic() - begun) if worker.process.running else float("nan")
    await asyncio.wait([receiver], timeout=DRAIN_S)
    over.set()
    await receiver
    first = min(sent.values()) + SETTLE_S
    counted = [key for key in raising if sent[key] >= first]
    seconds_each = [read[key] - sent[key] for key in counted if key in read]
    spread = Spread.of(seconds_each)
    return {
        "events_per_s": rate,
        "p50_ms": spread.p50,
        "p99_ms": spread.p99,
        "p999_ms": spread.p999,
        "highest_ms": spread.highest,
        "findings": len(seconds_each),
        "missing": len(counted) - len(seconds_each),
        "worker_cpu": round(busy, 3),
        "sender_behind_ms": round(1e3 * behind, 1),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.latency", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", nargs="+", type=int, metavar="EVENTS_PER_S")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--orders", action="store_true", help="each alert with its order")
    parser.add_argument("--rolling", action="store_true", help="two workers, restarted one after the other")
    given = parser.parse_args()
    given.rate = given.rate or ([500] if given.rolling else [1_000, 10_000])
    rules = "" if given.orders else "[default]\nobserve = true\n"
    core, broker_core = machine.cores() or (None, None)
    document: dict[str, Any] = {"machine": machine.describe(), "orders": given.orders, "rates": []}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, cluster.Broker(Path(folder), broker_core) as broker:
        for rate in given.rate:
            app = App(broker.address, core, rules=rules)
            await app.create()
            try:
                async with AsyncExitStack() as stack:
                    names = ["one", "two"] if given.rolling else ["one"]
                    running = {name: await stack.enter_async_context(app.worker(name)) for name in names}
                    for worker in running.values():
                        await worker.ready()
                    rolling = asyncio.create_task(roll(app, stack, running)) if given.rolling else None
                    with machine.on_core(broker_core):
                        found = await measure(app, running["one"], rate, given.seconds)
                    if rolling is not None:
                        found |= {"restarts": await rolling, "worker_cpu": None}
            finally:
                await app.delete()
            document["rates"].append(found)
            print(
                f"{rate:>7,} events/s: p50 {found['p50_ms']} ms, p99 {found['p99_ms']} ms, p99.9 {found['p999_ms']} ms, "
                f"highest {found['highest_ms']} ms; {found['findings']} findings, {found['missing']} missing; "
                + (f"restarts {found['restarts']}, " if given.rolling else f"worker {found['worker_cpu']:.0%} of its core, ")
                + f"sender at most {found['sender_behind_ms']} ms behind",
                file=sys.stderr,
            )
    print(json.dumps(document))


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    uvloop.run(main())
