"""The checks file: what it can set, and how it says what is wrong."""

from __future__ import annotations

import dataclasses

import pytest

from compaction_events.findings import Severity
from compaction_monitor.checks.evidence import WORDS
from compaction_monitor.rules import AgentRules, LoopRules, Rules, Thresholds
from compaction_monitor.rules_file import CHECKS, LOOP, THRESHOLDS, RulesFileError, read_rules

WHOLE = """
expiry_s = 3600
clock_ahead_s = 10
runbook_url = "https://wiki.example/compaction#"

[default]
mode = "enforce"
observe = true
off = ["drift"]
severity = {depth_pinned = "info"}
thresholds = {raw_ratio_floor = 0.2, pinned_rounds = 7}
loop = {deadline_s = 60}

[agents."coder-*"]
observe = false
off = []
thresholds = {raw_ratio_floor = 0.1}

[agents."*"]
severity = {drift = "critical"}
"""


def faults(text: str) -> list[str]:
    with pytest.raises(RulesFileError) as caught:
        read_rules(text, "checks.toml")
    return list(caught.value.faults)


def test_an_empty_file_is_the_defaults() -> None:
    assert read_rules("") == Rules()


def test_every_key() -> None:
    default = AgentRules(
        thresholds=Thresholds(raw_ratio_floor=0.2, pinned_rounds=7),
        loop=LoopRules(deadline_s=60),
        off=frozenset({"drift"}),
        severity={"depth_pinned": Severity.info},
        observe=True,
        mode="enforce",
    )
    coder = dataclasses.replace(
        default, observe=False, off=frozenset(), thresholds=Thresholds(raw_ratio_floor=0.1, pinned_rounds=7)
    )
    rest = dataclasses.replace(default, severity={"depth_pinned": Severity.info, "drift": Severity.critical})
    rules = read_rules(WHOLE)
    assert rules == Rules(
        by_pattern=(("coder-*", coder), ("*", rest)),
        default=default,
        expiry_s=3600,
        clock_ahead_s=10,
        runbook_url="https://wiki.example/compaction#",
    )


def test_the_first_pattern_that_matches_holds() -> None:
    rules = read_rules(WHOLE)
    assert (rules.of("coder-1").observe, rules.of("writer").observe) == (False, True)


def test_everything_that_can_be_set_has_its_range() -> None:
    assert THRESHOLDS.keys() == {field.name for field in dataclasses.fields(Thresholds)}
    assert LOOP.keys() == {field.name for field in dataclasses.fields(LoopRules)}
    assert {*CHECKS, "remediation_unacknowledged", "remediation_ineffective"} == set(WORDS)


def test_the_defaults_are_allowed() -> None:
    assert all(THRESHOLDS[name].holds(value) for name, value in dataclasses.asdict(Thresholds()).items())
    assert all(LOOP[name].holds(value) for name, value in dataclasses.asdict(LoopRules()).items())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[default", "not TOML: Expected ']' at the end of a table declaration (at end of document)"),
        ("speed = 3", "speed = 3: no such key; known here: default, agents, runbook_url, expiry_s, clock_ahead_s"),
        ("expiry_s = 1", "expiry_s = 1: allowed: a number from 60 to 3.16224e+07"),
        ("runbook_url = 'wiki'", 'runbook_url = "wiki": allowed: an http or https address; the check\'s name is put after it'),
        ("default = 3", "default = 3: allowed: a table"),
        ("[default]\nmode = 'hard'", 'default.mode = "hard": allowed: "advisory" or "enforce"'),
        ("[default]\nobserve = 1", "default.observe = 1: allowed: false or true"),
        ("[default.thresholds]\ncap_depth = 2.5", "default.thresholds.cap_depth = 2.5: allowed: a whole number from 1 to 64"),
        ("[default.loop]\nbackoff = true", "default.loop.backoff = true: allowed: a number from 1 to 10"),
        ("[default.loop]\nbackoff = nan", "default.loop.backoff = nan: allowed: a number from 1 to 10"),
        (
            "[default]\nthresholds = {raw_ratio_floor = 0.5}",
            "default.thresholds.raw_ratio_recovered = 0.3: allowed: at least raw_ratio_floor, 0.5",
        ),
        ("[agents.'x-*']\nloop = {backoff = 0}", 'agents."x-*".loop.backoff = 0: allowed: a number from 1 to 10'),
        ("[default]\nseverity = {drift = 'fatal'}", 'default.severity.drift = "fatal": allowed: critical, warning, info'),
    ],
)  # fmt: skip
def test_a_fault_names_key_value_and_what_is_allowed(text: str, fault: str) -> None:
    assert faults(text) == [f"checks.toml: {fault}"]


@pytest.mark.parametrize(
    "text", ["[default]\noff = ['drfit']", "[default]\nseverity = {drfit = 'info'}", "[default]\noff = 'drift'"]
)
def test_a_wrong_check_is_told_the_right_ones(text: str) -> None:
    [fault] = faults(text)
    assert ", ".join(CHECKS) in fault


def test_every_fault_is_named() -> None:
    assert len(faults("speed = 1\n[default]\nmode = 2\nobserve = 3\n[agents.a]\nthresholds = {cap_depth = 0}")) == 4
