"""How far the workers have come, as committed, beside what was sent."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from compaction_monitor.shell import topics

Place = tuple[str, int]


class Watch:
    """Follows the progress table's changelog (read committed) in a task of its own."""

    def __init__(self, broker: str, app_id: str, partitions: int) -> None:
        self._broker, self._topic, self._partitions = broker, topics.changelog(app_id, "progress-v1"), partitions
        self._events = f"{app_id}.events"
        self._read: dict[Place, int] = {}
        self._sent: dict[Place, int] = {}

    async def __aenter__(self) -> Self:
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._broker, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        await self._consumer.start()
        tps = [TopicPartition(self._topic, partition) for partition in range(self._partitions)]
        self._consumer.assign(tps)
        await self._consumer.seek_to_beginning(*tps)
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._consumer.stop()

    async def _follow(self) -> None:
        while True:
            try:
                found: dict[Any, list[Any]] = await self._consumer.getmany(timeout_ms=200)
            except KafkaError:
                continue  # a broker that is being restarted
            for tp, records in found.items():
                for record in records:
                    self._read[record.key.decode(), tp.partition] = orjson.loads(record.value)[1]

    def sent(self, topic: str, partition: int, end: int) -> None:
        """The log reaches up to here."""
        self._sent[topic, partition] = max(end, self._sent.get((topic, partition), 0))

    def marks(self) -> dict[Place, int]:
        """How far the log reaches now."""
        return dict(self._sent)

    def past(self, marks: dict[Place, int]) -> bool:
        """Whether everything up to there has been read."""
        return all(self._read.get(place, 0) >= end for place, end in marks.items())

    def at_the_end(self) -> bool:
        """Whether everything sent has been read."""
        return self.past(self._sent)

    def unread(self) -> int:
        """How much of the log has not been read."""
        return sum(max(0, end - self._read.get(place, 0)) for place, end in self._sent.items())

    @property
    def total(self) -> int:
        """Events read so far."""
        return sum(end for (topic, _), end in self._read.items() if topic == self._events)

    def __str__(self) -> str:
        return f"sent {self._sent}, read {self._read}"
