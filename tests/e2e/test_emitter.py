"""The emitter and a broker that is there, is not there, goes, and comes back: nothing is lost unless it is counted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.partitioner import murmur2

from compaction_events import builders
from compaction_events.codec import decode
from compaction_events.emitter import Emitter
from compaction_events.facts import Fact, RoundCompleted
from compaction_monitor.shell import topics
from compaction_monitor.shell.embedded import EmbeddedBroker
from tests.e2e.brokers import Broker, Kafka, free_ports

MakeTopics = Callable[..., Awaitable[Sequence[topics.Topic]]]
Eventually = Callable[..., Awaitable[Any]]


async def read(address: str, topic: str) -> list[tuple[int, Fact]]:
    """All events of a topic with their partition, each decoded, and so keyed by its session."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=address, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    await consumer.start()
    try:
        found = []
        ends = await consumer.end_offsets(consumer.assignment())
        while [tp for tp, end in ends.items() if await consumer.position(tp) < end]:
            for batch in (await consumer.getmany(timeout_ms=500)).values():
                found += [(record.partition, decode(record.value, record.headers, record.key).event) for record in batch]
        return found
    finally:
        await consumer.stop()


def rounds(found: list[tuple[int, Fact]]) -> Counter[int]:
    return Counter(event.round for _, event in found if isinstance(event, RoundCompleted))


async def test_every_event_arrives_once_in_order_in_the_partition_of_its_session(
    any_broker: Broker, app_id: str, make_topics: MakeTopics
) -> None:
    await make_topics(any_broker, app_id, partitions=4)
    topic, outcomes = f"{app_id}.events", f"{app_id}.outcomes"
    with Emitter(any_broker.address, agent="coder", topic=topic, outcomes_topic=outcomes) as emitter:
        for _ in range(50):
            for name in ("a", "b", "é", "d"):
                emitter.session(name).round(raw_tokens=1, summary_tokens=0)
        emitter.emit(builders.acknowledged("order", "accepted", 5))
        assert emitter.flush(30)
        assert emitter.stats.lost == 0
        assert emitter.stats.delivered == emitter.stats.emitted
    found = await read(any_broker.address, topic)
    for name in ("a", "b", "é", "d"):
        mine = [(partition, event) for partition, event in found if event.session_id == name]
        assert {partition for partition, _ in mine} == {(murmur2(name.encode()) & 0x7FFFFFFF) % 4}
        assert [event.round for _, event in mine if isinstance(event, RoundCompleted)] == list(range(1, 51))
    assert [event.type for _, event in await read(any_broker.address, outcomes)] == ["remediation.acknowledged"]


async def test_a_topic_that_is_missing_is_waited_for(
    kafka_broker: Kafka, app_id: str, make_topics: MakeTopics, eventually: Eventually
) -> None:
    topic = f"{app_id}.events"
    with Emitter(kafka_broker.address, agent="coder", topic=topic, request_timeout_ms=500) as emitter:
        emitter.session("s")
        assert not emitter.flush(0)
        await make_topics(kafka_broker, app_id, partitions=1)
        await eventually(lambda: emitter.stats.delivered == 1, 30)


async def test_an_event_that_waits_too_long_is_counted(eventually: Eventually) -> None:
    with Emitter(f"127.0.0.1:{free_ports(1)[0]}", agent="coder", delivery_timeout_s=0.0, exit_timeout_s=0) as emitter:
        emitter.session("s")
        await eventually(lambda: emitter.stats.dropped == {"timed_out": 1}, 30)


async def test_a_record_the_broker_takes_never_holds_up_nothing(kafka_broker: Kafka, app_id: str) -> None:
    topic = topics.Topic(f"{app_id}.events", 1, 1, {"max.message.bytes": "2000"})
    async with topics.connect(bootstrap_servers=kafka_broker.address) as admin:
        await topics.apply(admin, [topic])
    with Emitter(kafka_broker.address, agent="coder", topic=topic.name) as emitter:
        session = emitter.session("s")
        assert emitter.flush(30)
        session.round(raw_tokens=1, summary_tokens=0, propositions_retained=[f"p{n}" for n in range(900)])
        assert emitter.flush(30)
        session.round(raw_tokens=1, summary_tokens=0)
        assert emitter.flush(30)
        assert emitter.stats.dropped == {"rejected": 1}
    assert rounds(await read(kafka_broker.address, topic.name)) == {2: 1}


class TestDownAndUp:
    """Real Kafka of its own: what it confirmed, it has; so the books can be compared with the log exactly."""

    @pytest.fixture
    def broker(self, kafka_broker: Kafka, tmp_path: Path) -> Iterator[Kafka]:
        del kafka_broker  # where it is skipped, so is this
        own = Kafka(tmp_path / "own")
        own.folder.mkdir()
        own.start()
        yield own
        own.stop()

    async def test_down_coming_back_and_the_books(self, broker: Kafka, app_id: str, make_topics: MakeTopics) -> None:
        await make_topics(broker, app_id, partitions=2)
        topic = f"{app_id}.events"
        broker.stop()
        with Emitter(broker.address, agent="coder", topic=topic, max_events=300) as emitter:
            session = emitter.session("s")

            def work(events: int) -> None:
                for _ in range(events):
                    session.round(raw_tokens=1, summary_tokens=0)

            work(1_000)  # down: the oldest go
            down = emitter.stats
            assert (down.delivered, down.pending, down.dropped) == (0, 300, {"queue_full": down.emitted - 300})
            broker.start()
            assert emitter.flush(60)  # coming up
            assert emitter.stats.delivered == 300
            work(200)
            broker.stop()  # going, with events in flight
            work(1_000)
            broker.start()  # coming back
            assert emitter.flush(60)
            work(1)
            assert emitter.flush(60)
            stats = emitter.stats
            assert stats.pending == 0
            assert stats.dropped.keys() == {"queue_full"}
        found = await read(broker.address, topic)
        seen = rounds(found)
        repeats = seen.total() - len(seen)
        # A request that the broker took but did not live to confirm may be there twice; nothing else may.
        assert repeats <= 500
        assert stats.delivered == len(found) - repeats
        assert stats.emitted == stats.delivered + stats.lost
        numbers = [event.round for _, event in found if isinstance(event, RoundCompleted)]
        assert numbers[-1] == session.last_round
        assert list(dict.fromkeys(numbers)) == sorted(seen)


SCRIPT = """
import sys
from compaction_events.emitter import Emitter
emitter = Emitter(sys.argv[1], agent="coder", topic=sys.argv[2], exit_timeout_s=30)
emitter.session("s").round(raw_tokens=1, summary_tokens=0)
"""


def run(script: str, address: str, topic: str) -> tuple[int, str]:
    # Every warning is an error but one: forking with threads about is deprecated, and what one test is about.
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", script, address, topic]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr


async def test_a_script_that_ends_at_once_has_delivered(any_broker: Broker, app_id: str, make_topics: MakeTopics) -> None:
    await make_topics(any_broker, app_id, partitions=1)
    # By name: the interpreter's end takes the executor that asyncio resolves names with.
    address = any_broker.address.replace("127.0.0.1", "localhost")
    assert await asyncio.to_thread(run, SCRIPT, address, f"{app_id}.events") == (0, "")
    assert rounds(await read(any_broker.address, f"{app_id}.events")) == {1: 1}


def test_a_script_without_its_broker_ends_in_time_and_says_so_once() -> None:
    script = SCRIPT.replace("exit_timeout_s=30", "exit_timeout_s=1")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    code, said = run(script, address, "t")
    assert code == 0
    assert len(said.splitlines()) == 1, said
    assert "events wait" in said


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_a_child_connects_anew(embedded_broker: EmbeddedBroker, app_id: str, make_topics: MakeTopics) -> None:
    await make_topics(embedded_broker, app_id, partitions=1)
    script = f"""import os
{SCRIPT}
emitter.flush(30)
child = os.fork()
if child == 0:
    emitter.session("s").round(raw_tokens=1, summary_tokens=0)
    sys.exit(not emitter.flush(30))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert await asyncio.to_thread(run, script, embedded_broker.address, f"{app_id}.events") == (0, "")
    assert rounds(await read(embedded_broker.address, f"{app_id}.events")) == {1: 1, 2: 1}
