"""The worker's own small web server: is it alive, is it ready, what has it counted. No table data, no session text.

`/live` and `/ready` are open to whoever reaches the port: a probe of Kubernetes cannot take a token from a secret, and they
say no more than why the worker does not work. `/metrics` is guarded; see `Access`.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import ssl
from collections.abc import Callable
from typing import Any, Self

import orjson
from aiohttp import web

from compaction_events.security import no_passphrase
from compaction_monitor.shell.metrics import Metrics
from compaction_monitor.shell.settings import PREFIX, Settings, SettingsError

# Reasons not to be ready; empty means ready.
Reasons = Callable[[], list[str]]
MIN_TOKEN_CHARS = 16


class Access:
    """Who may read what is guarded: whoever shows everything that was set, a bearer token, a client certificate, or both.

    Attributes:
        tls: What the server listens with; None: plain HTTP.
    """

    def __init__(self, token: Callable[[], str] | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._token = token
        self.tls = tls
        self._wants_certificate = tls is not None and tls.verify_mode is not ssl.CERT_NONE

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As the settings say.

        Raises:
            SettingsError: The server would be open beyond this machine, or a token or certificate cannot be used.
        """
        token = _token(settings)
        if token is None and settings.web_client_cafile is None and not _is_loopback(settings.web_host):
            raise SettingsError(
                f"{PREFIX}WEB_HOST={settings.web_host!r}: reachable from other machines, so /metrics needs "
                f"{PREFIX}WEB_TOKEN_FILE or {PREFIX}WEB_CLIENT_CAFILE; without either allowed: 127.0.0.1, ::1, localhost"
            )
        return cls(token, _server_tls(settings))

    def lets_in(self, request: web.Request) -> bool:
        if self._wants_certificate and not (request.transport and request.transport.get_extra_info("peercert")):
            return False
        return self._token is None or self._shows_token(request)

    def _shows_token(self, request: web.Request) -> bool:
        assert self._token is not None
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        try:
            wanted = self._token()
        except (OSError, UnicodeDecodeError, SettingsError):
            return False  # the file is gone or being replaced: nobody gets in
        # In constant time, and of bytes: of text it takes ASCII only.
        same = hmac.compare_digest(shown.strip().encode("utf-8", "surrogateescape"), wanted.encode())
        return same and scheme.lower() == "bearer"


def _token(settings: Settings) -> Callable[[], str] | None:
    """How to get the token; tried once, so that a wrong one is the operator's to know at start."""
    if settings.web_token is not None:
        given = _long_enough(settings.web_token.get_secret_value(), "WEB_TOKEN")
        return lambda: given
    path = settings.web_token_file
    if path is None:
        return None

    def read() -> str:
        return _long_enough(path.read_text(encoding="utf-8").strip(), "WEB_TOKEN_FILE")

    try:
        read()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "no UTF-8 text"
        raise SettingsError(f"{PREFIX}WEB_TOKEN_FILE={str(path)!r}: {why}") from None
    return read


def _long_enough(token: str, name: str) -> str:
    if len(token) < MIN_TOKEN_CHARS:
        raise SettingsError(f"{PREFIX}{name}: the token has {len(token)} characters; allowed: {MIN_TOKEN_CHARS} or more")
    return token


def _server_tls(settings: Settings) -> ssl.SSLContext | None:
    if settings.web_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.web_certfile, settings.web_keyfile, no_passphrase)
        if settings.web_client_cafile is not None:
            context.load_verify_locations(settings.web_client_cafile)
            # Optional in the handshake, because probes have none; one that is shown must be good. `lets_in` wants it.
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ValueError) as exc:
        files = [str(path) for path in (settings.web_certfile, settings.web_keyfile, settings.web_client_cafile) if path]
        raise SettingsError(f"{PREFIX}WEB_CERTFILE, WEB_KEYFILE or WEB_CLIENT_CAFILE: {files}: {exc}") from None
    return context


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class WebServer:
    """Serves `/live`, `/ready` and `/metrics`; bound to loopback unless told otherwise.

    Args:
        metrics: None: there is no `/metrics`.
        access: Who may read `/metrics`, and the TLS that is listened with.
        dead: Reasons why the process should be restarted.
        unready: Reasons why it does no work at the moment.
    """

    def __init__(
        self, metrics: Metrics | None, access: Access, *, host: str, port: int, dead: Reasons, unready: Reasons
    ) -> None:
        self._metrics = metrics
        self._access = access
        self._host, self._port = host, port
        self._dead, self._unready = dead, unready
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Start listening.

        Returns:
            The port.

        Raises:
            OSError: The address is taken.
        """
        app = web.Application()
        app.add_routes([web.get("/live", self._live), web.get("/ready", self._ready)])
        if self._metrics is not None:
            app.add_routes([web.get("/metrics", self._expose)])
        # No access log: a probe every second would be most of what the worker logs.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            site = web.TCPSite(self._runner, self._host, self._port, ssl_context=self._access.tls)
            await site.start()
        except BaseException:
            await self.stop()
            raise
        port: int = self._runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _live(self, _request: web.Request) -> web.Response:
        return _answer("live", self._dead())

    async def _ready(self, _request: web.Request) -> web.Response:
        return _answer("ready", self._dead() + self._unready())

    async def _expose(self, request: web.Request) -> web.Response:
        if not self._access.lets_in(request):
            return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})
        assert self._metrics is not None
        collected = self._metrics.collect(not self._unready())
        # In a thread: with many agents it takes a tenth of a second, and the partitions wait for the loop.
        body, content_type = await asyncio.to_thread(collected.page, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})


def _answer(name: str, reasons: list[str]) -> web.Response:
    body: dict[str, Any] = {name: not reasons}
    if reasons:
        body["reasons"] = reasons
    return web.Response(body=orjson.dumps(body), status=503 if reasons else 200, content_type="application/json")
