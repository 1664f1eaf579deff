"""One run: everything up, a fleet at work, faults at their moments, and afterwards what each part says of it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Final
from urllib.error import URLError

from compaction_events.codec import decode
from compaction_events.findings import Alert
from compaction_events.topics import DEAD_LETTERS, EVENTS, FINDINGS, OUTCOMES
from compaction_monitor.example_agent.agent import AGENT as EXAMPLE
from compaction_monitor.example_agent.agent import RemoteAgent
from tests.e2e.alertmanagers import Receiver, open_alerts
from tests.e2e.brokers import free_ports
from tests.e2e.workers import ends, producer, progress, read_all
from tests.fleet.plan import Fault, Outcome, Plan
from tests.fleet.population import AGENTS, Poison, Population
from tests.fleet.services import ALERTMANAGER, PROMETHEUS, START_S, WORKERS, Service, Services
from tests.fleet.telling import Identity, Published, became, identity, panels, rules

FORSAKEN: Final = "forsaken"  # the agent whose controller dies
PARTITIONS: Final = 8
LOOK_S: Final = 0.4
CAUGHT_UP_S: Final = 180.0
APP_ID: Final = "compaction-monitor"


class Run:
    """Everything of one run.

    Args:
        say: Where a line about what happens goes.

    Attributes:
        poisoning: Records that break the contract are being sent.
    """

    def __init__(self, folder: Path, plan: Plan, say: Callable[[str], None]) -> None:
        self.folder, self.plan = folder, plan
        self.outcome = Outcome(plan.minutes)
        self.poisoning = True
        self._seconds, self._say = plan.minutes * 60, say
        self._seen: dict[Identity, str] = {}
        self._down: set[str] = set()  # killed, and to stay so for a while
        self._one_at_a_time = asyncio.Lock()
        self._sending = asyncio.Lock()
        self._over = asyncio.Event()

    async def __call__(self) -> Outcome:
        """Run it, look back, and end everything."""
        agents = (*AGENTS, EXAMPLE, FORSAKEN)
        with (
            Receiver() as heard,
            Services(
                self.folder / "services", heard.url, agents, self.plan.divide, self.plan.scrape_s, self.plan.session_timeout_s
            ) as self.services,
        ):
            self._say(f"up: {', '.join(sorted(self.services.services))}, kafka; logs in {self.folder}")
            # Joined in a thread: it may wait for the broker.
            self.population = Population(self.services.kafka.address)
            await asyncio.to_thread(self.population.__enter__)
            try:
                self.outcome.series["first"] = await asyncio.to_thread(self._series)
                await self._through_it()
            finally:
                await asyncio.to_thread(self.population.__exit__)
            await self._look_back(heard)
        return self.outcome

    def kill(self, name: str) -> None:
        """SIGKILL, and it stays down."""
        self._down.add(name)
        self.services.services[name].end(SIGKILL)
        self.outcome.kills += 1

    async def poison_is_read(self) -> None:
        """No more of it, and what there was is in the dead letters: then events may be lost, and the books still balance."""
        self.poisoning = False
        async with self._sending:
            sent = await ends(self.services.kafka.address, EVENTS.name, PARTITIONS)
        until = time.monotonic() + CAUGHT_UP_S
        while time.monotonic() < until:
            read = await progress(self.services.kafka.address, APP_ID, PARTITIONS, EVENTS.name)
            if all(read.get(at, 0) >= end for at, end in sent.items()):
                return
            await asyncio.sleep(LOOK_S)
        self.outcome.wrong.append("what broke the contract was not read in time")

    def stop_broker(self) -> None:
        """It hangs: nobody is refused, and nobody gets an answer."""
        self.services.send_broker(SIGSTOP)

    def continue_broker(self) -> None:
        """It goes on."""
        self.services.send_broker(SIGCONT)

    async def restart(self, name: str) -> None:
        """Up again, and at work."""
        self.start(name)
        until = time.monotonic() + START_S
        while not await asyncio.to_thread(self.services.ready, name):
            if time.monotonic() > until:
                self.outcome.wrong.append(f"{name} is not ready {START_S:g} s after it was started")
                return
            await asyncio.sleep(0.2)

    def start(self, name: str) -> None:
        """Up again."""
        self.services.services[name].start()
        self._down.discard(name)

    async def _through_it(self) -> None:
        self._begun = time.monotonic()
        poison = asyncio.create_task(self._poison())
        beside = [asyncio.create_task(each) for each in (self._supervise(), self._look(), self._a_controller_dies())]
        try:
            await asyncio.gather(*(self._at_its_time(fault) for fault in self.plan.faults), self._until(1.0))
        finally:
            self._over.set()  # the poisoner counts what it sent, so it ends by itself
            for task in beside:
                task.cancel()
            for result in await asyncio.gather(poison, *beside, return_exceptions=True):
                if not isinstance(result, asyncio.CancelledError | None):
                    self.outcome.wrong.append(f"ended by itself: {result!r}")

    async def _at_its_time(self, fault: Fault) -> None:
        await self._until(fault.at)
        async with nullcontext() if fault.beside else self._one_at_a_time:
            self._say(f"{self._clock()} {fault.what}")
            self.outcome.faults.append(fault.what)
            over = time.monotonic() + (fault.until - fault.at) * self._seconds
            await _done(fault.strike(self))
            await asyncio.sleep(max(0.0, over - time.monotonic()))
            await _done(fault.heal(self))
            self._say(f"{self._clock()} over: {fault.what}")

    async def _until(self, share: float) -> None:
        await asyncio.sleep(max(0.0, self._begun + share * self._seconds - time.monotonic()))

    def _clock(self) -> str:
        return f"{time.monotonic() - self._begun:4.0f} s"

    async def _supervise(self) -> None:
        """What ends by itself is started again, as whatever runs it would."""
        while True:
            for name, service in self.services.services.items():
                if name not in self._down and not service.running():
                    self._say(f"{self._clock()} {name} ended by itself, and is started again: {service.tail(1)}")
                    self.outcome.ended_by_itself += 1
                    service.start()
            await asyncio.sleep(LOOK_S)

    async def _poison(self) -> None:
        async with producer(self.services.kafka.address) as out:
            poison = Poison(out)
            while not self._over.is_set():
                async with self._sending:
                    if self.poisoning:
                        await poison.send(2)
                        self.outcome.malformed = poison.sent
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), 1.0)

    async def _look(self) -> None:
        """Which alerts Alertmanager has; it does not tell of those that are over."""
        url = self.services.urls[ALERTMANAGER]
        while True:
            with suppress(OSError):  # it is asked again
                for alert in await asyncio.to_thread(open_alerts, url, 'source="compaction-monitor"'):
                    self._seen[identity(alert["labels"])] = alert["fingerprint"]
            await asyncio.sleep(LOOK_S)

    async def _a_controller_dies(self) -> None:
        """An agent that inverts, and a controller that accepts the order that follows, halts the agent, and is gone."""
        broker, port = self.services.kafka.address, str(free_ports(1)[0])
        common = [sys.executable, "-m"]
        agent = Service(FORSAKEN, self.folder, [
            *common, "compaction_monitor.example_agent", "--broker", broker, "--agent", FORSAKEN, "--session", FORSAKEN,
            "--listen", port,
        ], {})  # fmt: skip
        controller = Service("controller", self.folder, [
            *common, "tests.e2e.controllers", "--broker", broker, "--agent", FORSAKEN, "--prefix", "compaction",
            "--obey-for", port, "--how", "die",
        ], {})  # fmt: skip
        agent.start()
        controller.start()
        remote = RemoteAgent(int(port))
        try:
            while True:
                if "obeying" in controller.log_path.read_text(errors="replace"):
                    with suppress(URLError):
                        await asyncio.to_thread(remote.tell, "compact")
                await asyncio.sleep(1.0)
        finally:
            agent.end(SIGKILL)
            controller.end(SIGKILL)

    async def _look_back(self, heard: Receiver) -> None:
        outcome, prometheus = self.outcome, self.services.urls[PROMETHEUS]
        outcome.events = self.population.delivered
        await self._caught_up()
        outcome.alerts = became(await self._published(), heard, self._seen)
        letters = await read_all(self.services.kafka.address, DEAD_LETTERS.name, PARTITIONS)
        outcome.dead_letters = len(letters)
        outcome.rules = await asyncio.to_thread(rules, prometheus, 2 * self._seconds, self.plan.must, heard)
        outcome.panels = await asyncio.to_thread(panels, prometheus, self.outcome.minutes, self.folder / "previews")
        outcome.series["last"] = await asyncio.to_thread(self._series)
        self._judge()

    async def _caught_up(self) -> None:
        """All that was sent is read."""
        until = time.monotonic() + CAUGHT_UP_S
        while unread := await self._unread():
            if time.monotonic() > until:
                self.outcome.wrong.append(f"{unread} records are still unread")
                return
            await asyncio.sleep(1.0)

    async def _unread(self) -> int:
        broker, unread = self.services.kafka.address, 0
        for topic in (EVENTS.name, OUTCOMES.name):
            read = await progress(broker, APP_ID, PARTITIONS, topic)
            unread += sum(end - read.get(at, 0) for at, end in (await ends(broker, topic, PARTITIONS)).items())
        return unread

    def _series(self) -> int:
        """How many series a worker exposes."""
        return sum(not line.startswith("#") for line in self.services.metrics(WORKERS[0]).splitlines())

    async def _published(self) -> list[Published]:
        found = []
        for record in await read_all(self.services.kafka.address, FINDINGS.name, PARTITIONS):
            event = decode(record.value, record.headers, record.key).event
            if isinstance(event, Alert):
                found.append(Published(event, record.timestamp / 1000))
        return found

    def _judge(self) -> None:
        outcome, wrong = self.outcome, self.outcome.wrong
        known = {rule.name for rule in outcome.rules}
        wrong += [f"no such rule: {name}" for name in sorted(self.plan.must.keys() - known)]
        wrong += [f"rule {rule}" for rule in outcome.rules if not rule.right]
        wrong += [f"finding {one}" for one in outcome.alerts if not one.told and not one.brief]
        answered = {panel.title for panel in outcome.panels if panel.values}
        wrong += [f"panel without data: {panel.title}" for panel in outcome.panels if panel.title not in answered]
        if self.population.lost:
            wrong.append(f"{self.population.lost} events were dropped by their emitters")
        if outcome.dead_letters != outcome.malformed:
            wrong.append(f"{outcome.malformed} malformed records, {outcome.dead_letters} dead letters")
        paged = {rule.name for rule in outcome.rules if "page" in rule.receivers and rule.severity != "critical"}
        wrong += [f"{name} paged" for name in sorted(paged)]
        wrong += [f"{one.check} of {one.session_id} paged" for one in outcome.alerts if "page" in one.receivers]


async def _done(result: Awaitable[None] | None) -> None:
    if result is not None:
        await result
