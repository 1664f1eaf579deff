"""Why checks are blind: every reason has its words, and a check's state follows from them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from compaction_monitor.checks import blindness
from compaction_monitor.checks import rounds as checks
from compaction_monitor.checks.blindness import REASONS, coverage, why


def reasons_in_code() -> set[str]:
    """Every word in the checks that is a reason to skip one."""
    tree = ast.parse(Path(checks.__file__).read_text())
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {word for word in words if word.startswith("no_") or word in ("few_rounds", "continuous", "chain", "flat")} - {"no_"}


def test_every_reason_of_a_check_has_its_words() -> None:
    assert reasons_in_code() <= REASONS.keys()


def test_what_is_missing_can_be_sent() -> None:
    assert all(bool(reason.send) == (reason.kind == "missing") for reason in REASONS.values())


def test_a_reason_without_words_counts_as_missing() -> None:
    assert why("no_such_thing") == blindness.Why("missing", "no such thing")


@pytest.mark.parametrize(
    ("on", "rounds", "skipped", "state", "ran"),
    [
        (True, 5, {}, "runs", 5),
        (True, 5, {"no_previous": 1}, "runs", 4),
        (True, 5, {"no_cosine": 2}, "partly", 3),
        (True, 5, {"no_cosine": 5}, "blind", 0),
        (True, 5, {"no_previous": 1, "no_cosine": 4}, "blind", 0),
        (True, 5, {"chain": 5}, "not_applicable", 0),
        (True, 1, {"no_previous": 1}, "waiting", 0),
        (True, 0, {}, "waiting", 0),
        (False, 5, {}, "off", 0),
    ],
)
def test_state(on: bool, rounds: int, skipped: dict[str, int], state: str, ran: int) -> None:
    found = coverage({"check": on}, rounds, {"check": skipped})["check"]
    assert (found["state"], found["ran"], found["skipped"]) == (state, ran, skipped)


def test_what_to_send() -> None:
    assert coverage({"drift": True}, 2, {"drift": {"no_depth": 1, "chain": 1}})["drift"]["send"] == [
        "after.summary_depth_max in every round"
    ]
