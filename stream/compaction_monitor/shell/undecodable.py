"""Reading a fetch that aiokafka cannot: every record it can be parsed to, and for each fault what is wrong.

aiokafka 0.14 raises inside its reader for a header key that is not UTF-8, a codec whose library is missing, a wrong
checksum, a broken record; the records read before it are lost with the exception, and the next fetch meets it again.
So such a fetch is fetched once more, raw, and parsed here in plain Python: slow, tolerant, and rarely needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.util import decode_varint
from aiokafka.structs import ConsumerRecord, TopicPartition

READ_COMMITTED = 1
LOG_OVERHEAD = struct.calcsize(">qi")
MAGIC_AT = struct.calcsize(">qii")


class Reread(NamedTuple):
    """What a raw fetch holds: its records, the offsets of those that are faulty, and the position after it."""

    records: list[Any]
    faults: dict[int, str]
    end: int


class _Parsed(NamedTuple):
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


async def reread(consumer: Any, tp: Any, position: int) -> Reread:
    """Fetch from `position` again and read whatever can be read.

    Args:
        consumer: aiokafka's consumer (called in its own thread).
        tp: The topic and partition.
        position: The consumer's position, where its own reader failed.

    Raises:
        KafkaError: The fetch failed; the caller tries again later.
    """
    client = consumer._client
    node = client.cluster.leader_for_partition(tp)
    wanted = [(tp.topic, [(tp.partition, position, consumer._max_partition_fetch_bytes)])]
    request = FetchRequest(100, 1, consumer._fetch_max_bytes, READ_COMMITTED, wanted, rack_id="")
    response = await client.send(node, request)
    for _topic, partitions in response.topics:
        for _partition, error, _highwater, *rest in partitions:
            if not error:
                # Aborted transactions are the last but one field up to version 10, the last but two from version 11.
                aborted = rest[2] if response.API_VERSION >= 11 else rest[-2]
                return parse(tp, rest[-1], aborted, position)
    return Reread([], {}, position)


def parse(tp: Any, data: bytes, aborted: Any, position: int) -> Reread:
    """Every record of `data` from `position` on that is committed, and the faults among them."""
    records: list[Any] = []
    faults: dict[int, str] = {}
    pending = sorted(aborted or [], key=lambda entry: entry[1])
    open_aborted: set[int] = set()
    end = position
    for raw in _batches(data):
        batch = _DefaultRecordBatchPy(raw)
        while pending and pending[0][1] <= batch.base_offset:
            open_aborted.add(pending.pop(0)[0])
        end = max(end, batch.next_offset)
        if batch.is_control_batch:
            # A commit marker cannot be in this set: what a producer aborted is closed by its own abort marker.
            open_aborted.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in open_aborted):
            _read_batch(tp, batch, raw, position, records, faults)
    return Reread(records, faults, end)


def _batches(data: bytes) -> Iterator[bytes]:
    """The batches as bytes; the last one is left out when the fetch cut it short."""
    at = 0
    while len(data) - at > MAGIC_AT:
        (length,) = struct.unpack_from(">i", data, at + LOG_OVERHEAD - 4)
        size = LOG_OVERHEAD + length
        if at + size > len(data):
            return
        yield data[at : at + size]
        at += size


def _read_batch(tp: Any, batch: Any, raw: bytes, position: int, records: list[Any], faults: dict[int, str]) -> None:
    """Add the records of one batch; a batch that no record can be read from counts as one, with its last offset."""
    try:
        if not batch.validate_crc():
            raise ValueError("the checksum is wrong")
        iter(batch)  # decompresses
        parsed = list(_records(batch))
    except Exception as exc:  # noqa: BLE001 - every codec library raises errors of its own
        last = batch.next_offset - 1
        faults[last] = f"offsets {batch.base_offset} to {last}, whole batch: {exc}"
        parsed = [(_Parsed(last, batch.max_timestamp, batch.timestamp_type, None, raw, []), None)]
    for record, fault in parsed:
        if record.offset >= position:
            records.append(_consumer_record(tp, record))
            if fault is not None:
                faults[record.offset] = fault


def _records(batch: Any) -> Iterator[tuple[_Parsed, str | None]]:
    """Each record with its fault. Its length is read first, so one broken record costs no other."""
    buffer, at = batch._buffer, batch._pos
    for index in range(batch._num_records):
        length, at = decode_varint(buffer, at)
        body = bytearray(buffer[at : at + length])
        if len(body) != length:
            raise ValueError("the batch ends within a record")
        at += length
        yield _record(batch, body, index)


def _record(batch: Any, body: bytearray, index: int) -> tuple[_Parsed, str | None]:
    try:
        _, at = decode_varint(body, 0)
        delta_ms, at = decode_varint(body, at)
        offset, at = decode_varint(body, at)
        key, at = _bytes(body, at)
        value, at = _bytes(body, at)
        count, at = decode_varint(body, at)
        headers: list[tuple[str, bytes | None]] = []
        fault = None
        for _ in range(count):
            name, at = _bytes(body, at)
            header, at = _bytes(body, at)
            text = (name or b"").decode("utf-8", "backslashreplace")
            headers.append((text, header))
            if (name or b"") != text.encode():
                fault = f"a header key is not UTF-8: {text}"
    except (ValueError, IndexError) as exc:
        offset = batch.base_offset + index
        broken = _Parsed(offset, batch.max_timestamp, batch.timestamp_type, None, bytes(body), [])
        return broken, f"the record is broken: {exc}"
    stamp = batch.max_timestamp if batch.timestamp_type else batch.first_timestamp + delta_ms
    return _Parsed(batch.base_offset + offset, stamp, batch.timestamp_type, key, value, headers), fault


def _bytes(body: bytearray, at: int) -> tuple[bytes | None, int]:
    length, at = decode_varint(body, at)
    if length < 0:
        return None, at
    if at + length > len(body):
        raise ValueError("a field is longer than its record")
    return bytes(body[at : at + length]), at + length


def _consumer_record(tp: TopicPartition, record: _Parsed) -> Any:
    key_size = -1 if record.key is None else len(record.key)
    value_size = -1 if record.value is None else len(record.value)
    return ConsumerRecord(
        tp.topic, tp.partition, record.offset, record.timestamp, record.timestamp_type,
        record.key, record.value, None, key_size, value_size, tuple(record.headers),
    )  # fmt: skip
