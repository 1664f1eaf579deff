"""The metrics of real workers: the gauges say what the rows say, whoever has them, and the counters what was sent."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from compaction_monitor.state.session import Session
from compaction_monitor.tally import state_of
from tests.absent import skip_or_fail
from tests.e2e import judging, workers
from tests.e2e.alertmanagers import ProgramMissingError, program
from tests.e2e.brokers import Kafka
from tests.e2e.fleet import STEADY, agent_of, fleet
from tests.e2e.watch import Watch
from tests.e2e.workers import Monitor

PARTITIONS = 4
EVENTS, SESSIONS = 4_000, 80
Eventually = Callable[..., Awaitable[Any]]
Counts = Counter[tuple[str, ...]]


@pytest.fixture
def pair(kafka_broker: Kafka, app_id: str, tmp_path: Path) -> Iterator[list[Monitor]]:
    settings = {"partitions": PARTITIONS, "metrics_agents": STEADY, "tick_s": 0.2}
    both = [Monitor(kafka_broker.address, app_id, tmp_path, name, **settings) for name in ("one", "two")]
    yield both
    for worker in both:
        worker.kill()


async def page(worker: Monitor) -> str:
    return (await worker.get("/metrics"))[1].decode()


async def summed(pair: Sequence[Monitor], name: str, *labels: str) -> Counts:
    """A sample's values by these labels over all workers that answer, without those that are 0."""
    found: Counts = Counter()
    for worker in pair:
        for family in text_string_to_metric_families(await page(worker)):
            for sample in family.samples:
                if sample.name == name and sample.value:
                    found[tuple(sample.labels[label] for label in labels)] += int(sample.value)
    return found


async def standing(pair: Sequence[Monitor]) -> tuple[Counts, Counts]:
    sessions = await summed(pair, "compaction_sessions", "agent", "state")
    return sessions, await summed(pair, "compaction_findings_open", "agent", "check", "severity")


async def in_the_rows(broker: str, app_id: str) -> tuple[Counts, Counts]:
    """The same, counted in the changelog."""
    sessions, findings = Counts(), Counts()
    for row in (await workers.state(broker, app_id, PARTITIONS)).values():
        session = Session.from_bytes(row)
        sessions[session.agent, state_of(session.ended, session.alerts, session.window)] += 1
        findings.update((session.agent, alert.check, alert.severity) for alert in session.alerts)
    return sessions, findings


async def test_gauges_are_the_rows_whoever_has_them(
    kafka_broker: Kafka,
    app_id: str,
    make_topics: Callable[..., Awaitable[Any]],
    pair: list[Monitor],
    eventually: Eventually,
) -> None:
    """One worker; two; the first one killed; started again. Sums over the workers are the same each time."""
    await make_topics(kafka_broker, app_id, partitions=PARTITIONS)
    one, two = pair
    one.start()
    facts = [fact for fact in fleet(EVENTS, SESSIONS) if agent_of(fact.session_id) == STEADY]
    log = judging.ready(facts, app_id, PARTITIONS)
    async with Watch(kafka_broker.address, app_id, PARTITIONS) as watch:
        async with workers.producer(kafka_broker.address, linger_ms=0, max_batch_size=judging.BATCH_BYTES) as out:
            for offset, record in await judging.send(out, log):
                watch.sent(record.topic, record.partition, offset + 1)
        await eventually(watch.at_the_end, 60, what="everything read", every_s=0.2)
    rows = await in_the_rows(kafka_broker.address, app_id)
    assert sum(rows[0].values()) > 20 and len(rows[1]) > 3

    async def counted() -> bool:
        whole = await summed(pair, "compaction_partitions_counted")
        return whole[()] == PARTITIONS and await standing(pair) == rows

    await eventually(counted, 20, what="the gauges of one worker", every_s=0.2)
    consumed = await summed(pair, "compaction_records_consumed_total")
    assert consumed[()] == len(log)
    two.start()

    async def shared() -> bool:
        return [(await summed([worker], "compaction_partitions_owned"))[()] for worker in pair] == [2, 2]

    await eventually(shared, 60, what="both workers at work", every_s=0.2)
    await eventually(counted, 20, what="the gauges of two workers", every_s=0.2)
    one.kill()
    await eventually(counted, 60, what="the gauges of the one that is left", every_s=0.2)
    one.start()
    await eventually(shared, 60, what="both workers at work again", every_s=0.2)
    await eventually(counted, 20, what="the gauges after a restart", every_s=0.2)
    two.signal(signal.SIGTERM)
    assert await two.ended(15) == 0
    await eventually(counted, 60, what="the gauges of the one that was killed before", every_s=0.2)
    check(await page(one))


def check(text: str) -> None:
    """Promtool has nothing to say about the page of a worker that has done all this."""
    try:
        promtool = program("promtool")
    except ProgramMissingError as missing:
        skip_or_fail(f"{missing}; all else has been shown")
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
