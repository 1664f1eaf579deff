"""OpenTelemetry in the worker: a span for each committed batch, linked to the traces of the events in it.

By the API alone (extra `[otel]`): whoever starts the process sets up what becomes of spans, as `opentelemetry-instrument`
does. Without the API, or without anybody who records, a batch costs next to nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from compaction_monitor.effects import Effects, Headers, Record

trace: Any
try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError:  # the extra is not installed
    trace = None

MAX_LINKS = 128  # what an SDK keeps by default


class BatchSpans:
    """The spans of one worker's batches. `group`: its consumer group."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._tracer = None if trace is None else trace.get_tracer("compaction_monitor")

    def committed(self, partition: int, records: Sequence[Record], effects: Effects, took_s: float) -> None:
        """Tell of a batch that has just been committed, `took_s` after it was begun."""
        if self._tracer is None:
            return
        end_ns = time.time_ns()
        topic = records[0].topic
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
            "messaging.consumer.group.name": self._group,
            "messaging.batch.message_count": len(records),
            "compaction.findings": len(effects.findings),
            "compaction.dead_letters": len(effects.dead_letters),
        }
        span = self._tracer.start_span(
            f"process {topic}",
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
            start_time=end_ns - round(took_s * 1e9),
        )
        if span.is_recording():
            for context in _causes(records, effects):
                span.add_link(context)
        span.end(end_ns)


def _causes(records: Sequence[Record], effects: Effects) -> Iterable[Any]:
    """The traces behind a batch, those that led to a finding first; each once, at most `MAX_LINKS`."""
    found: dict[bytes, Any] = {}
    for traceparent in _traceparents([*(finding.headers for finding in effects.findings), *(r.headers for r in records)]):
        if traceparent in found:
            continue
        carrier = {"traceparent": traceparent.decode(errors="replace")}
        context = trace.get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
        if context.is_valid:
            found[traceparent] = context
            if len(found) == MAX_LINKS:
                break
    return found.values()


def _traceparents(all_headers: Iterable[Headers]) -> Iterator[bytes]:
    for headers in all_headers:
        for name, content in headers:
            if name == "traceparent" and content:
                yield content
