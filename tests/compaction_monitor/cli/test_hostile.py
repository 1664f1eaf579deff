"""Ids and names that others chose, on their way to a terminal, a JSON document and a page: shown, never obeyed."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from compaction_events.builders import completed, missed, regenerated, started, stated, written
from compaction_events.facts import Fact
from tests.compaction_monitor.cli.conftest import Record, Run

# What a terminal, rich and a browser would do something about.
TERMINAL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\b\u202e\u2066"
MARKUP = "[bold red]x[/bold red][link=https://evil.example]y[/link]:boom:"
PAGE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"' onmouseover=alert(1) x='{{ 7*7 }}{% raw %}&lt;"
HOSTILE = PAGE + MARKUP + TERMINAL
HARMLESS = "x" * len(HOSTILE)
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def story(name: str) -> list[Fact]:
    """Alerts and orders of the rounds and of the tree, with a name in every field that takes one."""
    summaries = [
        {"summary_id": f"{name}{n}", "depth": 2, "tokens": 10, "leaf_spans": 0, "expanded_tokens": 50} for n in range(2)
    ]
    node = f"{name}-node"
    short = {"budget_tokens": 10, "child_joint_entropy_bits": 900.0, "child_redundancy": 0.1, "bits_per_token": 1.0}
    children = [{"node_id": f"{name}-child", "version": 1}]
    return [
        started(
            name, agent=name, agent_version=name, source=name, source_spans=100, max_depth=3,
            scorer={"name": name, "depth_penalty": 0.0}, controller="expected",
        ),
        stated(name, 1, name, span_id=name, pinned=True),
        stated(f"{name}2", 2, name, span_id=name, pinned=True),
        completed(
            1, name, agent=name, raw_tokens=400, summary_tokens=600, distinct_source_spans=80, query_cosine_retained=0.4,
            summary_depth_max=2, summary_kind="error", claimed_records=10, read_records=1, summaries=summaries,
            spans_method="pointer", propositions_retained=[name, f"{name}2"], token_method=name,
        ),
        completed(
            2, name, agent=name, raw_tokens=100, summary_tokens=900, distinct_source_spans=9, query_cosine_retained=0.6,
            summary_depth_max=2, summaries=summaries, spans_method="pointer", propositions_retained=[],
        ),
        written(f"{name}-child", 1, 70, name, retained=[name, f"{name}2"]),
        written(node, 1, 80, name, level=2, retained=[name], children=children, **short),
        missed(node, f"{name}2", 91, name, by=name),
        regenerated(
            node, 92, name, level=2, retained=[f"{name}2"], children=children, trial_number=1, remediation_id=name, **short
        ),
    ]  # fmt: skip


class Structure(HTMLParser):
    """The elements of a page with the names of their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def scanned(run: Run, record: Record) -> tuple[Structure, Structure]:
    """The pages of a hostile session and of its harmless twin."""
    pages = []
    for place, name in enumerate((HOSTILE, HARMLESS)):
        ran = run("scan", record(story(name), f"{place}.jsonl"), "--html", f"{place}.html")
        assert ran.code == 0, ran.err
        pages.append(Structure(Path(f"{place}.html").read_text(encoding="utf-8")))
    return pages[0], pages[1]


def test_a_page_is_built_the_same_whatever_the_ids_are(scanned: tuple[Structure, Structure]) -> None:
    hostile, harmless = scanned
    assert len(hostile.elements) > 100
    assert hostile.elements == harmless.elements
    assert PAGE in hostile.text
    assert not [names for _, names in hostile.elements if any(name.startswith("on") for name in names)]


@pytest.mark.parametrize("command", ["scan", "lint"])
def test_a_terminal_gets_no_commands(command: str, run: Run, record: Record) -> None:
    ran = run(command, record(story(HOSTILE)))
    assert ran.code == 0
    assert COMMANDS.findall(ran.out + ran.err) == []
    told = re.sub(r"[\s│]", "", ran.out)
    if command == "scan":
        assert {"constraint_lost", "orphaned_summary", "summary_failed"} <= set(re.findall(r"\w+", ran.out))
        assert re.sub(r"\s", "", MARKUP) in told, "markup is text, too"
        assert "\ufffd" in told


def test_json_says_them_exactly_and_writes_no_commands(run: Run, record: Record) -> None:
    ran = run("scan", record(story(HOSTILE)), "--json")
    assert COMMANDS.findall(ran.out) == []
    (session,) = json.loads(ran.out)["sessions"]
    assert session["session_id"] == HOSTILE


def test_a_hostile_file_name_is_only_shown(run: Run, record: Record) -> None:
    name = "\x1b[2J\x9b31m[bold]events.jsonl"
    record([b"{", b"\x1b[2J"], name)
    ran = run("scan", name)
    assert ran.code != 0
    assert COMMANDS.findall(ran.out + ran.err) == []
    assert "[bold]events.jsonl" in ran.err
