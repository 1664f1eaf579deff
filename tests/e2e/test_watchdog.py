"""A worker that is stuck says so and ends; one that waits for a broker waits; SIGTERM ends either in time."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction_monitor.shell.embedded import EmbeddedBroker
from tests.e2e import workers
from tests.e2e.brokers import Kafka
from tests.e2e.workers import WorkerProcess

PARTITIONS = 2
STUCK_S = 8
TERM_S = 10
Eventually = Callable[..., Awaitable[Any]]
NewWorker = Callable[..., WorkerProcess]


class Faulty(WorkerProcess):
    command = ("tests.e2e.faulty",)


@pytest.fixture
def new_worker(app_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewWorker]:
    """Makes worker processes; whatever still runs at the end is killed."""
    made: list[WorkerProcess] = []

    def new(broker: str, name: str = "one", kind: type[WorkerProcess] = WorkerProcess, **settings: Any) -> WorkerProcess:
        worker = kind(broker, app_id, tmp_path, name, **{"partitions": PARTITIONS, **settings})
        made.append(worker)
        return worker

    monkeypatch.setenv("STUCK_S", str(STUCK_S))
    yield new
    for worker in made:
        worker.kill()


async def put(broker: str, app_id: str, value: bytes) -> None:
    async with workers.producer(broker) as out:
        await out.send_and_wait(f"{app_id}.events", value, key=b"hang", partition=0)


async def term(worker: WorkerProcess) -> float:
    """SIGTERM; how long it takes to end, with 0."""
    begun = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert await worker.ended(TERM_S) == 0, worker.tail()
    return time.monotonic() - begun


class TestStuck:
    @pytest.mark.parametrize(
        ("fault", "unready", "last_line"),
        [
            pytest.param("loop", None, ("the event loop has not come round for ", "faulty.py:", ", stand_still"), id="loop"),
            pytest.param(
                "delivery",
                b"a transaction has been under way for more than 5 s",
                ("no progress for 8 s although the brokers answer: partition 0",),
                id="delivery",
            ),
            pytest.param("partition", None, ("no progress for 8 s although the brokers answer: partition 0",), id="partition"),
            pytest.param(
                "rejoin",
                b"recovering",
                ("no progress for 8 s although the brokers answer: the worker is recovering",),
                id="rejoin",
            ),
        ],
    )
    async def test_it_says_where_and_ends_to_be_started_again(
        self,
        embedded_broker: EmbeddedBroker,
        app_id: str,
        make_topics: Any,
        new_worker: NewWorker,
        eventually: Eventually,
        monkeypatch: pytest.MonkeyPatch,
        fault: str,
        unready: bytes | None,
        last_line: tuple[str, ...],
    ) -> None:
        await make_topics(embedded_broker, app_id, partitions=PARTITIONS)
        monkeypatch.setenv("FAULT", fault)
        worker = new_worker(embedded_broker.address, kind=Faulty)
        worker.start()
        if fault != "rejoin":
            await eventually(worker.ready, 40, what="/ready")
            await put(embedded_broker.address, app_id, b"hang")
        if unready is not None:

            async def says_so() -> bool:
                status, page = await worker.get("/ready")
                return status == 503 and unready in page

            await eventually(says_so, 30, what="/ready says why not")
        assert await worker.ended(60) == 75
        line = worker.tail(1)
        assert "exit 75: " in line
        assert all(words in line for words in last_line), line

    async def test_the_next_one_takes_up_what_it_left(
        self,
        embedded_broker: EmbeddedBroker,
        app_id: str,
        make_topics: Any,
        new_worker: NewWorker,
        eventually: Eventually,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        await make_topics(embedded_broker, app_id, partitions=PARTITIONS)
        monkeypatch.setenv("FAULT", "delivery")
        stuck = new_worker(embedded_broker.address, kind=Faulty)
        stuck.start()
        await put(embedded_broker.address, app_id, b"hang")
        assert await stuck.ended(90) == 75
        new_worker(embedded_broker.address).start()

        async def counted() -> bool:
            return await workers.state(embedded_broker.address, app_id, PARTITIONS) == {b"hang": b"1"}

        await eventually(counted, 60, what="the record counted once", every_s=0.2)

    async def test_a_broker_that_stands_still_is_waited_for(
        self, own_broker: Kafka, app_id: str, make_topics: Any, new_worker: NewWorker, eventually: Eventually
    ) -> None:
        """For longer than the limit, with a record on its way: not ready, alive, and ready again."""
        await make_topics(own_broker, app_id, partitions=PARTITIONS)
        worker = new_worker(own_broker.address)
        worker.start()
        await eventually(worker.ready, 40, what="/ready")

        async def settled() -> bool:
            reached = await workers.progress(own_broker.address, app_id, PARTITIONS, f"{app_id}.events")
            return len(reached) == PARTITIONS

        await eventually(settled, 40, what="where each partition goes on", every_s=0.2)
        assert own_broker.pid is not None
        os.killpg(own_broker.pid, signal.SIGSTOP)

        async def waited_for() -> bool:
            return "no progress for 8 s: no fetch is answered; no broker answers" in worker.tail(400)

        await eventually(waited_for, 60, what="the watchdog has looked")
        status, page = await worker.get("/ready")
        assert (status, b"no broker has answered a fetch for" in page) == (503, True)
        assert await worker.get("/live") == (200, b'{"live":true}')
        os.killpg(own_broker.pid, signal.SIGCONT)
        await eventually(worker.ready, 60, what="/ready again")
        await term(worker)


class TestTerm:
    async def test_idle(
        self, embedded_broker: EmbeddedBroker, app_id: str, make_topics: Any, new_worker: NewWorker, eventually: Eventually
    ) -> None:
        await make_topics(embedded_broker, app_id, partitions=PARTITIONS)
        worker = new_worker(embedded_broker.address)
        worker.start()
        await eventually(worker.ready, 40, what="/ready")
        await term(worker)

    async def test_at_once_after_its_start(
        self, embedded_broker: EmbeddedBroker, app_id: str, make_topics: Any, new_worker: NewWorker, eventually: Eventually
    ) -> None:
        await make_topics(embedded_broker, app_id, partitions=PARTITIONS)
        worker = new_worker(embedded_broker.address)
        worker.start()
        await eventually(lambda: "web server on" in worker.tail(400), 40, what="the web server")
        await term(worker)

    async def test_under_load(
        self, kafka_broker: Kafka, app_id: str, make_topics: Any, new_worker: NewWorker, eventually: Eventually
    ) -> None:
        await make_topics(kafka_broker, app_id, partitions=PARTITIONS)
        worker = new_worker(kafka_broker.address, fetch_max_bytes=65536)
        worker.start()
        await eventually(worker.ready, 40, what="/ready")
        keys = [b"session-%d" % (number % 200) for number in range(20_000)]
        await workers.send(kafka_broker.address, f"{app_id}.events", keys, PARTITIONS)

        async def under_way() -> bool:
            return await workers.total(kafka_broker.address, app_id, PARTITIONS) > 1_000

        await eventually(under_way, 60, what="work under way")
        await term(worker)

    async def test_while_the_loop_is_stuck(
        self,
        embedded_broker: EmbeddedBroker,
        app_id: str,
        make_topics: Any,
        new_worker: NewWorker,
        eventually: Eventually,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        await make_topics(embedded_broker, app_id, partitions=PARTITIONS)
        monkeypatch.setenv("FAULT", "loop")
        monkeypatch.setenv("STUCK_S", "600")
        worker = new_worker(embedded_broker.address, kind=Faulty)
        worker.start()
        await eventually(worker.ready, 40, what="/ready")
        await put(embedded_broker.address, app_id, b"hang")

        async def silent() -> bool:
            return (await worker.get("/live"))[0] == 0

        await eventually(silent, 30, what="a loop that does not answer")
        await term(worker)
        assert "signal SIGTERM (did not stop in time)" in worker.tail(1)

    @pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["still", "gone"])
    async def test_without_a_broker(
        self,
        own_broker: Kafka,
        app_id: str,
        make_topics: Any,
        new_worker: NewWorker,
        eventually: Eventually,
        monkeypatch: pytest.MonkeyPatch,
        how: signal.Signals,
    ) -> None:
        await make_topics(own_broker, app_id, partitions=PARTITIONS)
        monkeypatch.setenv("STUCK_S", "600")
        worker = new_worker(own_broker.address)
        worker.start()
        await eventually(worker.ready, 40, what="/ready")
        assert own_broker.pid is not None
        os.killpg(own_broker.pid, how)

        async def unready() -> bool:
            return (await worker.get("/ready"))[0] == 503

        await eventually(unready, 30, what="/ready says no")
        await term(worker)
        if how == signal.SIGKILL:
            own_broker.stop()
            own_broker.start()

    async def test_while_it_recovers(
        self, kafka_broker: Kafka, app_id: str, make_topics: Any, new_worker: NewWorker, eventually: Eventually
    ) -> None:
        await make_topics(kafka_broker, app_id, partitions=PARTITIONS)
        changelog = f"{app_id}-sessions-v1-changelog"
        async with workers.producer(kafka_broker.address, linger_ms=20) as out:
            for number in range(60_000):
                await out.send(changelog, b"1" * 100, key=b"%d" % number, partition=number % PARTITIONS)
        worker = new_worker(kafka_broker.address, fetch_max_bytes=65536)
        worker.start()

        async def recovering() -> bool:
            status, page = await worker.get("/ready")
            return status == 503 and b"recovering" in page

        await eventually(recovering, 40, what="recovery under way", every_s=0.005)
        await term(worker)

    async def test_while_another_joins(
        self, kafka_broker: Kafka, app_id: str, make_topics: Any, new_worker: NewWorker, eventually: Eventually
    ) -> None:
        await make_topics(kafka_broker, app_id, partitions=PARTITIONS)
        one, two = new_worker(kafka_broker.address, "one"), new_worker(kafka_broker.address, "two")
        one.start()
        await eventually(one.ready, 40, what="/ready")
        keys = [b"session-%d" % (number % 50) for number in range(20_000)]
        load = asyncio.create_task(workers.send(kafka_broker.address, f"{app_id}.events", keys, PARTITIONS, chunk=200))
        two.start()

        async def rebalancing() -> bool:
            status, page = await one.get("/ready")
            return status == 503 and (b"rebalancing" in page or b"recovering" in page)

        await eventually(rebalancing, 60, what="a rebalance under way", every_s=0.005)
        await term(one)
        await load
        await eventually(two.ready, 60, what="the other one takes over")
        await term(two)
