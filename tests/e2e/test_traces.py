"""One trace from an agent's span through the worker to an order and its answers; the worker's spans link to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from compaction_events import tracing
from compaction_events.codec import decode
from compaction_events.controller import Controller
from compaction_events.emitter import Emitter
from compaction_events.findings import RemediationRequested
from compaction_monitor.shell.embedded import EmbeddedBroker
from tests.e2e.workers import Monitor, read_all

Eventually = Callable[..., Awaitable[Any]]
PROGRAMS = Path(sys.executable).parent


class TracedMonitor(Monitor):
    """As the README starts it, but the spans go into a file."""

    @property
    def spans_path(self) -> Path:
        return self.folder / "spans.json"

    def start(self, **settings: Any) -> None:
        assert not settings
        console = ["--traces_exporter", "console", "--metrics_exporter", "none", "--logs_exporter", "none"]
        command = [str(PROGRAMS / "opentelemetry-instrument"), *console, str(PROGRAMS / "compaction-monitor"), "worker"]
        with self.log_path.open("ab") as log, self.spans_path.open("ab") as spans:
            self._process = subprocess.Popen(
                command, env=os.environ | self._environment, stdin=subprocess.DEVNULL, stdout=spans, stderr=log
            )

    def spans(self) -> Iterator[dict[str, Any]]:
        """The console exporter writes one indented object after the other."""
        text, at = self.spans_path.read_text(encoding="utf-8"), 0
        while at < len(text):
            span, at = json.JSONDecoder().raw_decode(text, at)
            yield span
            at += len(text[at:]) - len(text[at:].lstrip())


@pytest.fixture
def worker(embedded_broker: EmbeddedBroker, app_id: str, tmp_path: Path) -> Iterator[TracedMonitor]:
    made = TracedMonitor(embedded_broker.address, app_id, tmp_path, partitions=1, store="memory")
    yield made
    made.kill()


async def test_from_the_agents_span_to_the_answer(
    embedded_broker: EmbeddedBroker,
    app_id: str,
    worker: TracedMonitor,
    make_topics: Callable[..., Awaitable[Any]],
    eventually: Eventually,
) -> None:
    broker = embedded_broker.address
    await make_topics(embedded_broker, app_id, partitions=1)
    worker.start()
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("agent")
    with Emitter(broker, agent="coder", topic=f"{app_id}.events", traceparent=tracing.traceparent) as emitter:
        session = emitter.session("s", source_spans=100, topology="tree")
        with tracer.start_as_current_span("compact") as span:
            session.round(raw_tokens=10, summary_tokens=90, spans=9, cosine=0.5, depth=2)
            parent = tracing.traceparent()
        assert emitter.flush(30)
    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert parent is not None
    assert parent.startswith(f"00-{trace_id}-{span.get_span_context().span_id:016x}-".encode())

    async def traces(topic: str) -> list[tuple[str, bytes | None]]:
        records = await read_all(broker, f"{app_id}.{topic}", 1)
        read = [decode(record.value, record.headers, record.key) for record in records]
        return [(found.event.type, found.traceparent) for found in read]

    assert await traces("events") == [("session.started", None), ("round.completed", parent)]

    controller = Controller(
        broker, agent="coder", group_id=f"{app_id}-coder", consumer={"group_instance_id": "coder", "start": "earliest"},
        findings_topic=f"{app_id}.findings", outcomes_topic=f"{app_id}.outcomes",
    )  # fmt: skip

    @controller.on("rehydrate")
    def obey(order: RemediationRequested) -> str:
        return "fetched"

    with controller:
        answers = [("remediation.acknowledged", parent)] * 2

        async def answered() -> bool:
            return await traces("outcomes") == answers

        await eventually(answered, 60, what="the order's answers, with its trace", every_s=0.2)
    assert await traces("findings") == [("alert.raised", parent), ("remediation.requested", parent)]

    worker.signal(signal.SIGTERM)
    assert await worker.ended(15) == 0
    batches = [span for span in worker.spans() if span["name"] == f"process {app_id}.events"]
    counted = [span["attributes"]["messaging.batch.message_count"] for span in batches]
    assert sum(counted) == 2
    links = [link["context"]["trace_id"] for span in batches for link in span["links"]]
    assert links == [f"0x{trace_id}"]
