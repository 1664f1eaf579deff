"""What a session costs: bytes of state and changelog, memory, recovery; and what an event costs one worker and two.

    python -m bench.cost                          everything, with a million sessions: about half an hour, 15 GB of disk
    python -m bench.cost --part state scaling     parts: state, recovery, scaling, soak
    python -m bench.cost --sessions 20000         a smaller fleet, for trying things out
    python -m bench.cost --part soak --events 10000000

state     Bytes of a session's row with a full window and nothing open, and what it takes in the changelog and on disk.
recovery  Time from the start of the process until it is ready, and memory then: the local store lost, present, and
          present after a SIGKILL; from a changelog with one row a session (as compaction leaves it) and with ten.
scaling   CPU time of an event with one worker and with two, over a backlog; what both need to start is taken off.
soak      Memory over many events: it must not grow.

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from bench import cluster, machine
from bench.load import STEADY, Load, event, events, session_id
from bench.worker import App
from compaction_events.codec import Encoded, encode
from compaction_monitor.fold import fold
from compaction_monitor.rules import Rules
from compaction_monitor.shell.topics import changelog
from compaction_monitor.state.cache import row_key
from compaction_monitor.state.session import Session

PARTS = ("state", "recovery", "scaling", "soak")
APPENDED_MS = 1_790_000_000_000
FULL_WINDOW_ROUNDS = 12
DIFFERENT = 1_000  # rows, so that a store's compression finds as little to share as among real ones
LATER_ROUNDS = 4
SOAK_CHUNK = Load("soak", 10_000, 50)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def full_session(index: int = 1) -> Session:
    """A session with a full window, nothing open."""
    session: Session | None = None
    for number in range(1, FULL_WINDOW_ROUNDS + 1):
        session = fold(session, event(index, number, failed=False), f"e{number}", Rules(), APPENDED_MS).session
    assert session is not None
    assert not session.alerts
    assert not session.orders
    return session


def rows(sessions: int, writes: int) -> Iterator[Encoded]:
    """Changelog records: every session as often as it was written, the last one last."""
    kinds = [full_session(index) for index in range(DIFFERENT)]
    for turn in range(writes):
        values = [replace(kind, compactions=100 + turn).to_bytes() for kind in kinds]
        for index in range(sessions):
            yield Encoded(row_key(session_id(index)), values[index % DIFFERENT], [])


def log_bytes(broker: cluster.Broker, topic: str) -> int:
    """What a topic takes on the broker's disk."""
    return sum(path.stat().st_size for path in (broker.folder / "data").glob(f"{topic}-[0-9]*/*.log"))


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def finished(app: App, ends: dict[int, int]) -> None:
    await cluster.progress_reaches(app.address, app.name, app.events, ends)


async def state(broker: cluster.Broker, core: int | None, sessions: int) -> dict[str, Any]:
    """Sessions whose windows are full, then some rounds more: what these write, and what is on disk in the end.

    Many of them: where a batch has two rounds of a session, both are one write.
    """
    app = App(broker.address, core)
    await app.create()
    topic = changelog(app.name, "sessions-v1")
    indexes = [index for index in range(sessions) if index % 20]  # without those that would go through an inversion
    sizes = []
    async with app.worker() as worker:
        for first, rounds in ((1, FULL_WINDOW_ROUNDS), (FULL_WINDOW_ROUNDS + 1, LATER_ROUNDS)):
            quiet = (
                encode(event(index, number, failed=False), source="bench")
                for number in range(first, first + rounds)
                for index in indexes
            )
            await cluster.preload(broker.address, app.events, quiet)
            await finished(app, await cluster.ends(broker.address, app.events))
            sizes.append(log_bytes(broker, topic))
        rss = worker.rss_mb
    found = {
        "sessions": len(indexes),
        "row_bytes": len(full_session().to_bytes()),
        "changelog_bytes_per_write": round((sizes[1] - sizes[0]) / (LATER_ROUNDS * len(indexes)), 1),
        "store_bytes_per_session": round(disk_bytes(app.state("one")) / len(indexes), 1),
        "rss_mb": round(rss),
    }
    await app.delete()
    return found


async def recovery(broker: cluster.Broker, core: int | None, sessions: int, writes: int) -> dict[str, Any]:
    """Start on a changelog with `writes` rows for each session: without a store, with one, and after a SIGKILL."""
    app = App(broker.address, core)
    # What is written several times stays so: the broker's cleaner would begin within seconds.
    uncleaned = {"min.compaction.lag.ms": str(3_600_000)}
    app.topics = tuple(replace(topic, config={**topic.config, **uncleaned}) for topic in app.topics)
    await app.create()
    topic = changelog(app.name, "sessions-v1")
    written = await cluster.preload(broker.address, topic, rows(sessions, writes), by_row=True)
    found: dict[str, Any] = {"sessions": sessions, "records": written, "mb": round(log_bytes(broker, topic) / 2**20)}
    for case in ("lost", "present", "killed"):
        begun = time.monotonic()
        async with app.worker() as worker:
            await worker.ready()
            ready_s = time.monotonic() - begun
            found[case] = {
                "ready_s": round(ready_s, 2),
                "recovery_s": round(await worker.metric("compaction_recovery_duration_seconds"), 2),
                "cpu_s": round(worker.cpu_s, 2),
                "records": await worker.metric("compaction_recovery_records_total"),
                "rss_mb": round(worker.rss_mb),
            }
            say(f"recovery of {sessions:,} sessions, {writes} writes each, store {case}: {found[case]}")
            if case == "present":
                worker.kill()  # what the next one finds
    await app.delete()
    return found


async def scaling(broker: cluster.Broker, core: int | None, load: Load) -> dict[str, Any]:
    """CPU time of an event, one worker and two, over the same backlog."""
    found: dict[str, Any] = {"events": load.records}
    for workers in (1, 2):
        idle_s = await _backlog(broker, core, None, workers)
        busy_s = await _backlog(broker, core, load, workers)
        found[f"workers_{workers}_cpu_us"] = round((busy_s - idle_s) / load.records * 1e6, 2)
        found[f"workers_{workers}_start_cpu_s"] = round(idle_s, 2)
    found["two_to_one"] = round(found["workers_2_cpu_us"] / found["workers_1_cpu_us"], 3)
    return found


async def _backlog(broker: cluster.Broker, core: int | None, load: Load | None, workers: int) -> float:
    """CPU seconds of so many workers from their start to the end of a backlog; without a load until they are ready."""
    app = App(broker.address, core)
    await app.create()
    if load is not None:
        await cluster.preload(broker.address, app.events, events(load))
    try:
        async with AsyncExitStack() as stack:
            running = [await stack.enter_async_context(app.worker(f"worker-{number}")) for number in range(workers)]
            for worker in running:
                await worker.ready()
            if load is not None:
                await finished(app, await cluster.ends(broker.address, app.events))
            return sum(worker.cpu_s for worker in running)
    finally:
        await app.delete()


async def soak(broker: cluster.Broker, core: int | None, total: int) -> dict[str, Any]:
    """Memory while sessions go on and on: chunk by chunk, each processed before the next is written."""
    app = App(broker.address, core)
    await app.create()
    samples = []
    async with app.worker() as worker:
        await worker.ready()
        async for done in _chunks(app, total):
            samples.append({"events": done, "rss_mb": round(worker.rss_mb, 1)})
            say(f"soak: {samples[-1]}")
    await app.delete()
    middle = samples[len(samples) // 2]["rss_mb"]
    return {"samples": samples, "growth_second_half_mb": round(samples[-1]["rss_mb"] - middle, 1)}


async def _chunks(app: App, total: int) -> AsyncIterator[int]:
    done = turn = 0
    while done < total:
        done += await cluster.preload(app.address, app.events, _rounds(turn))
        turn += 1
        await finished(app, await cluster.ends(app.address, app.events))
        yield done


def _rounds(turn: int) -> Iterable[Encoded]:
    first = turn * SOAK_CHUNK.rounds
    for number in range(first + 1, first + SOAK_CHUNK.rounds + 1):
        for index in range(SOAK_CHUNK.sessions):
            yield encode(event(index, number), source="bench")


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS[:3]))
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=10_000_000, help="of the soak")
    parser.add_argument("--scale", type=float, default=5.0, help="of the scaling part: so many times 500 sessions")
    given = parser.parse_args()
    core, broker_core = machine.cores() or (None, None)
    document: dict[str, Any] = {"machine": machine.describe()}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, cluster.Broker(Path(folder), broker_core) as broker:
        parts: dict[str, Callable[[], Any]] = {
            "state": lambda: state(broker, core, max(100, given.sessions // 16)),
            "scaling": lambda: scaling(broker, core, STEADY.scaled(given.scale)),
            "soak": lambda: soak(broker, core, given.events),
        }
        for part in given.part:
            if part == "recovery":
                tenth = max(1, given.sessions // 10)
                document["recovery_tenth"] = await recovery(broker, core, tenth, 1)
                document["recovery_compacted"] = await recovery(broker, core, given.sessions, 1)
                document["recovery_ten_writes"] = await recovery(broker, core, given.sessions, 10)
            else:
                document[part] = await parts[part]()
                say(f"{part}: {document[part]}")
    print(json.dumps(document))


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    uvloop.run(main())
