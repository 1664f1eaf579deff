"""How sessions stand, kept by differences: always what counting the rows anew would give."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction_events.builders import at, completed, ended, started
from compaction_monitor import core
from compaction_monitor.core import MonitorPartition
from compaction_monitor.effects import SESSIONS
from compaction_monitor.harness import Offline, Rows, milliseconds
from compaction_monitor.state.session import CorruptStateError, Session
from compaction_monitor.tally import Tally
from tests.compaction_monitor.scenes import tree_round
from tests.compaction_monitor.stories import Move, play_move, stories


def anew(partition: MonitorPartition, rows: Rows) -> Counter[tuple[str, ...]]:
    """The same counts, from the rows that the sweep has come to."""
    found: Counter[tuple[str, ...]] = Counter()
    for key, row in rows.tables[SESSIONS].items():
        if not partition._tally.counts_key(key):
            continue
        session = Session.from_bytes(row)
        severities = [alert.severity for alert in session.alerts]
        state = min(severities, key=("critical", "warning", "info").index, default="")
        if not state:
            known = "blind" if session.window and session.window[-1].spans is None else "healthy"
            state = "ended" if session.ended else known if session.window else "new"
        found["sessions", "other", state] += 1
        found.update(("findings_open", "other", alert.check, alert.severity) for alert in session.alerts)
    return found


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sweep takes one row with each tick, so that most of a story happens while it is under way."""
    monkeypatch.setattr(core, "SWEEP_ROWS_FIRST", 1)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(stories(sessions=3, ticks=True), st.sets(st.integers(0, 24)), st.sets(st.integers(0, 24)))
def test_it_is_what_the_rows_say(small_steps: None, moves: list[Move], restarts: set[int], aborted: set[int]) -> None:
    monitor = Offline(partitions=2)
    for number, move in enumerate(moves):
        if number in restarts:
            monitor.restart()
        if number in aborted:  # a transaction that fails: computed, and never committed
            for partition in monitor._open.values():
                partition.tick(milliseconds(at(number)))
        play_move(monitor, move)
        monitor.tick(at(0))
        for index, partition in monitor._open.items():
            standing = partition.standing
            assert +Counter(standing.counts) == anew(partition, monitor.rows[index])
            assert min(standing.counts.values(), default=0) >= 0
    for _ in range(4):
        monitor.tick(at(0))
    assert all(partition.standing.complete for partition in monitor._open.values())
    assert all(+Counter(p.standing.counts) == anew(p, monitor.rows[i]) for i, p in monitor._open.items())


def standing(monitor: Offline) -> dict[tuple[str, ...], int]:
    [partition] = monitor._open.values()
    return dict(+Counter(partition.standing.counts))


def test_every_state_a_session_can_be_in() -> None:
    monitor = Offline()
    monitor.tick(at(0))
    monitor.feed([started("new"), started("well"), completed(1, "well", distinct_source_spans=50)])
    monitor.feed([started("unseen"), completed(1, "unseen", query_cosine_retained=0.9)])
    monitor.feed([started("over"), completed(1, "over", distinct_source_spans=50), ended(90, "over")])
    sinking = [started("sinking"), tree_round(1, 400, 90, 0.4, session_id="sinking")]
    monitor.feed([*sinking, tree_round(2, 200, 60, 0.5, session_id="sinking")])
    monitor.feed([started("fell-back"), completed(1, "fell-back", summary_kind="fallback")])
    assert standing(monitor) == {
        ("sessions", "other", "new"): 1,
        ("sessions", "other", "healthy"): 1,
        ("sessions", "other", "blind"): 1,
        ("sessions", "other", "ended"): 1,
        ("sessions", "other", "critical"): 1,
        ("sessions", "other", "warning"): 1,
        ("findings_open", "other", "salience_inversion", "critical"): 1,
        ("findings_open", "other", "summary_failed", "warning"): 1,
    }


def test_an_expired_session_is_counted_no_more() -> None:
    monitor = Offline()
    monitor.feed([started(), completed(1, distinct_source_spans=50)])
    monitor.tick(at(60))
    assert standing(monitor) == {("sessions", "other", "healthy"): 1}
    monitor.tick(at(3 * 24 * 60))
    assert standing(monitor) == {}


@pytest.mark.parametrize(
    ("field", "value"), [("agent", ["a"]), ("window", [[1]]), ("alerts", 5), ("alerts", [["drift", "id", "bad"]])]
)
def test_a_broken_row_is_told_from_a_fault_in_the_program(field: str, value: Any) -> None:
    row = orjson.loads(Session(agent="agent").to_bytes())
    row[3 + [one.name for one in fields(Session)].index(field)] = value
    with pytest.raises(CorruptStateError, match="cannot be counted"):
        Tally(frozenset()).read([(b"key", orjson.dumps(row))], last=True)


def test_only_expected_agents_have_a_name() -> None:
    monitor = Offline()
    monitor._core.agents = frozenset({"coder"})
    monitor.tick(at(0))
    monitor.feed([started("a", agent="coder"), started("b", agent="coder-2")])
    assert standing(monitor) == {("sessions", "coder", "new"): 1, ("sessions", "other", "new"): 1}
