"""The Faust app around the pure core: one agent over all input topics, three tables, our transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import faust
import faust.streams
from faust.types import TP
from yarl import URL

from compaction_monitor.effects import Core
from compaction_monitor.shell.lanes import Outlets
from compaction_monitor.shell.metrics import Metrics
from compaction_monitor.shell.ownership import PHASES, Ownership
from compaction_monitor.shell.settings import Settings
from compaction_monitor.shell.store import PartitionStore, Stores
from compaction_monitor.shell.tables import Tables, add_tables
from compaction_monitor.shell.transport import Transport

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop
except ImportError:  # there is none for Windows
    from asyncio import new_event_loop


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


def make_app(settings: Settings, core: Core, *, end_process: Callable[[int, str], None]) -> WorkerApp:
    """The Faust app: one agent over all input topics, three tables, our transport.

    Args:
        settings: The worker's settings.
        core: The pure middle.
        end_process: Called with an exit code and a reason when the process has to end.

    Raises:
        RuntimeError: Faust's compiled stream iterator is missing: everything would work, at a fraction of the speed.
    """
    if faust.streams._CStreamIterator is None:
        raise RuntimeError("Faust's compiled stream iterator is not loaded (NO_CYTHON set, or a wheel without it)")
    app = WorkerApp(settings.app_id, **_configuration(settings))
    app.settings = settings
    app.metrics = Metrics(settings.metrics_agents, settings.input_topics)
    stores = Stores(settings.store, settings.datadir / settings.app_id, settings.store_cache_mb)
    outlets = Outlets(
        changelogs=add_tables(app, stores, settings.partitions),
        findings=settings.findings_topic,
        dead_letters=settings.dead_letters_topic,
    )
    app.owned = Ownership(settings, core, stores, app.metrics, outlets, lambda: app.consumer, end_process)
    _watch(app)
    _watch_stores(app, stores)
    _add_agent(app, settings)
    return app


def _add_agent(app: WorkerApp, settings: Settings) -> None:
    inputs = app.topic(*settings.input_topics, key_serializer="raw", value_serializer="raw", partitions=settings.partitions)

    @app.agent(inputs, name="inputs")  # type: ignore[untyped-decorator]  # faust is partly untyped
    async def inputs_agent(stream: Any) -> None:
        # `noack`: in Faust an exception, or a cancellation, in the loop's body acknowledges the event, and with `noack` too
        # (#527). A lane does it after its commit, and nothing here can raise.
        async for event in stream.noack().events():
            app.owned.deliver(event.message)


def _configuration(settings: Settings) -> dict[str, Any]:
    return {
        "broker": [URL(f"kafka://{broker}") for broker in settings.brokers],
        "broker_credentials": _credentials(settings),
        "broker_session_timeout": settings.session_timeout_s,
        "broker_heartbeat_interval": settings.session_timeout_s / 5,
        "broker_request_timeout": settings.request_timeout_s,
        "broker_rebalance_timeout": settings.rebalance_timeout_s,
        "broker_commit_interval": 1.0,
        # A static member: a restart within the session timeout moves no partition.
        "consumer_group_instance_id": settings.worker,
        # Recovery begins before the first offset that a compacted changelog still has; with "latest", Faust's default
        # here, it would be sent to the end (#651).
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


def _watch(app: WorkerApp) -> None:
    """Gauges of the partitions at work; they are read when they are scraped."""

    def lag() -> dict[tuple[str, ...], float]:
        behind: dict[tuple[str, ...], float] = {}
        for tp, expected in app.owned.positions().items():
            reading = app.consumer.reading(tp)
            if reading is not None:
                behind[tp.topic, str(tp.partition)] = max(0, reading[1] - expected)
        return behind

    def watermarks() -> dict[tuple[str, ...], float]:
        lanes = app.owned.lanes.values()
        return {(str(lane.partition),): lane.watermark_ms / 1_000 for lane in lanes if lane.watermark_ms}

    def phases() -> dict[tuple[str, ...], float]:
        return {(phase,): float(phase == app.owned.phase) for phase in PHASES}

    watch = app.metrics.watch
    watch("lag_records", "Input records not yet committed, up to the end that the last fetch saw.", ("topic", "partition"), lag)
    watch(
        "watermark_timestamp_seconds", "Append time of the latest record committed since the assignment.", ("partition",),
        watermarks,
    )  # fmt: skip
    watch("partitions", "Partition numbers there are.", (), lambda: {(): float(app.settings.partitions)})
    watch("partitions_owned", "Partition numbers at work.", (), lambda: {(): float(len(app.owned.lanes))})
    watch("phase", "What the worker is doing: 1 for one of them.", ("phase",), phases)
    app.metrics.watch_standings(lambda: [lane.standing for lane in app.owned.lanes.values()])


def _watch_stores(app: WorkerApp, stores: Stores) -> None:
    """Gauges of the local stores and of what is missing from them."""

    def of_each(read: Callable[[PartitionStore], int]) -> dict[tuple[str, ...], float]:
        return {(str(partition),): float(read(store)) for partition, store in stores.opened().items()}

    def remaining() -> dict[tuple[str, ...], float]:
        recovery = app.tables.recovery
        left = recovery.active_remaining().values() if recovery.in_recovery else ()
        return {(): float(sum(max(0, records) for records in left))}

    watch = app.metrics.watch
    watch("store_rows", "Rows in the local store, estimated.", ("partition",), lambda: of_each(lambda store: store.rows()))
    watch(
        "store_bytes", "Bytes of the rows in the local store, estimated.", ("partition",),
        lambda: of_each(lambda store: store.bytes()),
    )  # fmt: skip
    watch("recovery_remaining_records", "Changelog records that a recovery has still to read.", (), remaining)
