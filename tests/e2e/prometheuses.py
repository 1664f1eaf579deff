"""A real Prometheus as a process: scrapes what it is told to, every second, with the rules that are shipped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from compaction_monitor.shell.embedded import supervised
from tests.e2e.alertmanagers import ROOT, answers, program, wait_for
from tests.e2e.brokers import Supervised, free_ports

RULES = ROOT / "deploy" / "prometheus" / "rules"


class PrometheusProcess(Supervised):
    """One Prometheus on 127.0.0.1; `with PrometheusProcess(folder, ["127.0.0.1:6066"]) as prometheus: prometheus.url`.

    Args:
        targets: HOST:PORT of what has a page of metrics.
    """

    def __init__(self, folder: Path, targets: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self._port}"
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


def _config(targets: Sequence[str]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES / "*.yaml")],
        "scrape_configs": [{"job_name": "compaction-monitor", "static_configs": [{"targets": list(targets)}]}],
    }
