"""The worker: a Faust app around the pure core, and the process that runs it.

`make_app` builds the app, `run_worker` runs it until a signal or a reason to end, and returns the exit code:

| code | meaning |
|---|---|
| 0 | stopped by SIGTERM or SIGINT |
| 69 | no broker answers |
| 70 | a fault in the program |
| 75 | fenced, or paused for longer than the session timeout: start it again |
| 78 | the settings or what is in the topics need a decision; the last line says which |
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import faust
import faust.streams
from aiokafka.errors import KafkaError
from faust.exceptions import ConsistencyError
from faust.types import TP
from yarl import URL

from compaction_monitor import topics
from compaction_monitor.effects import TABLES, Core
from compaction_monitor.lanes import EX_CONFIG, EX_FENCED, EX_SOFTWARE, Outlets
from compaction_monitor.metrics import Metrics
from compaction_monitor.ownership import Ownership
from compaction_monitor.settings import Settings, SettingsError
from compaction_monitor.store import Stores
from compaction_monitor.tables import Tables, add_tables
from compaction_monitor.transport import Transport
from compaction_monitor.web import WebServer

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop
except ImportError:  # there is none for Windows
    from asyncio import new_event_loop

log = logging.getLogger(__name__)

EX_UNAVAILABLE = 69
HEARTBEAT_S = 0.5


class WorkerApp(faust.App):  # type: ignore[misc]  # faust is partly untyped
    """Faust's app; partitions are handed to `owned` before and after Faust does its part.

    Attributes:
        owned: The partitions at work.
        metrics: What is counted.
        settings: As given to `make_app`.
    """

    owned: Ownership
    metrics: Metrics
    settings: Settings

    def _new_transport(self) -> Transport:
        return Transport(
            self.conf.broker_consumer,
            self,
            fetch_wait_ms=self.settings.fetch_wait_ms,
            positions=lambda: self.owned.positions(),
            new_loop=new_event_loop,
        )

    async def _on_partitions_revoked(self, revoked: set[TP]) -> None:
        # First, while the group still waits for us: the transactions under way end, what waits is dropped.
        await self.owned.close()
        await super()._on_partitions_revoked(revoked)

    async def on_stop(self) -> None:
        await self.owned.close()
        await super().on_stop()
        await self.owned.stop()


def make_app(settings: Settings, core: Core, *, end_process: Callable[[int, str], None] | None = None) -> WorkerApp:
    """The Faust app: one agent over all input topics, three tables, our transport.

    Args:
        settings: The worker's settings.
        core: The pure middle.
        end_process: Called with an exit code and a reason when the process has to end; by default it ends at once.

    Raises:
        RuntimeError: Faust's compiled stream iterator is missing: everything would work, at a fraction of the speed.
    """
    if faust.streams._CStreamIterator is None:
        raise RuntimeError("Faust's compiled stream iterator is not loaded (NO_CYTHON set, or a wheel without it)")
    app = WorkerApp(settings.app_id, **_configuration(settings))
    app.settings = settings
    app.metrics = Metrics()
    stores = Stores(settings.store, settings.datadir / settings.app_id, settings.store_cache_mb)
    outlets = Outlets(
        changelogs=add_tables(app, stores, settings.partitions),
        findings=settings.findings_topic,
        dead_letters=settings.dead_letters_topic,
    )
    app.owned = Ownership(settings, core, stores, app.metrics, outlets, lambda: app.consumer, end_process or _end)
    _watch(app, stores)
    _add_agent(app, settings)
    return app


def _add_agent(app: WorkerApp, settings: Settings) -> None:
    inputs = app.topic(*settings.input_topics, key_serializer="raw", value_serializer="raw", partitions=settings.partitions)

    @app.agent(inputs, name="inputs")  # type: ignore[untyped-decorator]  # faust is partly untyped
    async def inputs_agent(stream: Any) -> None:
        # `noack`: in Faust an exception, or a cancellation, in the loop's body acknowledges the event. A lane does it
        # after its commit, and nothing here can raise.
        async for event in stream.noack().events():
            app.owned.deliver(event.message)


def _configuration(settings: Settings) -> dict[str, Any]:
    return {
        "broker": [URL(f"kafka://{broker}") for broker in settings.brokers],
        "broker_credentials": _credentials(settings),
        "broker_session_timeout": settings.session_timeout_s,
        "broker_heartbeat_interval": settings.session_timeout_s / 5,
        "broker_request_timeout": settings.request_timeout_s,
        "broker_rebalance_timeout": max(settings.session_timeout_s * 2, 30.0),
        "broker_commit_interval": 1.0,
        # A static member: a restart within the session timeout moves no partition.
        "consumer_group_instance_id": settings.worker,
        # Recovery begins before the first offset that a compacted changelog still has; with "latest", Faust's default
        # here, it would be sent to the end.
        "consumer_auto_offset_reset": "earliest",
        "consumer_max_fetch_size": settings.fetch_max_bytes,
        "datadir": settings.datadir,
        "store": "memory://",  # of no effect: our tables bring their stores
        "stream_buffer_maxsize": 32,  # of whole batches
        "stream_recovery_delay": 0.0,
        # Faust's default is 1; a standby would need the guards of recovery, which are written for active partitions.
        "table_standby_replicas": 0,
        "topic_partitions": settings.partitions,
        # `topics apply` creates everything, so the worker needs no right to.
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        # Serves table data, and binds 0.0.0.0. Ours is in `web`.
        "web_enabled": False,
        "web_tables_enabled": False,
        "TableManager": Tables,
        "autodiscover": False,
    }


def _credentials(settings: Settings) -> Any:
    context = settings.ssl_context()
    if settings.security_protocol.startswith("SASL") and settings.password is not None:
        return faust.SASLCredentials(
            mechanism=settings.sasl_mechanism,
            username=settings.username,
            password=settings.password.get_secret_value(),
            ssl_context=context,
        )
    return faust.SSLCredentials(context=context) if context is not None else None


def _watch(app: WorkerApp, stores: Stores) -> None:
    """Gauges that are read when they are scraped."""

    def lag() -> dict[tuple[str, ...], float]:
        behind: dict[tuple[str, ...], float] = {}
        for tp, expected in app.owned.positions().items():
            reading = app.consumer.reading(tp)
            if reading is not None:
                behind[tp.topic, str(tp.partition)] = max(0, reading[1] - expected)
        return behind

    def rows() -> dict[tuple[str, ...], float]:
        return {(str(partition),): sum_rows(store) for partition, store in stores.opened().items()}

    def sum_rows(store: Any) -> float:
        # RocksDB estimates over all tables at once; in memory each table knows its size.
        sizes = [store.size(table) for table in TABLES]
        return float(max(sizes) if settings.store == "rocksdict" else sum(sizes))

    settings = app.settings
    app.metrics.watch("lag_records", "Input records not yet committed.", ("topic", "partition"), lag)
    app.metrics.watch("store_rows", "Rows in the local store, estimated.", ("partition",), rows)
    app.metrics.watch("partitions_owned", "Partition numbers at work.", (), lambda: {(): float(len(app.owned.lanes))})


def _end(code: int, reason: str) -> None:
    log.critical("exit %d: %s", code, reason)
    logging.shutdown()
    os._exit(code)


class _Process:
    """One run of the worker: waits for what ends it, and ends it in time."""

    def __init__(self, settings: Settings, core: Core) -> None:
        self._settings = settings
        self._code: int | None = None
        self._reason = ""
        self._over = asyncio.Event()
        self._app = make_app(settings, core, end_process=self.exit)
        self._web = WebServer(
            self._app.metrics,
            host=settings.web_host,
            port=settings.web_port,
            dead=lambda: [self._reason] if self._code else [],
            unready=self._app.owned.unready,
        )

    def exit(self, code: int, reason: str) -> None:
        """End the process; the first reason counts."""
        if code == EX_FENCED:
            # Another worker may own our partitions: touch nothing any more, the group and the stores included.
            _end(code, reason)
        if self._code is None:
            self._code, self._reason = code, reason
            log.log(logging.CRITICAL if code else logging.INFO, "ending: %s", reason)
            # Everything that is committed is durable, so a process that does not stop by itself can be ended anywhere.
            timer = threading.Timer(self._settings.shutdown_timeout_s, _end, (code, f"{reason} (did not stop in time)"))
            timer.daemon = True
            timer.start()
        self._over.set()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):  # Windows has no signal handlers in its loop
                loop.add_signal_handler(number, self.exit, 0, f"signal {number.name}")
        try:
            port = await self._web.start()
            log.info("web server on http://%s:%d", self._settings.web_host, port)
        except OSError as exc:
            self.exit(EX_CONFIG, f"web_host, web_port {self._settings.web_host}:{self._settings.web_port}: {exc.strerror}")
        tasks = [loop.create_task(self._start()), loop.create_task(self._heartbeat())]
        await self._over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._app.stop()
        await self._web.stop()
        log.log(logging.CRITICAL if self._code else logging.INFO, "exit %d: %s", self._code, self._reason)
        return self._code or 0

    async def _start(self) -> None:
        try:
            await check_topics(self._settings, set(self._app.tables.changelog_topics))
            await self._app.start()
            await self._app._crashed.wait()
            self._crashed()
        except SettingsError as exc:
            self.exit(EX_CONFIG, str(exc))
        except KafkaError as exc:
            self.exit(EX_UNAVAILABLE, f"no broker answers at {', '.join(self._settings.brokers)}, or it refuses: {exc!r}")
        except asyncio.CancelledError:
            raise
        except Exception as exc:
            log.exception("the app failed")
            self.exit(EX_SOFTWARE, repr(exc))

    async def _heartbeat(self) -> None:
        """Notice that the process was paused: another worker may own its partitions since, and has their state."""
        limit = self._settings.session_timeout_s
        while True:
            before = time.monotonic()
            await asyncio.sleep(HEARTBEAT_S)
            paused = time.monotonic() - before - HEARTBEAT_S
            if paused > limit:
                self.exit(EX_FENCED, f"paused for {paused:.0f} s, longer than the session timeout of {limit:g} s")
            elif self._app.crashed:
                self._crashed()

    def _crashed(self) -> None:
        reason = self._app.crash_reason
        if isinstance(reason, ConsistencyError):
            path = self._settings.datadir / self._settings.app_id
            detail = " ".join(str(reason).split())  # Faust's are several lines long
            self.exit(EX_CONFIG, f"the local store below {path} is ahead of its changelog, which lost data: {detail}")
        elif isinstance(reason, KafkaError | TimeoutError):
            self.exit(EX_UNAVAILABLE, f"the brokers do not answer, or refuse: {reason!r}")
        else:
            self.exit(EX_SOFTWARE, f"Faust ended: {reason!r}")


async def check_topics(settings: Settings, changelogs: set[str]) -> None:
    """Every topic exists with the configured partition count.

    Raises:
        SettingsError: One does not.
        KafkaError: No broker answers, or it refuses.
    """
    async with topics.connect(**settings.client_options()) as admin:
        # All are asked for, not these by name: asking for a missing one creates it where auto-create is on.
        described = {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}
    counts = {name: described.get(name, 0) for name in (*settings.topics, *sorted(changelogs))}
    missing = [name for name, count in counts.items() if not count]
    if missing:
        raise SettingsError(f"topics missing: {', '.join(missing)}. `topics apply` creates them")
    if set(counts.values()) != {settings.partitions}:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise SettingsError(f"every topic must have {settings.partitions} partitions (setting partitions); found: {listed}")


def run_worker(settings: Settings, core: Core) -> int:
    """Run the worker until it is told to end.

    Returns:
        The exit code; see the table at the top.
    """

    async def main() -> int:
        return await _Process(settings, core).run()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            code = runner.run(main())
        except (SettingsError, KafkaError) as exc:
            log.critical("exit %d: %s", EX_CONFIG, exc)
            code = EX_CONFIG
    sys.stdout.flush()
    return code
