"""`worker` as far as no broker is needed: what it refuses, how it ends, how it logs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from compaction_monitor.cli.exits import Code
from tests.compaction_monitor.cli.conftest import Run


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--store", "disk"], "COMPACTION_MONITOR_STORE='disk': Input should be 'rocksdict' or 'memory'"),
        (["--broker", "nowhere"], "COMPACTION_MONITOR_BROKERS='nowhere': each broker must be HOST:PORT"),
        (["--log-level", "LOUD"], "COMPACTION_MONITOR_LOG_LEVEL='LOUD': Input should be 'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
        (["--checks", "gone.toml"], "checks_file: no such file: gone.toml"),
        (["--accept-new-log", "other"], "accept_new_log: ['other'] is no input topic"),
        (["--set", "partitions=none"], "COMPACTION_MONITOR_PARTITIONS='none': Input should be a valid integer"),
    ],
)
def test_wrong_settings_exit_78(run: Run, options: list[str], fault: str) -> None:
    ran = run("worker", *options)
    assert (ran.code, ran.out) == (Code.config, "")
    assert fault in ran.err


def test_a_web_server_open_to_other_machines_exits_78(tmp_path: Path) -> None:
    options = ["--broker", "127.0.0.1:1", "--store", "memory", "--web-port", "0", "--set", "web_host=0.0.0.0", "--json"]
    command = [sys.executable, "-m", "compaction_monitor", "worker", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (Code.config, "")
    last = json.loads(done.stderr.splitlines()[-1])["message"]
    assert last.startswith("exit 78: COMPACTION_MONITOR_WEB_HOST='0.0.0.0': reachable from other machines")
    assert "COMPACTION_MONITOR_WEB_TOKEN_FILE" in last


def test_a_wrong_checks_file_exits_78(run: Run, tmp_path: Path) -> None:
    (tmp_path / "checks.toml").write_text("[default]\nmode = 'hard'\n")
    ran = run("worker", "--checks", "checks.toml")
    assert ran == (
        Code.config,
        "",
        'error: The checks file is wrong.\n  checks.toml: default.mode = "hard": allowed: "advisory" or "enforce"\n'
        "  next: Correct it, or start without it.\n",
    )


def test_an_unknown_variable_exits_78(run: Run) -> None:
    ran = run("worker", env={"COMPACTION_MONITOR_SPEED": "1"})
    assert ran.code == Code.config
    assert "COMPACTION_MONITOR_SPEED: no such setting" in ran.err


def test_without_a_broker_it_exits_69_and_logs_json_lines(tmp_path: Path) -> None:
    options = ["--broker", "127.0.0.1:1", "--store", "memory", "--web-port", "0", "--json"]
    command = [sys.executable, "-m", "compaction_monitor", "worker", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (Code.unavailable, "")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(line.keys() >= {"at", "level", "logger", "message"} for line in lines)
    assert lines[-1]["message"].startswith("exit 69: no broker answers at 127.0.0.1:1")


def test_a_datadir_that_cannot_be_made_is_for_the_operator(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = run("worker", "--broker", "127.0.0.1:1", "--datadir", "file/state")
    assert ran.code == Code.config
    assert "error: Cannot write the datadir file/state" in ran.err
    assert "--datadir DIR" in ran.err


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the cache is not where XDG_CACHE_HOME says")
def test_a_cache_that_cannot_be_written_is_for_the_operator(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = run("worker", "--broker", "embedded", env={"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert ran.code == Code.config
    assert "XDG_CACHE_HOME" in ran.err
