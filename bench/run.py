"""One run of one contender over one preloaded topic: start it, wait until all is committed, stop it, say how fast it was."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import cluster, machine
from bench.contenders import ROOT, Contender
from compaction_monitor.shell import topics
from compaction_monitor.shell.worker import GC_OBJECTS

TIMEOUT_S = 300.0
CHUNK = 1 << 16


class FailedError(Exception):
    """A contender ended early, or took too long; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Result:
    """Times in seconds from the first record in the contender's hands to the last one committed."""

    records: int
    wall_s: float
    cpu_s: float
    findings: int
    alerts: int
    rss_mb: float

    @property
    def per_second(self) -> float:
        return self.records / self.wall_s

    @property
    def cpu_us(self) -> float:
        """CPU time of an event, µs: what does not depend on who else uses the core."""
        return self.cpu_s / self.records * 1e6


@dataclass(frozen=True, slots=True)
class Input:
    """A preloaded topic. `alerts`: as many as the pure functions make of it."""

    topic: str
    records: int
    ends: Mapping[int, int]
    alerts: int


class Process:
    """A contender's process: its marks, its log."""

    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path, core: int | None) -> None:
        self.log_path = folder / "log"
        path = os.pathsep.join(str(ROOT / part) for part in ("schemas", "stream", "."))
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=machine.pinned_to(core),
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._marks: dict[str, int] = {}
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def read(self) -> dict[str, int]:
        """The marks so far, ns on the monotonic clock."""
        assert self._process.stdout is not None
        lines = (self._rest + (self._process.stdout.read(CHUNK) or b"")).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            name, _, at = line.decode(errors="replace").partition(" ")
            if at.isdigit():
                self._marks.setdefault(name, int(at))
        return self._marks

    async def marked(self, name: str, deadline: float) -> int:
        """When the mark was made.

        Raises:
            FailedError: It has ended without, or the deadline is over.
        """
        while True:
            ended = self._process.poll() is not None
            if name in self.read():
                return self._marks[name]
            if ended or time.monotonic() > deadline:
                raise FailedError(f"{'ended' if ended else 'too late'}, no {name!r}: {self.tail()}")
            await asyncio.sleep(0.002)

    def tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-1500:]

    def stop(self) -> None:
        """Terminate it, kill it if it does not end."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


async def measure(contender: Contender, command: list[str], address: str, source: Input, core: int | None) -> Result:
    """Run a contender over an input.

    Raises:
        FailedError: It did not get to the end.
    """
    app = f"bench-{contender.name}-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        wanted = topics.expected(
            app_id=app, events=(source.topic,), outcomes=f"{app}.outcomes", findings=f"{app}.findings",
            dead_letters=f"{app}.dead-letters", partitions=cluster.PARTITIONS,
        )  # fmt: skip
        own = contender.committed == "progress"
        await cluster.create(address, wanted if own else [topic for topic in wanted if topic.name == f"{app}.findings"])
        task = {
            "broker": address, "app": app, "topic": source.topic, "findings": f"{app}.findings",
            "partitions": cluster.PARTITIONS, "records": source.records, "folder": str(folder / "state"),
            "gc_objects": GC_OBJECTS,
        }  # fmt: skip
        (folder / "state").mkdir()
        arguments = [] if own else [json.dumps(task)]
        environment = worker_settings(address, app, source.topic, folder / "state") if own else {}
        process = Process([*command, *arguments], environment, folder, core)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await _measured(contender, process, address, app, source)
        except TimeoutError:
            raise FailedError(f"not done in {TIMEOUT_S:g} s: {process.tail()}") from None
        finally:
            process.stop()
            await cluster.delete(address, app)


async def _measured(contender: Contender, process: Process, address: str, app: str, source: Input) -> Result:
    deadline = time.monotonic() + TIMEOUT_S
    progress = None
    if contender.committed == "progress":
        progress = asyncio.create_task(cluster.progress_reaches(address, app, source.topic, dict(source.ends)))
    try:
        started = await process.marked("started", deadline)
        cpu_before = machine.cpu_s(process.pid)
        match contender.committed:
            case "process":
                committed = await process.marked("committed", deadline)
            case "group":
                await process.marked("handled", deadline)
                committed = await cluster.group_reaches(address, app, source.topic, dict(source.ends))
            case "progress":
                assert progress is not None
                committed = await progress
        cpu_s = machine.cpu_s(process.pid) - cpu_before
        rss_mb = machine.rss_mb(process.pid)
    finally:
        if progress is not None:
            progress.cancel()
    findings, alerts = (0, 0) if contender.ceiling else await cluster.count_findings(address, f"{app}.findings")
    return Result(
        source.records,
        (committed - started) / 1e9,
        cpu_s,
        findings,
        alerts,
        rss_mb,
    )


def worker_settings(address: str, app: str, topic: str, folder: Path, **more: object) -> dict[str, str]:
    """Our worker's settings as its environment."""
    wanted = {
        "brokers": address, "app_id": app, "worker": "bench", "datadir": folder, "web_port": 0,
        "partitions": cluster.PARTITIONS, "events_topics": topic, "outcomes_topic": f"{app}.outcomes",
        "findings_topic": f"{app}.findings", "dead_letters_topic": f"{app}.dead-letters", **more,
    }  # fmt: skip
    return {f"COMPACTION_MONITOR_{name.upper()}": str(value) for name, value in wanted.items()}
