"""A real Prometheus as a process: scrapes what it is told to, every second, with the rules that are shipped."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from compaction_monitor.shell.embedded import supervised
from tests.e2e.alertmanagers import ROOT, answers, program, wait_for
from tests.e2e.brokers import free_ports

RULES = ROOT / "deploy" / "prometheus" / "rules"


class PrometheusProcess:
    """One Prometheus on 127.0.0.1; `with PrometheusProcess(folder, ["127.0.0.1:6066"]) as prometheus: prometheus.url`.

    Args:
        targets: HOST:PORT of what has a page of metrics.
    """

    def __init__(self, folder: Path, targets: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_config(targets)), encoding="utf-8")

    def start(self, timeout_s: float = 30.0) -> None:
        """Return once it answers.

        Raises:
            ProgramMissingError: There is none.
        """
        command = [
            program("prometheus"), f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address=127.0.0.1:{self._port}",
            "--enable-feature=exemplar-storage",
        ]  # fmt: skip
        log_path = self._folder / "prometheus.log"
        with log_path.open("ab") as log:
            self._process = supervised(command, log)
        if not wait_for(lambda: answers(f"{self.url}/-/ready"), timeout_s):
            self.stop()
            raise RuntimeError(f"Prometheus did not start: {log_path.read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def _config(targets: Sequence[str]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES / "*.yaml")],
        "scrape_configs": [{"job_name": "compaction-monitor", "static_configs": [{"targets": list(targets)}]}],
    }
