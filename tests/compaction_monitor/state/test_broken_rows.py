"""Rows that no version wrote: refused with a clear error before anything is made of them, whatever is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction_events.builders import acknowledged, at, completed, ended, missed, regenerated, started, stated, written
from compaction_events.facts import Fact
from compaction_monitor.effects import CHECKPOINTS, SESSIONS
from compaction_monitor.harness import Offline
from compaction_monitor.shell.lanes import decode_progress, encode_progress
from compaction_monitor.soundness import unsound
from compaction_monitor.state.cache import TRACKED
from compaction_monitor.state.nodes import Ledger, Node, TrackedSet
from compaction_monitor.state.session import CorruptStateError, NewerStateError, Session, StateError, peek, standing_fields

MANY = settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
CHILDREN = [{"node_id": "leaf-1", "version": 1}, {"node_id": "leaf-2", "version": 1}]
BEFORE: tuple[Fact, ...] = (
    started(source_spans=100, max_depth=3, token_budget=1_050, controller="expected", scorer={"name": "cosine"}),
    stated("p1", 1, pinned=True),
    stated("p2", 2),
    completed(1, distinct_source_spans=60, query_cosine_retained=0.4, summary_depth_max=2, summary_tokens=3_000),
    completed(2, distinct_source_spans=15, query_cosine_retained=0.5, summary_depth_max=3, summary_tokens=5_000),
    written("leaf-1", 1, 91, retained=["p1"]),
    written("leaf-2", 1, 92, retained=["p2"]),
    written("root", 1, 93, level=2, children=CHILDREN, retained=["p2"], budget_tokens=50, bits_per_token=1.0,
            child_joint_entropy_bits=90.0, child_redundancy=0.1),
    missed("root", "p1", 94),
)  # fmt: skip
# Enough of what a session can say for every part of its state to be used.
AFTER: tuple[Fact, ...] = (
    completed(3, distinct_source_spans=10, query_cosine_retained=0.6, summary_depth_max=3, summary_tokens=7_000),
    regenerated("root", 121, version=2, level=2, children=CHILDREN, retained=["p1"], before_retained=["p2"]),
    missed("root", "p2", 122),
    acknowledged("order", "completed", 123),
    completed(4, distinct_source_spans=90, query_cosine_retained=0.3, summary_depth_max=1, raw_tokens=9_000),
    ended(200),
)


def told() -> Offline:
    """A monitor that knows a session with open alerts, orders, and a tree."""
    monitor = Offline()
    monitor.feed(BEFORE)
    session = monitor.session("session-1")
    assert session is not None
    assert session.alerts
    assert len(session.orders) >= 2
    assert session.has_tree
    monitor.restart()
    return monitor


ROWS = {(table, key): row for table, rows in told().rows[0].tables.items() for key, row in rows.items()}
KEYS = sorted(ROWS)
READERS = (
    Session.from_bytes, standing_fields, peek, Node.from_bytes, Ledger.from_bytes, TrackedSet.from_bytes, decode_progress,
)  # fmt: skip
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def go_on(monitor: Offline) -> StateError | None:
    """What comes after, ticks included. Nothing but a `StateError` may come out, and no record may pay for the row."""
    try:
        monitor.feed(AFTER)
        monitor.tick(at(300))
        monitor.tick(at(60 * 24 * 3))
    except StateError as error:
        return error
    assert monitor.dead_letters == []
    return None


def test_as_it_was_written_it_goes_on() -> None:
    assert go_on(told()) is None
    assert {type(row) for row in map(readable, KEYS)} == {Session, Ledger, TrackedSet, Node}
    assert [unsound(readable(key)) for key in KEYS] == [""] * len(KEYS)


def readable(place: tuple[str, bytes]) -> Any:
    table, key = place
    rest = key[2 + int.from_bytes(key[:2], "big") :]
    kind: Any = Session if table == SESSIONS else TrackedSet if rest == TRACKED else Node if rest else Ledger
    return kind.from_bytes(ROWS[place])


@MANY
@given(place=st.sampled_from(KEYS), data=st.data())
def test_bytes_that_were_cut_or_changed(place: tuple[str, bytes], data: st.DataObject) -> None:
    row = bytearray(ROWS[place])
    for _ in range(data.draw(st.integers(1, 3))):
        if row:
            row[data.draw(st.integers(0, len(row) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    if data.draw(st.booleans()):
        del row[data.draw(st.integers(0, len(row))) :]
    monitor = told()
    monitor.rows[0].tables[place[0]][place[1]] = bytes(row)
    go_on(monitor)


@MANY
@given(place=st.sampled_from(KEYS), data=st.data())
def test_values_of_another_type_or_size(place: tuple[str, bytes], data: st.DataObject) -> None:
    row = orjson.loads(ROWS[place])
    inner = row
    while True:
        at_ = data.draw(st.integers(0, len(inner) - 1))
        if not (isinstance(inner[at_], list) and inner[at_] and data.draw(st.booleans())):
            break
        inner = inner[at_]
    match data.draw(st.sampled_from(["replaced", "dropped", "added", "doubled"])):
        case "replaced":
            inner[at_] = data.draw(VALUES)
        case "dropped":
            del inner[at_]
        case "added":
            inner.insert(at_, data.draw(VALUES))
        case "doubled":
            inner += inner
    monitor = told()
    monitor.rows[0].tables[place[0]][place[1]] = orjson.dumps(row)
    go_on(monitor)


@pytest.mark.parametrize(
    "row", [b"", b"[", b"{}", b"null", b"[]", b"[1]", b"[1,2,3]", b'["1",2,3,4]', b"\xff\xfe", b"[true", b"7"]
)
@pytest.mark.parametrize("read", READERS)
def test_what_is_no_row_at_all(read: Callable[[bytes], Any], row: bytes) -> None:
    if read is peek and row == b'["1",2,3,4]':
        row = b'["1",2'
    with pytest.raises(CorruptStateError):
        read(row)


@given(st.binary(max_size=20) | st.lists(VALUES, max_size=3).map(orjson.dumps))
def test_progress_is_an_offset_or_refused(row: bytes) -> None:
    try:
        offset = decode_progress(row)
    except StateError:
        return
    assert orjson.loads(encode_progress(offset)) == orjson.loads(row) == [1, offset]


@pytest.mark.parametrize("place", KEYS, ids=str)
def test_a_newer_versions_row_is_left_alone(place: tuple[str, bytes]) -> None:
    monitor = told()
    newer = orjson.dumps([2, *orjson.loads(ROWS[place])[1:], "more"])
    monitor.rows[0].tables[place[0]][place[1]] = newer
    assert isinstance(go_on(monitor), NewerStateError)
    assert monitor.rows[0].tables[place[0]][place[1]] == newer


def test_which_session_is_broken_is_said() -> None:
    monitor = told()
    rows = monitor.rows[0].tables[SESSIONS]
    (key,) = rows
    row = orjson.loads(rows[key])
    row[3 + list(Session.__dataclass_fields__).index("clock_us")] = "noon"
    rows[key] = orjson.dumps(row)
    error = go_on(monitor)
    assert isinstance(error, CorruptStateError)
    assert str(error) == "the state of session 'session-1' is broken: clock_us"


def test_which_node_is_broken_is_said() -> None:
    monitor = told()
    rows = monitor.rows[0].tables[CHECKPOINTS]
    key = next(key for key in rows if key.endswith(b"root"))
    row = orjson.loads(rows[key])
    row[1 + Node._fields.index("at_us")] = "noon"
    rows[key] = orjson.dumps(row)
    error = go_on(monitor)
    assert isinstance(error, CorruptStateError)
    assert str(error) == "the checkpoints of session 'session-1' are broken: 'root', at_us"
