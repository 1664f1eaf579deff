"""`ingest --follow`: sessions are sent while their agents write them, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compaction_events.codec import encode
from compaction_events.facts import Fact
from compaction_events.ids import text_hash
from compaction_monitor.cli import output
from compaction_monitor.cli.exits import Code, Problem

if TYPE_CHECKING:
    from compaction_events.adapters.following import Follower
    from compaction_monitor.shell.settings import Settings

FILE: Final = "file:"
Deliver = Callable[[Sequence[Fact]], Awaitable[None]]


def cursor_of(paths: Sequence[Path], target: str) -> Path:
    """Where to remember what was sent from these paths to this target, unless told."""
    name = text_hash("\n".join([target, *sorted(str(path.absolute()) for path in paths)]))
    return Path.home() / ".local" / "state" / "compaction-monitor" / f"ingest-{name}.json"


def to_file(path: Path) -> Deliver:
    """Appends one JSON event a line; a line that a killed process left torn is ended first."""

    async def deliver(facts: Sequence[Fact]) -> None:
        lines = b"".join(encode(fact).value + b"\n" for fact in facts)
        with path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                lines = lines if file.read(1) == b"\n" else b"\n" + lines
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    return deliver


@asynccontextmanager
async def to_broker(settings: Settings, source: str) -> AsyncIterator[Deliver]:
    """Sends to the events topic, and waits until the broker has confirmed."""
    from compaction_monitor.shell.client import Sender

    async with Sender(settings, source) as sender:

        async def deliver(facts: Sequence[Fact]) -> None:
            for fact in facts:
                await sender.send(fact, None)
            await sender.flush()

        yield deliver


async def follow(follower: Follower, deliver: Deliver, interval_s: float, stop: asyncio.Event) -> dict[str, Any]:
    """Look, deliver, remember; again when `interval_s` has passed, until `stop`."""
    sent, sessions = 0, set()
    while True:
        news = follower.poll()
        # Reading takes time; the connection must not wait for it.
        while (found := await asyncio.to_thread(next, news, None)) is not None:
            await deliver(found.facts)
            follower.delivered(found)
            sent += len(found.facts)
            sessions.add(found.session.session_id)
            if stop.is_set():
                break
        try:
            await asyncio.wait_for(stop.wait(), interval_s)
        except TimeoutError:
            continue
        return {"sent": sent, "sessions": sorted(sessions)}


def run(follower: Follower, target: str, settings: Settings | None, interval_s: float, source: str) -> dict[str, Any]:
    """Follow until SIGTERM or SIGINT; returns what was sent."""

    async def main() -> dict[str, Any]:
        stop = asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, stop.set)
        output.note(f"following, to {target}; end with Ctrl-C")
        if settings is None:
            return await follow(follower, to_file(Path(target.removeprefix(FILE))), interval_s, stop)
        async with to_broker(settings, source) as deliver:
            return await follow(follower, deliver, interval_s, stop)

    try:
        return asyncio.run(main())
    except OSError as error:
        if error.filename is None:
            raise
        todo = "Give files you can write to: --cursor FILE, and --broker file:PATH."
        raise Problem(Code.failed, f"Cannot write {error.filename}", error.strerror or "", todo) from None
