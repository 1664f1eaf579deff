"""Both stores of the LCM family, filled alike with the tables their plugins create: the same history, worked out by hand."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from compaction_events import adapters
from compaction_events.adapters import Session
from compaction_events.codec import ce_id
from compaction_events.facts import CheckpointWritten, ChildVersion, Fact, RoundCompleted, SessionStarted, SummaryKind
from compaction_monitor.fold import fold
from compaction_monitor.rules import Rules
from compaction_monitor.state.session import Session as State
from tests.compaction_events.adapters.fixtures import Lcm, facts, hierarchy, minute

LAYOUTS = ("lossless-claw", "hermes-lcm")
each = pytest.mark.parametrize("layout", LAYOUTS)


def rounds(found: list[Fact]) -> list[RoundCompleted]:
    return [fact for fact in found if isinstance(fact, RoundCompleted)]


def figures(fact: RoundCompleted) -> tuple[Any, ...]:
    """(round, minute, raw before, summary before, raw after, summary after, spans, depth)."""
    before, after = fact.before, fact.after
    assert before is not None
    at = (fact.at - minute(0)).total_seconds() / 60
    sizes = (before.raw_tokens, before.summary_tokens, after.raw_tokens, after.summary_tokens)
    return (fact.round, at, *sizes, after.distinct_source_spans, after.summary_depth_max)


@each
def test_the_past_is_replayed_from_the_present(layout: str, tmp_path: Path) -> None:
    """Eight messages of 600 tokens in four spans. Each summary is a round; the last one condenses the two before it."""
    store = hierarchy(tmp_path / "lcm.db", layout)
    found = facts(store.path)
    assert [figures(fact) for fact in rounds(found)] == [
        (1, 8, 600, 0, 300, 20, 4, 1),
        (2, 9, 300, 20, 150, 40, 4, 1),
        (3, 10, 150, 40, 150, 15, 4, 2),
    ]
    assert [
        (fact.agent, fact.topology, fact.eviction, fact.source_spans, fact.started_at)
        for fact in found
        if isinstance(fact, SessionStarted)
    ] == [(layout, "tree", "continuous", 4, minute(0))]


@each
def test_what_every_summary_covers(layout: str, tmp_path: Path) -> None:
    store = hierarchy(tmp_path / "lcm.db", layout)
    assert [
        [(item.summary_id, item.depth, item.tokens, item.leaf_spans, item.expanded_tokens) for item in fact.summaries or ()]
        for fact in rounds(facts(store.path))
    ] == [
        [(store.node("a"), 1, 20, 2, 300)],
        [(store.node("a"), 1, 20, 2, 300), (store.node("b"), 1, 20, 1, 150)],
        [(store.node("c"), 2, 15, 3, 450)],
    ]


@each
def test_the_tree_s_edges_point_from_a_summary_to_its_sources(layout: str, tmp_path: Path) -> None:
    """lossless-claw calls a source a parent; here it is a child."""
    store = hierarchy(tmp_path / "lcm.db", layout)
    nodes = [fact for fact in facts(store.path) if isinstance(fact, CheckpointWritten)]
    a, b, c = (store.node(name) for name in "abc")
    assert [(node.node_id, node.level, node.children, node.sources) for node in nodes] == [
        (a, 1, (), "raw"),
        (b, 1, (), "raw"),
        (c, 2, (ChildVersion(node_id=a, version=1), ChildVersion(node_id=b, version=1)), "children"),
    ]
    assert [node.child_joint_entropy_bits is not None for node in nodes] == [False, False, True]


@each
def test_rounds_at_the_deepest_level(layout: str, tmp_path: Path) -> None:
    """A third level at minute 20, then six leaf summaries: the first round there sets the level, six more stay at it."""
    store = hierarchy(tmp_path / "lcm.db", layout)
    store.summary("d", 2, "span_0 to span_2", 10, 20, ["c"])
    for number in range(6):
        store.message("user", f"More of span_{9 + number}", 10, 21 + 2 * number)
        store.summary(f"e{number}", 0, f"span_{9 + number}", 5, 22 + 2 * number, [9 + number])
    state: State | None = None
    pinned = []
    for fact in facts(store.path):
        state = fold(state, fact, ce_id(fact), Rules()).session
        if isinstance(fact, RoundCompleted):
            assert state is not None
            pinned.append((fact.after.summary_depth_max, state.pinned))
    assert pinned == [(1, 1), (1, 2), (2, 1), (3, 1), *((3, number) for number in range(2, 8))]


def test_sources_that_hermes_deleted_are_reached_no_more(tmp_path: Path) -> None:
    """A reset deletes the nodes below depth 1: what the condensed one covered is neither raw nor reachable."""
    store = hierarchy(tmp_path / "lcm.db", "hermes-lcm")
    store.run("DELETE FROM summary_nodes WHERE depth < 1")
    [found] = rounds(facts(store.path))
    # All eight messages lie in the time that the node covers.
    assert figures(found) == (1, 10, 600, 0, 0, 15, 0, 2)
    assert [(item.summary_id, item.leaf_spans, item.expanded_tokens) for item in found.summaries or ()] == [("3", 0, 0)]


def test_messages_that_lossless_claw_deleted_are_reached_no_more(tmp_path: Path) -> None:
    store = hierarchy(tmp_path / "lcm.db", "lossless-claw")
    store.run("DELETE FROM messages WHERE message_id IN (5, 6)")
    last = rounds(facts(store.path))[-1]
    assert (last.after.distinct_source_spans, [item.leaf_spans for item in last.summaries or ()]) == (3, [2])


@each
def test_a_message_belongs_to_the_summary_that_names_it_whatever_the_clocks_say(layout: str, tmp_path: Path) -> None:
    store = Lcm(tmp_path / "lcm.db", layout)
    store.message("user", "First", 10, 1)
    store.message("assistant", "Second", 20, 9)
    store.message("user", "Third", 40, 3)
    store.summary("a", 0, "so far", 5, 2, [1, 2])
    [found] = rounds(facts(store.path))
    # The third message is later than the summary, and not among its sources.
    assert figures(found) == (1, 2, 30, 0, 0, 5, 1, 1)


@each
def test_a_deleted_source_does_not_draw_later_messages_into_the_set(layout: str, tmp_path: Path) -> None:
    store = Lcm(tmp_path / "lcm.db", layout)
    store.message("user", "First", 10, 1)
    store.summary("a", 0, "so far", 5, 2, [1, 77])
    store.message("user", "Later", 40, 3)
    store.summary("b", 0, "so far", 5, 4, [1])
    assert [figures(fact) for fact in rounds(facts(store.path))] == [(1, 2, 10, 0, 0, 5, 1, 1), (2, 4, 40, 5, 40, 10, 2, 1)]


@each
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("so far", SummaryKind.ok),
        ("", SummaryKind.empty),
        ("x\n[LCM fallback summary; truncated for context management]", SummaryKind.fallback),
        ("x\n[...deterministic truncation — details available via lcm_expand...]\ny", SummaryKind.fallback),
    ],
)
def test_what_kind_of_summary(layout: str, text: str, kind: SummaryKind, tmp_path: Path) -> None:
    store = Lcm(tmp_path / "lcm.db", layout)
    store.message("user", "First", 10, 1)
    store.summary("a", 0, text, 5, 2, [1])
    assert [fact.summary_kind for fact in rounds(facts(store.path))] == [kind]


@each
def test_a_session_without_a_summary_has_a_start_and_an_end(layout: str, tmp_path: Path) -> None:
    store = Lcm(tmp_path / "lcm.db", layout)
    store.message("user", "First", 10, 1)
    assert [fact.type for fact in facts(store.path)] == ["session.started", "session.ended"]


def test_conversations_of_one_session_id_are_told_apart(tmp_path: Path) -> None:
    store = hierarchy(tmp_path / "lcm.db", "lossless-claw")
    store.run("INSERT INTO conversations (session_id) VALUES (?)", "lcm-a")
    store.run("INSERT INTO messages (conversation_id, seq, role, content, token_count) VALUES (2, 1, 'user', 'Hello', 2)")
    assert {session.session_id for session in adapters.find([store.path])} == {"lcm-a#1", "lcm-a#2"}


@each
def test_the_store_is_not_written_and_may_be_open_elsewhere(layout: str, tmp_path: Path) -> None:
    store = hierarchy(tmp_path / "lcm.db", layout)
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("PRAGMA journal_mode = wal")
        other.execute("BEGIN IMMEDIATE")
        content = store.path.read_bytes()
        assert len(rounds(facts(store.path))) == 3
        assert store.path.read_bytes() == content


@each
def test_strange_values_break_nothing(layout: str, tmp_path: Path) -> None:
    store = hierarchy(tmp_path / "lcm.db", layout)
    tables = ("summaries", "messages") if layout == "lossless-claw" else ("summary_nodes", "messages")
    for table in tables:
        for column in ("depth", "token_count", "token_estimate", "created_at", "timestamp", "source_ids", "content", "summary"):
            with closing(sqlite3.connect(store.path)) as probe, probe:
                known = {row[1] for row in probe.execute(f"PRAGMA table_info({table})")}
                if column in known:
                    probe.execute(f"UPDATE {table} SET {column} = 'x'")
    found = facts(store.path)
    assert [fact for fact in found if isinstance(fact, RoundCompleted)] == []


def test_one_store_is_several_sessions(tmp_path: Path) -> None:
    store = hierarchy(tmp_path / "lcm.db", "hermes-lcm")
    store.session = "lcm-b"
    store.message("user", "Hello", 2, 30)
    assert adapters.find([store.path]) == [
        Session((store.path,), "lcm-a", "hermes-lcm"),
        Session((store.path,), "lcm-b", "hermes-lcm"),
    ]
