"""What Alertmanagers are told: identity, times, what replaces what, and from where a restart has to read again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from compaction_events.facts import Basis
from compaction_events.findings import AlertRaised, AlertResolved, Severity
from compaction_monitor.alertmanager import RESOLVED_AGAIN, Board, Identity
from compaction_monitor.checks.evidence import WORDS

T = datetime(2026, 3, 1, 12, tzinfo=UTC)
LASTING = timedelta(minutes=3)
# `AlertDto` of keephq/keep, keep/api/models/alert.py: what Keep's Kafka provider makes of a record's value.
KEEP = {
    "id": str, "name": str, "status": str, "severity": str, "lastReceived": str, "environment": str, "service": str,
    "source": list, "message": str, "description": str, "url": str, "labels": dict, "fingerprint": str,
}  # fmt: skip
# Those without which an alert is none, or two are taken for one; Keep fills in the others itself.
KEEP_NEEDS = {"id", "name", "status", "severity", "lastReceived", "source", "message", "description", "url", "fingerprint"}
KEEP_STATUS = {"firing", "resolved", "acknowledged", "suppressed"}
KEEP_SEVERITY = {"critical", "high", "warning", "info", "low"}


def alert(minutes: float = 0, severity: str = "warning", kind: type[Any] = AlertRaised, **fields: Any) -> Any:
    raised = kind is AlertRaised
    given = {
        "session_id": "s1", "id": "a1", "name": "drift", "status": "firing" if raised else "resolved",
        "severity": Severity(severity), "agent": "coder", "startsAt": T, "lastReceived": T + timedelta(minutes=minutes),
        "fingerprint": "a1", "service": "coder", "message": "raw_ratio 0.2", "description": "Mostly summary.",
        "basis": Basis.measured, "url": "README.md#drift", "resolved_because": None if raised else "recovered",
    }  # fmt: skip
    return kind(**(given | fields))


def identity(severity: str = "warning", session: str = "s1", check: str = "drift") -> Identity:
    return Identity(check, severity, "coder", session)


def told(board: Board, now: datetime) -> list[dict[str, Any]]:
    return board.documents(board.identities(), now, LASTING)


def states(board: Board, now: datetime) -> dict[str, tuple[str, str]]:
    """Start and end by severity."""
    return {one["labels"]["severity"]: (one["startsAt"], one["endsAt"]) for one in told(board, now)}


def test_an_open_alert_as_it_is_sent() -> None:
    board = Board()
    raised = alert(subjects=("n1", "n2"), remediation_id="o1")
    assert board.take(raised, 3, 17, T) == (identity(),)
    assert told(board, T + timedelta(minutes=1)) == [
        {
            "labels": {
                "alertname": "drift", "severity": "warning", "agent": "coder", "session_id": "s1",
                "source": "compaction-monitor",
            },
            "annotations": {
                "summary": "raw_ratio 0.2", "description": "Mostly summary.", "runbook_url": "README.md#drift",
                "finding_id": "a1", "remediation_id": "o1", "subjects": "n1, n2",
            },
            "startsAt": "2026-03-01T12:00:00.000Z",
            "endsAt": "2026-03-01T12:04:00.000Z",
        }
    ]  # fmt: skip
    assert (board.firing, board.read_again_from(3), board.read_again_from(0)) == (1, 17, None)


def test_an_ended_one_ends_when_it_did_and_is_told_for_five_minutes() -> None:
    board = Board()
    board.take(alert(), 0, 1, T)
    written = T + timedelta(minutes=30)
    assert board.take(alert(2, kind=AlertResolved), 0, 9, written) == (identity(),)
    assert states(board, written) == {"warning": ("2026-03-01T12:00:00.000Z", "2026-03-01T12:02:00.000Z")}
    assert told(board, written)[0]["annotations"]["resolved_because"] == "recovered"
    board.prune(written + RESOLVED_AGAIN)
    assert (len(board), board.firing, board.read_again_from(0)) == (1, 0, 9)
    board.prune(written + RESOLVED_AGAIN + timedelta(seconds=1))
    assert (len(board), board.read_again_from(0)) == (0, None)


def test_one_that_gets_worse_ends_under_its_old_severity() -> None:
    board = Board()
    board.take(alert(), 0, 1, T)
    assert board.take(alert(4, "critical", attempt=2), 0, 5, T) == (identity(), identity("critical"))
    assert states(board, T + timedelta(minutes=10)) == {
        "warning": ("2026-03-01T12:00:00.000Z", "2026-03-01T12:04:00.000Z"),
        "critical": ("2026-03-01T12:00:00.000Z", "2026-03-01T12:13:00.000Z"),
    }
    assert (board.firing, board.read_again_from(0)) == (1, 5)


def test_one_that_comes_back_fires_again() -> None:
    board = Board()
    board.take(alert(), 0, 1, T)
    board.take(alert(2, kind=AlertResolved), 0, 2, T)
    board.take(alert(4, id="a2", startsAt=T + timedelta(minutes=4)), 0, 3, T)
    assert states(board, T + timedelta(minutes=5)) == {"warning": ("2026-03-01T12:04:00.000Z", "2026-03-01T12:08:00.000Z")}
    board.prune(T + timedelta(days=9))
    assert (len(board), board.firing) == (1, 1)


def test_a_clock_that_runs_ahead() -> None:
    board = Board()
    board.take(alert(startsAt=T + timedelta(minutes=4), minutes=4), 0, 1, T)
    assert states(board, T) == {"warning": ("2026-03-01T12:00:00.000Z", "2026-03-01T12:03:00.000Z")}
    board.take(alert(5, kind=AlertResolved, startsAt=T + timedelta(minutes=4)), 0, 2, T)
    assert states(board, T) == {"warning": ("2026-03-01T12:00:00.000Z", "2026-03-01T12:00:00.000Z")}


def test_sessions_and_checks_are_apart_and_what_is_unknown_is_left_out() -> None:
    board = Board()
    board.take(alert(), 0, 1, T)
    board.take(alert(session_id="s2"), 1, 1, T)
    board.take(alert(name="stale"), 0, 2, T)
    board.take(alert(1, name="stale", kind=AlertResolved), 0, 3, T)
    assert board.firing == 2
    assert [one["labels"]["session_id"] for one in board.documents([identity(session="s9"), identity()], T, LASTING)] == ["s1"]
    board.forget()
    assert (len(board), board.firing, list(board.identities())) == (0, 0, [])


def test_keep_reads_the_record_as_it_is() -> None:
    for kind in (AlertRaised, AlertResolved):
        wire = alert(kind=kind).model_dump(mode="json", exclude_none=True)
        assert wire.keys() >= KEEP_NEEDS
        assert {name: type(wire[name]) for name in KEEP.keys() & wire.keys()} == {
            name: KEEP[name] for name in KEEP.keys() & wire.keys()
        }
        assert wire["status"] in KEEP_STATUS
        assert {severity.value for severity in Severity} <= KEEP_SEVERITY


def test_labels_can_be_labels() -> None:
    """A check's name is what routes and silences are written with."""
    assert all(name.isidentifier() and name == name.lower() for name in WORDS)
