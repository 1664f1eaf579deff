"""The broker of docker-compose.yml, run with what the image would make of the variables there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import UnknownTopicOrPartitionError

from compaction_monitor.shell import topics
from tests.e2e.brokers import Kafka, free_ports
from tests.natively import composed


class Composed(Kafka):
    """That broker, on free ports of this machine and with its logs in a folder of the test's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.environment: dict[str, str] = composed()["services"]["kafka"]["environment"]
        ports = {int(port) for port in re.findall(r":(\d+)", self.environment["KAFKA_LISTENERS"])}
        self.ports = dict(zip(sorted(ports), free_ports(len(ports)), strict=True))
        self._port = self.ports[19092]

    def properties(self) -> str:
        """As the image makes them: `KAFKA_A_B` is `a.b`."""
        given = {
            name.removeprefix("KAFKA_").lower().replace("_", "."): self._here(value)
            for name, value in self.environment.items()
            if name.startswith("KAFKA_")
        }
        given["log.dirs"] = (self.folder / "data").as_posix()
        return "".join(f"{name}={value}\n" for name, value in given.items())

    def _here(self, value: str) -> str:
        return re.sub(r"(?<=[/@])[\w.]*:(\d+)", lambda found: f"127.0.0.1:{self.ports[int(found[1])]}", value)

    def _format(self, properties: Path) -> None:
        properties.write_text(self.properties())
        command = ["kafka.tools.StorageTool", "format", "-t", self.environment["CLUSTER_ID"], "-c", str(properties)]
        formatted = subprocess.run([*self._java(), *command], capture_output=True, text=True, check=False)
        assert formatted.returncode == 0, formatted.stdout + formatted.stderr


@pytest.fixture(scope="module")
def broker(kafka_broker: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """Beside the one that all tests share, which says whether there is a Kafka at all."""
    with Composed(tmp_path_factory.mktemp("composed")) as started:
        yield started


async def test_it_takes_all_that_a_monitor_asks_of_it(broker: Composed) -> None:
    wanted = topics.expected(app_id="compaction-monitor")
    async with topics.connect(bootstrap_servers=broker.address) as admin:
        assert (await topics.apply(admin, wanted)).missing == wanted
        assert not topics.plan(wanted, await topics.read(admin, wanted))
    # A transaction needs the broker's own topics, which have one copy here.
    producer = AIOKafkaProducer(bootstrap_servers=broker.address, transactional_id="compaction-monitor-0")
    async with producer, producer.transaction():
        await producer.send_and_wait("compaction.findings", b"found", partition=0)
    # From outside Compose's network: the host's port, and the address that is advertised there.
    outside = f"127.0.0.1:{broker.ports[9092]}"
    reader = AIOKafkaConsumer(
        "compaction.findings", bootstrap_servers=outside, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    async with reader:
        assert (await reader.getone()).value == b"found"


async def test_it_makes_no_topic_by_itself(broker: Composed) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=broker.address, request_timeout_ms=2_000)
    async with producer:
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.partitions_for("mistyped")
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.address)
    await admin.start()
    try:
        assert "mistyped" not in await admin.list_topics()
    finally:
        await admin.close()
