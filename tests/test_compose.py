"""docker-compose.yml and what it mounts: valid for Compose itself, reachable from this machine only, pinned, and supervised."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction_monitor.example_agent import __main__ as example_agent
from compaction_monitor.shell import settings
from compaction_monitor.shell.web import Access
from tests.natively import COMPOSE, ROOT, composed, program
from tests.test_readme import parsed

# name:1.2 or longer; `latest` and a bare major move under us.
PINNED = re.compile(r"^[a-z0-9./-]+:v?\d+\.\d+(\.\d+)?[a-z0-9.-]*$")
PROFILES = ("demo",)
# One for each worker: a name of its own, its own volume, its own port of the host.
MONITORS = ("monitor-1", "monitor-2")

SERVICES: dict[str, dict[str, Any]] = composed(*PROFILES)["services"]
each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)


def lasts(service: dict[str, Any]) -> bool:
    """Whether a service runs until it is stopped; the others do one thing and end."""
    return bool(service["restart"] != "no")


def compose_config(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What Compose itself says of a file; it needs no engine for that."""
    command = [program("docker-compose"), "-f", str(file), *options, "config", "-q"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("profile", [None, *PROFILES])
def test_compose_accepts_it(profile: str | None) -> None:
    checked = compose_config(COMPOSE, *(["--profile", profile] if profile else []))
    assert checked.returncode == 0, checked.stderr
    assert not checked.stderr


def test_compose_would_say_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(COMPOSE.read_text().replace("healthcheck:", "healthchek:"))
    assert compose_config(wrong).returncode != 0


def test_these_are_all_profiles() -> None:
    named = {
        name for service in yaml.safe_load(COMPOSE.read_text())["services"].values() for name in service.get("profiles", [])
    }
    assert named == set(PROFILES)


@each_service
def test_ports_are_loopback_only(service: dict[str, Any]) -> None:
    assert {port["host_ip"] for port in service.get("ports", [])} <= {"127.0.0.1"}


def test_no_two_services_want_one_port_of_the_host() -> None:
    ports = [port["published"] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(set(ports)) == len(ports)


@each_service
def test_images_are_pinned(service: dict[str, Any]) -> None:
    assert PINNED.match(service["image"]), service["image"]


@each_service
def test_what_is_mounted_exists_and_cannot_be_written(service: dict[str, Any]) -> None:
    named = composed(*PROFILES)["volumes"]
    for volume in service.get("volumes", []):
        if volume["type"] == "bind":
            assert Path(volume["source"]).exists()
            assert volume["read_only"]
        else:
            assert volume["source"] in named


@each_service
def test_what_runs_for_long_is_supervised(service: dict[str, Any]) -> None:
    assert (service.get("healthcheck", {}).get("test", [""])[0] == "CMD") is lasts(service)


@each_service
def test_what_is_waited_for_is_healthy_or_done(service: dict[str, Any]) -> None:
    waits = {name: how["condition"] for name, how in service.get("depends_on", {}).items()}
    assert waits == {name: "service_healthy" if lasts(SERVICES[name]) else "service_completed_successfully" for name in waits}


@each_service
def test_our_own_run_with_nothing_they_do_not_need(service: dict[str, Any]) -> None:
    if "build" in service:
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_the_workers_share_nothing_that_is_one_workers() -> None:
    assert {name for name in SERVICES if name.startswith("monitor")} == set(MONITORS)
    for name in MONITORS:
        service = SERVICES[name]
        data = {volume["target"]: volume["source"] for volume in service["volumes"]}
        assert service["environment"]["COMPACTION_MONITOR_WORKER"] == name
        assert data["/var/lib/compaction-monitor"] == f"{name}-data"
        assert set(service["depends_on"]) == {"topics", "web-token"}


@pytest.mark.parametrize("killed_before", [False, True], ids=["first", "killed before it wrote"])
def test_the_token_is_made_once_and_is_what_the_workers_read(tmp_path: Path, killed_before: bool) -> None:
    made = tmp_path / "web-token"
    (code,) = SERVICES["web-token"]["command"]
    read_from = tomllib.loads((ROOT / "deploy" / "monitor.toml").read_text())["web_token_file"]
    assert read_from in code
    if killed_before:
        made.touch()
    subprocess.run([sys.executable, "-c", code.replace(read_from, str(made))], check=True)
    token = made.read_text()
    assert Access.of(settings.load(web_host="0.0.0.0", web_token_file=made)).tls is None
    subprocess.run([sys.executable, "-c", code.replace(read_from, str(made))], check=True)
    assert made.read_text() == token
    assert len(token) >= 43


def test_the_mounted_settings_are_settings_and_guard_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("COMPACTION_MONITOR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(settings.CONFIG_VARIABLE, str(ROOT / "deploy" / "monitor.toml"))
    loaded = settings.load()
    listeners = SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"INTERNAL://{loaded.brokers[0]}" in listeners
    for name in MONITORS:
        assert mounted(name, str(loaded.datadir)) == f"{name}-data"
        assert mounted(name, str(loaded.web_token_file and loaded.web_token_file.parent)) == "web-token"
        assert [port["target"] for port in SERVICES[name]["ports"]] == [loaded.web_port]
    with pytest.raises(settings.SettingsError, match="WEB_TOKEN_FILE"):
        Access.of(loaded.model_copy(update={"web_token_file": None}))


def test_the_agents_probe_looks_for_the_brokers_port() -> None:
    broker = SERVICES["agent"]["command"][1]
    assert f":{int(broker.rpartition(':')[2]):04X} 01" in SERVICES["agent"]["healthcheck"]["test"][-1]


def mounted(service: str, target: str) -> str:
    """What a service finds at a path: a file or folder of this repository, or a volume."""
    (source,) = [volume["source"] for volume in SERVICES[service]["volumes"] if volume["target"] == target]
    return str(source)


def test_prometheus_finds_every_worker_its_rules_and_its_alertmanager() -> None:
    folder = Path(mounted("prometheus", "/etc/prometheus"))
    assert "--config.file=/etc/prometheus/prometheus.yml" in SERVICES["prometheus"]["command"]
    config = yaml.safe_load((folder / "prometheus.yml").read_text(encoding="utf-8"))
    workers = {job["job_name"]: job for job in config["scrape_configs"]}["compaction-monitor"]
    port = SERVICES[MONITORS[0]]["ports"][0]["target"]
    assert [target for group in workers["static_configs"] for target in group["targets"]] == [
        f"{name}:{port}" for name in MONITORS
    ]
    # The token that the workers ask for, where this container finds it.
    token = tomllib.loads((ROOT / "deploy" / "monitor.toml").read_text())["web_token_file"]
    assert workers["authorization"] == {"credentials_file": token}
    assert mounted("prometheus", str(Path(token).parent)) == "web-token"
    assert all(list(folder.glob(pattern)) for pattern in config["rule_files"])
    told = [group["targets"] for told in config["alerting"]["alertmanagers"] for group in told["static_configs"]]
    assert told == [[f"alertmanager:{SERVICES['alertmanager']['ports'][0]['target']}"]]


def test_the_bridge_tells_the_alertmanager_there_is() -> None:
    words = SERVICES["bridge"]["command"]
    assert words[words.index("--url") + 1] == f"http://alertmanager:{SERVICES['alertmanager']['ports'][0]['target']}"
    assert f":{words[words.index('--web-port') + 1]}/ready" in SERVICES["bridge"]["healthcheck"]["test"][-1]


def test_grafana_is_given_its_prometheus_and_every_dashboard() -> None:
    provisioning = Path(mounted("grafana", "/etc/grafana/provisioning"))
    (source,) = [yaml.safe_load(path.read_text()) for path in (provisioning / "datasources").iterdir()]
    assert [found["url"] for found in source["datasources"]] == [
        f"http://prometheus:{SERVICES['prometheus']['ports'][0]['target']}"
    ]
    (provider,) = [yaml.safe_load(path.read_text()) for path in (provisioning / "dashboards").iterdir()]
    (path,) = [found["options"]["path"] for found in provider["providers"]]
    dashboards = Path(mounted("grafana", path))
    assert dashboards == ROOT / "deploy" / "grafana" / "dashboards"
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (str(home.parent), (dashboards / home.name).is_file()) == (path, True)


def test_the_agent_works_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(example_agent, "_work", given.append)
    example_agent.main(SERVICES["agent"]["command"])
    assert [found.broker for found in given] == ["kafka:19092"]


@each_service
def test_commands_of_ours_are_commands(service: dict[str, Any]) -> None:
    if "build" in service and not service["entrypoint"]:
        parsed(tuple(service["command"]))
