"""The worker's web server: what is open, what a token or a client certificate guards, and when it refuses to start."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import trustme

from compaction_monitor.shell.metrics import Metrics
from compaction_monitor.shell.settings import SettingsError, load
from compaction_monitor.shell.web import Access, WebServer

TOKEN = "a-token-of-this-test-only"
Get = Callable[..., Any]
Serve = Callable[..., AbstractAsyncContextManager[Get]]


class Files:
    """A CA of the test's own, and what it signed."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.cafile = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.cafile)
        self.certfile, self.keyfile = folder / "cert.pem", folder / "key.pem"
        server = self.ca.issue_cert("127.0.0.1")
        server.private_key_and_cert_chain_pem.write_to_path(self.certfile)
        server.private_key_pem.write_to_path(self.keyfile)

    def client(self, *, of: trustme.CA | None = None) -> ssl.SSLContext:
        """Trusts the CA; with `of` it shows a certificate that this one signed."""
        context = ssl.create_default_context(cafile=self.cafile)
        if of is not None:
            of.issue_cert("prometheus").configure_cert(context)
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def serve() -> Serve:
    """Runs the server with these settings, on a free port of loopback; `get(path, …)` gives status, headers and body."""

    @asynccontextmanager
    async def run(*, dead: list[str] | None = None, unready: list[str] | None = None, **settings: Any) -> AsyncIterator[Get]:
        chosen = load(web_port=0, **settings)
        server = WebServer(
            Metrics(), Access.of(chosen), host="127.0.0.1", port=0, dead=lambda: dead or [], unready=lambda: unready or []
        )
        port = await server.start()
        scheme = "https" if chosen.web_certfile else "http"

        async def get(path: str, tls: Any = True, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
            url = f"{scheme}://127.0.0.1:{port}{path}"
            async with aiohttp.ClientSession() as session, session.request(method, url, ssl=tls, headers=headers) as response:
                return response.status, response.headers, await response.read()

        try:
            yield get
        finally:
            await server.stop()

    return run


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_on_loopback_everything_is_open(serve: Serve) -> None:
    async with serve(dead=["fenced"], unready=["recovering"]) as get:
        live, ready, metrics = await get("/live"), await get("/ready"), await get("/metrics")
    assert (live[0], orjson.loads(live[2])) == (503, {"live": False, "reasons": ["fenced"]})
    assert (ready[0], orjson.loads(ready[2])) == (503, {"ready": False, "reasons": ["fenced", "recovering"]})
    assert metrics[0] == 200
    assert b"compaction_build_info" in metrics[2]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.1.2.3", "monitor.example.org"])
def test_elsewhere_it_refuses_to_start_without_a_guard(host: str) -> None:
    with pytest.raises(SettingsError) as error:
        Access.of(load(web_host=host))
    assert str(error.value) == (
        f"COMPACTION_MONITOR_WEB_HOST={host!r}: reachable from other machines, so /metrics needs "
        "COMPACTION_MONITOR_WEB_TOKEN_FILE or COMPACTION_MONITOR_WEB_CLIENT_CAFILE; without either allowed: 127.0.0.1, ::1, "
        "localhost"
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_guard(host: str) -> None:
    assert Access.of(load(web_host=host)).tls is None


def test_elsewhere_a_token_or_client_certificates_are_enough(files: Files) -> None:
    tls = {"web_certfile": files.certfile, "web_keyfile": files.keyfile}
    assert Access.of(load(web_host="0.0.0.0", web_token=TOKEN)).tls is None
    assert Access.of(load(web_host="0.0.0.0", web_client_cafile=files.cafile, **tls)).tls is not None
    with pytest.raises(SettingsError, match="reachable from other machines"):
        Access.of(load(web_host="0.0.0.0", **tls))  # a server's certificate keeps nobody out


async def test_a_token_guards_the_metrics_and_nothing_else(serve: Serve) -> None:
    async with serve(web_token=TOKEN) as get:
        assert (await get("/live"))[0] == 200
        assert (await get("/ready"))[0] == 200
        status, headers, body = await get("/metrics")
        assert (status, headers["WWW-Authenticate"], body) == (401, "Bearer", b"")
        wrong: list[dict[str, str]] = [
            bearer("another-token-of-that-length"), bearer(TOKEN + "x"), bearer(TOKEN[:-1]), bearer(""), bearer("tök€n"),
            {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": ""}, {"X-Token": TOKEN},
        ]  # fmt: skip
        for shown in wrong:
            assert (await get("/metrics", **shown))[0] == 401, shown
        assert (await get(f"/metrics?token={TOKEN}"))[0] == 401
        assert (await get("/metrics", method="HEAD"))[0] == 401
        assert (await get("/metrics", **bearer(TOKEN)))[0] == 200
        assert (await get("/metrics", Authorization=f"bearer {TOKEN}"))[0] == 200


async def test_a_token_file_is_read_anew_so_that_it_can_be_rotated(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    async with serve(web_token_file=path) as get:
        assert (await get("/metrics", **bearer(TOKEN)))[0] == 200
        path.write_text("the-next-token-of-this-test")
        assert (await get("/metrics", **bearer(TOKEN)))[0] == 401
        assert (await get("/metrics", **bearer("the-next-token-of-this-test")))[0] == 200
        for unusable in ("", "short"):
            path.write_text(unusable)
            assert (await get("/metrics", **bearer(unusable)))[0] == 401
        path.write_bytes(b"\xff" * 20)
        assert (await get("/metrics", **bearer("\ufffd" * 20)))[0] == 401
        path.unlink()
        assert (await get("/metrics", **bearer("")))[0] == 401


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), (b"", "0 characters"), (b"too-short\n", "9 characters"), (b"\xff" * 20, "no UTF-8 text")],
)
def test_an_unusable_token_file_is_the_operators_to_know(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=words):
        Access.of(load(web_host="0.0.0.0", web_token_file=path))


async def test_client_certificates_guard_the_metrics_and_nothing_else(serve: Serve, files: Files) -> None:
    tls = {"web_certfile": files.certfile, "web_keyfile": files.keyfile, "web_client_cafile": files.cafile}
    async with serve(**tls) as get:
        bare, good, stranger = files.client(), files.client(of=files.ca), files.client(of=trustme.CA())
        assert (await get("/live", tls=bare))[0] == 200
        assert (await get("/ready", tls=bare))[0] == 200
        assert (await get("/metrics", tls=bare))[0] == 401
        assert (await get("/metrics", tls=bare, **bearer(TOKEN)))[0] == 401
        assert (await get("/metrics", tls=good))[0] == 200
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await get("/live", tls=stranger)
    async with serve(**tls, web_token=TOKEN) as get:  # both were set: both are asked for
        assert (await get("/metrics", tls=good))[0] == 401
        assert (await get("/metrics", tls=bare, **bearer(TOKEN)))[0] == 401
        assert (await get("/metrics", tls=good, **bearer(TOKEN)))[0] == 200


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"web_token": "short"}, "WEB_TOKEN: the token has 5 characters"),
        ({"web_token": TOKEN, "web_token_file": "token"}, "give one of them"),
        ({"web_certfile": "cert.pem"}, "web_certfile and web_keyfile go together"),
        ({"web_client_cafile": "ca.pem"}, "web_client_cafile needs web_certfile"),
        ({"web_certfile": "/nowhere/cert.pem", "web_keyfile": "/nowhere/key.pem"}, "/nowhere/cert.pem"),
    ],
)
def test_a_guard_that_cannot_work_is_named(settings: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words) as error:
        Access.of(load(**settings))
    assert TOKEN not in str(error.value)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_passphrase(files: Files, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.keyfile.read_bytes(), password=None)
    encrypted = tmp_path / "key.pem"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
        )
    )
    with pytest.raises(SettingsError, match="the key is encrypted"):
        Access.of(load(web_certfile=files.certfile, web_keyfile=encrypted))


async def test_there_is_nothing_else_to_ask_for(serve: Serve) -> None:
    async with serve() as get:
        for path in ("/", "/tables", "/tables/sessions-v1", "/router", "/assets", "/debug", "/metrics/", "/live/../tables"):
            assert (await get(path))[0] == 404, path
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            for path in ("/live", "/ready", "/metrics"):
                assert (await get(path, method=method))[0] == 405, (method, path)


def test_the_token_is_shown_nowhere() -> None:
    settings = load(web_token=TOKEN)
    assert TOKEN not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    with pytest.raises(SettingsError) as error:
        load(web_token=TOKEN, web_port=-1)
    seen: BaseException | None = error.value
    while seen is not None:
        assert TOKEN not in f"{seen!r} {seen}"
        seen = seen.__cause__ or seen.__context__
