"""`scan` over many sessions: the same document from one process and from several, and as a page."""

from __future__ import annotations

from pathlib import Path

from compaction_monitor.cli.exits import Code
from compaction_monitor.cli.scanning import scanned
from compaction_monitor.cli.sources import Sources
from compaction_monitor.rules import Rules
from tests.compaction_events.adapters import fixtures as made
from tests.compaction_events.adapters.test_following import transcript
from tests.compaction_monitor.cli.conftest import Run


def folder(path: Path) -> Path:
    path.mkdir()
    for number in range(9):
        (path / f"s{number}.jsonl").write_bytes(b"".join(transcript(f"session-{number}", passes=2)))
    made.hierarchy(path / "lcm.db", "lossless-claw")
    (path / "torn.jsonl").write_bytes(b"".join(transcript("session-torn")) + b'{"torn')
    (path / "notes.jsonl").write_text('{"note": 1}\n')
    return path


def test_several_processes_find_what_one_finds(tmp_path: Path) -> None:
    """In the same order, with the same warnings."""
    paths = [folder(tmp_path / "sessions")]
    alone, together = (scanned(Sources(paths), Rules(), workers) for workers in (1, 2))
    assert together == alone
    assert [session["session_id"] for session in alone["sessions"]] == [
        "lcm-a",
        *(f"session-{number}" for number in range(9)),
        "session-torn",
    ]
    assert alone["warnings"] == [
        f"{paths[0]}/notes.jsonl: no session of a known agent, and no recorded events",
        f"{paths[0]}/torn.jsonl:15: the last line has no end; passed over",
    ]


def test_a_page_is_written(run: Run, tmp_path: Path) -> None:
    made.write_lines(tmp_path / "a.jsonl", made.pi_records())
    ran = run("scan", "a.jsonl", "--html", "out.html")
    assert (ran.code, ran.out, ran.err) == (Code.ok, "", "the report is in out.html\n")
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "pi-a" in text and "1/2" in text


def test_a_page_that_cannot_be_written_is_the_user_s_to_solve(run: Run, tmp_path: Path) -> None:
    made.write_lines(tmp_path / "a.jsonl", made.pi_records())
    ran = run("scan", "a.jsonl", "--html", "gone/out.html")
    assert (ran.code, ran.err) == (
        Code.failed,
        "error: Cannot write gone/out.html\n  No such file or directory\n  next: Check the folder and its permissions.\n",
    )


def test_the_quotes_are_in_the_document(run: Run, tmp_path: Path) -> None:
    made.write_lines(tmp_path / "a.jsonl", made.pi_records())
    [session] = run("scan", "a.jsonl", "--json", "--html", "out.html").document["sessions"]
    assert [one["quoted"] for one in session["rounds"]] == [[[1, 2]]]
