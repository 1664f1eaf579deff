"""The emitter in another language: what it sends the worker accepts, in the right partitions, and finds what is wrong."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction_events.asyncapi import document
from compaction_events.codec import decode
from tests import node
from tests.e2e.brokers import Broker, Kafka
from tests.e2e.workers import Monitor, partition_of, read_all

EXAMPLE = Path(__file__).parents[2] / "docs" / "node"
PARTITIONS = 4
# Beyond ASCII too: the key's bytes decide, not its characters.
SESSIONS = [*(f"session-{number}" for number in range(20)), "sitzung-ü", "会话-1", "🙂"]
Eventually = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return node.prepared(EXAMPLE, tmp_path_factory.mktemp("node"))


def test_it_is_as_short_as_the_readme_says() -> None:
    lines = [line for line in (EXAMPLE / "emit.mjs").read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) <= 26


async def test_a_real_worker_raises_what_it_sent(
    any_broker: Broker,
    app_id: str,
    example: Path,
    make_topics: Callable[..., Awaitable[Any]],
    eventually: Eventually,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await make_topics(any_broker, app_id, partitions=PARTITIONS)
    monkeypatch.setenv("TOPIC", f"{app_id}.events")
    node.run(example, "emit.mjs", any_broker.address, *SESSIONS)

    sent = await read_all(any_broker.address, f"{app_id}.events", PARTITIONS)
    assert Counter(record.key.decode() for record in sent) == dict.fromkeys(SESSIONS, 3)
    assert {record.partition for record in sent} == set(range(PARTITIONS))
    headers = document()["components"]["schemas"]["CloudEventHeaders"]
    for record in sent:
        assert record.partition == partition_of(record.key, PARTITIONS)
        assert set(headers["required"]) <= {name for name, _ in record.headers} <= set(headers["properties"])
        assert decode(record.value, record.headers, record.key).event.session_id == record.key.decode()

    worker = Monitor(any_broker.address, app_id, tmp_path, partitions=PARTITIONS)
    worker.start()
    try:

        async def raised() -> list[Any]:
            found = [json.loads(r.value) for r in await read_all(any_broker.address, f"{app_id}.findings", PARTITIONS)]
            alerts = [finding for finding in found if finding["type"] == "alert.raised"]
            return alerts if len(alerts) >= len(SESSIONS) else []

        alerts = await eventually(raised, 60, what="an alert for each session", every_s=0.2)
        assert {(alert["session_id"], alert["name"], alert["severity"]) for alert in alerts} == {
            (session, "salience_inversion", "critical") for session in SESSIONS
        }
        assert len(alerts) == len(SESSIONS)
        assert await read_all(any_broker.address, f"{app_id}.dead-letters", PARTITIONS) == []
    finally:
        worker.kill()


async def test_its_producer_is_idempotent(
    kafka_broker: Kafka,
    app_id: str,
    example: Path,
    make_topics: Callable[..., Awaitable[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the log itself: a batch of an idempotent producer has its id and counts from 0."""
    topic = f"{app_id}.events"
    await make_topics(kafka_broker, app_id, partitions=1)
    monkeypatch.setenv("TOPIC", topic)
    node.run(example, "emit.mjs", kafka_broker.address, "a", "b")
    (segment,) = (kafka_broker.folder / "data" / f"{topic}-0").glob("*.log")
    batches = list(producers(segment.read_bytes()))
    assert [sequence for _, sequence in batches] == [0, 3]
    assert len({producer for producer, _ in batches} - {-1}) == 1


def producers(log: bytes) -> Iterator[tuple[int, int]]:
    """Producer id and first sequence number of each batch in a log segment (record batch, magic 2)."""
    at = 0
    while at < len(log):
        yield struct.unpack_from(">q", log, at + 43)[0], struct.unpack_from(">i", log, at + 53)[0]
        at += 12 + struct.unpack_from(">i", log, at + 8)[0]
