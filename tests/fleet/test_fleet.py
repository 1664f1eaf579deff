"""The short form of `make fleet`, and that what it starts is what docker-compose.yml describes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.absent import skip_or_fail
from tests.e2e.alertmanagers import ProgramMissingError, program
from tests.e2e.brokers import KafkaUnavailableError, jars
from tests.fleet.faults import short
from tests.fleet.run import Run
from tests.fleet.services import GRAFANA, ROOT, STARTED, Services, divided, shorter

MINUTES = 2.0


@pytest.fixture
def _programs() -> None:
    """Kafka, Prometheus, Alertmanager and Chromium: absent is a skip on a laptop, and a failure in CI."""
    try:
        jars()
        program("prometheus")
        program("prometheus-alertmanager", "alertmanager")
        program("chromium")
    except (KafkaUnavailableError, ProgramMissingError) as missing:
        skip_or_fail(str(missing))


@pytest.mark.kafka
@pytest.mark.chromium
@pytest.mark.usefixtures("_programs")
@pytest.mark.timeout(600)
async def test_a_fleet_is_watched_from_end_to_end(tmp_path: Path) -> None:
    """A worker that is killed, a fleet in danger, a controller that dies, poison: told as they must be, and nothing else."""
    said: list[str] = []
    plan = short(MINUTES)
    outcome = await Run(tmp_path, plan, said.append)()
    assert outcome.wrong == [], "\n".join(said)
    summary = outcome.summary()
    assert (summary["faults"], summary["kills"]) == (len(plan.faults), 1)
    assert outcome.events > 1_000
    assert 0 < outcome.malformed == outcome.dead_letters
    checks = {one.check for one in outcome.alerts if one.told}
    assert checks >= {"salience_inversion", "coverage_gap", "summary_failed", "remediation_unacknowledged"}
    assert {one.session_id for one in outcome.alerts if one.told} >= {"forsaken", "example-1"}
    pictures = sorted(path.stem for path in (tmp_path / "previews").glob("*.png"))
    assert pictures == sorted(path.stem for path in (ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
    assert abs(outcome.series["last"] - outcome.series["first"]) < 100, "no session adds a series"


def compose() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    return loaded


def test_what_is_started_is_what_compose_describes() -> None:
    assert compose().keys() - {GRAFANA} == STARTED


@pytest.mark.skipif(not shutil.which("prometheus"), reason="there is no prometheus")
@pytest.mark.skipif(not shutil.which("prometheus-alertmanager"), reason="there is no Alertmanager")
def test_commands_and_configurations_are_those_of_compose(tmp_path: Path) -> None:
    """Every word of a command there is in the one that is run here; but for addresses, folders, and what a laptop keeps."""
    native = Services(tmp_path, "http://127.0.0.1:1", [], 1.0, 1, 10.0)
    for name, service in native.services.items():
        words = [word for word in compose()[name]["command"] if isinstance(word, str)]
        options = [word.partition("=")[0] for word in words if "://" not in word and not word.isdigit() and ":" not in word]
        here = [word.partition("=")[0] for word in service.command]
        assert [word for word in options if word not in here and "retention" not in word] == [], name


def test_times_are_divided_and_nothing_else_is_changed() -> None:
    assert [shorter(text, 20) for text in ("15m", "1h30m", "30s", "2s")] == ["45000ms", "270000ms", "10000ms", "2000ms"]
    rule = {"alert": "A", "expr": 'sum(rate(a{b="5m"}[5m])) > 300 and c offset 1h', "for": "10m", "labels": {"severity": "x"}}
    text = yaml.safe_dump({"groups": [{"name": "g", "interval": "1m", "rules": [rule]}]})
    (group,) = yaml.safe_load(divided(text, 20))["groups"]
    assert group["rules"] == [rule | {"expr": 'sum(rate(a{b="5m"}[15000ms])) > 300 and c offset 180000ms', "for": "30000ms"}]
