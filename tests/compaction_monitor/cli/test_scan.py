"""`scan`: from files to one document, to tables, and to an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compaction_events.builders import AGENT, SESSION, completed, ended, started
from compaction_events.codec import ce_id
from compaction_events.facts import Fact
from compaction_events.ids import finding_id
from compaction_monitor import golden
from compaction_monitor.cli.exits import Code
from tests.compaction_monitor.cli.conftest import Record, Run

RECORDINGS = Path(__file__).parents[4] / "shared" / "recordings" / "claude-code"
SKIPPED = {
    "salience_inversion": "no_depth",
    "provenance_floor": "no_depth",
    "inversion_risk": "no_depth",
    "depth_pinned": "no_depth",
    "orphaned_summary": "no_inventory",
    "compaction_thrash": "no_eviction",
    "constraint_lost": "no_propositions",
}


def gap(number: int = 1, **fields: Any) -> Fact:
    """A pass that read a quarter of what it evicted."""
    read = {"claimed_records": 100, "read_records": 25, "summary_kind": "ok"}
    return completed(
        number, **{"summary_tokens": 1_000, "before": {"raw_tokens": 9_000, "summary_tokens": 0}, **read, **fields}
    )


def test_the_whole_document(run: Run, record: Record) -> None:
    facts = [started(agent_version="1.2", token_budget=10_000), gap(), ended(90)]
    path = record(facts)
    alert, order = (
        finding_id(SESSION, kind, "", ce_id(facts[1])) for kind in ("coverage_gap", "escalate_to_raw for coverage_gap")
    )
    ran = run("scan", path, "--json")
    assert (ran.code, ran.err) == (0, "")
    document = ran.document
    [session] = document["sessions"]
    [found_alert, found_order] = session.pop("findings")
    assert document == {
        "sessions": [
            {
                "session_id": SESSION,
                "agent": AGENT,
                "agent_version": "1.2",
                "topology": "tree",
                "token_budget": 10_000,
                "source": "events",
                "files": ["events.jsonl"],
                "rounds": [
                    {
                        "round": 1,
                        "at": "2026-01-01T01:00:00Z",
                        "cause": "compaction",
                        "trigger": None,
                        "basis": "measured",
                        "before_tokens": 9_000,
                        "after_tokens": 2_000,
                        "raw_tokens": 1_000,
                        "summary_tokens": 1_000,
                        "overhead_tokens": None,
                        "raw_ratio": 0.5,
                        "spans": None,
                        "spans_before": None,
                        "cosine": None,
                        "depth": None,
                        "read_records": 25,
                        "claimed_records": 100,
                        "summary_kind": "ok",
                        "quoted": None,
                        "skipped": SKIPPED,
                        "ignored": None,
                    }
                ],
                "unresolved": ["coverage_gap"],
                "worst_severity": "critical",
                "checks_skipped": {check: {why: 1} for check, why in SKIPPED.items()},
            }
        ],
        "totals": {
            "sessions": 1,
            "sessions_with_rounds": 1,
            "rounds": 1,
            "alerts": {"critical": 1, "warning": 0, "info": 0},
            "unresolved": 1,
            "orders": 1,
        },
        "worst_severity": "critical",
        "warnings": [],
    }
    assert found_alert.pop("description")
    assert found_alert.pop("url").endswith("#coverage_gap")
    assert found_alert.pop("evidence").items() >= {"claimed_records": 100, "read_records": 25, "complete": True}.items()
    assert found_alert == {
        "kind": "alert",
        "id": alert,
        "name": "coverage_gap",
        "severity": "critical",
        "status": "resolved",
        "outcome": "ended",
        "round": 1,
        "raised_at": "2026-01-01T01:00:00Z",
        "resolved_at": "2026-01-01T01:30:00Z",
        "superseded_by": None,
        "subjects": [],
        "message": "the summariser read 25 of the 100 records that this pass evicted as covered",
        "basis": "measured",
        "attempt": 1,
        "remediation_id": order,
    }
    assert found_order == {
        "kind": "order",
        "id": order,
        "action": "escalate_to_raw",
        "status": "withdrawn",
        "withdrawn_because": "ended",
        "round": 1,
        "subject": "",
        "check": "coverage_gap",
        "alert_id": alert,
        "plan": {"action": "escalate_to_raw", "what": "records", "ids": [], "count": 75, "round": 1, "span_ids": []},
        "mode": "advisory",
        "requested_at": "2026-01-01T01:00:00Z",
        "expires_at": "2026-01-01T02:00:00Z",
        "valid_through_round": 3,
    }


def outcome(run: Run, path: Path, name: str) -> tuple[str, str, bool]:
    [session] = run("scan", path, "--json").document["sessions"]
    [alert] = [found for found in session["findings"] if found["kind"] == "alert"]
    return alert["status"], alert["outcome"], name in session["unresolved"]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param([], ("firing", "open", True), id="open"),
        pytest.param([gap(2, read_records=90)], ("resolved", "recovered", False), id="recovered"),
        pytest.param([ended(90)], ("resolved", "ended", True), id="ended"),
        pytest.param([gap(60, read_records=90)], ("resolved", "expired", True), id="silent for more than a day"),
    ],
)
def test_open_and_resolved_alerts_can_be_told_apart(
    run: Run, record: Record, after: list[Fact], expected: tuple[str, str, bool]
) -> None:
    assert outcome(run, record([started(), gap(), *after]), "coverage_gap") == expected


@pytest.mark.parametrize(
    ("limit", "code"), [("critical", Code.found), ("warning", Code.found), ("info", Code.found), (None, Code.ok)]
)
def test_fail_on(run: Run, record: Record, limit: str | None, code: Code) -> None:
    path = record([started(), gap()])
    assert run("scan", path, *(["--fail-on", limit] if limit else [])).code == code


def test_fail_on_lets_milder_ones_pass(run: Run, record: Record) -> None:
    path = record([started(), completed(1, summary_kind="fallback")])
    assert run("scan", path, "--fail-on", "critical").code == 0
    assert run("scan", path, "--fail-on", "warning").code == Code.found


def test_bad_lines_are_warnings_without_their_text(run: Run, record: Record) -> None:
    secret = "the user said something private"
    bad = b'{"type": "round.completed", "session_id": "s", "agent": {"text": "%s"}, "round": "%s"}' % ((secret.encode(),) * 2)
    ran = run("scan", record([started(), gap(), bad, b"{nonsense", b"{nonsense"]), "--json")
    assert ran.code == 0
    assert ran.document["warnings"] == [
        "events.jsonl:3: invalid_field: agent: (not shown) (allowed: Input should be a valid string); "
        "round: (not shown) (allowed: Input should be a valid integer); at: missing (allowed: Field required); "
        "after: missing (allowed: Field required)",
        "events.jsonl:4: not_json: value: unexpected character, expected a string key: line 1 column 2 (char 1) "
        "(allowed: JSON in UTF-8) (2 such lines)",
    ]
    assert secret not in ran.out + run("scan", "events.jsonl").err


def test_findings_in_a_file_of_events_are_refused(run: Run, record: Record) -> None:
    finding = b'{"type": "remediation.withdrawn", "session_id": "s", "id": "i", "action": "resume", "agent": "a", '
    finding += b'"subject": "", "because": "ended", "withdrawn_at": "2026-01-01T00:00:00Z"}'
    assert "wrong_topic" in run("scan", record([started(), gap(), finding]), "--json").document["warnings"][0]


def test_late_and_repeated_rounds_are_marked(run: Run, record: Record) -> None:
    path = record([started(), gap(2), gap(2), gap(1)])
    [session] = run("scan", path, "--json").document["sessions"]
    assert [entry["ignored"] for entry in session["rounds"]] == [None, "duplicate", "late"]


def test_sessions_of_several_files_and_folders(run: Run, record: Record, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    record([started("b"), completed(1, "b")], "logs/2.jsonl")
    record([started("a"), completed(1, "a"), started("c")], "logs/1.jsonl")
    record([completed(2, "b")], "logs/3.jsonl")
    document = run("scan", "logs", "--json").document
    assert [(s["session_id"], s["files"], len(s["rounds"])) for s in document["sessions"]] == [
        ("a", ["logs/1.jsonl"], 1),
        ("c", ["logs/1.jsonl"], 0),
        ("b", ["logs/2.jsonl", "logs/3.jsonl"], 2),
    ]


def test_a_checks_file_changes_what_is_found(run: Run, record: Record, tmp_path: Path) -> None:
    (tmp_path / "checks.toml").write_text("[default]\nobserve = true\nseverity = {coverage_gap = 'info'}\n")
    [session] = run("scan", record([started(), gap()]), "--checks", "checks.toml", "--json").document["sessions"]
    assert [(found["kind"], found["severity"]) for found in session["findings"]] == [("alert", "info")]


def test_people_get_tables_curves_why_and_what_to_do(run: Run, record: Record) -> None:
    ran = run("scan", record(golden.series()))
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    for words in (
        "raw_ratio  █▆▆▆▅▅▅▅▄▄▄▃▃▃▃▃▃▃▃▃▃▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂  0.71 → 0.09",
        "28 earlier rounds, listed by --all-rounds",
        "● critical salience_inversion  round 12, measured, open",
        "why  The scorer now prefers summaries",
        "do   halt_and_rehydrate: stop compacting; expand these 2 summaries until raw_ratio is 0.3",
        "summary-02      1      13     7,800   11,400            0.34",
        "superseded by a worse one",
        "1 session, 40 rounds: 1 critical, 2 warning; 2 never recovered",
    ):
        assert words in ran.out


def test_all_rounds(run: Run, record: Record) -> None:
    path = record(golden.series())
    assert run("scan", path, "--all-rounds").out.count("budget") - run("scan", path).out.count("budget") == 28


def test_a_session_without_rounds_is_counted_not_listed(run: Run, record: Record) -> None:
    ran = run("scan", record([started(), ended(5)]))
    assert ran.out == "1 session without a compaction round, not listed.\n1 session, 0 rounds: no alerts\n"


def test_a_terminal_without_unicode_gets_ascii(run: Run, record: Record) -> None:
    path = record([started(), *(completed(n, raw_tokens=1000 - n) for n in range(1, 6))])
    ran = run("scan", path, env={"PYTHONIOENCODING": "ascii"})
    assert ran.code == 0


class TestErrors:
    def test_no_such_file(self, run: Run) -> None:
        ran = run("scan", "gone.jsonl", "--json")
        assert ran == (Code.not_found, "", "error: No such file or folder: gone.jsonl\n  next: Check the path.\n")

    def test_nothing_in_the_files(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("hello")
        ran = run("scan", "notes.txt")
        assert (ran.code, ran.out) == (Code.not_found, "")
        assert ran.err == (
            "error: No session and no recorded event in these files.\n"
            "  notes.txt: no session of a known agent, and no recorded events\n"
            "  next: Give session files of a known agent, or recorded events (JSON Lines, one event a line).\n"
        )

    def test_no_known_folder(self, run: Run) -> None:
        ran = run("scan")
        assert (ran.code, ran.out) == (Code.not_found, "")
        assert "none of the known agents has its folder here" in ran.err
        assert "compaction-monitor demo" in ran.err

    def test_a_wrong_checks_file(self, run: Run, record: Record, tmp_path: Path) -> None:
        (tmp_path / "checks.toml").write_text("[default.thresholds]\nraw_ratio_floor = 2\n")
        ran = run("scan", record([started()]), "--checks", "checks.toml")
        assert ran == (
            Code.invalid,
            "",
            "error: The checks file is wrong.\n"
            "  checks.toml: default.thresholds.raw_ratio_floor = 2: allowed: a number from 0 to 1\n"
            "  next: Correct these keys.\n",
        )

    def test_a_missing_checks_file(self, run: Run, record: Record) -> None:
        assert run("scan", record([started()]), "--checks", "gone.toml").code == Code.not_found

    def test_a_wrong_severity(self, run: Run, record: Record) -> None:
        assert run("scan", record([started()]), "--fail-on", "awful").code == Code.usage


FIGURES = {
    "three-rounds.jsonl": [(156699, 66549, 188, 229), (155241, 60458, 273, 286), (155413, 59943, 325, 353)],
    "three-rounds-in-four-files": [(155782, 68294, 224, 252), (155528, 46162, 431, 463), (155179, 52843, 297, 303)],
    "broken-chain-empty-summary.jsonl": [(167979, 51665, 224, 241), (149025, 43265, 14, 777)],
    "with-post-tokens.jsonl": [(297190, 16970, 438, 449)],
}


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recordings of real sessions are not beside this checkout")
class TestRecordings:
    """Real sessions: the figures that their README gives."""

    @pytest.mark.parametrize("name", FIGURES)
    def test_token_figures_and_records(self, run: Run, name: str) -> None:
        [session] = run("scan", RECORDINGS / name, "--json").document["sessions"]
        figures = ("before_tokens", "after_tokens", "read_records", "claimed_records")
        assert [tuple(entry[figure] for figure in figures) for entry in session["rounds"]] == FIGURES[name]
        parts = [entry for entry in session["rounds"] if entry["overhead_tokens"] is not None]
        for entry in parts:
            assert entry["raw_tokens"] + entry["summary_tokens"] + entry["overhead_tokens"] == entry["after_tokens"]

    @pytest.mark.parametrize("name", FIGURES)
    def test_only_the_broken_chain_is_critical(self, run: Run, name: str) -> None:
        ran = run("scan", RECORDINGS / name, "--json", "--fail-on", "critical")
        [session] = ran.document["sessions"]
        critical = [
            (found["name"], found["round"])
            for found in session["findings"]
            if found["kind"] == "alert" and found["severity"] == "critical"
        ]
        broken = name.startswith("broken")
        assert critical == ([("coverage_gap", 2)] if broken else [])
        assert ran.code == (Code.found if broken else Code.ok)
        assert "summary_failed" not in session["unresolved"]
        assert not ran.document["warnings"]

    def test_all_of_them_in_one_document(self, run: Run) -> None:
        document = run("scan", RECORDINGS, "--json").document
        assert [len(session["rounds"]) for session in document["sessions"]] == [3, 3, 2, 1]
        assert document["totals"]["alerts"]["critical"] == 1
