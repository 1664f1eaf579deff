"""A real Alertmanager as a process, and what it can be told to notify: a receiver that keeps what it hears."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import yaml

from compaction_monitor.shell.embedded import supervised
from tests.e2e.brokers import Supervised, free_ports

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
# Debian's name first: upstream's program is called `alertmanager`.
PROGRAMS = ("prometheus-alertmanager", "alertmanager")
SOON = {"group_wait": "3s", "group_interval": "1s", "repeat_interval": "1h"}


class ProgramMissingError(Exception):
    """A program is not installed; the message is the reason a test is skipped for."""


def program(*names: str) -> str:
    """The first of these that is there.

    Raises:
        ProgramMissingError: None is.
    """
    for name in names:
        if found := shutil.which(name):
            return found
    raise ProgramMissingError(f"There is no {names[0]}")


class Receiver:
    """Listens on a port and keeps the body and path of every POST; `with Receiver() as heard:`."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.heard.append((self.path, json.loads(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def notified(self, receiver: str) -> list[dict[str, Any]]:
        """Notifications of one of Alertmanager's receivers."""
        return [body for path, body in self.heard if path == f"/{receiver}"]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()


def configured(receiver: str, timing: dict[str, str] = SOON) -> str:
    """The configuration that is shipped, with our receiver behind each of its own, and with this timing everywhere."""
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    for one in config["receivers"]:
        one["webhook_configs"] = [{"url": f"{receiver}/{one['name']}"}]
    config["route"].update(timing)
    for route in config["route"]["routes"]:
        for name in timing:
            route.pop(name, None)
    return yaml.safe_dump(config)


class Alertmanager(Supervised):
    """One Alertmanager on 127.0.0.1; `with Alertmanager(folder, configured(url)) as alertmanager:`."""

    def __init__(self, folder: Path, config: str, port: int | None = None) -> None:
        self._folder = folder
        self._config = folder / "alertmanager.yml"
        folder.mkdir(parents=True, exist_ok=True)
        self._config.write_text(config, encoding="utf-8")
        self.port = port or free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self, timeout_s: float = 30.0) -> None:
        """Return once it answers.

        Raises:
            ProgramMissingError: There is none.
        """
        command = [
            program(*PROGRAMS), f"--config.file={self._config}", f"--storage.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}", "--cluster.listen-address=",
        ]  # fmt: skip
        log_path = self._folder / "alertmanager.log"
        with log_path.open("ab") as log:
            self._process = supervised(command, log)
        if not wait_for(lambda: answers(f"{self.url}/-/ready"), timeout_s):
            self.stop()
            raise RuntimeError(f"Alertmanager did not start: {log_path.read_text(errors='replace')[-2000:]}")

    def alerts(self, *matchers: str) -> list[dict[str, Any]]:
        """The alerts that it holds to be open, by session and name."""
        return open_alerts(self.url, *matchers)

    def silence(self, **labels: str) -> None:
        """Silence what has these labels, for an hour."""
        silence = {
            "matchers": [{"name": name, "value": value, "isRegex": False} for name, value in labels.items()],
            "startsAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "endsAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600)),
            "createdBy": "test", "comment": "known",
        }  # fmt: skip
        body = json.dumps(silence).encode()
        request = Request(f"{self.url}/api/v2/silences", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=10) as answer:
            answer.read()


def open_alerts(url: str, *matchers: str) -> list[dict[str, Any]]:
    """The alerts that an Alertmanager holds to be open, by session and name."""
    query = urlencode([("filter", matcher) for matcher in matchers])
    with urlopen(f"{url}/api/v2/alerts?{query}", timeout=10) as answer:
        found: list[dict[str, Any]] = json.loads(answer.read())
    return sorted(found, key=lambda alert: (alert["labels"].get("session_id", ""), alert["labels"]["alertname"]))


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def answers(url: str) -> bool:
    """Whether a page is there."""
    try:
        with urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
