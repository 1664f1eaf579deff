"""Worker processes under test, and what they are judged by: the input, the output (read committed), and the oracle."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.partitioner import murmur2

from tests.e2e.brokers import free_ports
from tests.e2e.counter import EVERY

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """One `tests.e2e.counter` worker with a name, a data directory and a web port of its own."""

    command: Sequence[str] = ("tests.e2e.counter",)

    def __init__(self, broker: str, app_id: str, folder: Path, name: str = "one", **settings: Any) -> None:
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log_path = self.folder / "worker.log"
        self.port = free_ports(1)[0]
        wanted = {
            "brokers": broker, "app_id": app_id, "worker": name, "datadir": self.folder / "data", "web_port": self.port,
            "events_topics": f"{app_id}.events", "outcomes_topic": f"{app_id}.outcomes",
            "findings_topic": f"{app_id}.findings", "dead_letters_topic": f"{app_id}.dead-letters",
            "session_timeout_s": 6, **settings,
        }  # fmt: skip
        self._environment = {f"COMPACTION_MONITOR_{key.upper()}": str(value) for key, value in wanted.items()}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, **settings: Any) -> None:
        more = {f"COMPACTION_MONITOR_{key.upper()}": str(value) for key, value in settings.items()}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self.command],
                cwd=ROOT, env=os.environ | self._environment | more, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def ended(self, timeout_s: float) -> int:
        """Its exit code.

        Raises:
            TimeoutError: It still runs.
        """
        assert self._process is not None
        try:
            code: int = await asyncio.to_thread(self._process.wait, timeout_s)
            return code
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"worker {self.pid} still runs after {timeout_s:g} s:\n{self.tail()}") from None

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        if self.running():
            self.signal(signal.SIGKILL)
            assert self._process is not None
            self._process.wait()

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def told_ready(self) -> list[str]:
        """What it said each time that it was ready."""
        return re.findall(r" ready: (.*)", self.log_path.read_text(errors="replace"))

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body; status 0 when nobody answers."""
        return await asyncio.to_thread(self._get, path)

    def _get(self, path: str) -> tuple[int, bytes]:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as response:
                return response.status, response.read()
        except URLError as exc:
            status = getattr(exc, "code", 0)
            return status, exc.read() if status and hasattr(exc, "read") else b""
        except OSError:
            return 0, b""

    async def ready(self) -> bool:
        return (await self.get("/ready"))[0] == 200


class Monitor(WorkerProcess):
    """The worker itself."""

    command = ("compaction_monitor", "worker")


def partition_of(key: bytes, partitions: int) -> int:
    partition: int = (murmur2(key) & 0x7FFFFFFF) % partitions
    return partition


@asynccontextmanager
async def producer(broker: str, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    made = AIOKafkaProducer(bootstrap_servers=broker, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def send(broker: str, topic: str, keys: Sequence[bytes], partitions: int, *, chunk: int = 2000, **options: Any) -> None:
    """Send one record for each key, in order; with `transactional_id` one transaction for each chunk."""
    async with producer(broker, linger_ms=0, **options) as out:
        for at in range(0, len(keys), chunk):
            if "transactional_id" in options:
                async with out.transaction():
                    await _send_chunk(out, topic, keys[at : at + chunk], partitions)
            else:
                await _send_chunk(out, topic, keys[at : at + chunk], partitions)


async def _send_chunk(out: AIOKafkaProducer, topic: str, keys: Sequence[bytes], partitions: int) -> None:
    batches: dict[int, Any] = {}
    sent = []
    for key in keys:
        partition = partition_of(key, partitions)
        batch = batches.get(partition)
        if batch is None or batch.append(timestamp=None, key=key, value=b"x") is None:
            if batch is not None:
                sent.append(await out.send_batch(batch, topic, partition=partition))
            batch = batches[partition] = out.create_batch()
            batch.append(timestamp=None, key=key, value=b"x")
    for partition, batch in batches.items():
        sent.append(await out.send_batch(batch, topic, partition=partition))
    await asyncio.gather(*sent)


async def read_all(broker: str, topic: str, partitions: int) -> list[Any]:
    """Every committed record of a topic, partition by partition."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker, isolation_level="read_committed", auto_offset_reset="earliest")
    await consumer.start()
    try:
        tps = [TopicPartition(topic, partition) for partition in range(partitions)]
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        ends = await consumer.end_offsets(tps)
        records = []
        while any([await consumer.position(tp) < ends[tp] for tp in tps]):
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                records += batch
        return sorted(records, key=lambda record: (record.partition, record.offset))
    finally:
        await consumer.stop()


async def state(broker: str, app_id: str, partitions: int, table: str = "sessions-v1") -> dict[bytes, bytes]:
    """The rows of a table as its changelog has them."""
    rows: dict[bytes, bytes] = {}
    for record in await read_all(broker, f"{app_id}-{table}-changelog", partitions):
        if record.value is None:
            rows.pop(record.key, None)
        else:
            rows[record.key] = record.value
    return rows


async def progress(broker: str, app_id: str, partitions: int, topic: str) -> dict[int, int]:
    """How far each partition of an input has been read."""
    reached = {}
    for record in await read_all(broker, f"{app_id}-progress-v1-changelog", partitions):
        if record.key == topic.encode():
            reached[record.partition] = orjson.loads(record.value)[1]
    return reached


async def ends(broker: str, topic: str, partitions: int) -> dict[int, int]:
    consumer = AIOKafkaConsumer(bootstrap_servers=broker, isolation_level="read_committed")
    await consumer.start()
    try:
        found = await consumer.end_offsets([TopicPartition(topic, partition) for partition in range(partitions)])
        return {tp.partition: offset for tp, offset in found.items()}
    finally:
        await consumer.stop()


async def committed(broker: str, app_id: str, topic: str, partitions: int) -> dict[int, int | None]:
    """The group's offsets."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker, group_id=app_id, enable_auto_commit=False)
    await consumer.start()
    try:
        return {partition: await consumer.committed(TopicPartition(topic, partition)) for partition in range(partitions)}
    finally:
        await consumer.stop()


def oracle(keys: Sequence[bytes]) -> tuple[dict[bytes, bytes], Counter[bytes]]:
    """The state and the findings that these keys lead to."""
    counts = Counter(keys)
    findings = Counter(b"%s:%d" % (key, n) for key, count in counts.items() for n in range(EVERY, count + 1, EVERY))
    return {key: b"%d" % count for key, count in counts.items()}, findings


async def total(broker: str, app_id: str, partitions: int) -> int:
    """Records counted so far."""
    return sum(int(value) for value in (await state(broker, app_id, partitions)).values())
