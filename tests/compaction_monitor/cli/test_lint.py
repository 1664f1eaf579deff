"""`lint`: what is invalid by line, and what each check sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compaction_events.builders import AGENT, SESSION, completed, started
from compaction_monitor import golden
from compaction_monitor.cli.exits import Code
from tests.compaction_monitor.cli.conftest import Record, Run

TREE: dict[str, Any] = {"scorer": {"name": "cosine"}, "source_spans": 10, "eviction": "continuous"}


def blind(check: str, reason: str, send: str, state: str = "blind") -> dict[str, object]:
    return {"state": state, "ran": 0, "skipped": {reason: 2}, "send": [send] if send else []}


def test_the_whole_document(run: Run, record: Record) -> None:
    rounds = [completed(n, distinct_source_spans=10, summary_depth_max=1, summary_kind="ok") for n in (1, 2)]
    path = record([started(**TREE), rounds[0], b'{"type": "round.completed"}', rounds[1], rounds[1]])
    ran = run("lint", path, "--json")
    assert (ran.code, ran.err) == (Code.invalid, "")
    document = ran.document
    [line] = document.pop("invalid_lines")
    assert (line["line"], line["reason"]) == (3, "invalid_field")
    assert [(fault["field"], fault["found"]) for fault in line["faults"]] == [
        (field, "missing") for field in ("session_id", "agent", "round", "at", "after")
    ]
    [session] = document.pop("sessions")
    assert document == {
        "file": "events.jsonl",
        "valid": False,
        "events": 4,
        "types": {"session.started": 1, "round.completed": 3},
        "warnings": [],
    }
    found = session.pop("checks")
    assert session == {"session_id": SESSION, "agent": AGENT, "topology": "tree", "rounds": 2, "ignored_rounds": 1}
    assert found == {
        "salience_inversion": {
            "state": "blind",
            "ran": 0,
            "skipped": {"no_previous": 1, "no_cosine": 1},
            "send": ["after.query_cosine_retained in every round"],
        },
        "provenance_floor": {"state": "runs", "ran": 2, "skipped": {}, "send": []},
        "inversion_risk": {"state": "runs", "ran": 1, "skipped": {"no_previous": 1}, "send": []} | found["inversion_risk"],
        "drift": {"state": "runs", "ran": 2, "skipped": {}, "send": []},
        "depth_pinned": {"state": "runs", "ran": 2, "skipped": {}, "send": []},
        "orphaned_summary": blind("orphaned_summary", "no_inventory", "summaries in every round"),
        "coverage_gap": blind("coverage_gap", "no_records", "claimed_records and read_records"),
        "summary_failed": {"state": "runs", "ran": 2, "skipped": {}, "send": []},
        "compaction_thrash": blind("compaction_thrash", "continuous", "", "not_applicable"),
        "constraint_lost": blind("constraint_lost", "no_propositions", "propositions_retained in every round"),
    }


def test_valid_events_exit_0(run: Run, record: Record) -> None:
    ran = run("lint", record(golden.series()))
    assert (ran.code, ran.err) == (0, "")
    assert "events.jsonl: 41 valid events (40 round.completed, 1 session.started)" in ran.out
    assert "golden-inversion  demo-researcher  tree, 40 rounds" in ran.out
    assert "coverage_gap" in ran.out and "claimed_records and read_records" in ran.out


def test_people_see_the_line_the_reason_and_what_is_allowed(run: Run, record: Record) -> None:
    bad = b'{"type": "session.ended", "session_id": "s", "ended_at": "2026-13-01T00:00:00Z"}'
    ran = run("lint", record([started(), bad]))
    assert ran.code == Code.invalid
    assert "line 2: invalid_field  ended_at: '2026-13-01T00:00:00Z' (allowed: " in ran.out


def test_a_session_file_of_an_agent(run: Run) -> None:
    path = Path(golden.__file__).with_name("demo_session.jsonl")
    document = run("lint", path, "--json").document
    [session] = document["sessions"]
    assert (document["valid"], session["topology"]) == (True, "chain")
    assert {name: found["state"] for name, found in session["checks"].items() if found["state"] == "runs"} == {
        "provenance_floor": "runs",
        "coverage_gap": "runs",
        "summary_failed": "runs",
        "compaction_thrash": "runs",
        "constraint_lost": "runs",
    }


def test_a_check_that_is_off(run: Run, record: Record, tmp_path: Path) -> None:
    (tmp_path / "checks.toml").write_text("[default]\noff = ['drift']\n")
    [session] = run("lint", record(golden.series()), "--checks", "checks.toml", "--json").document["sessions"]
    assert session["checks"]["drift"] == {"state": "off", "ran": 0, "skipped": {}, "send": []}


def test_neither_events_nor_a_session(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    ran = run("lint", "notes.txt")
    assert (ran.code, ran.out) == (Code.invalid, "")
    assert "notes.txt holds no event and no session of a known agent." in ran.err


def test_no_such_file(run: Run) -> None:
    assert run("lint", "gone.jsonl").code == Code.not_found
