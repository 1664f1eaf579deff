"""`simulate`: tables, JSON, Markdown and picture, and events as an agent would report them."""

from __future__ import annotations

import pytest

from tests.compaction_monitor.cli.conftest import Run


@pytest.mark.parametrize("name", ["inversion", "saturation"])
def test_one_document(run: Run, name: str) -> None:
    ran = run("simulate", name, "--seeds", "1", "--json")
    assert ran.code == 0
    assert ran.document["run"] == name
    assert ran.document["seeds"] == [1000]
    assert {"name", "observed", "mean", "sd", "met", "short_by", "why"} <= ran.document["figures"][0].keys()


def test_tables_and_a_picture(run: Run) -> None:
    ran = run("simulate", "saturation", "--seeds", "1", "--picture", "s.svg")
    assert ran.code == 0
    assert "retained of 19 when first written" in ran.out
    assert "Room for the root" in ran.out
    assert run("simulate", "saturation", "--seeds", "1", "--markdown").out.startswith("1 session, seed 1000;")


def test_events_that_lint_and_scan_take(run: Run) -> None:
    assert run("simulate", "inversion", "--seeds", "1", "--emit", "file:events.jsonl", "--json").code == 0
    assert run("lint", "events.jsonl").code == 0
    (session,) = run("scan", "events.jsonl", "--json").document["sessions"]
    assert session["session_id"] == "inversion-1000-alone"
    assert len(session["rounds"]) == 40
    assert "salience_inversion" in session["unresolved"]


def test_where_it_cannot_write(run: Run) -> None:
    ran = run("simulate", "saturation", "--seeds", "1", "--picture", "none/s.svg")
    assert ran.code == 1
    assert "Cannot write none" in ran.err
    assert run("simulate", "saturation", "--seeds", "1", "--emit", "file:").code == 2
