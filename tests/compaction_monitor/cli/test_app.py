"""What all commands have in common: help, version, exit codes, errors, plain output."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from unittest.mock import patch

import pytest

from compaction_events.measures import scorer_name
from compaction_monitor.cli.demo import where
from compaction_monitor.cli.exits import MEANING, Code, Problem, extra
from tests.compaction_events.adapters.fixtures import codex_records, write_lines
from tests.compaction_monitor.cli.conftest import Run

COMMANDS = (
    "demo", "scan", "lint", "worker", "ingest", "replay", "watch", "topics plan", "topics apply", "schema export",
    "schema asyncapi",
    "dead-letters list", "dead-letters show", "dead-letters replay", "dead-letters drop",
)  # fmt: skip


def test_help_names_every_exit_code(run: Run) -> None:
    ran = run("--help")
    assert ran.code == 0
    told = dict(re.findall(r"^ +(\d+)  (.+?) *$", ran.out, re.MULTILINE))
    assert told == {str(int(code)): meaning for code, meaning in MEANING.items()}
    assert set(MEANING) == set(Code)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(run: Run, command: str) -> None:
    ran = run(*command.split(), "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "--json" in ran.out


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"{version('compaction-monitor')}\n", "")


def test_without_a_command_it_shows_help(run: Run) -> None:
    assert "Commands" in run().out


def test_a_wrong_command_is_wrong_usage(run: Run) -> None:
    ran = run("scna")
    assert (ran.code, ran.out) == (Code.usage, "")
    assert "scan" in ran.err


def test_completion_is_on(run: Run) -> None:
    assert "--install-completion" in run("--help").out


def test_python_m_is_the_same_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "compaction_monitor", "scan", "nowhere.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (Code.not_found, "")
    assert done.stderr == "error: No such file or folder: nowhere.jsonl\n  next: Check the path.\n"


def test_without_a_terminal_library_it_says_what_to_install(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["typer"] = None  # an import of it fails
sys.modules.pop("compaction_monitor.cli.app", None)
from compaction_monitor.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "compaction-monitor: the command line needs typer, which is not installed.\n"
        "Install an extra: pip install 'compaction-monitor[adapters]' (scan, lint), [monitor] (what needs a broker),\n"
        "[simulate], or [adapters,embedded,monitor] (demo).\n"
    )


def test_ctrl_c_before_it_is_all_imported_has_no_traceback(tmp_path: Path) -> None:
    code = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "compaction_monitor.cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from compaction_monitor.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (Code.interrupted, "", "")


def test_the_demo_says_where_its_command_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "activate").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (told,) = where()
    assert told.plain == f"The command is not on the PATH; . {tmp_path / 'activate'} puts it there."
    (tmp_path / "compaction-monitor").touch(mode=0o755)
    assert where() == ()


def test_a_missing_extra_is_named() -> None:
    with pytest.raises(Problem) as caught, extra("monitor"):
        raise ModuleNotFoundError(name="aiokafka")
    problem = caught.value
    assert (problem.code, problem.what, problem.todo) == (
        Code.failed,
        "This command needs aiokafka, which is not installed.",
        "pip install 'compaction-monitor[monitor]'",
    )


def test_an_extra_missed_while_measuring_is_named() -> None:
    """With `[monitor]` alone the adapters can be imported; it is what they measure with that is missing."""
    with patch("compaction_events.measures.version", side_effect=PackageNotFoundError):  # noqa: SIM117
        with pytest.raises(Problem) as caught, extra("adapters"):
            scorer_name()
    assert caught.value.todo == "pip install 'compaction-monitor[adapters]'"


def test_a_problem_crosses_processes() -> None:
    problem = pickle.loads(pickle.dumps(Problem(Code.failed, "what", "why", "todo")))
    assert (problem.code, problem.what, problem.why, problem.todo, str(problem)) == (Code.failed, "what", "why", "todo", "what")


def test_a_missing_module_of_ours_is_a_fault_and_stays_one() -> None:
    with pytest.raises(ModuleNotFoundError), extra("monitor"):
        raise ModuleNotFoundError(name="compaction_monitor.gone")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the names of files are always text")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("options", [[], ["--json"], ["--html", "page.html"]], ids=str)
def test_any_name_of_a_file_in_any_encoding_of_the_terminal(tmp_path: Path, encoding: str, options: list[str]) -> None:
    for name in ("naïve 日.jsonl", os.fsdecode(b"bad\xff.jsonl")):
        write_lines(tmp_path / name, codex_records())
    command = [sys.executable, "-m", "compaction_monitor", "scan", ".", *options]
    env = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    if options == ["--json"]:
        named = {file for session in json.loads(done.stdout.decode(encoding))["sessions"] for file in session["files"]}
        assert {"naïve 日.jsonl", os.fsdecode(b"bad\xff.jsonl")} & named


def test_a_cursor_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    write_lines(tmp_path / "rollout.jsonl", codex_records())
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "compaction_monitor", "ingest", "rollout.jsonl", "--follow", "--broker", "file:events"]
    done = subprocess.run(
        [*command, "--cursor", "file/cursor"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (Code.failed, "", False)
    assert "error: Cannot write file" in done.stderr
    assert "--cursor FILE" in done.stderr
