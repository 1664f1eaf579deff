"""One run: a load, workers, a controller, faults at random moments, and what came of it beside the oracle.

The moments are counted in events that were read, so that a fault always falls into work. The load lasts as long as
the faults do: the sender waits while too much is unread.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from compaction_monitor.partitioner import partition_of
from compaction_monitor.shell import topics
from tests.chaos.load import load
from tests.chaos.parts import Machine, Obeying, ProxiedKafka, make_topics
from tests.chaos.plan import Outcome, Plan
from tests.chaos.proxy import Proxy
from tests.e2e import judging, workers
from tests.e2e.fleet import CHECKS
from tests.e2e.judging import Ready, Verdict
from tests.e2e.watch import Watch

PARTITIONS: Final = 4
UNREAD: Final = 4_000
SLICE: Final = 500
DEADLINE_S: Final = 300.0  # only a hang lasts longer, on a machine with much else to do too
SLOW_S: Final = 4.0
CUT_S: Final = 1.5
HOURS: Final = 12


class Run:
    """Everything of one run, on its own topics of a broker that it may restart."""

    def __init__(self, plan: Plan, broker: ProxiedKafka, app_id: str, folder: Path) -> None:
        self.plan, self.broker, self.app_id = plan, broker, app_id
        self.outcome = Outcome()
        self._chosen = random.Random(f"{plan.seed} who")
        checks = folder / "checks.toml"
        checks.write_text(CHECKS)
        settings = {"partitions": PARTITIONS, "fetch_max_bytes": 65536, "checks_file": checks}
        address = broker.proxied if plan.slow_brokers else broker.address
        self.workers = [Machine(address, app_id, folder, name, **settings) for name in ("one", "two", "three")]
        self.watch = Watch(broker.address, app_id, PARTITIONS)
        self._proxy = Proxy(broker.front, broker.back)
        self._up = self.workers[:2]
        self._in_hand: set[Machine] = set()
        self._beside: list[asyncio.Task[None]] = []
        self._feeding: asyncio.Task[None] | None = None

    async def __call__(self) -> Verdict:
        """Run, and judge."""
        plan, outcome = self.plan, self.outcome
        await make_topics(self.broker.address, self.app_id, PARTITIONS)
        sent = load(plan.events, plan.sessions, plan.seed, self.app_id, PARTITIONS)
        outcome.again, outcome.late, outcome.poisoned = sent.again, sent.late, sent.poisoned
        try:
            self._equip()
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self._proxy)
                await stack.enter_async_context(self.watch)
                await self._strike_under(sent.log)
                await self._end()
            return await self._judge()
        finally:
            for worker in self.workers:
                worker.dispose()

    def _equip(self) -> None:
        for worker in self.workers:
            if self.plan.full_disks:
                worker.with_disk()
            if self.plan.clock_jumps:
                worker.with_clock()

    async def _strike_under(self, log: Sequence[Ready]) -> None:
        for worker in self._up:
            worker.start()
        with Obeying(self.broker.address, self.app_id) as controller:
            feeding = self._feeding = asyncio.create_task(self._feed(log))
            try:
                for moment, kind in self.plan.faults():
                    await self._until(partial(self._has_read, moment), f"{moment} events read")
                    await self._strike(kind)
                await feeding
                await self._until(self.watch.at_the_end, "everything read")
                await asyncio.gather(*self._beside)
            finally:
                for task in (feeding, *self._beside):
                    task.cancel()
        self._look_at(controller)
        outcomes = f"{self.app_id}.outcomes"
        for partition, end in (await workers.ends(self.broker.address, outcomes, PARTITIONS)).items():
            self.watch.sent(outcomes, partition, end)
        await self._until(self.watch.at_the_end, "the last answers read")

    def _look_at(self, controller: Obeying) -> None:
        self.outcome.obeyed = len(controller.obeyed)
        twice = [order for order, times in controller.obeyed.items() if times > 1]
        if twice:
            self.outcome.wrong.append(f"orders obeyed twice: {twice[:3]}")

    def _has_read(self, events: int) -> bool:
        return self.watch.total >= events

    async def _feed(self, log: Sequence[Ready]) -> None:
        options = {
            "enable_idempotence": True, "linger_ms": 0, "max_batch_size": judging.BATCH_BYTES,
            "request_timeout_ms": int(DEADLINE_S * 1_000),
        }  # fmt: skip
        async with workers.producer(self.broker.address, **options) as out:
            for at in range(0, len(log), SLICE):
                await self._until(lambda: self.watch.unread() < UNREAD, "room for more")
                for offset, record in await judging.send(out, log[at : at + SLICE]):
                    self.watch.sent(record.topic, record.partition, offset + 1)

    async def _end(self) -> None:
        """Everyone ends in order."""
        for worker in self._up:
            if worker.running():
                await self._terminate(worker)

    async def _judge(self) -> Verdict:
        address, outcome = self.broker.address, self.outcome
        verdict = await judging.judge(address, self.app_id, PARTITIONS)
        changelog = await workers.read_all(address, topics.changelog(self.app_id, "sessions-v1"), PARTITIONS)
        written = sum((await workers.ends(address, topics.changelog(self.app_id, "sessions-v1"), PARTITIONS)).values())
        outcome.compacted = len(changelog) < written / 2
        rows = await judging.tables(address, self.app_id, PARTITIONS)
        for partition in range(PARTITIONS):
            outcome.stores_different += self._store_differs(partition, rows)
        letters = await workers.ends(address, f"{self.app_id}.dead-letters", PARTITIONS)
        assert sum(letters.values()) >= outcome.poisoned
        return verdict

    def _store_differs(self, partition: int, rows: judging.Tables) -> int:
        """How many rows of a partition's local store, as its last owner left it, are not those of the changelogs."""
        found = [kept for worker in self.workers if (kept := worker.store(partition)) is not None]
        ours = [(name, *row) for name, table in rows.items() for row in table.items() if _partition(row[0]) == partition]
        return len(set(ours) ^ max(found, key=lambda kept: kept.reached).rows)

    async def _strike(self, kind: str) -> None:
        self.outcome.struck[kind] += 1
        self._beside.append(asyncio.create_task(self._measure(kind, time.monotonic(), self.watch.marks())))
        if kind in ("broker stop", "broker kill"):
            await asyncio.to_thread(self._restart_broker, kind)
        elif kind == "slow broker":
            self._beside.append(asyncio.create_task(self._slow()))
        elif kind == "scaling":
            await self._scale()
        else:
            await self._strike_one(kind)

    async def _strike_one(self, kind: str) -> None:
        worker = self._chosen.choice(self._up)
        await self._until(worker.running if kind in ("SIGTERM", "SIGKILL") else worker.ready, f"a worker for {kind}")
        self._in_hand.add(worker)
        strike = {
            "SIGTERM": self._terminate, "SIGKILL": self._kill, "zombie": self._pause, "full disk": self._fill,
            "lost store": self._lose, "clock jump": self._jump,
        }  # fmt: skip
        await strike[kind](worker)
        if not worker.running():
            self._start(worker)
        self._in_hand.discard(worker)

    def _start(self, worker: Machine) -> None:
        worker.start()
        self.outcome.restarts += 1

    async def _terminate(self, worker: Machine) -> None:
        worker.signal(signal.SIGTERM)
        # One that has not come as far as to its handler ends by the signal; one that was fenced just before, by 75.
        self._expect("SIGTERM", worker, await worker.ended(30), {0, 75, -signal.SIGTERM})

    async def _kill(self, worker: Machine) -> None:
        worker.kill()

    async def _pause(self, worker: Machine) -> None:
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(self.plan.zombie_s)  # the fault itself: longer than the session timeout
        worker.signal(signal.SIGCONT)
        code = await worker.ended(30)
        self._expect("zombie", worker, code, {75})
        self.outcome.fenced += code == 75

    async def _fill(self, worker: Machine) -> None:
        """It ends when it cannot write, cannot start either, and both times says why."""
        worker.fill_disk()
        for expected in (75, 78):
            code = await worker.ended(DEADLINE_S)
            self._expect("full disk", worker, code, {expected}, "No space left on device")
            if expected == 75:
                self._start(worker)
        worker.clear_disk()

    async def _lose(self, worker: Machine) -> None:
        for partition in (worker.data / self.app_id).iterdir():
            shutil.rmtree(partition, ignore_errors=True)
        worker.kill()

    async def _jump(self, worker: Machine) -> None:
        worker.move_clock(self._chosen.randrange(-HOURS * 3600, HOURS * 3600))

    async def _scale(self) -> None:
        """From one worker to three, and back to two."""
        stays, goes = self._chosen.sample(self._up, 2)
        third = next(worker for worker in self.workers if worker not in self._up)
        await self._leave(goes)
        for worker in (goes, third):
            self._up.append(worker)
            self._start(worker)
        for worker in self._up:
            await self._until(worker.ready, "three workers ready")
        await self._leave(goes, third)
        self._up.append(goes)
        self._start(goes)
        assert set(self._up) == {stays, goes}

    async def _leave(self, *gone: Machine) -> None:
        """They end, and the others read on without them."""
        for worker in gone:
            self._up.remove(worker)
            if worker.running():
                await self._terminate(worker)
        marks = self.watch.marks()
        await self._until(lambda: self.watch.past(marks), "read on by fewer workers")

    async def _slow(self) -> None:
        self._proxy.delay_s = self._chosen.uniform(0.05, 0.3)
        await asyncio.sleep(SLOW_S)  # the fault itself
        self._proxy.cut()
        await asyncio.sleep(CUT_S)  # the fault itself
        self._proxy.heal()

    def _expect(self, kind: str, worker: Machine, code: int, right: set[int], words: str = "") -> None:
        last = worker.tail(1)
        # While there is no broker a worker may end because of that.
        if code not in right | self._tolerated() or (code in right and words not in last):
            self.outcome.wrong.append(f"{kind}: exit {code}: {last}")

    def _tolerated(self) -> set[int]:
        """Without a broker none can start, and whether a commit was made may be unknown: start it again, they say."""
        return {69, 75} if self.plan.broker_restarts or self.plan.slow_brokers else set()

    def _restart_broker(self, kind: str) -> None:
        if kind == "broker kill":
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
                tails = "\n\n".join(worker.tail(15) for worker in self._up)
                raise TimeoutError(f"{what}: not within {DEADLINE_S:g} s\n{self.watch}\n{tails}")
            if self._feeding is not None and self._feeding.done():
                self._feeding.result()  # one that has failed would be waited for in vain
            self._revive()
            await asyncio.sleep(0.02)

    def _revive(self) -> None:
        """A worker that ended by itself is started again, as whatever runs it would; its reason is kept."""
        for worker in self._up:
            if worker not in self._in_hand and not worker.running():
                last = worker.tail(1)
                if not any(f"exit {code}:" in last for code in self._tolerated()):
                    self.outcome.wrong.append(f"ended by itself: {last}")
                self._start(worker)


def _partition(key: bytes) -> int:
    """Of a row's key, which begins with the session's length."""
    return partition_of(key[2 : 2 + int.from_bytes(key[:2], "big")], PARTITIONS)
