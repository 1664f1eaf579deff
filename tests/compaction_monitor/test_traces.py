"""A trace goes through: from the fact that led to a finding to each of its alerts and orders, and to no other's."""

from __future__ import annotations

from datetime import timedelta

from compaction_events.builders import completed, ended, started
from compaction_events.codec import decode, encode
from compaction_events.facts import Fact
from compaction_monitor.core import MonitorCore, MonitorPartition
from compaction_monitor.effects import Effects
from compaction_monitor.harness import EVENTS, OUTCOMES, LogRecord, Rows, milliseconds
from compaction_monitor.rules import Rules

LOST = {"distinct_source_spans": 9, "summary_depth_max": 2}


def partition() -> MonitorPartition:
    return MonitorCore(Rules(), 1, OUTCOMES).open(0, Rows())


def record(fact: Fact, traceparent: bytes | None, offset: int = 0) -> LogRecord:
    at = fact.occurred_at
    assert at is not None
    return LogRecord(EVENTS, 0, offset, milliseconds(at), *encode(fact, traceparent=traceparent))


def traced(effects: Effects) -> list[tuple[str, str, bytes | None]]:
    """Type, session and trace of each finding."""
    found = [decode(sent.value, sent.headers, sent.key) for sent in effects.findings]
    return [(read.event.type, read.event.session_id, read.traceparent) for read in found]


def test_each_finding_has_the_trace_of_its_own_fact() -> None:
    facts = [
        (started("a", source_spans=100), b"00-a0"),
        (started("b", source_spans=100), b"00-b0"),
        (completed(1, "a", **LOST), b"00-a1"),
        (completed(1, "b", **LOST), None),
        (ended(90, "a"), b"00-a2"),
    ]
    effects = partition().apply([record(fact, trace, offset) for offset, (fact, trace) in enumerate(facts)])
    assert traced(effects) == [
        ("alert.raised", "a", b"00-a1"),
        ("remediation.requested", "a", b"00-a1"),
        ("alert.raised", "b", None),
        ("remediation.requested", "b", None),
        ("alert.resolved", "a", b"00-a2"),
        ("remediation.withdrawn", "a", b"00-a2"),
    ]


def test_what_the_clock_brings_about_has_none() -> None:
    """No fact is behind it: a trace from before would be that of something else."""
    monitor = partition()
    lost = completed(1, "s", **LOST)
    opened = [record(started("s", source_spans=100, controller="expected"), b"00-0"), record(lost, b"00-1", 1)]
    monitor.committed(monitor.apply(opened))
    assert lost.occurred_at is not None
    again = monitor.tick(milliseconds(lost.occurred_at + timedelta(minutes=6)))
    assert traced(again) == [("remediation.requested", "s", None)]
