"""Both stores keep the same promises."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction_monitor.effects import CHECKPOINTS, PROGRESS, SESSIONS
from compaction_monitor.shell import store as store_module
from compaction_monitor.shell.store import MAX_AWAY_S, YOUNG_S, DamagedStoreError, PartitionStore, StoreError, Stores

keys = st.binary(min_size=1, max_size=4)
changes = st.lists(st.tuples(keys, st.none() | st.binary(max_size=4)), max_size=30)


class Change(NamedTuple):
    key: bytes
    value: bytes | None


@pytest.fixture(params=["rocksdict", "memory"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    made = Stores(request.param, tmp_path, 8)
    yield made
    made.close()


@pytest.fixture
def store(stores: Stores) -> PartitionStore:
    return stores[0]


def test_rows_and_their_offset_are_written_together(store: PartitionStore) -> None:
    assert store.offset(SESSIONS) is None
    store.write({SESSIONS: {b"a": b"1"}, PROGRESS: {b"t": b"2"}}, {SESSIONS: 7, PROGRESS: 9})
    assert (store.get(SESSIONS, b"a"), store.get(PROGRESS, b"t")) == (b"1", b"2")
    assert (store.offset(SESSIONS), store.offset(PROGRESS), store.offset(CHECKPOINTS)) == (7, 9, None)
    store.write({SESSIONS: {b"a": None}}, {SESSIONS: 8})
    assert store.get(SESSIONS, b"a") is None
    assert store.offset(SESSIONS) == 8


def test_the_last_value_of_a_changelog_fetch_wins(store: PartitionStore) -> None:
    store.apply(SESSIONS, [Change(b"a", b"1"), Change(b"b", b"1"), Change(b"a", b"2"), Change(b"b", None)], 12)
    assert (store.get(SESSIONS, b"a"), store.get(SESSIONS, b"b"), store.offset(SESSIONS)) == (b"2", None, 12)


def test_tables_do_not_meet(store: PartitionStore) -> None:
    store.write({SESSIONS: {b"a": b"s"}, CHECKPOINTS: {b"a": b"c"}, PROGRESS: {b"a": b"p"}}, {})
    assert [store.get(table, b"a") for table in (SESSIONS, CHECKPOINTS, PROGRESS)] == [b"s", b"c", b"p"]
    assert store.scan(SESSIONS, b"", 10) == [(b"a", b"s")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(written=st.lists(changes, max_size=4), limit=st.integers(1, 5))
def test_a_scan_sees_every_row_once_in_key_order(
    stores: Stores, written: list[list[tuple[bytes, bytes | None]]], limit: int
) -> None:
    store = stores[0]
    store.write({SESSIONS: dict.fromkeys((key for key, _ in store.scan(SESSIONS, b"", 10**6)), None)}, {})
    wanted: dict[bytes, bytes] = {}
    for batch in written:
        store.write({SESSIONS: dict(batch), CHECKPOINTS: dict(batch)}, {})
        wanted |= {key: value for key, value in dict(batch).items() if value is not None}
        wanted = {key: value for key, value in wanted.items() if dict(batch).get(key, b"") is not None}
    seen: list[tuple[bytes, bytes]] = []
    while rows := store.scan(SESSIONS, seen[-1][0] if seen else b"", limit):
        assert len(rows) <= limit
        seen += rows
    assert seen == sorted(wanted.items())


def test_a_store_is_found_again_unless_it_was_away_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer away than tombstones are kept, and a deletion may have left the changelog unseen.

    A recovery that is broken off again and again opens and writes it, and is away all the same.
    """
    now = 1_790_000_000.0
    monkeypatch.setattr(store_module, "time", SimpleNamespace(time=lambda: now))
    stores = Stores("rocksdict", tmp_path, 8)

    def reopened(after_s: float) -> bytes | None:
        nonlocal now
        stores.close()
        now += after_s
        return stores[3].get(SESSIONS, b"a")

    stores[3].write({SESSIONS: {b"a": b"1"}}, {SESSIONS: 4})
    assert reopened(MAX_AWAY_S - 1) == b"1"
    stores[3].keep_young()
    assert reopened(MAX_AWAY_S - 1) == b"1"
    stores[3].apply(SESSIONS, [Change(b"a", b"2")], 5)
    assert reopened(2) is None
    stores[3].apply(SESSIONS, [Change(b"a", b"2")], 5)
    assert reopened(MAX_AWAY_S - 1) == b"2"
    assert reopened(-2 * MAX_AWAY_S) == b"2"  # a clock that was ahead
    stores.close()


def test_what_keeps_it_young_is_written_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_790_000_000.0
    monkeypatch.setattr(store_module, "time", SimpleNamespace(time=lambda: now))
    written: list[bytes] = []
    stores = Stores("rocksdict", tmp_path, 8)
    opened = stores[0]
    monkeypatch.setattr(opened, "_db", SimpleNamespace(put=lambda _, value: written.append(value), close=opened._db.close))  # type: ignore[attr-defined]
    for after_s in (1, YOUNG_S, 1, -YOUNG_S):
        now += after_s
        opened.keep_young()
    stores.close()
    assert written == [b"1790000601", b"1790000002"]


def rows_of(count: int) -> dict[bytes, bytes | None]:
    return {b"%d" % number: os.urandom(100_000) for number in range(count)}


def test_a_folder_deleted_beneath_it_is_said_and_built_again(tmp_path: Path) -> None:
    stores = Stores("rocksdict", tmp_path, 8)
    stores[0].write({SESSIONS: rows_of(1)}, {SESSIONS: 1})
    shutil.rmtree(tmp_path / "0")

    def write_on() -> None:
        for offset in range(2, 500):  # the files that are open go on for a while
            stores[0].write({SESSIONS: rows_of(1)}, {SESSIONS: offset})

    with pytest.raises(StoreError, match=rf"the local store {tmp_path / '0'}: IO error: No such file"):
        write_on()
    stores.close()
    stores = Stores("rocksdict", tmp_path, 8)
    assert stores[0].offset(SESSIONS) is None
    stores.close()


def test_a_damaged_one_is_thrown_away(tmp_path: Path) -> None:
    stores = Stores("rocksdict", tmp_path, 8)
    for offset in range(3):
        stores[0].write({SESSIONS: rows_of(100)}, {SESSIONS: offset})
    stores.close()
    for table in (tmp_path / "0").glob("*.sst"):
        table.unlink()
    stores = Stores("rocksdict", tmp_path, 8)
    assert (stores[0].offset(SESSIONS), stores[0].scan(SESSIONS, b"", 1)) == (None, [])
    stores[0].write({SESSIONS: {b"a": b"1"}}, {SESSIONS: 7})
    stores.close()
    stores = Stores("rocksdict", tmp_path, 8)
    assert (stores[0].offset(SESSIONS), stores[0].get(SESSIONS, b"a")) == (7, b"1")
    stores.close()


def test_one_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    first, second = Stores("rocksdict", tmp_path, 8), Stores("rocksdict", tmp_path, 8)
    first[0].write({SESSIONS: {b"a": b"1"}}, {SESSIONS: 1})
    with pytest.raises(StoreError, match="lock"):
        second[0]
    assert first[0].get(SESSIONS, b"a") == b"1"
    first.close()


@pytest.mark.parametrize(
    "read", [lambda store: [store.get(SESSIONS, b"%d" % n) for n in range(900)], lambda store: store.scan(SESSIONS, b"", 900)]
)
def test_a_block_that_cannot_be_read_is_said_and_the_next_start_builds_again(
    tmp_path: Path, read: Callable[[Any], Any]
) -> None:
    """Opening such a store goes well, and a scan that met it would end there as if nothing came after."""
    stores = Stores("rocksdict", tmp_path, 8)
    stores[0].write({SESSIONS: {b"%d" % number: os.urandom(500) for number in range(900)}}, {SESSIONS: 1})
    stores.close()  # what is in memory goes to a file
    [table] = (tmp_path / "0").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    stores = Stores("rocksdict", tmp_path, 8)
    with pytest.raises(DamagedStoreError, match="is damaged, the next start builds it again: Corruption"):
        read(stores[0])
    stores.close()
    stores = Stores("rocksdict", tmp_path, 8)
    assert (stores[0].offset(SESSIONS), stores[0].scan(SESSIONS, b"", 1)) == (None, [])
    stores.close()
