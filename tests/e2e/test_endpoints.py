"""What a running worker tells over HTTP and in its log: why it does not work, and numbers. Nothing that a record said."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from compaction_events.builders import at, completed, missed, started, stated, written
from compaction_events.codec import encode
from compaction_events.facts import AckStatus, RemediationAcknowledged
from compaction_monitor.shell.embedded import EmbeddedBroker
from tests.e2e.workers import Monitor, producer

Eventually = Callable[..., Awaitable[Any]]
PARTITIONS = 1
SESSION, AGENT, NODE, PROPOSITION, TEXT = (
    "tell-tale-session",
    "tell-tale-agent",
    "tell-tale-node",
    "tell-tale-prop",
    "tell-tale-text",
)
MARK = "tell-tale"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def monitor(embedded_broker: EmbeddedBroker, app_id: str, tmp_path: Path) -> Iterator[Monitor]:
    made = Monitor(embedded_broker.address, app_id, tmp_path, partitions=PARTITIONS, log_level="DEBUG")
    yield made
    made.kill()


async def tell(broker: str, app_id: str) -> int:
    """Records that say the mark wherever a record can say something, some of them malformed; returns how many."""
    inversion = [
        completed(1, SESSION, agent=AGENT, raw_tokens=600, summary_tokens=400, distinct_source_spans=90, summary_depth_max=2,
                  query_cosine_retained=0.4, propositions_retained=[PROPOSITION]),
        completed(2, SESSION, agent=AGENT, raw_tokens=100, summary_tokens=900, distinct_source_spans=9, summary_depth_max=2,
                  query_cosine_retained=0.6, propositions_retained=[]),
    ]  # fmt: skip
    facts = [
        started(SESSION, agent=AGENT, agent_version=TEXT, source=TEXT, source_spans=100, max_depth=3),
        stated(PROPOSITION, 1, SESSION, span_id=TEXT, pinned=True),
        *inversion,
        written(NODE, 1, 120, SESSION, retained=[]),
        missed(NODE, PROPOSITION, 121, SESSION, by=TEXT),
    ]
    answer = RemediationAcknowledged(session_id=SESSION, remediation_id=TEXT, status=AckStatus.failed, detail=TEXT, at=at(3))
    malformed = [
        (SESSION.encode(), TEXT.encode()),
        (SESSION.encode(), b'{"type":"%s","text":"%s"}' % (TEXT.encode(), TEXT.encode())),
    ]
    async with producer(broker) as out:
        for fact in facts:
            record = encode(fact, source=TEXT)
            await out.send_and_wait(f"{app_id}.events", record.value, key=record.key, headers=record.headers)
        for key, value in malformed:
            await out.send_and_wait(f"{app_id}.events", value, key=key)
        record = encode(answer)
        await out.send_and_wait(f"{app_id}.outcomes", record.value, key=record.key, headers=record.headers)
    return len(facts) + len(malformed) + 1


def page(port: int, accept: str) -> str:
    with urlopen(Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept}), timeout=5) as response:
        text: str = response.read().decode()
    return text


async def test_no_endpoint_and_no_log_line_tells_what_a_record_said(
    monitor: Monitor, embedded_broker: EmbeddedBroker, app_id: str, make_topics: Any, eventually: Eventually
) -> None:
    await make_topics(embedded_broker, app_id, partitions=PARTITIONS)
    sent = await tell(embedded_broker.address, app_id)
    monitor.start()

    async def all_consumed() -> bool:
        consumed = re.findall(
            r"^compaction_records_consumed_total\S* (\S+)$", (await monitor.get("/metrics"))[1].decode(), re.M
        )
        return sum(map(float, consumed)) == sent

    await eventually(all_consumed, 60, what="every record consumed")
    await eventually(monitor.ready, 20, what="/ready")
    plain, exemplified = [await asyncio.to_thread(page, monitor.port, accept) for accept in ("text/plain", OPEN_METRICS)]
    assert 'check="salience_inversion"' in plain
    assert re.search(r"^compaction_dead_letters_total\S* 2\.0$|reason=\"not_json\"", plain, re.M)
    told = [
        plain,
        *[(await monitor.get(path))[1].decode() for path in ("/live", "/ready", "/", "/tables", "/tables/sessions-v1")],
    ]
    assert MARK not in "".join(told)
    # An exemplar leads from a number to a session, by its id; nothing else of it, and no label of a metric.
    assert exemplified.count(f'# {{session="{SESSION}"}}') >= 1
    assert MARK not in exemplified.replace(f'# {{session="{SESSION}"}}', "")
    log = monitor.log_path.read_text()
    assert "DEBUG" in log
    assert TEXT not in log and PROPOSITION not in log and NODE not in log
