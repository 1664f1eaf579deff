"""The sweep for silent sessions: a share with each tick, bounded in what it writes, and nothing moves before its commit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compaction_events.builders import at, completed, started, written
from compaction_events.facts import Fact
from compaction_monitor import core
from compaction_monitor.core import _Batch
from compaction_monitor.effects import CHECKPOINTS, SESSIONS
from compaction_monitor.harness import Offline, milliseconds
from compaction_monitor.state.cache import row_key

SILENT = at(3 * 24 * 60)
NAMES = [f"session-{number}" for number in range(6)]
NODES = 10
ROWS = 1 + NODES + 2  # of a session: itself, its nodes, its ledger and what it tracks


def with_tree(name: str) -> Sequence[Fact]:
    """A session with an open alert, and checkpoints."""
    nodes = [written(f"node-{number}", 1, 1, name) for number in range(NODES)]
    return [started(name), completed(1, name, summary_kind="fallback"), *nodes]


def grown() -> Offline:
    monitor = Offline()
    for name in NAMES:
        monitor.feed(with_tree(name))
    return monitor


def standing(monitor: Offline) -> dict[tuple[str, ...], int]:
    [partition] = monitor._open.values()
    return {key: number for key, number in partition.standing.counts.items() if number}


def test_a_tick_expires_no_more_than_one_session_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six with thirteen rows each two are enough; after three ticks it is as after one without a limit."""
    whole, sliced = grown(), grown()
    for monitor in (whole, sliced):
        monitor.restart()
    found = whole.tick(SILENT)
    monkeypatch.setattr(core, "SWEEP_WRITES", ROWS + 1)
    told = []
    left = []
    for _ in range(3):
        told += sliced.tick(SILENT)
        left.append(len(sliced.rows[0].tables[SESSIONS]))
    assert left == [4, 2, 0]
    assert (told, sliced.rows[0].tables) == (found, {SESSIONS: {}, CHECKPOINTS: {}})
    assert sliced.counts["sessions_expired",] == whole.counts["sessions_expired",] == len(NAMES)


def test_what_a_tick_left_for_the_next_one_is_counted_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "SWEEP_WRITES", ROWS + 1)
    monitor = grown()
    monitor.feed([completed(2, name, at=SILENT) for name in NAMES[3:]])
    monitor.restart()
    seen = []
    for _ in range(2):
        monitor.tick(SILENT)
        [partition] = monitor._open.values()
        seen.append((sorted(standing(monitor).values()), partition.standing.complete))
    assert seen == [([], False), ([3], True)]


def test_an_aborted_tick_is_computed_again_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after the sweep has come round: nothing has moved, the place of the sweep included."""
    monkeypatch.setattr(core, "SWEEP_ROWS_FIRST", 1)
    monitor = grown()
    monitor.restart()
    aborted = monitor._partition(0).tick(milliseconds(SILENT))
    monitor.tick(SILENT)
    assert sorted(monitor.rows[0].tables[SESSIONS]) == [row_key(name) for name in NAMES[1:]]
    assert aborted.writes[SESSIONS] == {row_key(NAMES[0]): None}


def test_of_a_batch_each_session_has_its_own_rows_alone() -> None:
    """Looked through for each session that expires, the rows of all would make a batch of many quadratic."""
    monitor = grown()
    batch = _Batch(monitor._partition(0))
    for name in NAMES:
        batch.expire(row_key(name))
    assert {name: len(batch.tree(row_key(name)).written) for name in NAMES} == dict.fromkeys(NAMES, ROWS - 1)


def test_orders_that_are_due_at_once_are_seen_to_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a long time without a commit: a tick is computed without a pause."""
    monkeypatch.setattr(core, "DUE_SESSIONS", 4)
    monitor = grown()
    expired = []
    for _ in range(3):
        monitor.tick(at(180))
        expired.append(monitor.counts["orders_ended", "recompact", "expired"])
    assert expired == [4, 6, 6]
