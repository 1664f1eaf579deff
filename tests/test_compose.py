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

from compaction_monitor.shell import settings
from compaction_monitor.shell.web import Access

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
# name:1.2 or longer; `latest` and a bare major move under us.
PINNED = re.compile(r"^[a-z0-9./-]+:v?\d+\.\d+(\.\d+)?[a-z0-9.-]*$")


def services() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return loaded


each_service = pytest.mark.parametrize("service", services().values(), ids=services())


def compose_config(file: Path) -> subprocess.CompletedProcess[str]:
    """What Compose itself says of a file; it needs no engine for that. The wheel puts its binary beside Python."""
    binary = Path(sys.executable).with_name("docker-compose.exe" if sys.platform == "win32" else "docker-compose")
    return subprocess.run([binary, "-f", file, "config", "-q"], capture_output=True, text=True, check=False)


def test_compose_accepts_it() -> None:
    checked = compose_config(COMPOSE)
    assert checked.returncode == 0, checked.stderr
    assert not checked.stderr


def test_compose_would_say_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(COMPOSE.read_text().replace("healthcheck:", "healthchek:"))
    assert compose_config(wrong).returncode != 0


@each_service
def test_ports_are_loopback_only(service: dict[str, Any]) -> None:
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in service.get("ports", []))


@each_service
def test_images_are_pinned(service: dict[str, Any]) -> None:
    assert PINNED.match(service["image"]), service["image"]


@each_service
def test_what_is_mounted_exists(service: dict[str, Any]) -> None:
    named = yaml.safe_load(COMPOSE.read_text())["volumes"]
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        if source.startswith("."):
            assert (ROOT / source).is_file()
            assert volume.endswith(":ro")
        else:
            assert source in named


@each_service
def test_what_runs_for_long_is_supervised(service: dict[str, Any]) -> None:
    if service["restart"] != "no":
        assert service["healthcheck"]["test"][0] == "CMD"


def test_the_monitor_waits_for_its_topics_and_its_broker() -> None:
    waits = {name: how["condition"] for name, how in services()["monitor"]["depends_on"].items()}
    ended = "service_completed_successfully"
    assert waits == {"kafka": "service_healthy", "topics": ended, "web-token": ended}


def test_the_token_is_made_once_and_is_what_the_worker_reads(tmp_path: Path) -> None:
    made = tmp_path / "web-token"
    (code,) = services()["web-token"]["command"]
    read_from = tomllib.loads((ROOT / "deploy" / "monitor.toml").read_text())["web_token_file"]
    assert read_from in code
    assert any(f"{volume}/".startswith(f"web-token:{Path(read_from).parent}") for volume in services()["monitor"]["volumes"])
    subprocess.run([sys.executable, "-c", code.replace(read_from, str(made))], check=True)
    token = made.read_text()
    assert Access.of(settings.load(web_host="0.0.0.0", web_token_file=made)).tls is None
    subprocess.run([sys.executable, "-c", code.replace(read_from, str(made))], check=True)
    assert made.read_text() == token
    assert len(token) >= 43


def test_the_mounted_settings_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(settings.PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(settings.CONFIG_VARIABLE, str(ROOT / "deploy" / "monitor.toml"))
    loaded = settings.load()
    listeners = services()["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"INTERNAL://{loaded.brokers[0]}" in listeners
    assert any(volume.endswith(f":{loaded.datadir}") for volume in services()["monitor"]["volumes"])
    assert services()["monitor"]["ports"] == [f"127.0.0.1:{loaded.web_port}:{loaded.web_port}"]


def test_the_image_is_pinned_built_in_stages_and_not_run_as_root() -> None:
    lines = DOCKERFILE.read_text().splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert len(bases) == 2
    assert all(PINNED.match(base) for base in bases)
    last_user = [line.split()[1] for line in lines if line.startswith("USER ")][-1]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", last_user)


def test_the_image_is_built_from_what_the_ignore_file_lets_in() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        name
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for name in line.split()[1:-1]
    }
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)
