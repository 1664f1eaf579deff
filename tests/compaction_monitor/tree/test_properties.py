"""What holds for every log of checkpoints, answers and ticks: generated sessions, any graph, any order of times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction_events.builders import acknowledged, at, completed, ended, missed, regenerated, started, stated, written
from compaction_events.facts import CheckpointRegenerated, CheckpointWritten, Fact
from compaction_events.findings import MAX_FINDING_BYTES, Alert, RemediationRequested
from compaction_monitor.effects import CHECKPOINTS, SESSIONS
from compaction_monitor.harness import Offline, Published
from compaction_monitor.state.nodes import Ledger
from compaction_monitor.state.session import MAX_STATE_BYTES, Session
from compaction_monitor.tree import forgetting
from tests.compaction_monitor.tree.trees import ROOMY, SHORT, UNKNOWN, props, reads, under

MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
NODES = {"root": 3, "mid-1": 2, "mid-2": 2, "leaf-1": 1, "leaf-2": 1, "leaf-3": 1}
SETS = [props(1, 20), props(1, 40), props(11, 30), props(1, 10), props(2, 20), [], props(21, 40)]
LOOP_ALERTS = ("remediation_unacknowledged", "remediation_ineffective")
STATUSES = ("accepted", "rejected", "deferred", "completed", "failed")

nodes = st.sampled_from(sorted(NODES))
retained = st.sampled_from(SETS)
rooms: st.SearchStrategy[Mapping[str, Any]] = st.sampled_from([ROOMY, SHORT, UNKNOWN, {**ROOMY, "budget_tokens": 200}])
child = st.tuples(st.sampled_from([*NODES, "unknown"]), st.none() | st.integers(1, 3))
children = st.lists(child, max_size=4, unique_by=lambda pair: pair[0])


@st.composite
def checkpoints(draw: st.DrawFn, minute: float) -> Fact:
    """A checkpoint written, regenerated or tried; mostly small steps forward in version."""
    name = draw(nodes)
    fields: dict[str, Any] = {"level": NODES[name], "retained": draw(retained), "children": reads(*draw(children))}
    fields |= {**draw(rooms), "basis": draw(st.sampled_from(["measured", "measured", "inferred"]))}
    match draw(st.sampled_from(["written", "regenerated", "trial", "trial"])):
        case "written":
            return written(name, draw(st.integers(1, 4)), minute, **fields)
        case "regenerated":
            return regenerated(name, minute, version=draw(st.integers(1, 4)), **fields)
        case _:
            number = draw(st.integers(1, 3))
            return regenerated(name, minute, trial_number=number, remediation_id="own", **fields)


@st.composite
def logs(draw: st.DrawFn, *, tidy: bool = False) -> list[Fact]:
    """One session's log; unless `tidy`, times run back here and there, and not all is stated before it is missed."""
    facts: list[Fact] = [started(controller=draw(st.sampled_from(["expected", "none", None])))]
    facts += [stated(p, turn, pinned=turn % 5 == 0) for turn, p in enumerate(props(1, 45 if tidy else 30), 1)]
    minute, number = 0.0, 0
    for _ in range(draw(st.integers(1, 25))):
        minute = max(0.0, minute + draw(st.sampled_from([1, 1, 1, 5, 40, 0, 0 if tidy else -3])))
        match draw(st.sampled_from(["checkpoint"] * 5 + ["missed"] * 3 + ["round", "stated"])):
            case "checkpoint":
                facts.append(draw(checkpoints(minute)))
            case "missed":
                facts.append(missed(draw(nodes), draw(st.sampled_from(props(1, 41))), minute))
            case "stated":
                facts.append(stated(draw(st.sampled_from(props(1, 45))), 99, pinned=draw(st.booleans())))
            case _:
                number += 1
                held = draw(st.none() | retained)
                facts.append(completed(number, at=at(minute), raw_tokens=900, propositions_retained=held))
    return facts


def alerts(published: Sequence[Published]) -> list[tuple[str, dict[str, Any]]]:
    """Every publication of an alert of the checks, whole."""
    found = [one for one in published if isinstance(one.finding, Alert) and one.finding.name not in LOOP_ALERTS]
    return [(one.ce_id, one.finding.model_dump()) for one in found]


def orders(published: Sequence[Published]) -> list[RemediationRequested]:
    return [one.finding for one in published if isinstance(one.finding, RemediationRequested)]


@MANY
@given(log=logs(), data=st.data())
def test_alerts_do_not_depend_on_answers_ticks_or_restarts(log: list[Fact], data: st.DataObject) -> None:
    alone, answered = Offline(under(breaker_orders=3)), Offline(under(breaker_orders=3))
    alone.feed(log)
    clock = at(0)
    for fact in log:
        answered.feed([fact])
        clock = max(clock, fact.occurred_at or clock)
        match data.draw(st.sampled_from(["", "", "answer", "tick", "restart"])):
            case "answer" if given_orders := orders(answered.published):
                order = data.draw(st.sampled_from(given_orders))
                minute = (clock - at(0)).total_seconds() / 60
                answered.feed([acknowledged(order.id, data.draw(st.sampled_from(STATUSES)), minute)])
            case "tick":
                answered.tick(clock)
            case "restart":
                answered.restart()
    assert alerts(answered.published) == alerts(alone.published)


@MANY
@given(log=logs())
def test_a_regeneration_is_never_ordered_without_a_trial_of_that_version(log: list[Fact]) -> None:
    monitor = Offline()
    tried: set[str] = set()
    for fact in log:
        found = orders(monitor.feed([fact]))
        if isinstance(fact, CheckpointRegenerated) and fact.trial_number:
            tried.add(fact.node_id)
        wanted = {order.subject for order in found if order.action == "regenerate_parent"}
        assert wanted <= tried
        if wanted:
            assert isinstance(fact, CheckpointRegenerated) and fact.trial_number
        if isinstance(fact, CheckpointWritten | CheckpointRegenerated) and fact.version is not None:
            tried.discard(fact.node_id)


@MANY
@given(log=logs(), data=st.data())
def test_every_order_ends(log: list[Fact], data: st.DataObject) -> None:
    monitor = Offline()
    monitor.feed(log)
    given_orders = orders(monitor.published)
    for order in data.draw(st.lists(st.sampled_from(given_orders), max_size=5)) if given_orders else ():
        monitor.feed([acknowledged(order.id, data.draw(st.sampled_from(STATUSES)), 500)])
    monitor.feed([ended(1_500)])
    monitor.tick(at(1_600))
    session = monitor.session("session-1")
    assert session is not None
    assert (session.orders, session.alerts) == ((), ())
    sent = {order.id for order in orders(monitor.published)}
    ends = sum(number for name, number in monitor.counts.items() if name[0] == "orders_ended")
    assert len(sent) <= ends


@MANY
@given(log=logs(tidy=True), batch=st.integers(1, 40))
def test_the_same_log_again_changes_nothing(log: list[Fact], batch: int) -> None:
    monitor = Offline()
    monitor.feed(log)
    before = state(monitor)
    assert monitor.feed(log, batch) == []
    assert state(monitor) == before


def state(monitor: Offline) -> dict[str, Any]:
    """All rows; a session's without the append time of its last record."""
    sessions = {key: _without_append_times(row) for key, row in monitor.rows[0].tables[SESSIONS].items()}
    return {SESSIONS: sessions, CHECKPOINTS: dict(monitor.rows[0].tables[CHECKPOINTS])}


def _without_append_times(row: bytes) -> list[Any]:
    version, due_ms, _, *values = orjson.loads(row)
    return [
        version,
        due_ms,
        *(value for field, value in zip(fields(Session), values, strict=True) if field.name != "appended_ms"),
    ]


@MANY
@given(log=logs(), batch=st.integers(2, 40))
def test_batches_do_not_matter(log: list[Fact], batch: int) -> None:
    one_by_one, together = Offline(), Offline()
    one_by_one.feed(log)
    together.feed(log, batch)
    assert (together.published, state(together)) == (one_by_one.published, state(one_by_one))


@MANY
@given(log=logs(), most=st.integers(2, 5))
def test_nodes_are_counted_right_and_bounded(log: list[Fact], most: int) -> None:
    monitor = Offline()
    before = forgetting.MAX_NODES, forgetting.FORGET_NODES
    try:
        forgetting.MAX_NODES, forgetting.FORGET_NODES = most, 2  # type: ignore[misc]
        for fact in log:
            monitor.feed([fact])
            assert count(monitor) <= most
    finally:
        forgetting.MAX_NODES, forgetting.FORGET_NODES = before  # type: ignore[misc]
    assert monitor.dead_letters == []
    assert max(len(row) for rows in monitor.rows[0].tables.values() for row in rows.values()) <= MAX_STATE_BYTES
    assert all(len(one.finding.model_dump_json()) <= MAX_FINDING_BYTES for one in monitor.published)


def count(monitor: Offline) -> int:
    """How many nodes there are; the ledger must know."""
    rows = monitor.rows[0].tables[CHECKPOINTS]
    kept = list(nodes_of(rows))
    ledger = Ledger.from_bytes(rows[min(rows)]) if rows else Ledger()
    assert ledger.nodes == len(kept)
    return len(kept)


def nodes_of(rows: Mapping[bytes, bytes]) -> Iterator[bytes]:
    session = min(rows, default=b"")
    return (key for key in rows if key not in (session, session + b"\x00\x00"))
