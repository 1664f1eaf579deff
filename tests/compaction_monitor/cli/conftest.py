"""The command line as a test runs it: in process, nothing of this machine in it, no broker."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from compaction_events.codec import encode
from compaction_events.facts import Fact
from compaction_monitor.cli.app import app


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its output, which is one JSON document with sorted keys."""
        found = json.loads(self.out)
        assert self.out == json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        return found


Run = Callable[..., Ran]
Record = Callable[..., Path]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    for name in [name for name in os.environ if name.startswith("COMPACTION_MONITOR_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str | Path, env: dict[str, str] | None = None) -> Ran:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="compaction-monitor", env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return invoke


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Writes a file of recorded events; a line that is bytes is written as it is."""

    def write(lines: Iterable[Fact | bytes], name: str = "events.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(b"".join((line if isinstance(line, bytes) else encode(line).value) + b"\n" for line in lines))
        return Path(name)

    return write
