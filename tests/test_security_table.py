"""docs/security.md against the code: every test it names is there, its rights are the table's, its settings are settings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from compaction_events.security import Security
from compaction_monitor.cli.topics import Role as CommandRole
from compaction_monitor.shell.acls import Role, rights
from compaction_monitor.shell.settings import load

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The table under a heading, without its head."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


NAMED = [(row[0], name) for row in rows("Threats") for name in re.findall(r"`(tests/[^`]+)`", row[3])]


def test_every_row_says_what_is_done_and_what_shows_it() -> None:
    assert len(rows("Threats")) > 10
    for threat, done, left, _ in rows("Threats"):
        assert threat and done and left
        assert any(row == threat for row, _ in NAMED), threat


@pytest.mark.parametrize(("threat", "name"), NAMED, ids=[name for _, name in NAMED])
def test_every_test_that_it_names_is_there(threat: str, name: str) -> None:
    path, _, function = name.partition("::")
    defined = [
        node.name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    assert any(one.startswith("test_") for one in defined)
    assert not function or function in defined, threat


def test_the_rights_are_those_of_the_code() -> None:
    """Every topic that a role may read or write, by the words of the page."""
    settings = load()
    words = {
        settings.events_topics[0]: "events", settings.outcomes_topic: "outcomes", settings.findings_topic: "findings",
        settings.dead_letters_topic: "dead letters", f"{settings.app_id}-": "changelogs",
    }  # fmt: skip
    shown = {
        row[0]: [set(re.findall(r"events|outcomes|findings|dead letters|changelogs", cell)) for cell in row[1:3]]
        for row in rows("Rights")
    }
    for role in Role:
        topics = [right for right in rights(role, settings) if right.kind == "topic"]
        allowed = [{words[right.name] for right in topics if operation in right.operations} for operation in ("Read", "Write")]
        assert shown[role.value] == allowed, role


def test_the_command_knows_the_roles() -> None:
    assert [role.value for role in CommandRole] == [role.value for role in Role] or {*CommandRole} == {*Role}


def test_the_settings_are_all_there_are() -> None:
    assert {name for row in rows("Settings") for name in re.findall(r"`([a-z_]+)`", row[0])} == set(Security.model_fields)
