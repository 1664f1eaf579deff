"""How the worker's process ends when parts of it do not work any more; each part for itself, without a broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compaction_events.errors import AccessError
from compaction_monitor.shell import topics
from compaction_monitor.shell.settings import SettingsError, load
from compaction_monitor.shell.worker import _Process
from tests.e2e.counter import CounterCore
from tests.e2e.workers import ROOT

SILENT = """
import os
from contextlib import suppress
from compaction_monitor.shell.worker import _end
os.set_blocking(2, False)
with suppress(BlockingIOError):
    while True:
        os.write(2, b"x")
os.set_blocking(2, True)
_end(75, "stuck")
"""
# A worker that waits for its broker for ever, but for what a test does to it.
WAITING = """
import asyncio, logging, sys
from compaction_monitor.shell import worker
from compaction_monitor.shell.settings import load
from tests.e2e.counter import CounterCore
logging.basicConfig(level="INFO", format="%(message)s")
async def never(_):
    await asyncio.Event().wait()
worker._Process._start = never
{fault}
sys.exit(worker.run_worker(load(web_port=0, shutdown_timeout_s=30), CounterCore()))
"""
WATCHDOG_FAILS = """
async def fails(*_):
    raise RuntimeError("nobody looks any more")
worker.Watchdog.run = fails
"""
# Its app stops only once the loop has been seen to come round after that began.
STOPS_SLOWLY = """
async def stop(_):
    begun = process[0]._watchdog._beat
    while process[0]._watchdog._beat == begun:
        await asyncio.sleep(0.05)
async def over(self):
    process.append(self)
    self.exit(0, "over")
process = []
worker._Process._start = over
from compaction_monitor.shell.app import WorkerApp
WorkerApp.stop = stop
"""


def run(code: str) -> tuple[int, str]:
    """The exit code and the last line of the log of a worker in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.splitlines()[-1]


def test_it_ends_though_nobody_reads_its_log() -> None:
    with subprocess.Popen([sys.executable, "-c", SILENT], stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(60) == 75
        finally:
            process.kill()


def test_it_ends_when_its_watchdog_fails() -> None:
    """It would go on unwatched."""
    last = "exit 70: RuntimeError('nobody looks any more')"
    assert run(WAITING.format(fault=WATCHDOG_FAILS)) == (70, last)


def test_a_slow_end_is_not_taken_for_a_stuck_loop() -> None:
    assert run(WAITING.format(fault=STOPS_SLOWLY)) == (0, "exit 0: over")


def described(topic: str, *leaders: int) -> Mapping[str, Any]:
    """As the brokers describe a topic."""
    return {"topic": topic, "partitions": [{"partition": number, "leader": one} for number, one in enumerate(leaders)]}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param([described("compaction.events", 1, 2), described("other", -1)], True, id="of-others"),
        pytest.param([described("compaction.events", 1, -1)], False, id="no-leader"),
        pytest.param([described("compaction-monitor-sessions-v1-changelog", -1)], False, id="no-leader-of-a-changelog"),
        pytest.param(AccessError("not let in", "Ask for it"), False, id="not-let-in"),
        pytest.param(SettingsError("certfile: half written"), False, id="certificate-being-replaced"),
    ],
)
async def test_what_counts_as_an_answer_of_the_brokers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: Sequence[Any] | Exception, expected: bool
) -> None:
    """Only then is a worker stuck by itself: none of this ends it, nor its watchdog."""

    async def describe_topics() -> Any:
        return answer

    @asynccontextmanager
    async def connect(**_: Any) -> AsyncIterator[Any]:
        if isinstance(answer, Exception):
            raise answer
        yield SimpleNamespace(describe_topics=describe_topics)

    monkeypatch.setattr(topics, "connect", connect)
    process = _Process(load(worker="one", datadir=tmp_path, store="memory"), CounterCore())
    assert await process._brokers_answer() is expected
