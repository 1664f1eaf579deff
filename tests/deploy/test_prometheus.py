"""The rules: what promtool says of them, that each alert has its page and its tests, and that they ask for what there is."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser as promql
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from compaction_monitor.checks.evidence import WORDS
from compaction_monitor.core import MonitorCore
from compaction_monitor.rules import Rules
from compaction_monitor.shell.app import make_app
from compaction_monitor.shell.settings import Settings
from tests.absent import skip_or_fail
from tests.e2e.alertmanagers import ROOT, ProgramMissingError, program
from tests.test_readme import PROGRAM, parsed

FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "rules" / "compaction-monitor.yaml"
RUNBOOK = ROOT / "docs" / "runbook"
# What Prometheus itself knows of a target.
ITS_OWN = {"up"}
PAGES = {"CompactionFleetInDanger", "CompactionMonitorDown", "CompactionMonitorBlind"}
SECTIONS = ["What it means", "What to look at", "What to do", "When it is not so bad"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RECORDED = {rule["record"]: rule for rule in rules() if "record" in rule}
each_alert = pytest.mark.parametrize("name", ALERTS)
each_rule = pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.get("alert") or rule["record"]) for rule in rules()])


@cache
def exported() -> dict[str, Metric]:
    """What a worker exports, by name; before it is assigned anything."""
    settings = Settings(metrics_agents=("coder",), store="memory", web_port=0)
    app = make_app(settings, MonitorCore(Rules(), settings.partitions, settings.outcomes_topic), end_process=lambda *_: None)
    page = app.metrics.collect(ready=False).page("")[0].decode()
    return {family.name: family for family in text_string_to_metric_families(page)}


def family_of(name: str) -> Metric | None:
    """The family of a sample's name."""
    known = exported()
    return known.get(name) or next(
        (known[base] for base in [re.sub("_(total|bucket|sum|count)$", "", name)] if base in known), None
    )


class Selector(NamedTuple):
    name: str
    matchers: dict[str, str]


def selectors(query: str) -> Iterator[Selector]:
    found: list[promql.VectorSelector] = []

    def enter(node: promql.Expr) -> bool:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        return True

    promql.walk(promql.parse(query), enter)
    for node in found:
        yield Selector(str(node.name), {m.name: m.value for m in node.matchers.matchers if m.op == promql.MatchOp.Equal})


def promtool(*arguments: str, cwd: Path = ROOT) -> str:
    """What it prints.

    Raises:
        AssertionError: It says that something is wrong.
    """
    try:
        found = program("promtool")
    except ProgramMissingError as missing:
        skip_or_fail(str(missing))
    done = subprocess.run([found, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_finds_nothing_in_the_rules() -> None:
    assert f"SUCCESS: {len(rules())} rules found" in promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


def test_every_alert_fires_and_keeps_silent_as_it_must() -> None:
    tests = sorted(map(str, (FOLDER / "tests").glob("*.yaml")))
    assert promtool("test", "rules", *tests).count("SUCCESS") == len(tests) == 2


def test_the_config_is_right(tmp_path: Path) -> None:
    """As it is shipped, but for the file with the token, which Compose's volume has."""
    text = (FOLDER / "prometheus.yml").read_text(encoding="utf-8")
    token = tmp_path / "web-token"
    token.write_text("token")
    (tmp_path / "rules").symlink_to(FOLDER / "rules")
    config = tmp_path / "prometheus.yml"
    config.write_text(text.replace("/run/compaction-monitor/web-token", str(token)))
    assert config.read_text() != text
    assert f"{len(rules())} rules found" in promtool("check", "config", "--lint=all", "--lint-fatal", str(config))


def test_a_worker_stays_far_below_the_limits_of_a_scrape() -> None:
    [job] = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    settings = Settings(metrics_agents=tuple(f"agent-{n}" for n in range(20)), store="memory", web_port=0)
    app = make_app(settings, MonitorCore(Rules(), settings.partitions, settings.outcomes_topic), end_process=lambda *_: None)
    page = app.metrics.collect(ready=False).page("")[0].decode()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    assert len(samples) < job["sample_limit"] / 2
    assert max(len(sample.labels) for sample in samples) + 2 < job["label_limit"] / 2


@each_rule
def test_a_rule_asks_for_what_is_exported_or_recorded(rule: dict[str, Any]) -> None:
    asked = list(selectors(rule["expr"]))
    for selector in asked:
        if selector.name in RECORDED or selector.name in ITS_OWN:
            continue
        family = family_of(selector.name)
        assert family is not None, selector.name
        # Where the series are there from the start, one must have these values: a wrong word would never fire.
        wanted = selector.matchers.items()
        assert not family.samples or any(wanted <= sample.labels.items() for sample in family.samples), selector
    assert asked or rule.get("alert") == "CompactionWatchdog"


def test_what_is_recorded_is_tested_and_named_by_its_level() -> None:
    tested = yaml.safe_load((FOLDER / "tests" / "recorded.yaml").read_text(encoding="utf-8"))["tests"]
    assert [expr["expr"] for test in tested for expr in test["promql_expr_test"]] == list(RECORDED)
    for name, rule in RECORDED.items():
        by = name.split(":")[0].replace("_", ", ")
        assert f"by ({by}" in rule["expr"]


@each_rule
def test_two_monitors_of_one_name_are_not_added_up(rule: dict[str, Any]) -> None:
    """They differ by namespace; `on ()` asks whether there is any monitor at all."""
    labels = re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"])
    assert [by for by in labels if by and not by.startswith("namespace, job")] == []


def test_only_the_fleet_in_danger_and_a_blind_monitor_page() -> None:
    severities = {name: rule["labels"]["severity"] for name, rule in ALERTS.items()}
    assert {name for name, severity in severities.items() if severity == "critical"} == PAGES
    assert {name for name, severity in severities.items() if severity == "none"} == {"CompactionWatchdog"}
    assert set(severities.values()) == {"critical", "warning", "info", "none"}
    assert all(set(rule["labels"]) == {"severity"} for rule in ALERTS.values()), "`source` is for findings of sessions"


@each_alert
def test_an_alert_says_what_it_is_and_leads_to_its_page(name: str) -> None:
    notes = ALERTS[name]["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert "{{" not in notes["summary"], "a summary stands for all of a group"
    assert notes["runbook_url"] == f"docs/runbook/{name}.md"
    page = (ROOT / notes["runbook_url"]).read_text(encoding="utf-8")
    assert page.startswith(f"# {name}\n\n*{ALERTS[name]['labels']['severity']}.* {notes['summary']}\n")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS


@each_alert
def test_an_alert_is_tested_both_ways(name: str) -> None:
    cases = yaml.safe_load((FOLDER / "tests" / "alerts.yaml").read_text(encoding="utf-8"))["tests"]
    asked = [bool(ask["exp_alerts"]) for case in cases for ask in case["alert_rule_test"] if ask["alertname"] == name]
    assert set(asked) == ({True} if name == "CompactionWatchdog" else {True, False})


def test_the_runbook_has_a_page_for_each_alert_and_no_other() -> None:
    pages = {path.stem for path in RUNBOOK.glob("*.md")} - {"README", "findings"}
    assert pages == set(ALERTS)
    index = (RUNBOOK / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (\w+) \| (.+) \|$", index, re.MULTILINE) == [
        (name, name, rule["labels"]["severity"], rule["annotations"]["summary"]) for name, rule in ALERTS.items()
    ]


def test_the_runbook_says_of_each_finding_what_to_do() -> None:
    page = (RUNBOOK / "findings.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (\w+)\n\n(.+?)(?=\n## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert [check for check, _ in sections] == list(WORDS)
    for _, text in sections:
        assert re.findall(r"^- \*\*(.+?)\*\*", text, re.MULTILINE) == ["Look at", "Do", "Not so bad"]
    looked_at = {name for _, text in sections for name in re.findall(r"`(\w+)`", text.split("- **Do**")[0])}
    assert looked_at - evidence() == {"spans_stable", "completed"}, "words that are no evidence"
    assert len(looked_at) > 20


def evidence() -> set[str]:
    """Every name that evidence may have: keys of what the checks write down."""
    found = set()
    for folder in ("checks", "loop", "tree"):
        for path in (ROOT / "stream" / "compaction_monitor" / folder).glob("*.py"):
            dicts = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Dict)]
            found |= {key.value for one in dicts for key in one.keys if isinstance(key, ast.Constant)}
    return {str(name) for name in found}


def test_the_runbook_gives_only_commands_that_there_are() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in RUNBOOK.glob("*.md"))
    given = {tuple(shlex.split(line)) for line in re.findall(rf"`{PROGRAM} ([^`]+)`", text)}
    assert len(given) > 5
    for words in given:
        parsed(words)


def test_the_runbook_names_only_dashboards_and_panels_that_there_are() -> None:
    boards = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "deploy/grafana/dashboards").glob("*.json")]
    panels = {board["title"]: {panel["title"] for panel in board["panels"]} for board in boards}
    named = [
        (board, set(re.findall(r"\*([^*]+)\*", rest)))
        for path in sorted(RUNBOOK.glob("*.md"))
        for board, rest in re.findall(r"dashboard \*([^*]+)\*(?:, panels? (\*[^:]+))?", path.read_text(encoding="utf-8"))
    ]
    assert {board: looked_at - panels[board] for board, looked_at in named} == {board: set() for board in panels}


def test_the_runbook_names_only_metrics_and_files_that_there_are() -> None:
    for path in RUNBOOK.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        for name in set(re.findall(r"\bcompaction_(?!events\b|monitor\b)\w+", text)) - set(WORDS):
            assert family_of(name) is not None, f"{path.name}: {name}"
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (path.parent / link).exists(), f"{path.name}: {link}"
