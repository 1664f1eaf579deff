"""Rows of the checkpoints table: what is read is what was written, and a newer version's are left alone."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_events.builders import stated, written
from compaction_monitor.effects import CHECKPOINTS
from compaction_monitor.harness import Offline, Rows
from compaction_monitor.state.cache import CACHED_BYTES, RowCache, SessionRows
from compaction_monitor.state.nodes import NOTHING_TRACKED, Ledger, Node, Room, Tracked, TrackedSet, TrialSeen
from compaction_monitor.state.retention import Before, Capacity
from compaction_monitor.state.session import NewerStateError

counts = st.integers(0, 2**53)
masks = st.integers(0, 2**1000 - 1)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
bits = st.none() | st.floats(0, 2**53)
nodes = st.builds(
    Node,
    level=counts,
    version=counts,
    at_us=counts,
    parent_id=st.none() | names,
    children=st.lists(st.tuples(names, st.none() | counts)).map(tuple),
    retained=masks,
    from_raw=st.booleans(),
    measured=st.booleans(),
    budget_tokens=st.none() | counts,
    joint_bits=bits,
    redundancy=st.none() | st.floats(0, 1),
    bits_per_token=bits,
    room=st.builds(Room, bits, bits),
    turns=st.none() | st.tuples(counts, counts),
    trials=st.lists(st.builds(TrialSeen, counts, masks, st.booleans()), max_size=3).map(tuple),
    trialled_at_us=counts,
    judged_at_us=counts,
    judged=st.booleans(),
    missed_at_us=counts,
    missed_then=masks,
    flipped=masks,
    flipped_back=masks,
    unrecovered=counts,
    orders=counts,
    trials_spent=counts,
)
tracked = st.lists(st.builds(Tracked, names, counts, names, st.booleans(), st.booleans()), unique_by=lambda entry: entry[0])
ledgers = st.builds(
    Ledger,
    tracked=st.just(NOTHING_TRACKED),
    nodes=counts,
    forgotten=counts,
    horizon_us=counts,
    dropped=st.booleans(),
    root=st.none() | names,
    root_level=counts,
    missing=st.dictionaries(names, names),
)


@given(node=nodes)
def test_a_node(node: Node) -> None:
    assert Node.from_bytes(node.to_bytes()) == node


@given(ledger=ledgers)
def test_a_ledger(ledger: Ledger) -> None:
    assert Ledger.from_bytes(ledger.to_bytes()) == ledger


@given(entries=tracked)
def test_the_tracked_propositions(entries: list[Tracked]) -> None:
    assert TrackedSet.from_bytes(TrackedSet(entries).to_bytes()).entries == tuple(entries)


decimals = st.integers(0, 100_000).map(lambda number: number / 100)


@given(joint=decimals, redundancy=st.integers(0, 100), budget=st.integers(0, 2_000), per_token=st.integers(1, 80))
def test_room_is_what_the_verdicts_take_it_for(joint: float, redundancy: int, budget: int, per_token: int) -> None:
    """Equality included: as exact as the capacity of a judgement."""
    numbers = (joint, redundancy / 100, budget, per_token / 10)
    capacity = Before(frozenset(), budget, joint, redundancy / 100, per_token / 10).capacity
    assert (Room.of(*numbers).deficit_bits == 0.0) == (capacity is Capacity.holds)


@pytest.mark.parametrize("row", [b"\x00\x09session-1", b"\x00\x09session-1\x00\x00", b"\x00\x09session-1\x00\x04root"])
def test_a_newer_versions_row_stops_the_worker(row: bytes) -> None:
    monitor = Offline()
    root = written("root", 1, 1, retained=["p"])
    monitor.feed([stated("p", 1), root])
    rows: dict[bytes, Any] = monitor.rows[0].tables[CHECKPOINTS]
    rows[row] = orjson.dumps([2, *orjson.loads(rows[row])[1:]])
    monitor.restart()
    with pytest.raises(NewerStateError):
        monitor.feed([written("root", 2, 2, retained=["p"])])
    assert monitor.dead_letters == []


class TestCache:
    def test_is_bounded_by_the_bytes_of_its_rows(self) -> None:
        cache = RowCache()
        for number in range(5):
            cache.put(b"%d" % number, Ledger(nodes=number), CACHED_BYTES // 3)
        assert [cache.get(b"%d" % number) for number in range(5)] == [
            None,
            None,
            Ledger(),
            Ledger(nodes=3),
            Ledger(nodes=4),
        ] or ([number for number in range(5) if cache.get(b"%d" % number)] == [2, 3, 4])

    def test_a_row_that_is_larger_than_all_is_not_kept(self) -> None:
        cache = RowCache()
        cache.put(b"big", Ledger(), CACHED_BYTES + 1)
        assert cache.get(b"big") is None

    def test_what_a_batch_deletes_is_gone_before_it_is_committed(self) -> None:
        rows, cache = Rows(), RowCache()
        rows.tables[CHECKPOINTS][b"s\x00\x01a"] = Node(level=1, version=1, at_us=1).to_bytes()
        session = SessionRows(rows, cache, {}, b"s")
        assert session.node("a") == Node(level=1, version=1, at_us=1)
        session.keep({"a": None}, None, gone=False)
        assert (session.node("a"), list(session.nodes())) == (None, [])
        assert SessionRows(rows, cache, {}, b"s").node("a") is not None

    def test_a_ledger_that_is_deleted_and_begun_anew_tracks_nothing(self) -> None:
        rows = Rows()
        rows.tables[CHECKPOINTS][b"s"] = Ledger(nodes=3).to_bytes()
        rows.tables[CHECKPOINTS][b"s\x00\x00"] = TrackedSet([Tracked("p", 1, "s", True, True)]).to_bytes()
        session = SessionRows(rows, RowCache(), {}, b"s")
        assert (session.ledger().nodes, len(session.ledger().tracked.entries)) == (3, 1)
        session.keep({}, Ledger(nodes=1), gone=True)
        assert session.ledger() == Ledger(nodes=1)
