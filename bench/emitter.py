"""How long `emit` holds up an agent, and whether its books are right: broker down, coming up, going away, coming back.

One JSON line. `emit_ms`: wall times of `session.round` by phase, p100 included. On a busy machine the highest are what the
operating system took (`preempted`: calls in which it gave the processor to somebody else) and the interpreter's full
garbage collections of the whole process (`with_full_collection`); `undisturbed_ms` is all other calls, waits for the
interpreter's lock and the emitter's included. `cpu_ms`: CPU time of the agent's thread. `machine_ms`: the same loop around
as much work with no emitter and no second thread. Linux only.

    python -m bench.emitter [--broker embedded|kafka] [--events 5000] [--pause-ms 0.2] [--max-events 10000]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import resource
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from aiokafka import AIOKafkaConsumer

from compaction_events.codec import decode
from compaction_events.emitter import Emitter
from compaction_events.facts import RoundCompleted
from compaction_monitor.shell import topics
from compaction_monitor.shell.embedded import EmbeddedBroker
from tests.e2e.brokers import Kafka, free_ports

TOPIC = "compaction.events"


class Agent:
    """Reports rounds and keeps the time of each."""

    def __init__(self, emitter: Emitter, pause_s: float) -> None:
        self.session = emitter.session("bench", topology="tree", source_spans=214)
        self.pause_s = pause_s
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.collected: list[float] = []
        self.preempted: list[float] = []
        self.undisturbed: list[float] = []

    def work(self, events: int) -> None:
        for _ in range(events):
            collections, before = gc.get_stats()[2]["collections"], resource.getrusage(resource.RUSAGE_THREAD)
            cpu, wall = time.thread_time(), time.perf_counter()
            self.session.round(raw_tokens=61_000, summary_tokens=3_000, spans=190, cosine=0.41, depth=1)
            wall = time.perf_counter() - wall
            cpu = time.thread_time() - cpu
            after = resource.getrusage(resource.RUSAGE_THREAD)
            self.wall.append(wall)
            self.cpu.append(cpu)
            if gc.get_stats()[2]["collections"] != collections:
                self.collected.append(wall)
            elif after.ru_nivcsw != before.ru_nivcsw:
                self.preempted.append(wall)
            else:
                self.undisturbed.append(wall)
            if self.pause_s:
                time.sleep(self.pause_s)


def percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    at = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "p100": 1.0}
    return {name: round(1e3 * ordered[min(int(len(ordered) * p), len(ordered) - 1)], 3) for name, p in at.items()}


def longest(seconds: list[float]) -> dict[str, float]:
    return {"calls": len(seconds), "longest_ms": round(1e3 * max(seconds, default=0), 3)}


def machine(events: int, pause_s: float) -> dict[str, float]:
    emitter = Emitter("file:/dev/null", agent="bench")
    emitter.close()
    agent = Agent(emitter, pause_s)
    agent.work(events)
    return percentiles(agent.wall)


async def received(address: str) -> tuple[int, int]:
    """Records in the topic, and rounds among them that are there twice (a session's start is repeated on purpose)."""
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=address, auto_offset_reset="earliest")
    await consumer.start()
    try:
        ends = await consumer.end_offsets(consumer.assignment())
        records = 0
        rounds: Counter[str] = Counter()
        while any([await consumer.position(tp) < end for tp, end in ends.items()]):
            for batch in (await consumer.getmany(timeout_ms=500)).values():
                records += len(batch)
                found = [decode(r.value, r.headers, r.key) for r in batch]
                rounds.update(one.ce_id for one in found if isinstance(one.event, RoundCompleted))
        return records, rounds.total() - len(rounds)
    finally:
        await consumer.stop()


async def create(address: str) -> None:
    async with topics.connect(bootstrap_servers=address) as admin:
        await topics.apply(admin, [t for t in topics.expected(app_id="bench") if t.name == TOPIC])


def run(broker: EmbeddedBroker | Kafka, events: int, pause_s: float, max_events: int) -> dict[str, object]:
    alone = machine(events, pause_s)
    broker.start()
    asyncio.run(create(broker.address))
    address = broker.address
    broker.stop()
    emitter = Emitter(address, agent="bench", max_events=max_events)
    phases: dict[str, Agent] = {}

    def phase(name: str, meanwhile: Callable[[], None] | None = None) -> None:
        agent = phases[name] = Agent(emitter, pause_s)
        other = threading.Thread(target=meanwhile) if meanwhile else None
        if other:
            other.start()
        agent.work(events)
        if other:
            other.join()

    phase("down")
    phase("coming_up", broker.start)
    emitter.flush(60)
    phase("up")
    phase("going_down", broker.stop)
    phase("down_again")
    phase("coming_back", broker.start)
    emitter.flush(60)
    emitter.close()
    stats, agents = emitter.stats, phases.values()
    records, repeats = asyncio.run(received(address))
    broker.stop()
    undisturbed = [seconds for agent in agents for seconds in agent.undisturbed]
    return {
        "machine_ms": alone,
        "emit_ms": {name: percentiles(agent.wall) for name, agent in phases.items()},
        "cpu_ms": percentiles([seconds for agent in agents for seconds in agent.cpu]),
        "undisturbed_ms": percentiles(undisturbed),
        "preempted": longest([seconds for agent in agents for seconds in agent.preempted]),
        "with_full_collection": longest([seconds for agent in agents for seconds in agent.collected]),
        "stats": {**stats._asdict(), "lost": stats.lost},
        "in_topic": {"records": records, "repeats": repeats},
        "books_balance": stats.emitted == stats.delivered + stats.lost,
        "confirmed_but_absent": stats.delivered - (records - repeats),
    }


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=["embedded", "kafka"], default="embedded")
    parser.add_argument("--events", type=int, default=5_000)
    parser.add_argument("--pause-ms", type=float, default=0.2)
    parser.add_argument("--max-events", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        port = free_ports(1)[0]
        broker = EmbeddedBroker(Path(folder), port=port) if given.broker == "embedded" else Kafka(Path(folder))
        found = run(broker, given.events, given.pause_ms / 1e3, given.max_events)
    print(json.dumps(vars(given) | found))
