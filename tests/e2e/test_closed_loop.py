"""The loop over Kafka: a worker, an agent that compacts badly, and its controller, each a process of its own.

What every kind of controller leads to, read committed from the findings topic. Passes happen when a test asks for them,
deadlines are short by the checks file, and nothing waits for a time.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError

import pytest

from compaction_events.codec import decode
from compaction_events.emitter import Emitter
from compaction_events.facts import AckStatus, RemediationAcknowledged
from compaction_events.findings import AlertRaised, AlertResolved, Finding, RemediationRequested, RemediationWithdrawn
from compaction_monitor.example_agent.agent import RemoteAgent
from compaction_monitor.shell import topics
from compaction_monitor.shell.embedded import EmbeddedBroker
from tests.e2e.brokers import free_ports, own_topics
from tests.e2e.workers import ROOT, Monitor, ends, progress, read_all

Eventually = Callable[..., Awaitable[Any]]
DEADLINE_S = 60
PARTITIONS = 2
CHECKS = """\
[agents."patient-*"]
loop = {deadline_s = 600, expires_s = 3600}

[agents."waiting-*"]
loop = {deadline_s = 4, resends_max = 0, expires_s = 3600}

[agents."brief-*"]
loop = {deadline_s = 600, expires_s = 4}

[agents."hurried-*"]
loop = {deadline_s = 1, backoff = 1, resends_max = 1, expires_s = 3}
"""


class Shared(NamedTuple):
    """What the tests have in common: a broker, the prefix of the topics, a worker."""

    address: str
    prefix: str
    worker: Monitor


class Processes:
    """Processes of one test, with a log each; all end with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log(len(self._started)).open("wb") as out:
            command = [sys.executable, "-m", module, *arguments]
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self._started.append(process)
        return process

    def said(self, process: subprocess.Popen[bytes], word: str) -> bool:
        """Whether a word is in a process's log."""
        return word in self._log(self._started.index(process)).read_text(errors="replace")

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()

    def _log(self, number: int) -> Path:
        return self._folder / f"{number}.log"

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-1_500:] for path in sorted(self._folder.glob("*.log")))


class Loop:
    """One agent with its session of the same name, beside the worker that all tests share."""

    def __init__(self, broker: str, prefix: str, agent: str, processes: Processes, eventually: Eventually) -> None:
        self.broker, self.prefix, self.name = broker, prefix, agent
        self._processes, self._eventually = processes, eventually
        self._port = free_ports(1)[0]
        self.agent = RemoteAgent(self._port)

    async def begin(self) -> None:
        """The agent starts, and compacts three times: once more, and it has inverted."""
        self._processes.start(
            "compaction_monitor.example_agent", "--broker", self.broker, "--agent", self.name, "--session", self.name,
            "--prefix", self.prefix, "--listen", str(self._port),
        )  # fmt: skip
        await self._eventually(self._listens, DEADLINE_S, what="the agent")
        for _ in range(2):
            await self.compact()

    async def compact(self) -> str:
        return await asyncio.to_thread(self.agent.tell, "compact")

    async def obeyed_by(self, how: str) -> subprocess.Popen[bytes]:
        """A controller of the agent, as a process, that has begun to read."""
        where = ("--broker", self.broker, "--agent", self.name, "--prefix", self.prefix, "--obey-for", str(self._port))
        module = "compaction_monitor.example_agent" if how == "obey" else "tests.e2e.controllers"
        process = self._processes.start(module, *where, *(() if how == "obey" else ("--how", how)))
        await self._eventually(lambda: self._processes.said(process, "obeying"), DEADLINE_S, what="the controller")
        return process

    async def says(self, *lines: str, or_else: Sequence[str] = ()) -> None:
        """What the monitor has published about the session comes to be this, whole; or that, where two logs race."""
        await self._comes_to(self.findings, list(lines), list(or_else or lines))

    async def answers(self, *lines: str) -> None:
        """What has been answered comes to be this, whole."""
        await self._comes_to(self.answered, list(lines), list(lines))

    async def heard(self) -> None:
        """The worker has read all answers."""
        topic = f"{self.prefix}.outcomes"

        async def read() -> bool:
            reached = await progress(self.broker, self.prefix, PARTITIONS, topic)
            return all(reached.get(at, 0) >= end for at, end in (await ends(self.broker, topic, PARTITIONS)).items())

        await self._eventually(read, DEADLINE_S, what="the worker reading the answers")

    async def findings(self) -> list[str]:
        return [line(finding) for finding in await self.published()]

    async def published(self) -> list[Finding]:
        records = await read_all(self.broker, f"{self.prefix}.findings", PARTITIONS)
        found: list[Any] = [decode(record.value, record.headers, record.key).event for record in records]
        return [finding for finding in found if finding.session_id == self.name]

    async def answered(self) -> list[str]:
        records = await read_all(self.broker, f"{self.prefix}.outcomes", PARTITIONS)
        orders = {one.id: one.action.value for one in await self.published() if isinstance(one, RemediationRequested)}
        found: list[Any] = [decode(record.value, record.headers, record.key).event for record in records]
        return [f"{orders[answer.remediation_id]} {answer.status}" for answer in found if answer.session_id == self.name]

    async def answer_late(self, action: str, status: str) -> None:
        """An answer from somebody who has just woken up."""
        orders = [one for one in await self.published() if isinstance(one, RemediationRequested) and one.action == action]
        answer = RemediationAcknowledged(
            session_id=self.name, remediation_id=orders[0].id, status=AckStatus(status), at=datetime.now(UTC)
        )
        with Emitter(self.broker, agent=self.name, outcomes_topic=f"{self.prefix}.outcomes") as emitter:
            emitter.emit(answer)

    async def _listens(self) -> bool:
        try:
            return bool(await self.compact())
        except URLError:
            return False

    async def _comes_to(self, now: Callable[[], Awaitable[list[str]]], wanted: list[str], other: list[str]) -> None:
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        while (found := await now()) not in (wanted, other):
            never = found not in (wanted[: len(found)], other[: len(found)])
            if never or asyncio.get_running_loop().time() > deadline:
                assert found == wanted, self._processes.logs()


def line(finding: Finding) -> str:
    if isinstance(finding, AlertRaised):
        return f"raised {finding.name} {finding.severity} {finding.attempt}"
    if isinstance(finding, AlertResolved):
        return f"resolved {finding.name} {finding.resolved_because}"
    if isinstance(finding, RemediationWithdrawn):
        return f"withdrawn {finding.action} {finding.because}"
    because = f" {finding.plan.because}" if finding.plan.action == "resume" else ""
    return f"ordered {finding.action} {finding.attempt}{because}"


@pytest.fixture(scope="module")
def monitor(embedded_broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """Topics and a worker."""
    app_id = f"closed-loop-{uuid.uuid4().hex[:8]}"
    folder = tmp_path_factory.mktemp("closed-loop")
    checks = folder / "checks.toml"
    checks.write_text(CHECKS)
    asyncio.run(_create(embedded_broker.address, app_id))
    worker = Monitor(embedded_broker.address, app_id, folder, partitions=PARTITIONS, tick_s=0.1, checks_file=checks)
    worker.start()
    yield Shared(embedded_broker.address, app_id, worker)
    running = worker.running()
    worker.kill()
    assert running, worker.tail()


async def _create(address: str, app_id: str) -> None:
    async with topics.connect(bootstrap_servers=address) as admin:
        await topics.apply(admin, own_topics(app_id, partitions=PARTITIONS))


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.end()


@pytest.fixture
def loop(monitor: Shared, processes: Processes, eventually: Eventually) -> Callable[..., Awaitable[Loop]]:
    """A session whose fourth pass has just inverted it; by its agent's name, with a controller if one is to be there."""

    async def begun(agent: str, controller: str = "") -> Loop:
        made = Loop(monitor.address, monitor.prefix, agent, processes, eventually)
        await made.begin()
        if controller:
            await made.obeyed_by(controller)
        await made.compact()
        return made

    return begun


Begun = Callable[..., Awaitable[Loop]]
HALT = "halt_and_rehydrate"
RAISED = ["raised salience_inversion critical 1", f"ordered {HALT} 1"]
RESOLVED = ["resolved salience_inversion recovered", "ordered resume 1 resolved"]
OBEYED = [f"{HALT} accepted", f"{HALT} completed", "resume accepted", "resume completed"]
NOBODY = "raised remediation_unacknowledged warning"
SOMEBODY = "resolved remediation_unacknowledged recovered"
IGNORED = [*RAISED, f"ordered {HALT} 2", f"{NOBODY} 1", "ordered resume 1 expired", "ordered resume 2 expired", f"{NOBODY} 2"]


async def test_one_that_obeys(loop: Begun) -> None:
    """Raised, ordered, acknowledged, rehydrated, resolved, resumed; and the agent compacts again."""
    here = await loop("patient-obey", controller="obey")
    await here.says(*RAISED, *RESOLVED)
    await here.answers(*OBEYED)
    assert (await here.compact()).startswith("round 6: ")


async def test_one_that_ignores(loop: Begun) -> None:
    """Sent again, then told to people; at its end the order expires, and a halt with it: so the resume goes out."""
    here = await loop("hurried-ignore")
    await here.says(*IGNORED)
    await here.answers()


async def test_one_that_answers_when_all_has_expired(loop: Begun) -> None:
    """Somebody listens after all; the answer changes nothing else."""
    here = await loop("hurried-sleeper")
    await here.says(*IGNORED)
    await here.answer_late(HALT, "completed")
    await here.says(*IGNORED, SOMEBODY)


async def test_a_session_that_goes_on_regardless(loop: Begun) -> None:
    """Its order is about a round that is long past: void, and nobody answered."""
    here = await loop("patient-heedless")
    await here.says(*RAISED)
    for _ in range(3):
        await here.compact()
    await here.says(*RAISED, f"{NOBODY} 1")


@pytest.mark.parametrize(("how", "status"), [("refuse", "rejected"), ("fail", "failed")])
async def test_one_that_does_not_do_it(loop: Begun, how: str, status: str) -> None:
    """The next lever at once: cap the hierarchy."""
    here = await loop(f"patient-{how}", controller=how)
    await here.says(*RAISED, "ordered cap_depth 1")
    await here.answers(f"{HALT} accepted", f"{HALT} {status}", "cap_depth accepted", "cap_depth completed")
    assert (await here.compact()).endswith("depth 2")


async def test_one_that_lies(loop: Begun) -> None:
    """It said completed, and two passes later the alert is still open: it did not work, the next lever."""
    here = await loop("patient-lie", controller="lie")
    await here.answers(f"{HALT} accepted", f"{HALT} completed")
    await here.heard()
    await here.compact()
    await here.says(*RAISED)
    await here.compact()
    await here.says(*RAISED, "raised remediation_ineffective warning 1", "ordered cap_depth 1")
    await here.answers(f"{HALT} accepted", f"{HALT} completed", "cap_depth accepted", "cap_depth completed")


async def test_one_that_answers_twice(loop: Begun) -> None:
    """As if it had answered once."""
    here = await loop("patient-twice", controller="twice")
    await here.answers(OBEYED[0], OBEYED[1], OBEYED[1], OBEYED[2], OBEYED[3], OBEYED[3])
    await here.says(*RAISED, *RESOLVED)


async def test_one_that_answers_late(loop: Begun) -> None:
    """People were told that nobody answers; the first word takes that back, and the rest goes as ever.

    That word and the rehydration are in two logs, so either may be read first.
    """
    here = await loop("waiting-late")
    await here.says(*RAISED, f"{NOBODY} 1")
    await here.obeyed_by("obey")
    await here.answers(*OBEYED)
    told = [*RAISED, f"{NOBODY} 1"]
    await here.says(*told, SOMEBODY, *RESOLVED, or_else=[*told, *RESOLVED, SOMEBODY])


async def test_one_that_dies_in_between_and_comes_back(loop: Begun) -> None:
    """It had halted the agent and not answered to the end: the order is taken up again."""
    here = await loop("patient-phoenix")
    dead = await here.obeyed_by("die")
    assert await asyncio.to_thread(dead.wait, DEADLINE_S) == 9
    assert await here.compact() == "halted"
    await here.obeyed_by("obey")
    await here.says(*RAISED, *RESOLVED)
    await here.answers(OBEYED[0], *OBEYED)


async def test_one_that_dies_in_between_for_good(loop: Begun) -> None:
    """Accepted, then silence until the order expires: told to people, and the agent may go on if it is still there."""
    here = await loop("brief-dead", controller="die")
    await here.says(*RAISED, f"{NOBODY} 1", "ordered resume 1 expired", f"{NOBODY} 2")
    await here.answers(OBEYED[0])


async def test_an_agent_with_its_controller_inside(monitor: Shared, processes: Processes, eventually: Eventually) -> None:
    """As a person tries it: passes by the clock, orders obeyed in the same process."""
    here = Loop(monitor.address, monitor.prefix, "patient-whole", processes, eventually)
    where = ("--broker", here.broker, "--prefix", here.prefix, "--agent", here.name, "--session", here.name)
    processes.start("compaction_monitor.example_agent", *where, "--every-s", "2")

    async def begins() -> bool:
        return (await here.findings())[:4] == [*RAISED, *RESOLVED]

    await eventually(begins, DEADLINE_S, what="the first episode")
    await here.answers(*OBEYED)


async def test_deadlines_outlive_the_worker(loop: Begun, monitor: Shared) -> None:
    """Killed while an order is open, and started again: it is sent again, and expires."""
    here = await loop("waiting-restart")
    await here.says(*RAISED)
    monitor.worker.kill()
    monitor.worker.start()
    await here.says(*RAISED, f"{NOBODY} 1")
