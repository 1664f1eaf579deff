"""A real Kafka that asks who somebody is: every role does its work with the rights that `topics acls` prints, and no more.

Passwords (SCRAM-SHA-512) and client certificates, both over TLS. What does not fit fails in bounded time and in words.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from typer.testing import CliRunner

from compaction_events.consumer import FindingsConsumer
from compaction_events.controller import Controller
from compaction_events.emitter import Emitter
from compaction_events.errors import AccessError
from compaction_events.findings import AlertRaised, AlertResolved, RemediationRequested
from compaction_events.security import Security
from compaction_monitor.cli.app import app
from compaction_monitor.cli.exits import Code
from compaction_monitor.shell import topics
from tests.e2e.secured import PASSWORD, ROLES, SecuredKafka
from tests.e2e.workers import Monitor, committed, ends, read_all

Eventually = Callable[..., Awaitable[Any]]

APP = "guarded"
PARTITIONS = 2
DEADLINE_S = 60
# What a client may take to find out that it is not let in.
BOUND_S = 20
TOPICS = {name: f"{APP}.{name}" for name in ("events", "outcomes", "findings", "dead-letters")}
NAMES = {f"{name.replace('-', '_')}_topic" if name != "events" else "events_topics": topic for name, topic in TOPICS.items()}
WRONG = "wrong-password-of-nobody"


# aiokafka leaves the socket of a connection that was refused to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed (transport|<socket):ResourceWarning")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """What a test has left is collected with it, not in the middle of another one, which would fail for it."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def broker(secured_broker: SecuredKafka) -> SecuredKafka:
    """With the rights that the command line prints, as Kafka's own tool reads them; the operator has made all topics."""
    for line in printed("operator", secured_broker.address):
        secured_broker.run(line)
    settings = {**secured_broker.by_password("operator"), "app_id": APP, "partitions": PARTITIONS, **NAMES}
    code, said, _ = invoked(settings, "topics", "apply")
    assert code == 0, said
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(secured_broker.run, [line for role in ROLES[1:] for line in printed(role, secured_broker.address)]))
    return secured_broker


def printed(role: str, address: str) -> list[str]:
    """What the command line says that a role needs."""
    code, said, _ = invoked(
        {"brokers": address, "app_id": APP, **NAMES}, "topics", "acls", "--role", role, "--principal", f"User:{role}"
    )
    assert code == 0, said
    return said.splitlines()


def invoked(settings: dict[str, Any], *words: str) -> tuple[int, str, float]:
    """A command with these settings in its environment: its exit code, all it said, and how long it took."""
    variables = {f"COMPACTION_MONITOR_{name.upper()}": str(value) for name, value in settings.items() if value is not None}
    began = time.monotonic()
    ran = CliRunner().invoke(app, list(words), env={**variables, "COLUMNS": "300"})
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    return ran.exit_code, ran.stdout + ran.stderr, time.monotonic() - began


def shown(broker: SecuredKafka, role: str, how: str) -> dict[str, Any]:
    """Settings of a client, by password or by certificate."""
    found: dict[str, Any] = getattr(broker, f"by_{how}")(role)
    return found


def security(settings: dict[str, Any]) -> Security:
    return Security.model_validate({name: value for name, value in settings.items() if name != "brokers"})


def options(broker: SecuredKafka, role: str, how: str = "password") -> dict[str, Any]:
    """What a bare client of the client library needs."""
    settings = shown(broker, role, how)
    return {"bootstrap_servers": settings["brokers"], **security(settings).client_security()}


@pytest.mark.parametrize("how", ["password", "certificate"])
async def test_every_role_does_its_work(how: str, broker: SecuredKafka, tmp_path: Path, eventually: Eventually) -> None:
    """An agent reports an inversion, the monitor orders, the controller answers, the agent recovers, a reader sees it all."""
    session = f"by-{how}"
    settings = shown(broker, "monitor", how)
    worker = Monitor(settings.pop("brokers"), APP, tmp_path, partitions=PARTITIONS, log_level="DEBUG", **settings)
    agent, reader, master = (shown(broker, role, how) for role in ("agent", "reader", "controller"))
    seen: list[Any] = []
    obeyed: list[str] = []
    controller = Controller(
        master["brokers"], sessions=[session], findings_topic=TOPICS["findings"], outcomes_topic=TOPICS["outcomes"],
        security=security(master),
    )  # fmt: skip
    controller.on("halt_and_rehydrate")(lambda order: obeyed.append(order.action))
    controller.on("resume")(lambda order: obeyed.append(order.action))
    findings = FindingsConsumer(
        reader["brokers"], group_id=f"{APP}-{how}", topic=TOPICS["findings"], start="earliest", security=security(reader)
    )

    async def read() -> None:
        async with findings:
            async for finding in findings:
                seen.append(finding)  # noqa: PERF401 - looked at while it grows

    reading = asyncio.create_task(read())
    worker.start()
    try:
        await eventually(worker.ready, DEADLINE_S, what="/ready")
        with controller:
            emitter = Emitter(agent["brokers"], agent="coder", topic=TOPICS["events"], security=security(agent))
            told = emitter.session(session, topology="tree", source_spans=214, max_depth=3, controller="expected")
            told.round(raw_tokens=60_000, summary_tokens=90_000, spans=120, cosine=0.45, depth=2)
            told.round(raw_tokens=30_000, summary_tokens=120_000, spans=80, cosine=0.52, depth=2)
            await eventually(lambda: obeyed == ["halt_and_rehydrate"], DEADLINE_S, what=f"an order obeyed {worker.tail()}")
            told.round(raw_tokens=60_000, summary_tokens=60_000, spans=150, cosine=0.5, depth=2, cause="rehydration")
            await eventually(lambda: obeyed == ["halt_and_rehydrate", "resume"], DEADLINE_S, what="resume obeyed")
            assert await asyncio.to_thread(emitter.close)
            assert (emitter.stats.delivered, emitter.stats.lost) == (4, 0)
        await eventually(
            lambda: _kinds(seen, session) == ["alert", "halt_and_rehydrate", "resolved", "resume"], DEADLINE_S, what="findings"
        )

        async def all_committed() -> bool:
            reached = await committed(broker.address, APP, TOPICS["events"], PARTITIONS)
            known = {
                partition: end for partition, end in (await ends(broker.address, TOPICS["events"], PARTITIONS)).items() if end
            }
            return {partition: reached[partition] for partition in known} == known

        await eventually(all_committed, DEADLINE_S, what="the group's offsets")
        answers = [
            record
            for record in await read_all(broker.address, TOPICS["outcomes"], PARTITIONS)
            if record.key == session.encode()
        ]
        assert len(answers) == 4  # accepted and completed, twice
        worker.signal(signal.SIGTERM)
        assert await worker.ended(15) == 0
    finally:
        worker.kill()
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
    log = worker.log_path.read_text()
    assert "DEBUG" in log
    assert PASSWORD.format("monitor") not in log


def _kinds(findings: list[Any], session: str) -> list[str]:
    of_session = [one for one in findings if one.session_id == session]
    names = {AlertRaised: "alert", AlertResolved: "resolved"}
    return [
        one.action if isinstance(one, RemediationRequested) else names.get(type(one), type(one).__name__) for one in of_session
    ]


async def writes(options: dict[str, Any], topic: str) -> bool:
    """Whether this client may write there: a tombstone of a row that is not there."""
    producer = AIOKafkaProducer(**options)
    await producer.start()
    try:
        await producer.send_and_wait(topic, None, key=b"nobody", partition=0)
    except TopicAuthorizationFailedError:
        return False
    finally:
        await producer.stop()
    return True


async def reads(options: dict[str, Any], topic: str) -> bool:
    consumer = AIOKafkaConsumer(topic, auto_offset_reset="earliest", **options)
    try:
        await consumer.start()
        await consumer.getmany(timeout_ms=1_000)
    except TopicAuthorizationFailedError:
        return False
    finally:
        await consumer.stop()
    return True


async def joins(options: dict[str, Any], group: str) -> bool:
    consumer = AIOKafkaConsumer(TOPICS["findings"], group_id=group, **options)
    try:
        await consumer.start()
        await asyncio.wait_for(consumer.getmany(timeout_ms=200), BOUND_S)
    except GroupAuthorizationFailedError:
        return False
    finally:
        await consumer.stop()
    return True


async def commits(options: dict[str, Any], transactional_id: str) -> bool:
    producer = AIOKafkaProducer(transactional_id=transactional_id, **options)
    try:
        await asyncio.wait_for(producer.start(), BOUND_S)
    except TransactionalIdAuthorizationFailed:
        return False
    finally:
        await producer.stop()
    return True


async def test_nobody_may_do_more_than_the_table_says(broker: SecuredKafka) -> None:
    every = [*TOPICS.values(), *(f"{APP}-{table}-changelog" for table in topics.TABLES)]
    may_write, may_read = {}, {}
    for role in ROLES:
        client = options(broker, role)
        may_write[role] = {topic for topic in every if await writes(client, topic)}
        may_read[role] = {topic for topic in every if await reads(client, topic)}
    changelogs = set(every) - set(TOPICS.values())
    assert may_write == {
        "operator": {TOPICS["events"], TOPICS["outcomes"], TOPICS["dead-letters"]},
        "agent": {TOPICS["events"]},
        "controller": {TOPICS["outcomes"]},
        "monitor": {TOPICS["findings"], TOPICS["dead-letters"], *changelogs},
        "reader": set(),
    }
    assert may_read == {
        "operator": {TOPICS["dead-letters"]},
        "agent": set(),
        "controller": {TOPICS["findings"], TOPICS["outcomes"]},
        "monitor": {TOPICS["events"], TOPICS["outcomes"], *changelogs},
        "reader": {TOPICS["findings"]},
    }


async def test_nobody_else_may_be_the_worker(broker: SecuredKafka) -> None:
    """Neither join its group, which would take its partitions, nor write under its transactional id, which would fence it."""
    others = [role for role in ROLES if role != "monitor"]
    assert [role for role in others if await commits(options(broker, role), f"{APP}-0")] == []
    assert [role for role in ("controller", "reader") if await joins(options(broker, role), APP)] == []
    assert [role for role in ("controller", "reader") if await joins(options(broker, role), f"{APP}-mine")] == [
        "controller",
        "reader",
    ]


def keyless(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ("certfile", "keyfile")}


def unfit(broker: SecuredKafka) -> dict[str, tuple[dict[str, Any], str, str]]:
    """By case the settings, what has to be said, and what to do next."""
    stranger = trustme.CA()
    own_ca = broker.folder / "stranger.pem"
    stranger.cert_pem.write_to_path(own_ca)
    return {
        "wrong password": (
            broker.by_password("reader", password=WRONG),
            "user 'reader' with this password (SCRAM-SHA-512)", "Check username, password and sasl_mechanism.",
        ),
        "unknown user": (
            broker.by_password("nobody", password=WRONG),
            "user 'nobody' with this password (SCRAM-SHA-512)", "Check username, password and sasl_mechanism.",
        ),
        "wrong mechanism": (
            broker.by_password("reader", sasl_mechanism="PLAIN", password=WRONG),
            "it takes no PLAIN", "Set sasl_mechanism",
        ),
        "broker not trusted": (
            broker.by_password("reader", cafile=str(own_ca), password=WRONG),
            "its certificate is not to be trusted", "Set cafile to the CA of the brokers.",
        ),
        "stranger's certificate": (
            broker.by_certificate("reader", of=stranger),
            "it wants a certificate that it can trust", "Set certfile and keyfile",
        ),
        "no certificate": (
            keyless(broker.by_certificate("reader")),
            "it wants a certificate that it can trust", "Set certfile and keyfile",
        ),
        "unencrypted, to the passwords' listener": (
            {"brokers": broker.scram}, "it speaks TLS only", "Set security_protocol to SASL_SSL or SSL.",
        ),
        "unencrypted, to the certificates' listener": (
            {"brokers": broker.mtls}, "it speaks TLS only", "Set security_protocol to SASL_SSL or SSL.",
        ),
        "password in the clear": (
            broker.by_password("reader", security_protocol="SASL_PLAINTEXT", cafile=None, password=WRONG),
            "it speaks TLS only", "Set security_protocol to SASL_SSL.",
        ),
        "encrypted, but nobody": (
            {"brokers": broker.scram, "security_protocol": "SSL", "cafile": str(broker.cafile)},
            "it asks who this is", "Set security_protocol to SASL_SSL",
        ),
        "TLS where there is none": (
            broker.by_password("reader", brokers=broker.address, password=WRONG),
            "it does not speak TLS", "Take the port of a listener that does",
        ),
        "a password where none is asked for": (
            broker.by_password("reader", brokers=broker.address, security_protocol="SASL_PLAINTEXT", cafile=None),
            "it asks for no password", "Set security_protocol to SSL or PLAINTEXT",
        ),
    }  # fmt: skip


CASES = (
    "wrong password", "unknown user", "wrong mechanism", "broker not trusted", "stranger's certificate", "no certificate",
    "unencrypted, to the passwords' listener", "unencrypted, to the certificates' listener", "password in the clear",
    "encrypted, but nobody", "TLS where there is none", "a password where none is asked for",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_client_that_is_not_let_in_is_told_why(case: str, broker: SecuredKafka) -> None:
    settings, what, todo = unfit(broker)[case]
    code, said, took_s = invoked(settings, "watch", "--no-follow")
    assert code == Code.invalid
    assert f"error: The broker {settings['brokers']} does not let this client in: {what}" in said
    assert f"next: {todo}" in said
    assert WRONG not in said
    assert took_s < BOUND_S


def test_every_case_is_run(broker: SecuredKafka) -> None:
    assert set(unfit(broker)) == set(CASES)


EVERY_CLIENT = (
    ("watch", "--json"), ("ingest", "FILE", "--json"), ("ingest", "FILE", "--follow"), ("replay", "FILE", "--json"),
    ("topics", "plan", "--json"), ("topics", "apply", "--json"), ("dead-letters", "list", "--json"),
    ("bridge", "alertmanager", "--url", "http://127.0.0.1:1"),
)  # fmt: skip


@pytest.mark.parametrize("words", EVERY_CLIENT, ids=" ".join)
def test_every_command_says_so(words: tuple[str, ...], broker: SecuredKafka, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    Emitter(f"file:{file}", agent="coder").session("s").ended()
    settings, what, _ = unfit(broker)["wrong password"]
    code, said, took_s = invoked(settings, *(str(file) if word == "FILE" else word for word in words))
    assert (code, what in said, WRONG in said) == (Code.invalid, True, False), said
    assert took_s < BOUND_S


@pytest.mark.parametrize("case", ["wrong password", "stranger's certificate", "unencrypted, to the passwords' listener"])
async def test_a_worker_that_is_not_let_in_waits_for_its_operator(case: str, broker: SecuredKafka, tmp_path: Path) -> None:
    settings, what, todo = unfit(broker)[case]
    worker = Monitor(settings["brokers"], APP, tmp_path, partitions=PARTITIONS, log_level="DEBUG", **_given(settings))
    worker.start()
    try:
        assert await worker.ended(DEADLINE_S) == Code.config
    finally:
        worker.kill()
    last = worker.tail(1)
    assert f"exit 78: The broker {settings['brokers']} does not let this client in: {what}" in last
    assert todo in last
    assert WRONG not in worker.log_path.read_text()


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "brokers" and value is not None}


async def test_a_worker_without_rights_waits_for_its_operator(broker: SecuredKafka, tmp_path: Path) -> None:
    settings = broker.by_password("reader")
    worker = Monitor(settings.pop("brokers"), APP, tmp_path, partitions=PARTITIONS, **settings)
    worker.start()
    try:
        assert await worker.ended(DEADLINE_S) == Code.config
    finally:
        worker.kill()
    assert f"topics missing, or hidden from this client: {TOPICS['events']}, " in worker.tail(1)
    assert "topics acls --role monitor" in worker.tail(1)


async def test_consumers_and_controllers_raise_it(broker: SecuredKafka) -> None:
    settings, what, todo = unfit(broker)["wrong password"]
    began = time.monotonic()
    with pytest.raises(AccessError) as error:
        await FindingsConsumer(settings["brokers"], topic=TOPICS["findings"], security=security(settings)).start()
    assert (error.value.what, error.value.todo) == (
        f"The broker {settings['brokers']} does not let this client in: {what}", todo,
    )  # fmt: skip
    with pytest.raises(AccessError):
        await Controller(settings["brokers"], agent="coder", security=security(settings)).run()
    assert time.monotonic() - began < 2 * BOUND_S


async def test_a_consumer_without_rights_raises_it(broker: SecuredKafka) -> None:
    agent = broker.by_password("agent")
    with pytest.raises(AccessError, match="does not allow it: the topic"):
        async with FindingsConsumer(agent["brokers"], topic=TOPICS["findings"], security=security(agent)) as findings:
            await asyncio.wait_for(anext(findings), BOUND_S)
    reader = broker.by_password("reader")
    with pytest.raises(AccessError, match="does not allow it: the group"):
        async with FindingsConsumer(
            reader["brokers"], topic=TOPICS["findings"], group_id=APP, security=security(reader)
        ) as findings:
            await asyncio.wait_for(anext(findings), BOUND_S)


@pytest.mark.parametrize("case", ["wrong password", "unencrypted, to the passwords' listener", "without rights"])
async def test_an_emitter_says_it_once_and_lets_the_agent_work(
    case: str, broker: SecuredKafka, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    if case == "without rights":
        settings, what, todo = broker.by_password("reader"), "does not allow it: to write, to any topic", "topics acls --role"
    else:
        settings, what, todo = unfit(broker)[case]
    caplog.set_level(logging.DEBUG)
    emitter = Emitter(settings["brokers"], agent="coder", topic=TOPICS["events"], security=security(settings))
    emitter.session("s").ended()
    await eventually(lambda: _warnings(caplog), BOUND_S, what="a warning")
    assert not await asyncio.to_thread(emitter.close, 1.0)
    (said,) = _warnings(caplog)
    assert (what in said, todo in said) == (True, True), said
    assert emitter.stats.lost == 2
    assert WRONG not in caplog.text + repr(emitter) + repr(emitter.stats)
    requests = [record for record in caplog.records if record.name == "aiokafka.conn" and record.levelno <= logging.DEBUG]
    assert requests == [], "with the mechanism PLAIN the password is in them"


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    ours = (record for record in caplog.records if record.name.startswith("compaction_events"))
    return [record.getMessage() for record in ours if record.levelno >= logging.WARNING]


def test_errors_that_are_none_of_access_stay_what_they_are(broker: SecuredKafka) -> None:
    code, said, took_s = invoked({"brokers": "127.0.0.1:1"}, "watch", "--no-follow")
    assert (code, "no broker answers at 127.0.0.1:1" in said.lower()) == (Code.unreachable, True)
    assert took_s < BOUND_S


async def test_bootstrapping_nowhere_is_the_client_librarys_error() -> None:
    with pytest.raises(KafkaError):
        await FindingsConsumer("127.0.0.1:1").start()
