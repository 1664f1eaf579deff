"""The worker's spans: one a batch, linked to what caused it, and none of it where nobody listens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from compaction_monitor.effects import Effects, Outgoing
from compaction_monitor.harness import EVENTS, LogRecord
from compaction_monitor.shell import tracing
from compaction_monitor.shell.tracing import MAX_LINKS, BatchSpans


def parent(number: int) -> bytes:
    return b"00-%032x-%016x-01" % (number, number)


def record(*traceparents: bytes | None) -> LogRecord:
    return LogRecord(EVENTS, 3, 0, 0, b"s", b"{}", [("ce_id", b"x"), *(("traceparent", one) for one in traceparents)])


def finding(traceparent: bytes) -> Outgoing:
    return Outgoing(b"s", b"{}", [("traceparent", traceparent)])


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.trace_id for link in span.links]


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What is recorded while the process has a tracer provider."""
    provider, found = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield found
    provider.shutdown()


def test_a_batch_is_a_span(exporter: InMemorySpanExporter) -> None:
    effects = Effects(findings=[finding(parent(1))], dead_letters=[Outgoing(b"s", None, [])])
    BatchSpans("fleet").committed(3, [record(parent(1)), record(None)], effects, 0.25)
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.parent) == ("process compaction.events", trace.SpanKind.CONSUMER, None)
    assert span.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "compaction.events",
        "messaging.destination.partition.id": "3",
        "messaging.consumer.group.name": "fleet",
        "messaging.batch.message_count": 2,
        "compaction.findings": 1,
        "compaction.dead_letters": 1,
    }
    assert span.end_time is not None
    assert span.start_time is not None
    assert span.end_time - span.start_time == 250_000_000
    assert linked(span) == [1]


def test_links_are_to_each_cause_once_those_of_findings_first(exporter: InMemorySpanExporter) -> None:
    records = [record(parent(number)) for number in (1, 2, 3, 2)]
    BatchSpans("fleet").committed(3, [*records, record(b"no trace"), record(b"")], Effects(findings=[finding(parent(3))]), 0)
    (span,) = exporter.get_finished_spans()
    assert linked(span) == [3, 1, 2]


def test_links_are_bounded(exporter: InMemorySpanExporter) -> None:
    BatchSpans("fleet").committed(3, [record(parent(number)) for number in range(1, 2 * MAX_LINKS)], Effects(), 0)
    (span,) = exporter.get_finished_spans()
    assert linked(span) == list(range(1, MAX_LINKS + 1))


def test_headers_are_not_looked_at_for_a_span_that_nobody_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(sampler=sampling.ALWAYS_OFF, shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    monkeypatch.setattr(tracing, "_causes", None)
    BatchSpans("fleet").committed(3, [record(parent(1))], Effects(), 0)


def test_without_the_extra_there_is_nothing() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
from compaction_monitor.effects import Effects
from compaction_monitor.shell.tracing import BatchSpans
BatchSpans("fleet").committed(0, [], Effects(), 0)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
