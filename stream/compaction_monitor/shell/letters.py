"""The dead-letter topic as the command line works on it: listed, read one by one, sent again, settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from compaction_monitor.dead_letters import Again, Letter, Name, Receipt, Settled, read, settled
from compaction_monitor.shell.client import POLL_MS, position, reader, require_topics, translated
from compaction_monitor.shell.settings import Settings

OPEN = "open"
IDLE_S = 10.0


class Entry(NamedTuple):
    """One dead letter in the list. `tp` and `offset`: where the dead-letter topic has it; `state`: open or how it was settled.

    `digest` tells a repeat from a letter of a topic that was created anew.
    """

    name: Name
    reason: str
    key: bytes | None
    size: int
    at_ms: int
    truncated: tuple[str, ...]
    state: str
    tp: TopicPartition
    offset: int
    digest: int


@dataclass(slots=True)
class Index:
    """Every dead letter in the topic once, in the order of the partitions and their logs; `repeats` were dropped."""

    entries: dict[Name, Entry] = field(default_factory=dict)
    repeats: int = 0

    def add(self, tp: TopicPartition, record: Any) -> None:
        """Take in the next record of the topic."""
        match read(record.key, record.value, record.headers):
            case Letter() as letter:
                self._letter(tp, record, letter)
            case Settled(name, how) if name in self.entries:
                self.entries[name] = self.entries[name]._replace(state=how)

    def _letter(self, tp: TopicPartition, record: Any, letter: Letter) -> None:
        size, digest = len(letter.value or b""), hash((letter.key, letter.value, letter.reason))
        known = self.entries.pop(letter.name, None)
        self.repeats += known is not None
        state = known.state if known is not None and known.digest == digest else OPEN
        self.entries[letter.name] = Entry(
            letter.name, letter.reason, letter.key, size, record.timestamp, letter.truncated, state, tp, record.offset, digest
        )


class Letters:
    """The dead-letter topic, at one broker; see `letters`."""

    def __init__(self, settings: Settings, consumer: AIOKafkaConsumer) -> None:
        self._settings, self._consumer = settings, consumer

    async def index(self) -> Index:
        """Read the topic to the end that it has now."""
        index = Index()
        with translated(self._settings):
            partitions = self._consumer.assignment()
            await self._consumer.seek_to_beginning(*partitions)
            ends = await self._consumer.end_offsets(partitions)
            while any([await self._consumer.position(tp) < end for tp, end in ends.items()]):
                for tp, records in (await self._consumer.getmany(timeout_ms=POLL_MS)).items():
                    for record in records:
                        index.add(tp, record)
        return index

    async def letter(self, entry: Entry) -> Letter | None:
        """The whole of one; None if the topic's retention has taken it meanwhile."""
        with translated(self._settings):
            self._consumer.seek(entry.tp, entry.offset)
            try:
                async with asyncio.timeout(IDLE_S):
                    record = await self._consumer.getone(entry.tp)
            except TimeoutError:
                return None
        found = read(record.key, record.value, record.headers)
        return found if isinstance(found, Letter) and found.name == entry.name else None

    async def settle(self, how: Mapping[Entry, str]) -> None:
        """Take letters off the list, each beside its letter, so that what was written later counts."""
        async with self._producer() as producer:
            with translated(self._settings):
                sent = []
                for entry, word in how.items():
                    key, value, headers = settled(entry.name, word)
                    place = {"topic": entry.tp.topic, "partition": entry.tp.partition}
                    sent.append(await producer.send(value=value, key=key, headers=list(headers), **place))
                await asyncio.gather(*sent)

    async def replay(self, records: Mapping[str, tuple[str, Again]], wait_s: float) -> dict[str, Letter | Receipt]:
        """Send records to their topics, in this order, and wait for what the worker says of them.

        Args:
            records: By mark, the topic and the record.
            wait_s: How long to wait for the next answer.

        Returns:
            By mark, what became of it; those that no worker has read in time are missing.
        """
        with translated(self._settings):
            await position(self._consumer, from_start=False)
        async with self._producer() as producer:
            with translated(self._settings):
                sent = [
                    await producer.send(topic, again.value, key=again.key, headers=list(again.headers))
                    for topic, again in records.values()
                ]
                await asyncio.gather(*sent)
        return await self._answers(records.keys(), wait_s)

    async def _answers(self, marks: Collection[str], wait_s: float) -> dict[str, Letter | Receipt]:
        found: dict[str, Letter | Receipt] = {}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        with translated(self._settings):
            while len(found) < len(marks) and loop.time() < deadline:
                batches = await self._consumer.getmany(timeout_ms=POLL_MS)
                for answer in _answering(batches.values(), marks):
                    found[answer.replay or ""] = answer
                    deadline = loop.time() + wait_s
        return found

    @asynccontextmanager
    async def _producer(self) -> AsyncIterator[AIOKafkaProducer]:
        producer = AIOKafkaProducer(enable_idempotence=True, acks="all", **self._settings.client_options())
        try:
            with translated(self._settings):
                await producer.start()
            yield producer
        finally:
            await producer.stop()


def _answering(batches: Iterable[Iterable[Any]], marks: Collection[str]) -> Iterable[Letter | Receipt]:
    for records in batches:
        for record in records:
            found = read(record.key, record.value, record.headers)
            if isinstance(found, Letter | Receipt) and found.replay in marks:
                yield found


@asynccontextmanager
async def letters(settings: Settings) -> AsyncIterator[Letters]:
    """The dead-letter topic, committed records only.

    Raises:
        BrokerError: No broker answers, or a topic is missing.
    """
    await require_topics(settings, [settings.dead_letters_topic, *settings.input_topics])
    async with reader(settings, settings.dead_letters_topic) as consumer:
        yield Letters(settings, consumer)
