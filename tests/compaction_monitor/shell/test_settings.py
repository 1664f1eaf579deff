"""Settings: where they come from, and that a wrong one is named with its value and what is allowed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compaction_monitor.shell.settings import PREFIX, SettingsError, load


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)


def test_defaults_bind_to_loopback() -> None:
    settings = load()
    assert settings.web_host == "127.0.0.1"
    assert settings.partitions == 8
    assert settings.input_topics == ("compaction.events", "compaction.outcomes")


def test_arguments_beat_variables_beat_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "monitor.toml"
    config.write_text('app_id = "from-file"\nworker = "from-file"\npartitions = 3\nevents_topics = ["a", "b"]\n')
    monkeypatch.setenv(f"{PREFIX}CONFIG", str(config))
    monkeypatch.setenv(f"{PREFIX}WORKER", "from-variable")
    monkeypatch.setenv(f"{PREFIX}PARTITIONS", "4")
    settings = load(partitions=5, store=None)
    assert (settings.app_id, settings.worker, settings.partitions) == ("from-file", "from-variable", 5)
    assert settings.events_topics == ("a", "b")


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}BROKERS", "one:9092, two:9093")
    monkeypatch.setenv(f"{PREFIX}EVENTS_TOPICS", "team-a.events,team-b.events")
    monkeypatch.setenv(f"{PREFIX}METRICS_AGENTS", "coder, writer")
    settings = load()
    assert settings.brokers == ("one:9092", "two:9093")
    assert settings.client_options()["bootstrap_servers"] == ["one:9092", "two:9093"]
    assert settings.events_topics == ("team-a.events", "team-b.events")
    assert settings.metrics_agents == ("coder", "writer")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"partitions": "0"}, ["PARTITIONS='0'", "greater than or equal to 1"]),
        ({"web_port": "x"}, ["WEB_PORT='x'", "integer"]),
        ({"store": "redis"}, ["STORE='redis'", "rocksdict", "memory"]),
        ({"brokers": "nonsense"}, ["BROKERS='nonsense'", "HOST:PORT"]),
        ({"worker": "a b"}, ["WORKER='a b'", "match"]),
        ({"events_topics": "a b"}, ["EVENTS_TOPICS", "match"]),
        ({"metrics_agents": ",".join(map(str, range(21)))}, ["METRICS_AGENTS", "at most 20"]),
        ({"events_topics": "compaction.outcomes"}, ["must all differ"]),
        ({"security_protocol": "SASL_SSL"}, ["SASL_SSL", "username and password"]),
        ({"security_protocol": "SSL", "cafile": "/nowhere/ca.pem"}, ["cafile", "/nowhere/ca.pem"]),
        ({"certfile": "/nowhere/cert.pem"}, ["keyfile"]),
        ({"session_timeout_s": "50", "request_timeout_s": "40"}, ["session_timeout_s"]),
        ({"stuck_timeout_s": "60"}, ["stuck_timeout_s", "transaction_timeout_s", "here 60"]),
        ({"stuck_timeout_s": "80", "session_timeout_s": "40"}, ["stuck_timeout_s", "session_timeout_s", "here 80"]),
        ({"stuck_timeout_s": "30", "transaction_timeout_s": "10"}, ["stuck_timeout_s", "here 30"]),
        ({"accept_new_log": "other"}, ["accept_new_log", "other", "compaction.events"]),
        ({"session_timeot_s": "50"}, ["SESSION_TIMEOT_S", "no such setting"]),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str], words: list[str]) -> None:
    for name, value in wrong.items():
        monkeypatch.setenv(f"{PREFIX}{name.upper()}", value)
    with pytest.raises(SettingsError) as error:
        load()
    for word in words:
        assert word in str(error.value)


def test_every_fault_is_named_not_only_the_first() -> None:
    with pytest.raises(SettingsError) as error:
        load(partitions=0, web_port=-1)
    assert f"{PREFIX}PARTITIONS" in str(error.value)
    assert f"{PREFIX}WEB_PORT" in str(error.value)


def test_the_file_must_be_there_and_readable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(f"{PREFIX}CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(SettingsError, match="none"):
        load()
    broken = tmp_path / "broken.toml"
    broken.write_text("partitions =")
    monkeypatch.setenv(f"{PREFIX}CONFIG", str(broken))
    with pytest.raises(SettingsError, match="broken"):
        load()


def test_the_password_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv(f"{PREFIX}USERNAME", "monitor")
    monkeypatch.setenv(f"{PREFIX}PASSWORD", "hunter2")
    settings = load()
    assert "hunter2" not in repr(settings)
    assert settings.client_options()["sasl_plain_password"] == "hunter2"
    with pytest.raises(SettingsError) as error:
        load(partitions=0)
    assert "hunter2" not in str(error.value)
