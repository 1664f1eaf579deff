"""The worker's own small web server: is it alive, is it ready, what has it counted. No table data, no session text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from compaction_monitor.shell.metrics import Metrics

# Reasons not to be ready; empty means ready.
Reasons = Callable[[], list[str]]


class WebServer:
    """Serves `/live`, `/ready` and `/metrics`; bound to loopback unless told otherwise.

    Args:
        dead: Reasons why the process should be restarted.
        unready: Reasons why it does no work at the moment.
    """

    def __init__(self, metrics: Metrics, *, host: str, port: int, dead: Reasons, unready: Reasons) -> None:
        self._metrics = metrics
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
        app.add_routes(
            [
                web.get("/live", self._live),
                web.get("/ready", self._ready),
                web.get("/metrics", self._expose),
            ]
        )
        # No access log: a probe every second would be most of what the worker logs.
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            site = web.TCPSite(self._runner, self._host, self._port, shutdown_timeout=1.0)
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
        body, content_type = self._metrics.expose(request.headers.get("Accept", ""), not self._unready())
        return web.Response(body=body, headers={"Content-Type": content_type})


def _answer(name: str, reasons: list[str]) -> web.Response:
    body: dict[str, Any] = {name: not reasons}
    if reasons:
        body["reasons"] = reasons
    return web.Response(body=orjson.dumps(body), status=503 if reasons else 200, content_type="application/json")
