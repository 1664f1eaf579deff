"""`bridge`: what is said of a port that is taken, and that nothing else is called that."""

from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner

from compaction_monitor.cli.app import app
from compaction_monitor.shell import client

COMMAND = ["bridge", "alertmanager", "--url", "http://127.0.0.1:9", "--broker", "127.0.0.1:9"]


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = CliRunner().invoke(app, [*COMMAND, "--web-port", str(port)])
    said = " ".join(ran.output.split())
    assert (ran.exit_code, said.count(f"error: Cannot listen on port {port}"), said.count("in use")) == (1, 1, 1)


def test_a_broker_that_goes_silent_midway_is_no_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*_: object) -> None:
        raise TimeoutError("after 40 s")

    monkeypatch.setattr(client, "require_topics", silent)
    ran = CliRunner().invoke(app, COMMAND)
    assert (type(ran.exception), "Cannot listen" in ran.output) == (TimeoutError, False)
