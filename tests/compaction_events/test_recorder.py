"""The recorder as a middleware would use it: whole sets of messages, pass after pass, known ones by their ids."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import compaction_monitor
from compaction_events import adapters
from compaction_events.facts import (
    Basis,
    Composition,
    Eviction,
    RoundCompleted,
    SessionEnded,
    SpansMethod,
    SummaryKind,
    Topology,
    Trigger,
)
from compaction_events.recorder import Message, Pass, Recorder, Tokens
from tests.compaction_events.adapters.transcript import without_cosine

AT = datetime(2026, 5, 4, 9, tzinfo=UTC)


def recorder() -> Recorder:
    return Recorder("s", "agent", source="middleware", topology=Topology.tree, eviction=Eviction.continuous)


FIRST = Message("m1", "Serve port 8417 from conf/app.toml", typed=True)  # 34 bytes: 9 tokens
REPLY = Message("m2", "Did conf/app.toml", bulk="x" * 22)  # 17 + newline + 22: 10 tokens
SECOND = Message("m3", "Write logs/audit.log by level_name", typed=True)  # 34: 9
SUMMARY = Message("s1", "8417 in conf/app.toml", depth=1)  # 21: 6


def test_a_sliding_set_whose_messages_stay(tmp_path: Path) -> None:
    """Nobody counted tokens: all is estimated, the bulk too. A message that stays is known by its id, and is no new span."""
    made = recorder()
    found = [without_cosine(made.before([FIRST, REPLY, SECOND]))]
    first = made.after([SUMMARY, SECOND], Pass(1, AT))
    found += [without_cosine(first.after), without_cosine(made.before([SUMMARY, SECOND], Tokens(100, 40)))]
    second = made.after([Message("s2", "level_name in logs/audit.log", depth=2)], Pass(2, AT), Tokens(50, 40))
    found += [without_cosine(second.after)]
    assert found == [
        Composition(raw_tokens=28, summary_tokens=0, distinct_source_spans=2, summary_depth_max=0),
        Composition(raw_tokens=9, summary_tokens=6, distinct_source_spans=2, summary_depth_max=1),
        Composition(raw_tokens=54, summary_tokens=6, overhead_tokens=40, distinct_source_spans=2, summary_depth_max=1),
        Composition(raw_tokens=3, summary_tokens=7, overhead_tokens=40, distinct_source_spans=1, summary_depth_max=2),
    ]
    assert (first.before and without_cosine(first.before), second.source_spans_seen) == (found[0], 2)


def test_a_round_carries_what_is_known_of_the_pass() -> None:
    made = recorder()
    before = made.before([FIRST], query="port 8417")
    this = Pass(3, AT, Trigger.turns, claimed=9, read=8, summary_kind=SummaryKind.fallback, token_method="counted")
    found = made.after([SUMMARY], this, Tokens(20))
    assert found == RoundCompleted(
        session_id="s",
        agent="agent",
        round=3,
        at=AT,
        trigger=Trigger.turns,
        before=before,
        after=found.after,
        topology=Topology.tree,
        source_spans_seen=1,
        spans_method=SpansMethod.lexical,
        claimed_records=9,
        read_records=8,
        summary_kind=SummaryKind.fallback,
        token_method="counted",
        basis=Basis.inferred,
    )
    assert found.after.query_cosine_retained is not None and 0 < found.after.query_cosine_retained < 1


def test_a_session_nobody_typed_in_has_no_query_and_no_spans() -> None:
    """Unknown, not 0: a check that needs the cosine is skipped then."""
    made = recorder()
    assert made.before([REPLY]) == Composition(raw_tokens=10, summary_tokens=0, distinct_source_spans=0, summary_depth_max=0)


def test_after_without_before_is_the_caller_s_mistake() -> None:
    made = recorder()
    made.before([FIRST])
    made.after([SUMMARY], Pass(1, AT))
    with pytest.raises(RuntimeError, match=r"call before\(\)"):
        made.after([SUMMARY], Pass(2, AT))


def test_end() -> None:
    assert recorder().ended(AT) == SessionEnded(session_id="s", agent="agent", ended_at=AT)


def test_the_demo_session_goes_wrong_in_its_second_pass() -> None:
    """It ships in the package. After a resume the chain is broken: 4 of 29 records read, and no span is left."""
    [session] = adapters.find([Path(compaction_monitor.__file__).with_name("demo_session.jsonl")])
    reading = adapters.read_session(session)
    assert [
        (
            fact.round,
            fact.read_records,
            fact.claimed_records,
            fact.before and fact.before.distinct_source_spans,
            fact.after.distinct_source_spans,
        )
        for fact in reading
        if isinstance(fact, RoundCompleted)
    ] == [(1, 18, 23, 5, 5), (2, 4, 29, 10, 0)]
    assert (reading.quoted, list(reading.warnings)) == ({1: ((5, 5),), 2: ((0, 5), (0, 5))}, [])
