"""Every process that docker-compose.yml describes, natively: the same names, commands and files, on free ports of 127.0.0.1.

What a container finds under a name (`kafka:19092`, `monitor-1:6066`) is put in place of that name in the configuration that
is shipped; times of Prometheus and Alertmanager are divided, so that what takes minutes can be seen in a short run.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGTERM, Signals
from typing import Any, Final
from urllib.error import URLError
from urllib.request import Request, urlopen

import yaml

from tests.e2e.alertmanagers import PROGRAMS as ALERTMANAGERS
from tests.e2e.alertmanagers import configured, program, wait_for
from tests.e2e.brokers import Kafka, free_ports

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
KAFKA, TOPICS, TOKEN = "kafka", "topics", "web-token"
WORKERS: Final = ("monitor-1", "monitor-2")
PROMETHEUS, ALERTMANAGER, BRIDGE, AGENT = "prometheus", "alertmanager", "bridge", "agent"
# Grafana itself cannot be had as a program; its dashboards are drawn by deploy/grafana/preview.py from the same JSON.
GRAFANA: Final = "grafana"
STARTED: Final = frozenset({KAFKA, TOPICS, TOKEN, *WORKERS, PROMETHEUS, ALERTMANAGER, BRIDGE, AGENT})
CHECKS: Final = """\
# Nobody answers for the deaf: their orders are due at once, so that it shows within the run.
[agents."deaf"]
loop = {deadline_s = 1, backoff = 1, resends_max = 1, expires_s = 4}

# Its controller dies halfway through an order.
[agents."forsaken"]
loop = {expires_s = 15}
"""
START_S: Final = 180.0
SHORTEST_MS: Final = 10_000
_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RANGE: Final = re.compile(r"(?<=\[)\w+(?=[\]:])|(?<=:)\w+(?=\])|(?<=offset )\w+")


class Service:
    """A process with a log; started again it goes on with its folder."""

    def __init__(self, name: str, folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name, self.folder = name, folder / name
        self.folder.mkdir(parents=True)
        self.log_path = self.folder / "log"
        self.command, self._environment = command, {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, number: Signals) -> None:
        if self._process is not None and self.running():
            self._process.send_signal(number)

    def end(self, number: Signals = SIGTERM, timeout_s: float = 20.0) -> int | None:
        """Its exit code; one that does not end in time is killed. None: it was never started."""
        if self._process is None:
            return None
        self.send(SIGCONT)
        self.send(number)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def tail(self, lines: int = 12) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


class Services:
    """All of them; `with Services(folder, …) as fleet:` they are up.

    Args:
        notified: Where Alertmanager sends what it notifies, and the bridge a copy of what it tells.
        agents: What metrics may name.
        divide: Times of rules and notifications are divided by this.
        scrape_s: Seconds between two looks of Prometheus.
        session_timeout_s: Of the workers.
    """

    def __init__(
        self, folder: Path, notified: str, agents: Sequence[str], divide: float, scrape_s: int, session_timeout_s: float
    ) -> None:
        self._divide, self._every = divide, f"{scrape_s}s"
        self.folder = folder
        (folder / KAFKA).mkdir(parents=True)
        self.kafka = Kafka(folder / KAFKA)
        self._token = folder / "token"
        self._token.write_text(secrets.token_urlsafe(32), encoding="utf-8")
        checks = folder / "checks.toml"
        checks.write_text(CHECKS, encoding="utf-8")
        ports = dict(zip((*WORKERS, PROMETHEUS, ALERTMANAGER, BRIDGE), free_ports(5), strict=True))
        self.urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        here = {f"{name}:{inside}": f"127.0.0.1:{ports[name]}" for name, inside in _INSIDE.items()}
        ours = [sys.executable, "-m", "compaction_monitor"]
        settings = self._settings(checks, agents) | {"COMPACTION_MONITOR_SESSION_TIMEOUT_S": str(session_timeout_s)}
        self.services = {
            name: Service(name, folder, [*ours, "worker"], settings | self._worker(name, ports[name])) for name in WORKERS
        }
        prometheus = self._prometheus(ports[PROMETHEUS], here)
        alertmanager = self._alertmanager(ports[ALERTMANAGER], notified)
        self.services[PROMETHEUS] = Service(PROMETHEUS, folder, prometheus, {})
        self.services[ALERTMANAGER] = Service(ALERTMANAGER, folder, alertmanager, {})
        told = [word for url in (self.urls[ALERTMANAGER], notified) for word in ("--url", url)]
        bridge = [*ours, "bridge", "alertmanager", *told, "--web-port", str(ports[BRIDGE]), "--resend-s", "5", "--json"]
        self.services[BRIDGE] = Service(BRIDGE, folder, bridge, settings)
        agent = [sys.executable, "-m", "compaction_monitor.example_agent", "--broker", self.kafka.address]
        self.services[AGENT] = Service(AGENT, folder, agent, {})
        self._topics = Service(TOPICS, folder, [*ours, "topics", "apply"], settings)

    def __enter__(self) -> Services:
        try:
            self.kafka.start()
            self._topics.start()
            if (code := self._topics.end(SIGCONT, START_S)) != 0:
                raise RuntimeError(f"topics apply ended with {code}: {self._topics.tail()}")
            # Whoever watches comes after what it watches: a monitor that does not answer yet is down for Prometheus.
            for names in (WORKERS, (ALERTMANAGER, AGENT), (PROMETHEUS, BRIDGE)):
                for name in names:
                    self.services[name].start()
                for name in names:
                    if name in self.urls:
                        self.until_ready(name)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        for service in self.services.values():
            service.end(SIGKILL)
        if self.kafka.pid is not None:
            self.send_broker(SIGCONT)
        self.kafka.stop()

    def until_ready(self, name: str) -> None:
        """Wait for one that was started."""
        if not wait_for(lambda: self.ready(name), START_S):
            raise TimeoutError(f"{name} is not ready after {START_S:g} s:\n{self.services[name].tail()}")

    def send_broker(self, number: Signals) -> None:
        """To the broker, not to what would end it with us."""
        assert self.kafka.pid is not None
        os.killpg(self.kafka.pid, number)

    def metrics(self, name: str) -> str:
        """A worker's page."""
        headers = {"Authorization": f"Bearer {self._token.read_text(encoding='utf-8')}"}
        with urlopen(Request(f"{self.urls[name]}/metrics", headers=headers), timeout=60) as answer:
            page: bytes = answer.read()
            return page.decode()

    def ready(self, name: str) -> bool:
        """Whether it says so."""
        path = "/-/ready" if name in (PROMETHEUS, ALERTMANAGER) else "/ready"
        try:
            with urlopen(self.urls[name] + path, timeout=2) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def _settings(self, checks: Path, agents: Sequence[str]) -> dict[str, str]:
        given = {
            "config": DEPLOY / "monitor.toml", "brokers": self.kafka.address, "web_host": "127.0.0.1",
            "web_token_file": self._token, "checks_file": checks, "metrics_agents": ",".join(agents),
        }  # fmt: skip
        return {f"COMPACTION_MONITOR_{name.upper()}": str(value) for name, value in given.items()}

    def _worker(self, name: str, port: int) -> dict[str, str]:
        given = {"worker": name, "datadir": self.folder / f"{name}-data", "web_port": port}
        return {f"COMPACTION_MONITOR_{key.upper()}": str(value) for key, value in given.items()}

    def _prometheus(self, port: int, here: Mapping[str, str]) -> list[str]:
        folder = self.folder / "prometheus-config"
        folder.mkdir()
        source = DEPLOY / "prometheus"
        config: dict[str, Any] = yaml.safe_load((source / "prometheus.yml").read_text(encoding="utf-8"))
        config["global"] |= dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), self._every)
        config["rule_files"] = []
        for path in sorted((source / "rules").glob("*.y*ml")):
            config["rule_files"].append(path.name)
            (folder / path.name).write_text(divided(path.read_text(encoding="utf-8"), self._divide), encoding="utf-8")
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_here(config, here, str(self._token))), encoding="utf-8")
        return [
            program(PROMETHEUS), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={self.folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage",
        ]  # fmt: skip

    def _alertmanager(self, port: int, notified: str) -> list[str]:
        file = self.folder / "alertmanager.yml"
        timing = {"group_wait": "1s", "group_interval": shorter("5m", self._divide), "repeat_interval": "1h"}
        file.write_text(configured(notified, timing), encoding="utf-8")
        return [
            program(*ALERTMANAGERS), f"--config.file={file}", f"--storage.path={self.folder / 'alertmanager-data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
        ]  # fmt: skip


_INSIDE: Final = {**dict.fromkeys(WORKERS, 6066), PROMETHEUS: 9090, ALERTMANAGER: 9093, BRIDGE: 6068}


def shorter(duration: str, divide: float) -> str:
    """A duration of Prometheus, divided; a range must hold some scrapes, so nothing becomes shorter than ten seconds.

    >>> shorter("5m", 20), shorter("1h30m", 20), shorter("30s", 20)
    ('15000ms', '270000ms', '10000ms')
    """
    total = sum(int(amount) * _UNIT_MS[unit] for amount, unit in _DURATION.findall(duration))
    return f"{max(min(total, SHORTEST_MS), round(total / divide))}ms"


def divided(rules: str, divide: float) -> str:
    """A rule file with all its times divided: `for`, `keep_firing_for`, and the ranges of its expressions."""
    loaded: dict[str, Any] = yaml.safe_load(rules)
    for group in loaded["groups"]:
        group.pop("interval", None)
        for rule in group["rules"]:
            rule["expr"] = _RANGE.sub(lambda found: shorter(found[0], divide), rule["expr"])
            rule |= {name: shorter(rule[name], divide) for name in ("for", "keep_firing_for") if name in rule}
    return yaml.safe_dump(loaded)


def _here(config: Any, here: Mapping[str, str], token: str) -> Any:
    """A configuration with the addresses and the token's file that there are on this machine."""
    match config:
        case dict():
            return {key: token if key == "credentials_file" else _here(value, here, token) for key, value in config.items()}
        case list():
            return [_here(value, here, token) for value in config]
        case str():
            return here.get(config, config)
    return config
