"""The bridge as a process between a real Kafka and a real Alertmanager with the configuration that is shipped."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner

from compaction_events.codec import encode
from compaction_events.facts import Basis
from compaction_events.findings import AlertRaised, AlertResolved, Finding, Severity
from compaction_monitor.cli.app import app
from compaction_monitor.shell import topics
from tests.absent import skip_or_fail
from tests.e2e.alertmanagers import CONFIG, Alertmanager, ProgramMissingError, Receiver, configured, program
from tests.e2e.brokers import Kafka, free_ports, own_topics
from tests.e2e.workers import WorkerProcess, committed

Eventually = Callable[..., Awaitable[Any]]
PARTITIONS = 2
NOW = datetime.now(UTC).replace(microsecond=0)
CRITICAL, WARNING = "salience_inversion", "compaction_thrash"


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    try:
        program("prometheus-alertmanager", "alertmanager")
        program("amtool")
    except ProgramMissingError as missing:
        skip_or_fail(str(missing))


@pytest.fixture
def heard() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def alertmanager(heard: Receiver, tmp_path: Path) -> Iterator[Alertmanager]:
    with Alertmanager(tmp_path / "alertmanager", configured(heard.url)) as running:
        yield running


class Log:
    """The findings topic."""

    def __init__(self, producer: AIOKafkaProducer, topic: str) -> None:
        self._producer, self.topic = producer, topic

    async def publish(self, *findings: Finding, at: datetime | None = None) -> None:
        for finding in findings:
            record = encode(finding)
            written_ms = None if at is None else round(at.timestamp() * 1000)
            await self._producer.send_and_wait(
                self.topic, record.value, record.key, headers=record.headers, timestamp_ms=written_ms
            )

    async def garbage(self) -> None:
        for partition in range(PARTITIONS):
            await self._producer.send_and_wait(self.topic, b"{", b"s", partition=partition)


@pytest.fixture
async def log(kafka_broker: Kafka, app_id: str) -> AsyncIterator[Log]:
    # Findings carry the broker's time; here some have to be of long ago.
    as_told = {"message.timestamp.type": "CreateTime"}
    wanted = [replace(topic, config={**topic.config, **as_told}) for topic in own_topics(app_id, partitions=PARTITIONS)]
    async with topics.connect(bootstrap_servers=kafka_broker.address) as admin:
        await topics.apply(admin, wanted)
    producer = AIOKafkaProducer(bootstrap_servers=kafka_broker.address)
    await producer.start()
    try:
        yield Log(producer, f"{app_id}.findings")
    finally:
        await producer.stop()


class Bridge(WorkerProcess):
    """`bridge alertmanager` as a process."""

    def __init__(self, broker: str, app_id: str, folder: Path, urls: Sequence[str], *more: str, name: str = "bridge") -> None:
        super().__init__(broker, app_id, folder, name)
        self.command = (
            "compaction_monitor", "bridge", "alertmanager", "--json", "--web-port", str(self.port),
            *(word for url in urls for word in ("--url", url)), *more,
        )  # fmt: skip

    def said(self) -> list[str]:
        """The messages of its log lines, each of them JSON."""
        return [json.loads(line)["message"] for line in self.log_path.read_text().splitlines()]


@pytest.fixture
def bridge(kafka_broker: Kafka, app_id: str, tmp_path: Path) -> Iterator[Callable[..., Bridge]]:
    made: list[Bridge] = []

    def start(*urls: str, name: str = "bridge", resend_s: float = 1.0) -> Bridge:
        more = ("--resend-s", str(resend_s))
        made.append(Bridge(kafka_broker.address, app_id, tmp_path, urls, *more, name=name))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.kill()


def raised(
    session: str, check: str = WARNING, severity: str = "warning", *, agent: str = "coder", **fields: Any
) -> AlertRaised:
    return AlertRaised(**_alert(session, check, severity, agent) | {"status": "firing"} | fields)


def resolved(session: str, check: str = WARNING, severity: str = "warning", *, agent: str = "coder", **f: Any) -> AlertResolved:
    over = {"status": "resolved", "resolved_because": "recovered", "lastReceived": NOW + timedelta(seconds=1)}
    return AlertResolved(**_alert(session, check, severity, agent) | over | f)


def _alert(session: str, check: str, severity: str, agent: str) -> dict[str, Any]:
    identity = f"{check} of {session}"
    return {
        "session_id": session, "id": identity, "name": check, "severity": Severity(severity), "agent": agent,
        "startsAt": NOW, "lastReceived": NOW, "fingerprint": identity, "service": agent, "message": f"{check} happened",
        "description": "It matters.", "basis": Basis.measured, "url": f"README.md#{check}",
    }  # fmt: skip


def open_alerts(alertmanager: Alertmanager) -> dict[tuple[str, str, str], str]:
    """Session, check and severity of what is open there, and whether it is suppressed."""
    return {
        (alert["labels"]["session_id"], alert["labels"]["alertname"], alert["labels"]["severity"]): alert["status"]["state"]
        for alert in alertmanager.alerts('source="compaction-monitor"')
    }


def notified(heard: Receiver) -> list[tuple[str, str, dict[str, str], list[tuple[str, str]]]]:
    """Each notification: receiver, status, what it is grouped by, and session and status of its alerts."""
    return [
        (
            path.strip("/"), body["status"], body["groupLabels"],
            sorted((alert["labels"]["session_id"], alert["status"]) for alert in body["alerts"]),
        )
        for path, body in heard.heard
    ]  # fmt: skip


def group(check: str = WARNING, agent: str = "coder") -> dict[str, str]:
    return {"alertname": check, "agent": agent}


async def test_fired_grouped_deduplicated_and_resolved(
    log: Log, bridge: Callable[..., Bridge], alertmanager: Alertmanager, heard: Receiver, eventually: Eventually
) -> None:
    running = bridge(alertmanager.url)
    await eventually(running.ready, 30, what="the bridge ready")
    # Alertmanager waits for the rest of a group only as long as an alert is new.
    start: dict[str, Any] = {"startsAt": datetime.now(UTC).replace(microsecond=0)}
    await log.publish(raised("s1", **start), raised("s2", **start), raised("s3", agent="writer", **start))
    await log.garbage()
    await eventually(lambda: len(heard.heard) == 2, 20, what="a notification of each agent")
    assert sorted(notified(heard), key=str) == sorted(
        [
            ("sessions", "firing", group(), [("s1", "firing"), ("s2", "firing")]),
            ("sessions", "firing", group(agent="writer"), [("s3", "firing")]),
        ],
        key=str,
    )
    (first, *_) = alertmanager.alerts('session_id="s1"')
    assert first["annotations"] == {
        "summary": f"{WARNING} happened", "description": "It matters.", "runbook_url": f"README.md#{WARNING}",
        "finding_id": f"{WARNING} of s1",
    }  # fmt: skip
    assert datetime.fromisoformat(first["startsAt"]) == start["startsAt"]
    # A restart has time to read again what is open before it ends by itself.
    assert 10 < (datetime.fromisoformat(first["endsAt"]) - datetime.fromisoformat(first["updatedAt"])).total_seconds() <= 15
    # Told again, twice by the log and every second by the bridge: still the same.
    await log.publish(raised("s1", **start), raised("s1", attempt=2, **start))
    await eventually(lambda: _later(alertmanager, first), 20, what="it being told again")
    assert len(heard.heard) == 2
    over = start | {"lastReceived": datetime.now(UTC)}
    await log.publish(resolved("s1", **over), resolved("s2", **over), resolved("s3", agent="writer", **over))
    await eventually(lambda: len(heard.heard) == 4, 20, what="both resolved")
    assert sorted(notified(heard)[2:], key=str) == sorted(
        [
            ("sessions", "resolved", group(), [("s1", "resolved"), ("s2", "resolved")]),
            ("sessions", "resolved", group(agent="writer"), [("s3", "resolved")]),
        ],
        key=str,
    )
    assert open_alerts(alertmanager) == {}
    assert running.running()


def _later(alertmanager: Alertmanager, before: dict[str, Any]) -> bool:
    """Whether it was told again more than once since."""
    (now,) = alertmanager.alerts('session_id="s1"')
    return datetime.fromisoformat(now["updatedAt"]) - datetime.fromisoformat(before["updatedAt"]) > timedelta(seconds=2.5)


async def test_silenced_inhibited_and_getting_worse(
    log: Log, bridge: Callable[..., Bridge], alertmanager: Alertmanager, heard: Receiver, eventually: Eventually
) -> None:
    alertmanager.silence(session_id="quiet")
    await log.publish(
        raised("quiet"), raised("bad", CRITICAL, "critical"), raised("bad"), raised("other"), raised("worse", "stale", "info")
    )
    bridge(alertmanager.url)
    wanted = {
        ("quiet", WARNING, "warning"): "suppressed",
        ("bad", CRITICAL, "critical"): "active",
        ("bad", WARNING, "warning"): "suppressed",
        ("other", WARNING, "warning"): "active",
        ("worse", "stale", "info"): "active",
    }
    await eventually(lambda: open_alerts(alertmanager) == wanted, 30, what="one silenced and one inhibited")
    await eventually(lambda: len(heard.heard) == 3, 20, what="a notification of each that is active")
    assert sorted(alerts for _, _, _, alerts in notified(heard)) == [
        [("bad", "firing")], [("other", "firing")], [("worse", "firing")],
    ]  # fmt: skip
    await log.publish(raised("worse", "stale", "critical", attempt=2))
    worse = {key: state for key, state in wanted.items() if key[0] != "worse"} | {("worse", "stale", "critical"): "active"}
    await eventually(lambda: open_alerts(alertmanager) == worse, 20, what="the old severity gone")
    assert {path for path, _, _, _ in notified(heard)} == {"sessions"}, "a session's critical finding does not page"


async def test_two_alertmanagers_of_which_one_is_down(
    log: Log, bridge: Callable[..., Bridge], alertmanager: Alertmanager, tmp_path: Path, heard: Receiver, eventually: Eventually
) -> None:
    late = Alertmanager(tmp_path / "late", configured(heard.url), port=free_ports(1)[0])
    running = bridge(alertmanager.url, late.url)
    await log.publish(raised("s1"), raised("s2"))
    both = {("s1", WARNING, "warning"): "active", ("s2", WARNING, "warning"): "active"}
    await eventually(lambda: open_alerts(alertmanager) == both, 30, what="the one that is up being told")
    status, body = await running.get("/ready")
    assert (status, json.loads(body)) == (
        503, {"ready": False, "reasons": [f"{late.url} does not answer: ClientConnectorError"]},
    )  # fmt: skip
    assert (await running.get("/live"))[0] == 200
    await log.publish(resolved("s2"))
    with late:
        one = {("s1", WARNING, "warning"): "active"}
        await eventually(lambda: open_alerts(late) == one, 30, what="the other one being told what is open by now")
        await eventually(lambda: open_alerts(alertmanager) == one, 10, what="s2 being over")
        await eventually(running.ready, 30, what="all of them answering")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restart_goes_on_and_tells_nothing_old(
    kafka_broker: Kafka, app_id: str, log: Log, bridge: Callable[..., Bridge], alertmanager: Alertmanager, heard: Receiver,
    eventually: Eventually, how: int,
) -> None:  # fmt: skip
    """Beside the Alertmanager something keeps every request, so that what is sent is known and not only what came of it."""
    long_ago = datetime.now(UTC) - timedelta(minutes=6)
    with Receiver() as spy:
        await log.publish(raised("old"), resolved("old"), at=long_ago)
        await log.publish(raised("s1"), at=long_ago)
        first = bridge(alertmanager.url, spy.url, name="first", resend_s=20)
        # More than what is looked at again anyway, and all of it over.
        await log.publish(*(each for n in range(300) for each in (raised(f"t{n}"), resolved(f"t{n}"))), at=long_ago)
        await log.publish(raised("s2"), raised("s3"), resolved("s3"))
        two = {("s1", WARNING, "warning"): "active", ("s2", WARNING, "warning"): "active"}
        await eventually(lambda: open_alerts(alertmanager) == two, 40, what="two open")
        await eventually(lambda: _sessions(spy) >= {"s1", "s2", "s3"}, 20)
        notifications = len(await eventually(lambda: heard.heard, 10))
        await eventually(lambda: _committed(kafka_broker, app_id), 20, what="its position committed")
        first.signal(signal.Signals(how))
        assert await first.ended(20) == (0 if how == signal.SIGTERM else -signal.SIGKILL)
        spy.heard.clear()
        bridge(alertmanager.url, spy.url, name="second", resend_s=20)
        await eventually(lambda: _sessions(spy) >= {"s1", "s2"}, 40, what="the open ones told again")
        await log.publish(resolved("s1"))
        await eventually(lambda: open_alerts(alertmanager) == {("s2", WARNING, "warning"): "active"}, 20, what="s1 being over")
        assert _sessions(spy) == {"s1", "s2", "s3"}, "s3 ended within five minutes, all others long ago"
        firing = [alert for _, body in heard.heard[notifications:] for alert in body["alerts"]]
        assert {alert["status"] for alert in firing if alert["labels"]["session_id"] == "s2"} <= {"firing"}


def _sessions(spy: Receiver) -> set[str]:
    return {alert["labels"]["session_id"] for _, alerts in spy.heard for alert in alerts}


async def _committed(broker: Kafka, app_id: str) -> bool:
    found = await committed(broker.address, f"{app_id}-bridge", f"{app_id}.findings", PARTITIONS)
    return None not in found.values()


async def test_two_bridges_of_a_group_share_and_one_takes_over(
    log: Log, bridge: Callable[..., Bridge], alertmanager: Alertmanager, eventually: Eventually
) -> None:
    one, other = bridge(alertmanager.url, name="one"), bridge(alertmanager.url, name="other")
    await eventually(one.ready, 30)
    await eventually(other.ready, 30)
    sessions = [f"s{number}" for number in range(6)]
    await log.publish(*(raised(session) for session in sessions))
    every = {(session, WARNING, "warning"): "active" for session in sessions}
    await eventually(lambda: open_alerts(alertmanager) == every, 20, what="all told by one or the other")
    one.signal(signal.SIGTERM)
    assert await one.ended(20) == 0
    ended = datetime.now(UTC)

    def told_since() -> bool:
        found = alertmanager.alerts('source="compaction-monitor"')
        return all(datetime.fromisoformat(alert["updatedAt"]) > ended for alert in found)

    await eventually(told_since, 20, what="all told by the other one")
    assert open_alerts(alertmanager) == every


def test_what_the_user_can_solve_is_said() -> None:
    def run(*words: str) -> tuple[int, str]:
        ran = CliRunner().invoke(app, ["bridge", "alertmanager", *words])
        return ran.exit_code, " ".join(ran.output.split())

    assert run("--url", "alertmanager:9093") == (
        2, "error: --url alertmanager:9093: not an address of an Alertmanager. next: Say http://HOST:9093.",
    )  # fmt: skip
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    code, said = run("--url", "http://127.0.0.1:9093", "--broker", nobody)
    assert (code, f"error: No broker answers at {nobody}." in said) == (5, True)


async def test_without_the_findings_topic(kafka_broker: Kafka, bridge: Callable[..., Bridge], app_id: str) -> None:
    running = bridge("http://127.0.0.1:9")
    assert await running.ended(30) == 3
    assert f"{app_id}.findings" in running.log_path.read_text()


@pytest.mark.parametrize(
    ("down", "wanted"),
    [
        pytest.param({}, {"one": "suppressed", "other": "suppressed"}, id="all of them"),
        pytest.param(
            {"job": "monitor", "namespace": "one"}, {"one": "suppressed", "other": "active"}, id="one of two with one name"
        ),
    ],
)
async def test_a_monitor_that_is_down_says_it_for_its_own_workers(
    alertmanager: Alertmanager, eventually: Eventually, down: dict[str, str], wanted: dict[str, str]
) -> None:
    tell(alertmanager, {"alertname": "CompactionMonitorDown", "severity": "critical", **down})
    for name in wanted:
        tell(alertmanager, {"alertname": "CompactionWorkerDown", "job": "monitor", "namespace": name})

    def states() -> dict[str, str]:
        workers = alertmanager.alerts('alertname="CompactionWorkerDown"')
        return {alert["labels"]["namespace"]: alert["status"]["state"] for alert in workers}

    await eventually(lambda: states() == wanted, 20, what="each worker's alert told or held back")


def tell(alertmanager: Alertmanager, labels: dict[str, str]) -> None:
    """As Prometheus does it."""
    body = json.dumps([{"labels": labels}]).encode()
    urlopen(Request(f"{alertmanager.url}/api/v2/alerts", body, {"Content-Type": "application/json"}), timeout=10).close()


def test_the_configuration_is_one() -> None:
    checked = subprocess.run([program("amtool"), "check-config", CONFIG], capture_output=True, text=True, check=False)
    assert (checked.returncode, "SUCCESS" in checked.stdout) == (0, True), checked.stderr


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("source=compaction-monitor alertname=salience_inversion severity=critical", "sessions"),
        ("source=compaction-monitor alertname=drift severity=info", "sessions"),
        ("alertname=CompactionMonitorDown severity=critical", "page"),
        ("alertname=CompactionConsumerLagGrowing severity=warning", "team"),
        ("alertname=CompactionWatchdog severity=none", "heartbeat"),
    ],
)
def test_who_hears_of_what(labels: str, receiver: str) -> None:
    command = [program("amtool"), "config", "routes", "test", f"--config.file={CONFIG}", *labels.split()]
    tested = subprocess.run(command, capture_output=True, text=True, check=True)
    assert tested.stdout.strip() == receiver
