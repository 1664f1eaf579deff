"""The README against the code: its commands, checks, exit codes, settings, links and targets are those there are."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from compaction_events.facts import RoundCompleted
from compaction_monitor.checks.evidence import WORDS
from compaction_monitor.cli.app import app
from compaction_monitor.cli.exits import MEANING
from compaction_monitor.rules import Rules
from tests.compaction_events.adapters import fixtures as made
from tests.compaction_events.adapters.fixtures import write_lines

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAM = "compaction-monitor"


def blocks(language: str) -> Iterator[str]:
    """The fenced blocks of a language."""
    yield from re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """Every command of the console blocks, and every whole command of ours in the text, as words."""
    lines = [line for block in blocks("console") for line in block.splitlines() if line]
    assert lines
    assert all(line.startswith("$ ") for line in lines)
    inline = re.findall(rf"`({PROGRAM} [a-z][^`]*)`", README)
    return [shlex.split(line, comments=True) for line in [*(line[2:] for line in lines), *inline]]


OURS = sorted({tuple(words[1:]) for words in commands() if words[0] == PROGRAM})
ALONE = [words for words in OURS if words[0] in ("scan", "lint", "schema")]


def parsed(words: tuple[str, ...]) -> Any:
    """Follows the words to their command and parses its options; raises as the command line would."""
    group: Any = typer.main.get_command(app)
    context = group.make_context(PROGRAM, [], resilient_parsing=True)
    command, rest = group, list(words)
    while hasattr(command, "commands"):
        assert rest, f"{words} names a group of commands, not one"
        name = rest.pop(0)
        assert name in command.commands, f"no such command: {name}"
        command = command.commands[name]
    command.parse_args(type(context)(command, info_name=words[0]), rest)
    return command


def test_the_blocks_hold_the_commands_that_there_are() -> None:
    group: Any = typer.main.get_command(app)
    assert {words[0] for words in OURS} == set(group.commands)


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_every_command_exists_with_these_options(words: tuple[str, ...]) -> None:
    parsed(words)


def test_what_does_not_exist_would_be_seen() -> None:
    with pytest.raises(Exception, match="--fail-no"):
        parsed(("scan", "PATH", "--fail-no", "critical"))
    with pytest.raises(AssertionError, match="no such command"):
        parsed(("scna", "PATH"))


@pytest.mark.parametrize("words", ALONE, ids=" ".join)
def test_what_needs_no_broker_runs(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a session written by hand, without a critical finding."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    records = made.codex_records()
    for path in (tmp_path / "PATH", tmp_path / "FILE", tmp_path / ".codex" / "sessions" / "rollout-1.jsonl"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_lines(path, records)
    ran = CliRunner().invoke(app, list(words), prog_name=PROGRAM)
    assert (ran.exit_code, ran.exception) == (0, None), ran.output
    if words[:2] == ("schema", "export"):
        assert {path.name for path in (tmp_path / "DIR").iterdir()} == {
            path.name for path in (ROOT / "schemas" / "json").iterdir()
        }
    if "--html" in words:
        assert (tmp_path / words[words.index("--html") + 1]).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_pip_installs_only_extras_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"pip install '([^'\[]*)\[([a-z,]+)\]'", README)
    assert named
    assert {source for source, _ in named} == {"."}, "the package is in no index: it is installed from the clone"
    lone = re.findall(r"`\[([a-z]+)\]`", README)
    for extra in [*lone, *(extra for _, extras in named for extra in extras.split(","))]:
        assert extra in project["optional-dependencies"]


def test_every_check_has_its_heading_and_every_heading_its_check() -> None:
    """An alert's `url` ends in `#<check>`: the heading is where it leads."""
    section = README.split("\n## Checks\n")[1].split("\n## ")[0]
    headings = re.findall(r"^### (.+)$", section, re.MULTILINE)
    assert sorted(headings) == sorted(WORDS)
    assert Rules().runbook_url == "README.md#"


def test_the_exit_codes_are_those_of_the_code() -> None:
    table = README.split("| exit code | meaning |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table.splitlines()]
    assert rows == [(str(int(code)), meaning) for code, meaning in MEANING.items()]


def test_the_targets_of_make_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {words[1] for words in commands() if words[0] == "make"} | set(re.findall(r"`make ([a-z-]+)", README))
    assert named >= {"demo", "test"}
    assert named <= targets


def test_every_link_leads_to_a_heading_or_a_file() -> None:
    anchors = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", README, re.MULTILINE)
    }
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    assert {link.removeprefix("#") for link in links if link.startswith("#")} <= anchors
    assert all((ROOT / link).is_file() for link in links if not link.startswith("#"))


def test_every_path_in_the_text_is_there() -> None:
    named = re.findall(r"`((?:stream|schemas|tests|bench|deploy|docs|compaction_\w+)/[\w./-]+)`", README)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("code", list(blocks("python")), ids=lambda code: code.split("\n")[0])
def test_the_python_is_python_and_what_it_imports_of_ours_is_there(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("compaction_"):
            for name in node.names:
                exec(f"from {node.module} import {name.name}", {})


def test_the_emitters_lines_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As they stand, but into the file that the comment names."""
    monkeypatch.chdir(tmp_path)
    (code,) = (code for code in blocks("python") if "emitter.session(" in code)
    exec(code.replace('"localhost:9092"', '"file:events.jsonl"'), {})
    ran = CliRunner().invoke(app, ["lint", "events.jsonl"], prog_name=PROGRAM)
    assert (ran.exit_code, "3 valid events" in ran.output) == (0, True)
    assert RoundCompleted.model_fields["type"].default in ran.output


def test_nothing_in_it_is_of_one_machine_or_leads_nowhere() -> None:
    assert re.findall(r"/(?:home|root|work|Users)/|\.invalid|TODO|FIXME|§", README) == []
