"""The report as a page: complete in itself, every figure in it, nothing unescaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from compaction_events import adapters
from compaction_events.builders import completed, ended, started
from compaction_events.facts import Fact
from compaction_monitor import golden
from compaction_monitor.report.charts import composition, curves, round_up
from compaction_monitor.report.document import Document, SessionReport, scan_document
from compaction_monitor.report.page import page
from compaction_monitor.rules import Rules

RECORDING = Path(__file__).parents[4] / "shared" / "recordings" / "claude-code" / "three-rounds.jsonl"
HOSTILE = '"><script>alert(1)</script>&'


def report(*facts: Fact, quoted: dict[int, Any] | None = None, files: tuple[str, ...] = ("a.jsonl",)) -> Document:
    made = SessionReport(facts[0].session_id, "events", files)
    for fact in facts:
        made.add(fact, Rules(), quoted=(quoted or {}).get(getattr(fact, "round", -1)))
    return made.document()


def rendered(*sessions: Document, warnings: tuple[str, ...] = ()) -> str:
    return page(scan_document(sessions, warnings), lambda plan: f"plan {plan['action']}")


class Cells(HTMLParser):
    """The text of every cell, and of everything else."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._cell:
            self.rows[-1][-1] += data.strip()


def test_the_tables_hold_the_document() -> None:
    quoted = {1: [[14, 14]], 2: [[0, 14], [9, 10]], 3: [[0, 14], [0, 10], [16, 17]]}
    rounds = [
        completed(number, raw_tokens=1_000 * number, summary_tokens=100, before={"raw_tokens": 9_000, "summary_tokens": 0})
        for number in (1, 2, 3)
    ]
    found = Cells(rendered(report(started(), *rounds, ended(180), quoted=quoted)))
    heads = ["Session", "Agent", "Topology", "Rounds", "Raw ratio", "Spans", "Critical", "Warning", "Info", "Last round"]
    row = ["Round", "At", "Cause", "Before", "After", "Raw", "Summary", "Overhead"]
    assert found.rows == [
        heads,
        ["session-1", "agent", "tree", "3", "0.97", "-", "0", "0", "0", "2026-01-01 02:00"],
        ["After round", "typed since the last pass", "1 round older", "2 rounds older"],
        ["1", "14/14"],
        ["2", "9/10", "0/14"],
        ["3", "16/17", "0/10", "0/14"],
        [*row, "Raw ratio", "Spans", "Cosine", "Depth", "Read"],
        ["1", "2026-01-01 01:00", "compaction", "9,000", "1,100", "1,000", "100", "-", "0.91", "-", "-", "-", "-"],
        ["2", "2026-01-01 01:30", "compaction", "9,000", "2,100", "2,000", "100", "-", "0.95", "-", "-", "-", "-"],
        ["3", "2026-01-01 02:00", "compaction", "9,000", "3,100", "3,000", "100", "-", "0.97", "-", "-", "-", "-"],
    ]


def test_findings_say_what_why_and_what_to_do() -> None:
    gap = completed(1, summary_tokens=10, claimed_records=100, read_records=3, summary_kind="ok")
    text = " ".join(" ".join(Cells(rendered(report(started(), gap, ended(90)))).text).split())
    assert (
        "critical coverage_gap, round 1 What the summariser read 3 of the 100 records that this pass evicted as covered Why "
        "Records were evicted that no summary has ever seen. They can only come back from the raw log. Do plan escalate_to_raw "
        "State still open when the session ended; measured"
    ) in text


def test_nothing_comes_from_elsewhere_and_nothing_is_unescaped() -> None:
    facts = [
        started(HOSTILE, agent=HOSTILE, agent_version=HOSTILE),
        completed(1, HOSTILE, agent=HOSTILE, summary_tokens=10, claimed_records=100, read_records=3, summary_kind="ok"),
    ]
    text = rendered(report(*facts, quoted={1: [[1, 2]]}, files=(HOSTILE,)), warnings=(HOSTILE,))
    found = Cells(text)
    assert HOSTILE not in text and "<script>alert" not in text
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert not [attributes for _, attributes in found.tags if attributes.keys() & {"src", "srcset", "onclick", "action"}]
    links = [value or "" for _, attributes in found.tags for name, value in attributes.items() if name == "href"]
    assert links == ["data:,", "#session-1"]
    assert not re.search(r"url\(|@import|https?:", text)


def test_the_same_document_is_the_same_page() -> None:
    document = report(*golden.series())
    assert rendered(document) == rendered(document)


def test_a_scan_without_a_round_is_a_page_too() -> None:
    text = rendered(report(started(), ended(10)))
    assert "No session has a compaction round." in text and "1 session without a round, not listed." in text


def told_of(one: Document, part: str) -> str:
    return f"round {one['round']}, after: {one[f'{part}_tokens']:,} tokens {part}"


def test_the_charts_carry_every_number() -> None:
    rounds = report(*golden.series(rounds=3))["rounds"]
    rounds[1] |= {"cosine": None, "overhead_tokens": 500}
    alerts = [{"severity": severity, "name": "check", "round": 2} for severity in ("info", "critical", "warning")]
    told = re.findall(r"<title>(.*?)</title>", composition(rounds, alerts, 180_000) + curves(rounds))
    parts = [[told_of(one, part) for part in ("overhead", "raw", "summary") if one[f"{part}_tokens"]] for one in rounds]
    marks = [f"{severity}: check in round 2" for severity in ("critical", "warning", "info")]
    spans = [f"round {one['round']}: spans after the pass {one['spans']}" for one in rounds]
    cosines = [f"round {one['round']}: cosine after the pass {one['cosine']:g}" for one in rounds if one["cosine"] is not None]
    assert told == [*parts[0], *parts[1], *marks, *parts[2], *spans, *cosines]


def test_a_value_that_is_not_known_leaves_a_gap_in_its_curve() -> None:
    rounds = report(*golden.series(rounds=5))["rounds"]
    rounds[2] |= {"spans": None}
    lines = re.findall(r'<polyline class="line-spans" points="([^"]*)"', curves(rounds))
    assert [len(line.split()) for line in lines] == [2, 2]


@pytest.mark.parametrize("count", [1, 4, 60, 400])
def test_a_chart_of_any_length_stays_within_its_box(count: int) -> None:
    facts = [completed(number, raw_tokens=number) for number in range(1, count + 1)]
    drawn = composition(report(started(), *facts)["rounds"], [], None)
    box = float(re.findall(r'viewBox="0 0 (\d+)', drawn)[0])
    rights = [float(x) + float(width) for x, width in re.findall(r'<rect [^>]*x="([\d.]+)"[^>]*width="([\d.]+)"', drawn)]
    labels = re.findall(r'class="label middle" x="[\d.]+" y="[\d.]+">(\d+)<', drawn)
    assert max(rights) <= box and len(labels) == min(count, -(-count // -(-count // 24)))


@pytest.mark.parametrize("value", [0, 0.004, 0.3, 1, 2, 5, 9.99, 10, 11, 156_699, 2**48])
def test_an_axis_ends_at_or_above_its_highest_value(value: float) -> None:
    top = round_up(value)
    assert value <= top <= max(1.0, 2.5 * value)


@pytest.mark.skipif(not RECORDING.is_file(), reason="the recordings are not beside this checkout")
def test_how_long_the_user_s_own_messages_survive() -> None:
    [session] = adapters.find([RECORDING])
    reading = adapters.read_session(session)
    made = SessionReport(session.session_id, session.adapter, ("three-rounds.jsonl",))
    for fact in reading:
        made.add(fact, Rules(), quoted=reading.quoted.get(getattr(fact, "round", -1)))
    rows = Cells(rendered(made.document())).rows
    assert [row for row in rows if len(row) > 1 and "/" in row[1]] == [
        ["1", "14/14"],
        ["2", "9/10", "0/14"],
        ["3", "16/17", "0/10", "0/14"],
    ]
