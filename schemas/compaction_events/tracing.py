"""OpenTelemetry in an agent (extra `[otel]`): what the agent reports belongs to the trace it works in.

```python
emitter = Emitter("localhost:9092", agent="coder", traceparent=tracing.traceparent)
```
The monitor passes an event's trace context on to the findings it leads to, and a controller to its answers.
"""

from __future__ import annotations

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()


def traceparent() -> bytes | None:
    """The W3C trace context of the current span; None where there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    found = carrier.get("traceparent")
    return None if found is None else found.encode()
