"""From the findings topic to Alertmanagers: one reader, and for each Alertmanager one sender that no other waits for.

What is known is in memory alone. The group's committed position stays at the oldest record that is still needed, so a
restart reads just that again, and nobody is told of anything before all that was in the log then has been read.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import aiohttp
import orjson
from yarl import URL

from compaction_events.consumer import FindingsConsumer
from compaction_events.findings import Alert
from compaction_monitor.alertmanager import Board, Identity
from compaction_monitor.shell import client
from compaction_monitor.shell.settings import Settings
from compaction_monitor.shell.web import Access, WebServer

log = logging.getLogger(__name__)

AT_ONCE: Final = 64  # alerts in a request, as Prometheus sends them
REQUEST_S: Final = 10.0
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 30.0
LOOK_S: Final = 0.5
COMMIT_S: Final = 5.0
# What ends is told so at once; this is for a bridge that is gone. A restart tells nothing while it reads again what may be
# weeks of findings, and nothing that is open may end meanwhile.
MISSED_RESENDS: Final = 15


class PortError(RuntimeError):
    """The web port is not to be had."""


class Sender:
    """Keeps one Alertmanager told: what changed at once, everything again every `resend_s`.

    Attributes:
        trouble: Why the last attempt failed; empty if it did not.
        sent: Alerts it took.
    """

    def __init__(self, url: URL, board: Board, resend_s: float, everything: Callable[[], Iterable[Identity]]) -> None:
        self.name = str(url.with_user(None))
        self._url = url / "api" / "v2" / "alerts"
        self._board, self._resend_s, self._everything = board, resend_s, everything
        self._lasting = timedelta(seconds=MISSED_RESENDS * resend_s)
        self._pending: dict[Identity, None] = {}
        self._changed = asyncio.Event()
        self.trouble = "was not asked yet"
        self.sent = 0

    def tell(self, identities: Iterable[Identity]) -> None:
        """These have changed."""
        self._pending.update(dict.fromkeys(identities))
        if self._pending:
            self._changed.set()

    async def run(self, http: aiohttp.ClientSession) -> None:
        """Until it is cancelled."""
        now = asyncio.get_running_loop().time
        again_at, retry_s = now(), FIRST_RETRY_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(again_at):
                    await self._changed.wait()
            if now() >= again_at:
                again_at = now() + self._resend_s
                self.tell(self._everything())
            self._changed.clear()
            if await self._send_pending(http):
                retry_s = FIRST_RETRY_S
                continue
            await asyncio.sleep(min(retry_s, self._resend_s))
            retry_s = min(2 * retry_s, LAST_RETRY_S)
            self._changed.set()

    async def _send_pending(self, http: aiohttp.ClientSession) -> bool:
        while True:  # with nothing to tell, an empty request says whether it is there
            chunk = list(self._pending)[:AT_ONCE]
            for identity in chunk:
                del self._pending[identity]
            documents = self._board.documents(chunk, datetime.now(UTC), self._lasting)
            trouble = await self._post(http, documents)
            self._says(trouble)
            if trouble:
                self._pending = dict.fromkeys(chunk) | self._pending
                return False
            self.sent += len(documents)
            if not self._pending:
                return True

    async def _post(self, http: aiohttp.ClientSession, documents: list[dict[str, Any]]) -> str:
        """What went wrong, empty if nothing did."""
        headers = {"Content-Type": "application/json"}
        try:
            async with http.post(self._url, data=orjson.dumps(documents), headers=headers, allow_redirects=False) as answer:
                if answer.status < 300:
                    return ""
                said = (await answer.text(errors="replace"))[:200]
                if answer.status == 400:
                    # It took those that it could, and will never take the others.
                    log.warning("%s refused some of %d alerts: %s", self.name, len(documents), said)
                    return ""
                return f"answers {answer.status}: {said}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"does not answer: {type(error).__name__}"

    def _says(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            log.warning("%s %s; trying again", self.name, trouble)
        elif self.trouble and not trouble:
            log.info("%s takes alerts", self.name)
        self.trouble = trouble


class Bridge:
    """All of it.

    Args:
        urls: Every Alertmanager of a cluster; each is told everything, and they agree among themselves.
        group_id: Bridges with one name share the work; different clusters of Alertmanagers need different names.
        web_port: Where `/live` and `/ready` are served, on the loopback interface unless the settings say otherwise.
    """

    def __init__(
        self, settings: Settings, urls: Iterable[URL], *, group_id: str, resend_s: float, web_port: int | None = None
    ) -> None:
        self._settings, self._group_id = settings, group_id
        self._web_port = web_port
        self._board = Board()
        self._caught_up = False
        self._senders = [Sender(url, self._board, resend_s, self._everything) for url in urls]

    def _unready(self) -> list[str]:
        """Why not all that is known is told."""
        reasons = [] if self._caught_up else ["still reading what was published before"]
        return reasons + [f"{sender.name} {sender.trouble}" for sender in self._senders if sender.trouble]

    async def run(self) -> None:
        """Until SIGTERM or SIGINT.

        Raises:
            BrokerError: No broker answers, it refuses, or the findings topic is missing.
            PortError: The web port is taken.
        """
        over = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):  # Windows has no signal handlers in its loop
                asyncio.get_running_loop().add_signal_handler(number, over.set)
        async with self._served():
            await client.require_topics(self._settings, [self._settings.findings_topic])
            with client.translated(self._settings):
                await self._work(over)

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[None]:
        if self._web_port is None:
            yield
            return
        host = self._settings.web_host
        server = WebServer(None, Access(), host=host, port=self._web_port, dead=list, unready=self._unready)
        try:
            port = await server.start()
        except OSError as error:
            raise PortError(error.strerror or "") from error
        log.info("web server on http://%s:%d", host, port)
        try:
            yield
        finally:
            await server.stop()

    async def _work(self, over: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=REQUEST_S)
        async with self._consumer() as findings, aiohttp.ClientSession(timeout=timeout) as http:
            work = [over.wait(), self._read(findings), self._look(findings), *(one.run(http) for one in self._senders)]
            tasks = [asyncio.ensure_future(each) for each in work]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        told = ", ".join(f"{sender.sent} to {sender.name}" for sender in self._senders)
        log.info("ended: %d alerts open; told %s; %s", self._board.firing, told, findings.stats)

    def _consumer(self) -> FindingsConsumer:
        options = self._settings.client_options()
        return FindingsConsumer(
            ",".join(options.pop("bootstrap_servers")), group_id=self._group_id, topic=self._settings.findings_topic,
            start="earliest", commit_every_s=COMMIT_S, keep_from=self._board.read_again_from, on_revoked=self._forget,
            **options,
        )  # fmt: skip

    def _forget(self) -> None:
        self._board.forget()
        self._caught_up = False

    def _everything(self) -> Iterable[Identity]:
        return self._board.identities() if self._caught_up else ()

    async def _read(self, findings: FindingsConsumer) -> None:
        async for finding in findings:
            if isinstance(finding, Alert):
                place = findings.place
                assert place is not None
                written_at = datetime.fromtimestamp(place.written_ms / 1000, UTC)
                changed = self._board.take(finding, place.partition, place.offset, written_at)
                if self._caught_up:
                    self._tell(changed)

    async def _look(self, findings: FindingsConsumer) -> None:
        """Notice that everything old is read, and forget what ended a while ago."""
        while True:
            self._board.prune(datetime.now(UTC))
            if findings.caught_up and not self._caught_up:
                self._caught_up = True
                log.info("caught up: %d alerts open", self._board.firing)
                self._tell(self._everything())
            await asyncio.sleep(LOOK_S)

    def _tell(self, identities: Iterable[Identity]) -> None:
        changed = tuple(identities)
        for sender in self._senders:
            sender.tell(changed)
