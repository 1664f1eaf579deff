"""The worker process: `run_worker` runs the app until a signal or a reason to end, and returns the exit code.

| code | meaning |
|---|---|
| 0 | stopped by SIGTERM or SIGINT |
| 69 | no broker answers |
| 70 | a fault in the program |
| 75 | fenced, paused for longer than the session timeout, stuck, or its local store failed: start it again |
| 78 | the settings, the disk or what is in the topics need a decision; the last line says which |
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable

from aiokafka.errors import KafkaError
from faust.exceptions import ConsistencyError

from compaction_events.errors import AccessError
from compaction_events.security import why_denied
from compaction_monitor.effects import Core
from compaction_monitor.shell import topics
from compaction_monitor.shell.app import make_app, new_event_loop
from compaction_monitor.shell.lanes import EX_CONFIG, EX_FENCED, EX_SOFTWARE
from compaction_monitor.shell.settings import Settings, SettingsError
from compaction_monitor.shell.settling import Refusal
from compaction_monitor.shell.store import DamagedStoreError, StoreError
from compaction_monitor.shell.watchdog import Watchdog
from compaction_monitor.shell.web import Access, WebServer

log = logging.getLogger(__name__)

EX_UNAVAILABLE = 69
HEARTBEAT_S = 0.5
PROBE_S = 5.0
LAST_WORDS_S = 1.0
GC_OBJECTS = 200_000


def _end(code: int, reason: str) -> None:
    # Whoever reads stderr may have stopped to: then the last line waits for ever, or for a lock held by one that does.
    last_words = threading.Timer(LAST_WORDS_S, os._exit, (code,))
    last_words.daemon = True
    last_words.start()
    log.critical("exit %d: %s", code, reason)
    logging.shutdown()
    os._exit(code)


class _Process:
    """One run of the worker: waits for what ends it, and ends it in time."""

    def __init__(self, settings: Settings, core: Core) -> None:
        self._settings = settings
        self._code: int | None = None
        self._reason = ""
        self._limited = False
        self._address = ""
        self._over = asyncio.Event()
        self._ended = threading.Event()
        access = Access.of(settings)
        self._app = make_app(settings, core, end_process=self.exit)
        self._web = WebServer(
            self._app.metrics,
            access,
            host=settings.web_host,
            port=settings.web_port,
            dead=lambda: [self._reason] if self._code else [],
            unready=self._app.owned.unready,
        )

    def exit(self, code: int, reason: str) -> None:
        """End the process; the first reason counts."""
        if code == EX_FENCED:
            # Another worker may own our partitions: touch nothing any more, the group and the stores included.
            _end(code, reason)
        if self._code is None:
            self._code, self._reason = code, reason
            self._limit(code, reason)
            log.log(logging.CRITICAL if code else logging.INFO, "ending: %s", reason)
        self._over.set()

    def _signalled(self, number: int, _frame: object) -> None:
        # Not the loop's own handler: where the loop is stuck, the limit must hold all the same.
        reason = f"signal {signal.Signals(number).name}"
        self._limit(0, reason)
        self._loop.call_soon_threadsafe(self.exit, 0, reason)

    def _limit(self, code: int, reason: str) -> None:
        """Everything that is committed is durable, so a process that does not stop by itself can be ended anywhere."""
        if not self._limited:
            self._limited = True
            timer = threading.Timer(self._settings.shutdown_timeout_s, _end, (code, f"{reason} (did not stop in time)"))
            timer.daemon = True
            timer.start()

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        try:
            port = await self._web.start()
            scheme = "https" if self._settings.web_certfile else "http"
            self._address = f"{scheme}://{self._settings.web_host}:{port}"
            log.info("web server on %s", self._address)
        except OSError as exc:
            self.exit(EX_CONFIG, f"web_host, web_port {self._settings.web_host}:{self._settings.web_port}: {exc.strerror}")
        self._watchdog = Watchdog(
            self._settings.stuck_timeout_s, self._app.owned.marks, self._brokers_answer, lambda reason: _end(EX_FENCED, reason)
        )
        # Until the very end: while the app stops, the loop is still looked at.
        beat = self._loop.create_task(self._watchdog.beat(HEARTBEAT_S))
        doing = (self._start(), self._look_at_the_app(), self._watchdog.run(HEARTBEAT_S))
        tasks = [self._loop.create_task(self._told(one)) for one in doing]
        threading.Thread(target=self._look_for_a_pause, name="pauses", daemon=True).start()
        await self._over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._app.stop()
        await self._web.stop()
        self._ended.set()
        beat.cancel()
        log.log(logging.CRITICAL if self._code else logging.INFO, "exit %d: %s", self._code, self._reason)
        return self._code or 0

    async def _start(self) -> None:
        try:
            await check_topics(self._settings, set(self._app.tables.changelog_topics))
            await self._app.start()
            await self._app._crashed.wait()
            self._crashed()
        except SettingsError as exc:
            self.exit(EX_CONFIG, str(exc))
        except AccessError as exc:
            self.exit(EX_CONFIG, str(exc))
        except KafkaError as exc:
            self.exit(EX_UNAVAILABLE, f"no broker answers at {', '.join(self._settings.brokers)}, or it refuses: {exc!r}")

    async def _told(self, doing: Awaitable[None]) -> None:
        """Nobody waits for what is done all along: where it fails, the worker would go on without."""
        try:
            await doing
        except Exception as exc:
            log.exception("a part of the worker failed")
            self.exit(EX_SOFTWARE, repr(exc))

    async def _look_at_the_app(self) -> None:
        told: list[int] | None = None
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if self._app.crashed:
                self._crashed()
            owned = sorted(self._app.owned.lanes)
            if owned != told and not self._app.owned.unready():
                log.info("ready: %s; %s", _listed(owned, self._settings.partitions), self._address)
                told = owned

    def _look_for_a_pause(self) -> None:
        """Notice that the process was paused: another worker may own its partitions since, and has their state.

        In a thread of its own: while a loop is busy the group still hears of us, and nothing was paused.
        """
        limit = self._settings.session_timeout_s
        before = time.monotonic()
        while not self._ended.wait(HEARTBEAT_S):
            paused = time.monotonic() - before - HEARTBEAT_S
            if paused > limit:
                _end(EX_FENCED, f"paused for {paused:.0f} s, longer than the session timeout of {limit:g} s")
            self._watchdog.look_at_the_loop()
            before = time.monotonic()

    async def _brokers_answer(self) -> bool:
        """Asked over a connection of its own: ours may be what is stuck.

        A partition of ours that has no leader is no answer either: what is stuck there waits for one, and all else goes on.
        """
        try:
            async with asyncio.timeout(PROBE_S), topics.connect(**self._settings.client_options()) as admin:
                described = await admin.describe_topics()
        # The last two: a certificate, or a password, that is being replaced.
        except (KafkaError, TimeoutError, OSError, AccessError, SettingsError) as exc:
            log.info("the brokers do not answer: %r", exc)
            return False
        ours = {*self._settings.topics, *self._app.tables.changelog_topics}
        leaderless = [
            f"{topic['topic']} partition {partition['partition']}"
            for topic in described
            for partition in topic["partitions"]
            if topic["topic"] in ours and partition["leader"] < 0
        ]
        if leaderless:
            log.warning("no leader: %s", ", ".join(leaderless))
        return not leaderless

    def _crashed(self) -> None:
        reason = self._app.crash_reason
        if isinstance(reason, ConsistencyError):
            path = self._settings.datadir / self._settings.app_id
            detail = " ".join(str(reason).split())  # Faust's are several lines long
            self.exit(EX_CONFIG, f"the local store below {path} is ahead of its changelog, which lost data: {detail}")
        elif isinstance(reason, DamagedStoreError):
            self.exit(EX_FENCED, str(reason))
        elif isinstance(reason, Refusal | StoreError):
            self.exit(EX_CONFIG, str(reason))
        elif reason is not None and (denied := why_denied(reason)):
            self.exit(EX_CONFIG, str(denied))
        elif isinstance(reason, KafkaError | TimeoutError):
            self.exit(EX_UNAVAILABLE, f"the brokers do not answer, or refuse: {reason!r}")
        else:
            self.exit(EX_SOFTWARE, f"Faust ended: {reason!r}")


def _listed(owned: list[int], partitions: int) -> str:
    """What this worker has of all partitions, in words."""
    if not owned:
        return f"no partition; other workers have all {partitions}"
    return f"all {partitions} partitions" if len(owned) == partitions else f"partitions {owned} of {partitions}"


async def check_topics(settings: Settings, changelogs: set[str]) -> None:
    """Every topic exists with the configured partition count.

    Raises:
        SettingsError: One does not.
        AccessError: The broker does not let us in.
        KafkaError: No broker answers, or it refuses.
    """
    async with topics.connect(**settings.client_options()) as admin:
        # All are asked for, not these by name: asking for a missing one creates it where auto-create is on.
        described = {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}
    counts = {name: described.get(name, 0) for name in (*settings.topics, *sorted(changelogs))}
    missing = [name for name, count in counts.items() if not count]
    if missing:
        # A broker does not list what it may not show.
        raise SettingsError(
            f"topics missing, or hidden from this client: {', '.join(missing)}. `topics apply` creates them, `topics acls "
            "--role monitor` prints the rights that show them"
        )
    if set(counts.values()) != {settings.partitions}:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise SettingsError(f"every topic must have {settings.partitions} partitions (setting partitions); found: {listed}")


def run_worker(settings: Settings, core: Core) -> int:
    """Run the worker until it is told to end.

    Returns:
        The exit code; see the table at the top.
    """

    async def main() -> int:
        return await _Process(settings, core).run()

    # What is loaded by now stays, and a batch makes thousands of objects that die with it without any help: at the default
    # threshold a tenth of the worker's time is spent looking for rings among them.
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, 20, 20)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            code = runner.run(main())
        except (SettingsError, KafkaError) as exc:
            log.critical("exit %d: %s", EX_CONFIG, exc)
            code = EX_CONFIG
    sys.stdout.flush()
    return code
