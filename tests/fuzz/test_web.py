"""The worker's web server as anybody on the network may use it: by its OpenAPI document, and against all rules of HTTP."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error

from compaction_events.background import Background
from compaction_monitor.shell.metrics import Metrics
from compaction_monitor.shell.settings import load
from compaction_monitor.shell.web import Access, WebServer

DOCUMENT = Path(__file__).parents[2] / "deploy" / "openapi.yaml"
TOKEN = "a-token-of-this-test-only"
ANSWER_S = 5.0
SILENCE_S = 0.1
FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

schema = schemathesis.openapi.from_path(DOCUMENT)


class Served:
    """A server in a thread of its own, as it is in a worker; what it says of itself can be changed."""

    def __init__(self, loop: Background, **chosen: Any) -> None:
        self.dead: list[str] = []
        self.unready: list[str] = []
        of_settings = load(web_port=0, **chosen)
        self._loop = loop
        self._server = WebServer(
            Metrics(), Access.of(of_settings), host="127.0.0.1", port=0, dead=lambda: self.dead, unready=lambda: self.unready
        )
        self.port: int = loop.run(self._server.start())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._loop.run(self._server.stop())


@pytest.fixture(scope="module")
def loop() -> Iterator[Background]:
    with Background("web") as background:
        yield background


@pytest.fixture(scope="module")
def healthy(loop: Background) -> Iterator[Served]:
    served = Served(loop)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def guarded(loop: Background) -> Iterator[Served]:
    served = Served(loop, web_token=TOKEN)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def troubled(loop: Background) -> Iterator[Served]:
    served = Served(loop)
    served.dead, served.unready = ["fenced"], ["recovering"]
    yield served
    served.stop()


@schema.parametrize()
@FEW
def test_a_healthy_worker_keeps_to_its_document(case: Any, healthy: Served) -> None:
    response = case.call_and_validate(base_url=healthy.url)
    assert response.status_code < 500


@schema.parametrize()
@FEW
def test_one_in_trouble_says_so_and_keeps_to_it(case: Any, troubled: Served) -> None:
    response = case.call_and_validate(base_url=troubled.url, excluded_checks=[not_a_server_error])
    if response.status_code == 503:
        assert response.json()["reasons"][0] == "fenced"


@schema.parametrize()
@FEW
def test_a_guarded_one_lets_nobody_in_without_the_token(case: Any, guarded: Served) -> None:
    response = case.call_and_validate(base_url=guarded.url)
    if case.path == "/metrics" and case.method == "GET":
        assert response.status_code == 401
        assert b"compaction_" not in response.content


def test_the_document_names_every_path(healthy: Served) -> None:
    assert set(schema.raw_schema["paths"]) == {"/live", "/ready", "/metrics"}
    for path in ("/live", "/ready", "/metrics"):
        assert sent(healthy.port, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()).startswith(
            b"HTTP/1.1 200 "
        )


def sent(port: int, request: bytes, silence_s: float = ANSWER_S) -> bytes:
    """What is answered to raw bytes until the server closes, or says no more: it may wait for the rest of them."""
    answer = b""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=silence_s) as connection,
        suppress(ConnectionError, TimeoutError),
    ):
        connection.sendall(request)
        while part := connection.recv(65_536):
            answer += part
    return answer


METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get", "BREW", ""])
PATHS = st.sampled_from(
    [
        "/live", "/ready", "/metrics", "/", "//", "/live/", "/LIVE", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
        "/live%00",
        "/tables/sessions", "/table/sessions-v1/x", "/metrics?name[]=x",
        "*", "http://elsewhere/live", "/" + "a" * 9_000, "/é", "",
    ]
)  # fmt: skip
VERSIONS = st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "HTTQ/1.1", ""])
NAMES = st.sampled_from(
    [
        "Host",
        "Authorization",
        "Accept",
        "Content-Length",
        "Transfer-Encoding",
        "Connection",
        "Expect",
        "Upgrade",
        "Range",
        "X",
        "",
    ]
)
VALUES = st.sampled_from(
    [
        "x", "", "Bearer", f"Bearer {TOKEN}x", "bearer " + "x" * 20_000, "application/openmetrics-text; version=1.0.0",
        "*/*;q=x",
        "-1", "0", "10", "99999999999999999999", "chunked", "gzip, chunked", "100-continue", "websocket", "close", "keep-alive",
        "bytes=0-", "\x00", "a\r\n b", "\xff",
    ]
)  # fmt: skip
BODIES = st.sampled_from([b"", b"x", b"{}", b"0\r\n\r\n", b"ffffffff\r\n", b"x" * 100_000, b"GET /metrics HTTP/1.1\r\n\r\n"])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Anything from a good request to bytes that are none."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    lines = [" ".join(part for part in (draw(METHODS), draw(PATHS), draw(VERSIONS)))]
    lines += [f"{draw(NAMES)}: {draw(VALUES)}" for _ in range(draw(st.integers(0, 5)))]
    head = "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n"
    return head[: draw(st.integers(0, len(head)))] if draw(st.integers(0, 9)) == 0 else head + draw(BODIES)


@settings(FEW, max_examples=250)
@given(request=requests())
def test_no_bytes_make_it_fail_or_tell_more(request: bytes, guarded: Served) -> None:
    answer = sent(guarded.port, request, SILENCE_S)
    statuses = [int(status) for status in re.findall(rb"^HTTP/1\.[01] (\d{3}) ", answer, re.MULTILINE)]
    assert all(status < 500 for status in statuses), answer[:500]
    assert b"compaction_" not in answer
    assert b"Traceback" not in answer
    assert sent(guarded.port, b"GET /live HTTP/1.0\r\n\r\n").endswith(b'{"live":true}')
