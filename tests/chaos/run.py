"""One run: a load, two workers, faults at random moments of it, and what came of it beside the oracle.

The moments are counted in events that were read, so that a fault always falls into work. The load lasts as long as
the faults do: the sender waits while too much is unread.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from compaction_monitor.shell import topics
from tests.e2e import judging, workers
from tests.e2e.brokers import Kafka, own_topics
from tests.e2e.fleet import CHECKS, fleet
from tests.e2e.judging import Ready, Verdict
from tests.e2e.watch import Watch
from tests.e2e.workers import Monitor

PARTITIONS: Final = 4
UNREAD: Final = 4_000
SLICE: Final = 500
DEADLINE_S: Final = 180.0
SIGTERM, SIGKILL, ZOMBIE, BROKER_STOP, BROKER_KILL = "SIGTERM", "SIGKILL", "zombie", "broker stop", "broker kill"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done: `kills` are SIGTERM and SIGKILL by halves, zombies are stopped for `zombie_s`."""

    seed: int
    events: int
    sessions: int
    kills: int
    zombies: int = 0
    broker_restarts: int = 0
    zombie_s: float = 15.0

    def faults(self) -> list[tuple[int, str]]:
        """Each fault, and how many events are read when it comes."""
        chosen = random.Random(self.seed)
        kinds = [SIGTERM, SIGKILL] * (self.kills // 2) + [SIGTERM] * (self.kills % 2) + [ZOMBIE] * self.zombies
        kinds += [(BROKER_STOP, BROKER_KILL)[number % 2] for number in range(self.broker_restarts)]
        chosen.shuffle(kinds)
        moments = sorted(chosen.sample(range(self.events // 50, self.events * 24 // 25), len(kinds)))
        return list(zip(moments, kinds, strict=True))


@dataclass(slots=True)
class Outcome:
    """What happened. `wrong`: exits that should not have been; `takeover_s`: the longest, by fault."""

    restarts: int = 0
    fenced: int = 0
    wrong: list[str] = field(default_factory=list)
    takeover_s: dict[str, float] = field(default_factory=dict)


class Run:
    """Everything of one run, on its own topics of a broker that it may restart."""

    def __init__(self, plan: Plan, broker: Kafka, app_id: str, folder: Path) -> None:
        self.plan, self.broker, self.app_id = plan, broker, app_id
        self.outcome = Outcome()
        self._chosen = random.Random(f"{plan.seed} who")
        checks = folder / "checks.toml"
        checks.write_text(CHECKS)
        settings = {"partitions": PARTITIONS, "fetch_max_bytes": 65536, "checks_file": checks}
        self.workers = [Monitor(broker.address, app_id, folder, name, **settings) for name in ("one", "two")]
        self.watch = Watch(broker.address, app_id, PARTITIONS)
        self._in_hand: Monitor | None = None
        self._measured: list[asyncio.Task[None]] = []

    async def __call__(self) -> Verdict:
        """Run, and judge."""
        async with topics.connect(bootstrap_servers=self.broker.address) as admin:
            await topics.apply(admin, own_topics(self.app_id, partitions=PARTITIONS))
        facts = fleet(self.plan.events, self.plan.sessions, self.plan.seed)
        log = judging.ready(facts, self.app_id, PARTITIONS)
        try:
            async with self.watch:
                await self._strike_under(log)
        finally:
            for worker in self.workers:
                worker.kill()
        return await judging.judge(self.broker.address, self.app_id, PARTITIONS)

    async def _strike_under(self, log: Sequence[Ready]) -> None:
        for worker in self.workers:
            worker.start()
        load = asyncio.create_task(self._feed(log))
        try:
            for moment, kind in self.plan.faults():
                await self._until(partial(self._has_read, moment), f"{moment} events read")
                await self._strike(kind)
            await load
            await self._until(self.watch.at_the_end, "everything read")
            await asyncio.gather(*self._measured)
        finally:
            for task in (load, *self._measured):
                task.cancel()

    def _has_read(self, events: int) -> bool:
        return self.watch.total >= events

    async def _feed(self, log: Sequence[Ready]) -> None:
        options = {"enable_idempotence": True, "linger_ms": 0, "max_batch_size": judging.BATCH_BYTES}
        async with workers.producer(self.broker.address, **options) as out:
            for at in range(0, len(log), SLICE):
                await self._until(lambda: self.watch.unread() < UNREAD, "room for more")
                for offset, record in await judging.send(out, log[at : at + SLICE]):
                    self.watch.sent(record.topic, record.partition, offset + 1)

    async def _strike(self, kind: str) -> None:
        self._measured.append(asyncio.create_task(self._measure(kind, time.monotonic(), self.watch.marks())))
        if kind in (BROKER_STOP, BROKER_KILL):
            await asyncio.to_thread(self._restart_broker, kind)
            return
        worker = self._chosen.choice(self.workers)
        await self._until(worker.ready if kind == ZOMBIE else worker.running, f"a worker for {kind}")
        self._in_hand = worker
        await {SIGTERM: self._terminate, SIGKILL: self._kill, ZOMBIE: self._pause}[kind](worker)
        worker.start()
        self._in_hand = None
        self.outcome.restarts += 1

    async def _terminate(self, worker: Monitor) -> None:
        worker.signal(signal.SIGTERM)
        # One that has not come as far as to its handler ends by the signal; one that was fenced just before, by 75.
        self._expect(worker, await worker.ended(30), {0, 75, -signal.SIGTERM})

    async def _kill(self, worker: Monitor) -> None:
        worker.kill()

    async def _pause(self, worker: Monitor) -> None:
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(self.plan.zombie_s)  # the fault itself: longer than the session timeout
        worker.signal(signal.SIGCONT)
        code = await worker.ended(30)
        self._expect(worker, code, {75})
        self.outcome.fenced += code == 75

    def _expect(self, worker: Monitor, code: int, right: set[int]) -> None:
        if code not in right:
            self.outcome.wrong.append(f"exit {code}: {worker.tail(1)}")

    def _restart_broker(self, kind: str) -> None:
        if kind == BROKER_KILL:
            assert self.broker.pid is not None
            os.killpg(self.broker.pid, signal.SIGKILL)
        self.broker.stop()
        self.broker.start()

    async def _measure(self, kind: str, struck_at: float, marks: dict[Any, int]) -> None:
        """Until what was in the log when it struck is read, by whoever it may be."""
        await self._until(lambda: self.watch.past(marks), f"what was sent before {kind}")
        took = round(time.monotonic() - struck_at, 1)
        self.outcome.takeover_s[kind] = max(took, self.outcome.takeover_s.get(kind, 0.0))

    async def _until(self, condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            result = condition()
            if result if isinstance(result, bool) else await result:
                return
            if time.monotonic() > deadline:
                tails = "\n\n".join(worker.tail(15) for worker in self.workers)
                raise TimeoutError(f"{what}: not within {DEADLINE_S:g} s\n{self.watch}\n{tails}")
            self._revive()
            await asyncio.sleep(0.02)

    def _revive(self) -> None:
        """A worker that ended by itself is started again, as whatever runs it would; its reason is kept."""
        for worker in self.workers:
            if worker is not self._in_hand and not worker.running():
                last = worker.tail(1)
                # Without a broker none can start, and whether a commit was made may be unknown: start it again, they say.
                if not (self.plan.broker_restarts and ("exit 69:" in last or "exit 75:" in last)):
                    self.outcome.wrong.append(f"ended by itself: {last}")
                worker.start()
                self.outcome.restarts += 1
