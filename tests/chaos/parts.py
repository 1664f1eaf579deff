"""What a run is made of: a broker behind a proxy, workers that each have a clock and a disk of their own, a controller."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from compaction_events.builders import EPOCH
from compaction_events.controller import Controller, OrderDeferredError, OrderRejectedError
from compaction_events.emitter import Emitter
from compaction_events.facts import AckStatus
from compaction_events.findings import Action, RemediationRequested
from compaction_monitor.effects import CHECKPOINTS, SESSIONS
from compaction_monitor.shell import topics
from compaction_monitor.shell.store import Stores
from tests.e2e.brokers import Kafka, free_ports, own_topics
from tests.e2e.fleet import ANSWERED, HURRIED, agent_of
from tests.e2e.workers import Monitor

# A broker that is killed is let in again when its last session has run out; the workers' are the shortest allowed.
BROKER_SESSION_MS: Final = 6_000
DISK: Final = "96m"
QUICKLY: Final = {"cleanup.policy": "compact", "segment.ms": "3000", "min.cleanable.dirty.ratio": "0.01"}


class ProxiedKafka(Kafka):
    """A Kafka with a second listener, of which it says that it is at `front`: a proxy passes on to `back`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.front, self.back = free_ports(2)

    @property
    def proxied(self) -> str:
        return f"127.0.0.1:{self.front}"

    def _properties(self, data: Path) -> str:
        lines = super()._properties(data).splitlines()
        more = {"listeners": f",PROXIED://127.0.0.1:{self.back}", "advertised.listeners": f",PROXIED://127.0.0.1:{self.front}"}
        lines = [line + more.get(line.partition("=")[0], "") for line in lines]
        lines += [
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT",
            "inter.broker.listener.name=PLAINTEXT",
            f"broker.session.timeout.ms={BROKER_SESSION_MS}",
            "broker.heartbeat.interval.ms=500",
            "log.cleaner.backoff.ms=2000",
        ]
        return "\n".join(lines) + "\n"


async def make_topics(broker: str, app_id: str, partitions: int) -> None:
    """All of them; the changelogs are compacted within seconds."""
    changelogs = {topics.changelog(app_id, f"{table}-v1") for table in ("sessions", "checkpoints", "progress")}
    wanted = own_topics(app_id, partitions=partitions)
    assert changelogs <= {topic.name for topic in wanted}
    made = [replace(topic, config={**topic.config, **QUICKLY}) if topic.name in changelogs else topic for topic in wanted]
    async with topics.connect(bootstrap_servers=broker) as admin:
        await topics.apply(admin, made)


class Kept(NamedTuple):
    """What a local store holds: how far it follows the sessions' changelog, and (table, key, row)."""

    reached: int
    rows: set[tuple[str, bytes, bytes]]


class Machine(Monitor):
    """A worker on a machine of its own: its wall clock can be moved while it runs, and its disk be full."""

    def __init__(self, broker: str, app_id: str, folder: Path, name: str, **settings: Any) -> None:
        super().__init__(broker, app_id, folder, name, **settings)
        self._clock = self.folder / "clock"
        self._disk: Path | None = None
        self._app_id = app_id
        self.data = self.folder / "data"

    def move_clock(self, seconds: int) -> None:
        """Its clock is so far off from now on; processes started later too."""
        moved = self._clock.with_suffix(".new")
        moved.write_text(str(seconds))
        moved.replace(self._clock)  # it is read at any moment

    def with_clock(self) -> None:
        """Give it one; before it is started."""
        self.move_clock(0)
        self.command = ("tests.chaos.clock", "worker")
        self._environment["CHAOS_CLOCK"] = str(self._clock)

    def with_disk(self) -> None:
        """A small file system for its data; needs root.

        Raises:
            PermissionError: It must not be mounted.
        """
        self.data.mkdir(exist_ok=True)
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "chaos", str(self.data)], check=False, capture_output=True
        )
        if made.returncode:
            raise PermissionError(f"no file system can be mounted for the full disk: {made.stderr.decode().strip()}")
        self._disk = self.data

    def fill_disk(self) -> None:
        """Leave no room on it."""
        with (self.data / "ballast").open("ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(1 << 16))
            except OSError:
                return

    def clear_disk(self) -> None:
        (self.data / "ballast").unlink()

    def store(self, partition: int) -> Kept | None:
        """What its local store of a partition holds, None where there is none; while it does not run."""
        path = self.data / self._app_id
        if not (path / str(partition)).is_dir():
            return None
        stores = Stores("rocksdict", path, 8)
        try:
            store = stores[partition]
            rows = {(table, *row) for table in (SESSIONS, CHECKPOINTS) for row in store.scan(table, b"", sys.maxsize)}
            return Kept(store.offset(SESSIONS) or 0, rows)
        finally:
            stores.close()

    def dispose(self) -> None:
        """Kill it, and take its disk away."""
        self.kill()
        if self._disk is not None:
            subprocess.run(["umount", "--lazy", str(self._disk)], check=True)
            self._disk = None


class _InTheirTime(Controller):
    """Lives when its sessions do: to a clock of today they would all have expired, and its answers would end them."""

    def __init__(self, servers: str, **options: Any) -> None:
        super().__init__(servers, clock=lambda: self._now, **options)
        self._now = EPOCH

    def _answer(self, emitter: Emitter, order: RemediationRequested, status: AckStatus, detail: str | None = None) -> None:
        self._now = order.requested_at
        super()._answer(emitter, order, status, detail)
        self._now = EPOCH


class Obeying(AbstractContextManager["Obeying"]):
    """A controller that obeys some orders and not others, and notes how often it has obeyed each."""

    def __init__(self, broker: str, app_id: str) -> None:
        self.obeyed: Counter[str] = Counter()
        self._deferred: set[str] = set()
        self._controller = _InTheirTime(
            broker, sessions=_is_mine, findings_topic=f"{app_id}.findings", outcomes_topic=f"{app_id}.outcomes",
            consumer={"start": "earliest"},
        )  # fmt: skip
        for action in Action:
            self._controller.on(action)(self._obey)

    def __enter__(self) -> Obeying:
        self._controller.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._controller.__exit__(*error)

    def _obey(self, order: RemediationRequested) -> str:
        luck = zlib.crc32(order.id.encode()) % 10
        if luck == 0:
            raise OrderRejectedError("not now, not ever")
        if luck == 1:
            raise RuntimeError("it failed")
        if luck == 2 and order.id not in self._deferred:
            self._deferred.add(order.id)
            raise OrderDeferredError("later")
        self.obeyed[order.id] += 1
        return "done"


def _is_mine(session_id: str) -> bool:
    """Of the sessions that hurry half: the others are left to their deadlines."""
    agent = agent_of(session_id)
    return agent == ANSWERED or (agent == HURRIED and zlib.crc32(session_id.encode()) % 2 == 0)
