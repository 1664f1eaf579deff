"""One Kafka transaction per partition batch: all of what a batch leads to becomes visible together, or nothing does.

The transactional id is app-partition, whoever owns the partition. Starting a `Transactor` therefore fences every earlier
one and waits for the end of its last transaction; only then may the partition be recovered, because a transaction that
is being committed shows up topic by topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

from compaction_monitor.effects import Outgoing

log = logging.getLogger(__name__)

# The broker's default limit of a batch (message.max.bytes) is a little more than 1 MiB.
MAX_BATCH_BYTES = 1_000_000
Rows = Iterable[tuple[bytes, bytes | None]]
# The client's sender gives up for good when a broker goes away while it asks for the coordinator; what is asked of it then
# breaks an assertion about its state.
_UNKNOWN = (KafkaError, TimeoutError, AssertionError)


class Fenced(Exception):
    """Another worker owns the partition, or whether the transaction was committed cannot be told: this process ends.

    Both are settled by a restart: it fences whoever was before and recovers what was committed.
    """


class Aborted(Exception):
    """The transaction was aborted, and we still own the partition: the same batch can be computed again."""


class Transactor:
    """The transactional producer of one partition number."""

    def __init__(
        self, partition: int, transactional_id: str, options: Mapping[str, Any], *, timeout_s: float, request_s: float
    ) -> None:
        self._partition = partition
        self._timeout_s = timeout_s
        self._options = {
            **options,
            "transactional_id": transactional_id,
            "transaction_timeout_ms": int(timeout_s * 1000),
            "request_timeout_ms": int(request_s * 1000),
            # We batch ourselves: a batch is complete when it is handed over.
            "linger_ms": 0,
            "max_batch_size": MAX_BATCH_BYTES,
            "max_request_size": MAX_BATCH_BYTES,
            # Between a commit and its markers the broker answers "concurrent transactions"; 100 ms is long to wait then.
            "retry_backoff_ms": 20,
        }
        self._producer = AIOKafkaProducer(**self._options)
        self._stopped = False

    async def start(self) -> None:
        """Fence earlier owners; returns when their last transaction has ended.

        Raises:
            KafkaError: No broker answers, or it refuses the transactional id.
        """
        if self._stopped:  # aiokafka's producer could be started again, but after that never be stopped
            self._producer, self._stopped = AIOKafkaProducer(**self._options), False
        try:
            await self._producer.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Let go of the connections. An open transaction is left to the next owner, who aborts it."""
        self._stopped = True
        try:
            async with asyncio.timeout(2.0):
                await self._producer.stop()
        except (TimeoutError, KafkaError) as exc:
            log.info("partition %d: the producer did not stop in time: %r", self._partition, exc)

    async def publish(self, changelogs: Mapping[str, Rows], outgoing: Mapping[str, Sequence[Outgoing]]) -> dict[str, int]:
        """Write everything to this partition number of its topics, in one transaction.

        Args:
            changelogs: Rows by changelog topic.
            outgoing: Findings and dead letters by topic.

        Returns:
            The offset of the last record by changelog topic.

        Raises:
            Aborted: Nothing was committed; try again.
            Fenced: See there.
        """
        producer = self._producer
        try:
            await producer.begin_transaction()
            offsets = await self._produce(changelogs, outgoing)
        except (ProducerFenced, InvalidProducerEpoch) as exc:
            raise Fenced(f"partition {self._partition}: another worker owns it ({exc!r})") from exc
        except KafkaError as exc:
            await self._abort(exc)
            raise Aborted(repr(exc)) from exc
        try:
            async with asyncio.timeout(self._timeout_s):
                await producer.commit_transaction()
        except _UNKNOWN as exc:
            raise Fenced(f"partition {self._partition}: committed or not is unknown ({exc!r})") from exc
        return offsets

    async def _abort(self, reason: KafkaError) -> None:
        """Only the newest owner of the transactional id can abort: success proves that the partition is still ours."""
        log.warning("partition %d: transaction failed, aborting it: %r", self._partition, reason)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._producer.abort_transaction()
        except _UNKNOWN as exc:
            raise Fenced(f"partition {self._partition}: the transaction cannot be aborted ({exc!r})") from reason

    async def _produce(self, changelogs: Mapping[str, Rows], outgoing: Mapping[str, Sequence[Outgoing]]) -> dict[str, int]:
        sent: list[tuple[str | None, int, Any]] = []
        for topic, rows in changelogs.items():
            sent += [(topic, count, future) for count, future in await self._send_rows(topic, rows)]
        for topic, records in outgoing.items():
            sent += [(None, count, future) for count, future in await self._send_records(topic, records)]
        results: list[Any] = await asyncio.gather(*(future for _, _, future in sent), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return {topic: result.offset + count - 1 for (topic, count, _), result in zip(sent, results, strict=True) if topic}

    async def _send_rows(self, topic: str, rows: Rows) -> list[tuple[int, Any]]:
        sent: list[tuple[int, Any]] = []
        batch = self._producer.create_batch()
        append = batch.append
        for key, value in rows:
            if append(timestamp=None, key=key, value=value) is None:
                sent.append(await self._send(batch, topic))
                batch = self._producer.create_batch()
                append = batch.append
                append(timestamp=None, key=key, value=value)
        if batch.record_count():
            sent.append(await self._send(batch, topic))
        return sent

    async def _send_records(self, topic: str, records: Sequence[Outgoing]) -> list[tuple[int, Any]]:
        sent: list[tuple[int, Any]] = []
        batch = self._producer.create_batch()
        for key, value, headers in records:
            if batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
                sent.append(await self._send(batch, topic))
                batch = self._producer.create_batch()
                batch.append(timestamp=None, key=key, value=value, headers=headers)
        if batch.record_count():
            sent.append(await self._send(batch, topic))
        return sent

    async def _send(self, batch: Any, topic: str) -> tuple[int, Any]:
        batch.close()
        return batch.record_count(), await self._producer.send_batch(batch, topic, partition=self._partition)


async def stop_all(transactors: Iterable[Transactor]) -> None:
    """Stop them side by side; each is bounded."""
    try:
        await asyncio.gather(*(transactor.stop() for transactor in transactors))
    except asyncio.CancelledError:
        # The client cancels its own tasks and waits for them, which can look like this from here. If it is we who are
        # cancelled, a claim must not go on for an assignment that is no more.
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
