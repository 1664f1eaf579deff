"""One worker, on the embedded broker and on a real Kafka: input to output, restarts, unreadable records, refusals."""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.util import calc_crc32c

from compaction_monitor.shell import topics
from tests.e2e import workers
from tests.e2e.brokers import Broker, own_topics
from tests.e2e.workers import WorkerProcess

PARTITIONS = 4
Eventually = Callable[..., Awaitable[Any]]
NewWorker = Callable[..., WorkerProcess]


def keys_of(count: int, distinct: int = 200, seed: int = 1) -> list[bytes]:
    chosen = random.Random(seed)
    return [b"session-%d" % chosen.randrange(distinct) for _ in range(count)]


@pytest.fixture
async def made(any_broker: Broker, app_id: str, make_topics: Callable[..., Awaitable[Any]]) -> Broker:
    """The broker, with this test's topics."""
    await make_topics(any_broker, app_id, partitions=PARTITIONS)
    return any_broker


@pytest.fixture
def new_worker(any_broker: Broker, app_id: str, tmp_path: Path) -> Iterator[NewWorker]:
    """Makes worker processes; whatever still runs at the end is killed."""
    all_made: list[WorkerProcess] = []

    def new(name: str = "one", **settings: Any) -> WorkerProcess:
        worker = WorkerProcess(any_broker.address, app_id, tmp_path, name, **{"partitions": PARTITIONS, **settings})
        all_made.append(worker)
        return worker

    yield new
    for worker in all_made:
        worker.kill()


async def judge(broker: Broker, app_id: str, keys: Sequence[bytes], eventually: Eventually, deadline_s: float = 60) -> None:
    """State and findings (read committed) come to equal the oracle's, and stay no more than that."""
    wanted_state, wanted_findings = workers.oracle(keys)

    async def complete() -> bool:
        return await workers.total(broker.address, app_id, PARTITIONS) >= len(keys)

    await eventually(complete, deadline_s, what="every record counted", every_s=0.2)
    findings = await workers.read_all(broker.address, f"{app_id}.findings", PARTITIONS)
    assert await workers.state(broker.address, app_id, PARTITIONS) == wanted_state
    assert Counter(record.value for record in findings) == wanted_findings


async def test_transactional_input_reaches_its_end(
    made: Broker, app_id: str, new_worker: NewWorker, eventually: Eventually
) -> None:
    """Markers in the input are no holes, the group's offset gets past the last one, and SIGTERM ends at once."""
    events, keys = f"{app_id}.events", keys_of(20_000)
    worker = new_worker()
    worker.start()
    await workers.send(made.address, events, keys, PARTITIONS, chunk=500, transactional_id=f"{app_id}-input")
    await judge(made, app_id, keys, eventually)
    ends = await workers.ends(made.address, events, PARTITIONS)

    async def committed() -> bool:
        return await workers.committed(made.address, app_id, events, PARTITIONS) == ends

    await eventually(committed, 15, what="the committed offsets at the end of the log", every_s=0.2)
    worker.signal(signal.SIGTERM)
    assert await worker.ended(10) == 0
    assert "going back" not in worker.log_path.read_text()


async def test_one_line_says_that_it_is_ready(made: Broker, new_worker: NewWorker, eventually: Eventually) -> None:
    worker = new_worker()
    worker.start()
    told = await eventually(lambda: worker.told_ready(), 20, what="the line")
    assert told == [f"all 4 partitions; http://127.0.0.1:{worker.port}"]
    assert await worker.ready()


async def test_health_and_metrics_tell_the_truth(
    made: Broker, app_id: str, new_worker: NewWorker, eventually: Eventually
) -> None:
    worker = new_worker()
    worker.start()
    await eventually(worker.ready, 20, what="/ready")
    assert await worker.get("/live") == (200, b'{"live":true}')
    keys = keys_of(500)
    await workers.send(made.address, f"{app_id}.events", keys, PARTITIONS)
    await judge(made, app_id, keys, eventually)

    async def page() -> str:
        return (await worker.get("/metrics"))[1].decode()

    async def counted() -> bool:
        lines = (await page()).splitlines()
        consumed = sum(float(line.split()[-1]) for line in lines if line.startswith("compaction_records_consumed_total"))
        lag = sum(float(line.split()[-1]) for line in lines if line.startswith("compaction_lag_records"))
        return consumed == len(keys) and lag == 0

    await eventually(counted, 10, what="consumed and lag in /metrics")
    assert "compaction_partitions_owned 4.0" in await page()
    assert (await worker.get("/tables"))[0] == 404


@pytest.mark.parametrize("store", ["rocksdict", "memory"])
async def test_killed_and_terminated_in_the_middle(
    made: Broker, app_id: str, new_worker: NewWorker, eventually: Eventually, store: str
) -> None:
    """SIGKILL, then SIGTERM, under load: nothing lost, nothing doubled."""
    keys = keys_of(60_000)
    worker = new_worker(store=store, fetch_max_bytes=65536)
    half = len(keys) // 2
    await workers.send(made.address, f"{app_id}.events", keys[:half], PARTITIONS)

    async def under_way() -> bool:
        return await workers.total(made.address, app_id, PARTITIONS) > 0

    worker.start()
    await eventually(under_way, 30, what="first commits", every_s=0.01)
    worker.signal(signal.SIGKILL)
    assert await worker.ended(5) == -signal.SIGKILL
    worker.start()
    await eventually(worker.ready, 30, what="/ready after SIGKILL", every_s=0.01)
    await workers.send(made.address, f"{app_id}.events", keys[half:], PARTITIONS)
    worker.signal(signal.SIGTERM)
    assert await worker.ended(10) == 0
    worker.start()
    await judge(made, app_id, keys, eventually)


async def test_recovery_ends_at_a_marker(made: Broker, app_id: str, new_worker: NewWorker, eventually: Eventually) -> None:
    """The changelogs end in transaction markers: with the local store and without it, the worker gets ready and goes on."""
    keys = keys_of(3_000)
    worker = new_worker()
    await workers.send(made.address, f"{app_id}.events", keys[:1000], PARTITIONS)
    worker.start()
    await judge(made, app_id, keys[:1000], eventually)
    for upto, lost in ((2000, False), (3000, True)):
        worker.signal(signal.SIGTERM)
        assert await worker.ended(10) == 0
        if lost:
            shutil.rmtree(worker.folder / "data")
        worker.start()
        await eventually(worker.ready, 20, what=f"/ready, store lost: {lost}")
        await workers.send(made.address, f"{app_id}.events", keys[upto - 1000 : upto], PARTITIONS)
        await judge(made, app_id, keys[:upto], eventually)


async def test_dropped_batches_are_read_again(made: Broker, app_id: str, new_worker: NewWorker, eventually: Eventually) -> None:
    """A third of all batches vanish between the consumer and the agent, the last ones of the log among them."""
    keys = keys_of(20_000)
    worker = new_worker(fetch_max_bytes=65536, tick_s=0.2)
    await workers.send(made.address, f"{app_id}.events", keys, PARTITIONS, chunk=1000)
    for _ in range(3):
        worker.start(drop_batches=True)
        await eventually(worker.ready, 30, what="/ready")
        await judge(made, app_id, keys, eventually)
        worker.signal(signal.SIGTERM)
        assert await worker.ended(10) == 0
        shutil.rmtree(worker.folder / "data")
    assert "going back" in worker.log_path.read_text()


async def send_unreadable(broker: Broker, topic: str, partition: int) -> None:
    """Three records in one batch; the second has a header key that is not UTF-8."""
    async with workers.producer(broker.address) as out:
        batch = out.create_batch()
        for key, headers in ((b"a", []), (b"b", [("KEYKEY", b"value")]), (b"c", [])):
            batch.append(timestamp=None, key=key, value=b"x", headers=headers)
        build = batch._build

        def spoiled() -> bytes:
            data = bytearray(build()).replace(b"KEYKEY", b"\xff\xfeKEY\xff")
            # Base offset, length, epoch and magic come before the checksum, and the checksum is of what comes after it.
            data[17:21] = calc_crc32c(bytes(data[21:])).to_bytes(4, "big")
            return bytes(data)

        batch._build = spoiled
        await (await out.send_batch(batch, topic, partition=partition))


async def test_unreadable_records_and_every_codec(
    made: Broker, app_id: str, new_worker: NewWorker, eventually: Eventually
) -> None:
    events = f"{app_id}.events"
    worker = new_worker()
    keys = []
    for codec in (None, "gzip", "snappy", "lz4", "zstd"):
        sent = [b"%s-%d" % ((codec or "none").encode(), n % 7) for n in range(100)]
        await workers.send(made.address, events, sent, PARTITIONS, compression_type=codec)
        for partition in range(PARTITIONS):
            await send_unreadable(made, events, partition)
        keys += sent
    worker.start()
    bad = 5 * PARTITIONS

    async def dead_letters() -> list[Any]:
        return await workers.read_all(made.address, f"{app_id}.dead-letters", PARTITIONS)

    async def all_dead() -> bool:
        return len(await dead_letters()) >= bad

    await eventually(all_dead, 30, what="the unreadable records in the dead letters")
    keys += [b"a", b"c"] * bad

    async def complete() -> bool:
        return await workers.total(made.address, app_id, PARTITIONS) >= 500

    await eventually(complete, 30, what="the good records counted")
    letters = await dead_letters()
    assert Counter(record.key for record in letters) == {b"b": bad}
    assert all(dict(record.headers)["x-reason"] == b"undecodable_record" for record in letters)

    async def good() -> bool:
        findings = await workers.read_all(made.address, f"{app_id}.findings", PARTITIONS)
        return bool(findings) and await workers.progress(made.address, app_id, PARTITIONS, events) == await workers.ends(
            made.address, events, PARTITIONS
        )

    await eventually(good, 30, what="progress at the end of the log")
    assert worker.running()


async def refused(worker: WorkerProcess, *words: str, code: int = 78) -> None:
    assert await worker.ended(30) == code
    last = worker.tail(1)
    assert f"exit {code}" in last
    for word in words:
        assert word in last


async def test_a_recreated_topic_is_refused_until_accepted(
    made: Broker, app_id: str, new_worker: NewWorker, eventually: Eventually
) -> None:
    events, keys = f"{app_id}.events", keys_of(1_000)
    worker = new_worker()
    worker.start()
    await workers.send(made.address, events, keys, PARTITIONS)
    await judge(made, app_id, keys, eventually)
    worker.signal(signal.SIGTERM)
    assert await worker.ended(10) == 0
    await recreate(made, app_id, events, eventually)
    worker.start()
    await refused(worker, events, "recreated", f"--accept-new-log {events}")
    worker.start(accept_new_log=events)
    more = keys_of(100, seed=2)
    await workers.send(made.address, events, more, PARTITIONS)
    await judge(made, app_id, keys + more, eventually)
    assert worker.running()


async def recreate(broker: Broker, app_id: str, topic: str, eventually: Eventually) -> None:
    wanted = [one for one in own_topics(app_id, partitions=PARTITIONS) if one.name == topic]
    async with topics.connect(bootstrap_servers=broker.address) as admin:
        await admin.delete_topics([topic])

        async def gone() -> bool:
            return not await topics.read(admin, wanted)

        await eventually(gone, 20, what="the topic deleted")
        await topics.apply(admin, wanted)

    async def empty() -> bool:
        return set((await workers.ends(broker.address, topic, PARTITIONS)).values()) == {0}

    await eventually(empty, 20, what="the new topic empty")


async def test_unequal_partition_counts_are_refused(
    any_broker: Broker, app_id: str, new_worker: NewWorker, make_topics: Callable[..., Awaitable[Any]]
) -> None:
    events, *others = own_topics(app_id, partitions=PARTITIONS)
    wider = topics.Topic(events.name, PARTITIONS + 1, 1, events.config)
    async with topics.connect(bootstrap_servers=any_broker.address) as admin:
        await topics.apply(admin, [wider, *others])
    worker = new_worker()
    worker.start()
    await refused(worker, events.name, "partitions")


async def test_missing_topics_are_refused(any_broker: Broker, app_id: str, new_worker: NewWorker) -> None:
    worker = new_worker()
    worker.start()
    await refused(worker, f"{app_id}.events", "topics apply")


async def test_a_wrong_setting_is_refused(any_broker: Broker, new_worker: NewWorker) -> None:
    worker = new_worker(partitions=0)
    worker.start()
    assert await worker.ended(20) == 78
    assert "COMPACTION_MONITOR_PARTITIONS=" in worker.tail()


async def test_a_newer_state_is_refused(made: Broker, app_id: str, new_worker: NewWorker) -> None:
    async with workers.producer(made.address) as out:
        row = {"key": f"{app_id}.events".encode(), "value": b"[99,5]"}
        await out.send_and_wait(topics.changelog(app_id, "progress-v1"), partition=0, **row)
    worker = new_worker()
    worker.start()
    await refused(worker, "version 99", "newer")


async def test_a_store_ahead_of_its_changelog_is_refused(
    made: Broker, app_id: str, new_worker: NewWorker, eventually: Eventually
) -> None:
    """A changelog that was recreated: the local store is then the only copy of the state, so nobody but us throws it away."""
    keys = keys_of(1_000)
    worker = new_worker()
    await workers.send(made.address, f"{app_id}.events", keys, PARTITIONS)
    worker.start()
    await judge(made, app_id, keys, eventually)
    worker.signal(signal.SIGTERM)
    assert await worker.ended(10) == 0
    await recreate(made, app_id, topics.changelog(app_id, "sessions-v1"), eventually)
    worker.start()
    await refused(worker, "ahead of its changelog", "sessions-v1-changelog")


async def test_a_broker_that_does_not_answer(any_broker: Broker, new_worker: NewWorker) -> None:
    worker = new_worker(brokers="127.0.0.1:1")
    worker.start()
    await refused(worker, "127.0.0.1:1", code=69)
