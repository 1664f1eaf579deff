"""Our worker as a process under measurement: its topics, its settings, what it says of itself."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bench import cluster, machine
from bench.run import FailedError, Process, worker_settings
from compaction_monitor.shell import topics
from tests.e2e.brokers import free_ports

READY_S = 300.0


class App:
    """One application: a name, its topics on a broker, and a folder for its workers' state."""

    partitions = cluster.PARTITIONS

    def __init__(self, address: str, core: int | None, *, rules: str = "") -> None:
        self.address, self.core = address, core
        self.name = f"bench-{uuid.uuid4().hex[:8]}"
        self.events, self.findings = f"{self.name}.events", f"{self.name}.findings"
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self.topics = topics.expected(
            app_id=self.name, events=(self.events,), outcomes=f"{self.name}.outcomes", findings=self.findings,
            dead_letters=f"{self.name}.dead-letters", partitions=self.partitions,
        )  # fmt: skip
        self._rules = self.folder / "checks.toml"
        self._rules.write_text(rules)

    async def create(self) -> None:
        await cluster.create(self.address, self.topics)

    async def delete(self) -> None:
        await cluster.delete(self.address, self.name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def state(self, worker: str) -> Path:
        return self.folder / worker / "state"

    @asynccontextmanager
    async def worker(self, name: str = "one", **settings: object) -> AsyncIterator[Worker]:
        """A worker, started; not yet ready."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        port = free_ports(1)[0]
        wanted = {"worker": name, "web_port": port, "checks_file": self._rules, "partitions": self.partitions} | settings
        environment = worker_settings(self.address, self.name, self.events, self.state(name), **wanted)
        command = [sys.executable, "-m", "bench.jobs.ours"]
        found = Worker(Process(command, environment, folder, self.core), port)
        try:
            yield found
        finally:
            found.process.stop()


class Worker:
    """A running worker."""

    def __init__(self, process: Process, port: int) -> None:
        self.process, self._port = process, port

    @property
    def cpu_s(self) -> float:
        return machine.cpu_s(self.process.pid)

    @property
    def rss_mb(self) -> float:
        return machine.rss_mb(self.process.pid)

    def kill(self) -> None:
        self.process.signal(signal.SIGKILL)

    async def ready(self) -> None:
        """Wait until it has its partitions and works.

        Raises:
            FailedError: It has ended, or takes too long.
        """
        deadline = time.monotonic() + READY_S
        while (await self._get("/ready"))[0] != 200:
            if not self.process.running or time.monotonic() > deadline:
                raise FailedError(f"not ready: {self.process.tail()}")
            await asyncio.sleep(0.02)

    async def metric(self, name: str) -> float:
        """The sum of a metric over its labels; 0 where there is none."""
        _, page = await self._get("/metrics")
        lines = [line for line in page.decode().splitlines() if line.partition(" ")[0].partition("{")[0] == name]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def _get(self, path: str) -> tuple[int, bytes]:
        return await asyncio.to_thread(self._fetch, path)

    def _fetch(self, path: str) -> tuple[int, bytes]:
        try:
            with urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as response:
                return response.status, response.read()
        except (URLError, OSError) as exc:
            return getattr(exc, "code", 0), b""
