"""What the demo runs on: a broker, topics and a worker of its own, and nothing of them left afterwards."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

from compaction_monitor.cli import topics
from compaction_monitor.cli.broker import EMBEDDED, broker_problems, load
from compaction_monitor.cli.exits import Code, Problem, extra

if TYPE_CHECKING:
    from compaction_monitor.shell.settings import Settings

READY_S = 45.0
STOP_S = 12.0
_POLL_S = 0.05
_LOG_LINES = 15


@contextmanager
def stage(broker: str, tell: Callable[[str], None]) -> Iterator[Settings]:
    """A broker with topics and a ready worker; the settings to reach them.

    Args:
        broker: `embedded`, or HOST:PORT. On a broker of others every name is this run's own.
        tell: Told what is being done.

    Raises:
        Problem: One of them did not start.
    """
    with ExitStack() as clean, _interrupted_by_signals():
        folder = clean.enter_context(_folder())
        address = clean.enter_context(_broker(broker, folder, tell))
        run = "compaction-demo" if broker == EMBEDDED else f"compaction-demo-{uuid.uuid4().hex[:8]}"
        names = {f"{kind}_topic": f"{run}.{word}" for kind, word in _TOPICS.items() if kind != "events"}
        settings = load(
            Code.invalid, None, brokers=address, app_id=run, worker=run, events_topics=f"{run}.events",
            datadir=folder / "worker", store="memory", web_port=_free_port(), **names,
            # Settings of the environment that are meant for a broker of the user's.
            **({"security_protocol": "PLAINTEXT"} if broker == EMBEDDED else {}),
        )  # fmt: skip
        wanted = topics.wanted(settings)
        with broker_problems():
            asyncio.run(topics.create(settings, wanted))
        if broker != EMBEDDED:
            clean.callback(_delete_topics, settings, [topic.name for topic in wanted])
        tell("starting a worker")
        clean.enter_context(_worker(settings, folder / "worker.log"))
        yield settings


_TOPICS = {"events": "events", "outcomes": "outcomes", "findings": "findings", "dead_letters": "dead-letters"}


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Whatever ends us ends what we started: SIGTERM and a closed terminal unwind like Ctrl-C."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        # Not an exception from here: inside asyncio, only its own handler of this signal ends tasks in good order.
        signal.raise_signal(signal.SIGINT)

    numbers = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _folder() -> Iterator[Path]:
    from compaction_monitor.shell.embedded import default_data_dir

    cache = default_data_dir().parent
    cache.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="demo-", dir=cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _broker(wanted: str, folder: Path, tell: Callable[[str], None]) -> Iterator[str]:
    if wanted != EMBEDDED:
        yield wanted
        return
    from compaction_monitor.shell.embedded import EmbeddedBroker, EmbeddedBrokerError

    tell("starting the embedded broker")
    broker = EmbeddedBroker(folder / "broker")
    try:
        broker.start()
    except EmbeddedBrokerError as error:
        raise Problem(Code.unreachable, "The embedded broker did not start.", str(error)) from None
    try:
        yield broker.address
    finally:
        broker.stop()


@contextmanager
def _worker(settings: Settings, log_path: Path) -> Iterator[None]:
    """A worker process, ready; told to end, and made to if it does not."""
    with log_path.open("wb") as log:
        process = subprocess.Popen(_command(settings), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_until_ready(process, settings.web_port, log_path)
        yield
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _command(settings: Settings) -> list[str]:
    """The same command that a user would give."""
    options = {
        "app_id": settings.app_id, "events_topics": settings.events_topics[0], "outcomes_topic": settings.outcomes_topic,
        "findings_topic": settings.findings_topic, "dead_letters_topic": settings.dead_letters_topic,
        "security_protocol": settings.security_protocol,
    }  # fmt: skip
    command = [sys.executable, "-m", "compaction_monitor", "worker", "--broker", ",".join(settings.brokers)]
    command += ["--name", settings.worker, "--store", settings.store, "--datadir", str(settings.datadir)]
    command += ["--web-port", str(settings.web_port)]
    return command + [part for name, value in options.items() for part in ("--set", f"{name}={value}")]


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log_path: Path) -> None:
    deadline = time.monotonic() + READY_S
    while not _ready(port):
        if process.poll() is not None:
            raise Problem(Code.failed, f"The worker ended with exit code {process.returncode}.", _tail(log_path))
        if time.monotonic() > deadline:
            raise Problem(Code.failed, f"The worker was not ready within {READY_S:g} s.", _tail(log_path))
        time.sleep(_POLL_S)


def _ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/ready", timeout=2) as response:
            return int(response.status) == 200
    except (URLError, OSError):
        return False


def _tail(log_path: Path) -> str:
    return "\n".join(log_path.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _delete_topics(settings: Settings, names: list[str]) -> None:
    """On a broker of others: only what this run created."""
    with extra("monitor"):
        from compaction_monitor.shell import client

    async def delete() -> None:
        async with client.admin(settings) as admin:
            await admin.delete_topics(names)

    with broker_problems():
        asyncio.run(delete())
