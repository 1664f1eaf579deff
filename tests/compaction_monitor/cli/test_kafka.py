"""`ingest`, `replay`, `watch` and `topics` as far as no broker is needed: errors, pace, filters, words."""

from __future__ import annotations

import socket

import pytest

from compaction_events.builders import SESSION, at, completed, started, stated
from compaction_events.codec import ce_id
from compaction_events.facts import Fact
from compaction_events.findings import (
    Action,
    Alert,
    AlertResolved,
    RemediationRequested,
    RemediationWithdrawn,
    Severity,
)
from compaction_monitor import golden
from compaction_monitor.cli.exits import Code
from compaction_monitor.cli.kafka import paced
from compaction_monitor.cli.sources import EVENTS, Item
from compaction_monitor.cli.watching import Filter, finding_text
from compaction_monitor.fold import fold
from compaction_monitor.rules import Rules
from compaction_monitor.shell import client
from compaction_monitor.state.session import Session
from tests.compaction_monitor.cli.conftest import Record, Run

NOBODY = "127.0.0.1:1"
UNREACHABLE = (
    f"error: No broker answers at {NOBODY}.\n"
    "  next: Check --broker; or start one: compaction-monitor worker --broker embedded, or docker compose up -d kafka\n"
)
DEAD_LETTERS = (
    "dead-letters list", "dead-letters show events/0/1", "dead-letters replay --all", "dead-letters drop --reason not_json",
)  # fmt: skip
CLIENTS = ("ingest events.jsonl", "replay events.jsonl --speed 0", "watch", "topics plan", "topics apply", *DEAD_LETTERS)


@pytest.mark.parametrize("command", CLIENTS)
def test_no_broker_answers(run: Run, record: Record, command: str) -> None:
    record([started(), completed(1)])
    assert run(*command.split(), "--broker", NOBODY, "--json") == (Code.unreachable, "", UNREACHABLE)


@pytest.mark.parametrize("command", CLIENTS)
def test_a_port_that_is_open_and_says_nothing(run: Run, record: Record, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_S", 0.2)
    record([started(), completed(1)])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        told = UNREACHABLE.replace(f"{NOBODY}.", f"{where} within 0.2 s, though the port is open.")
        assert run(*command.split(), "--broker", where, "--json") == (Code.unreachable, "", told)


@pytest.mark.parametrize("command", CLIENTS)
def test_the_embedded_broker_is_no_ones_to_connect_to(run: Run, record: Record, command: str) -> None:
    record([started()])
    ran = run(*command.split(), "--broker", "embedded")
    assert (ran.code, ran.out) == (Code.usage, "")
    assert "compaction-monitor worker --broker embedded" in ran.err


@pytest.mark.parametrize("command", CLIENTS)
def test_wrong_settings_are_named(run: Run, record: Record, command: str) -> None:
    record([started()])
    ran = run(*command.split(), "--broker", "nowhere")
    assert (ran.code, ran.out) == (Code.invalid, "")
    assert "COMPACTION_MONITOR_BROKERS='nowhere': each broker must be HOST:PORT" in ran.err


@pytest.mark.parametrize("pair", ["speed=1", "partitions"])
def test_set_takes_settings_only(run: Run, pair: str) -> None:
    ran = run("watch", "--set", pair)
    assert (ran.code, ran.out) == (Code.usage, "")
    assert f"--set {pair}: not NAME=VALUE with a known setting." in ran.err


def test_files_come_first(run: Run) -> None:
    assert run("ingest", "gone.jsonl", "--broker", NOBODY).code == Code.not_found
    assert run("replay", "gone.jsonl", "--broker", NOBODY).code == Code.not_found


def test_replay_takes_recorded_events_only(run: Run) -> None:
    ran = run("replay", golden.__file__.replace("golden.py", "demo_session.jsonl"), "--broker", NOBODY)
    assert (ran.code, ran.out) == (Code.invalid, "")
    assert "For session files of an agent: compaction-monitor ingest" in ran.err


def items(*facts: Fact) -> list[Item]:
    return [Item(fact, None, EVENTS, ()) for fact in facts]


class TestPace:
    FACTS = (started(), completed(1, at=at(10)), stated("p", 1), completed(2, at=at(40)), completed(2, at=at(20)))

    @pytest.mark.parametrize(("speed", "waits"), [(1, [0, 600, 0, 1800, 0]), (60, [0, 10, 0, 30, 0]), (0, [0, 0, 0, 0, 0])])
    def test_waits_are_those_of_the_recording(self, speed: float, waits: list[float]) -> None:
        assert [wait_s for wait_s, _ in paced(items(*self.FACTS), speed)] == waits

    def test_order_and_items_stay(self) -> None:
        assert [item.fact for _, item in paced(items(*self.FACTS), 1)] == list(self.FACTS)


def published() -> list[Fact]:
    session: Session | None = None
    found: list[Fact] = []
    for fact in (*golden.series(), golden.ending()):
        session, findings, *_ = fold(session, fact, ce_id(fact), Rules())
        found += findings
    return found


class TestFilter:
    def test_without_one_everything_passes(self) -> None:
        assert [finding for finding in published() if Filter().takes(finding)] == published()

    def test_by_session_and_agent(self) -> None:
        assert any(map(Filter(session=golden.SESSION).takes, published()))
        assert not any(map(Filter(session="other").takes, published()))
        assert all(map(Filter(agent="demo-*").takes, published()))
        assert not any(map(Filter(agent="coder-*").takes, published()))

    def test_by_severity_orders_go_with_their_alerts(self) -> None:
        wanted = Filter(severity=Severity.critical)
        taken = [finding for finding in published() if wanted.takes(finding)]
        assert {finding.name for finding in taken if isinstance(finding, Alert)} == {"salience_inversion"}
        assert [finding.action for finding in taken if isinstance(finding, RemediationRequested)] == [
            Action.halt_and_rehydrate,
            Action.resume,
        ]

    def test_withdrawn_with_their_orders(self) -> None:
        pinned = next(f for f in published() if isinstance(f, RemediationRequested) and f.action == Action.cap_depth)
        wanted = Filter(severity=Severity.critical)
        for finding in published():
            wanted.takes(finding)
        fields = {"session_id": SESSION, "id": pinned.id, "action": pinned.action, "agent": "a", "subject": ""}
        withdrawn = RemediationWithdrawn(**fields, because="ended", withdrawn_at=at(0))
        assert not wanted.takes(withdrawn)


def test_words() -> None:
    lines = [finding_text(finding, "utf-8").plain for finding in published()]
    assert lines[0] == (
        "2026-01-05 11:00:00  golden-inversion  ● warning inversion_risk: raw_ratio 0.42 and reachable spans (183) have been "
        "falling since round 1"
    )
    resolved = next(f for f in published() if isinstance(f, AlertResolved))
    assert finding_text(resolved, "ascii").plain == (
        "2026-01-05 13:00:00  golden-inversion  * resolved inversion_risk: superseded by a worse one"
    )
    assert any("→ order halt_and_rehydrate: stop compacting; expand these 2 summaries" in line for line in lines)
