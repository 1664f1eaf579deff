"""What aiokafka's reader raises on is read record by record, and each fault is told."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition

from compaction_monitor.shell.undecodable import parse

TP = TopicPartition("events", 3)
GZIP, UNKNOWN_CODEC = 1, 6
CRC_AT, ATTRIBUTES_AT, BASE_OFFSET_BYTES, HEADER_BYTES = 17, 21, 8, 61


def batch(
    base: int,
    *records: tuple[bytes, list[tuple[str, bytes | None]]],
    producer: int = -1,
    spoil: tuple[bytes, bytes] = (b"", b""),
    attributes: int | None = None,
    right_crc: bool = True,
) -> bytes:
    """One batch as a broker would send it; `spoil` replaces bytes, `attributes` overwrites flags and codec."""
    transactional = int(producer >= 0)
    builder = DefaultRecordBatchBuilder(2, 0, transactional, producer, 0, 0, 1 << 20)
    for offset, (key, headers) in enumerate(records):
        builder.append(offset, timestamp=1_000 + offset, key=key, value=b"v", headers=headers)
    data = bytearray(builder.build())
    if spoil[0]:
        data = data.replace(*spoil)
    data[:BASE_OFFSET_BYTES] = base.to_bytes(8, "big")
    if attributes is not None:
        data[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = attributes.to_bytes(2, "big")
    crc = calc_crc32c(bytes(data[ATTRIBUTES_AT:]))
    data[CRC_AT : CRC_AT + 4] = (crc if right_crc else crc ^ 1).to_bytes(4, "big")
    return bytes(data)


def test_readable_records_are_as_aiokafka_reads_them() -> None:
    found = parse(TP, batch(10, (b"a", []), (b"b", [("h", b"1"), ("n", None)])), None, 10)
    assert [(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers) for r in found.records] == [
        ("events", 3, 10, 1_000, b"a", b"v", ()),
        ("events", 3, 11, 1_001, b"b", b"v", (("h", b"1"), ("n", None))),
    ]
    assert (found.faults, found.end) == ({}, 12)


def compressed(plain: bytes) -> bytes:
    """The same batch in gzip; the header says so and keeps its right checksum."""
    data = bytearray(plain[:HEADER_BYTES] + gzip.compress(plain[HEADER_BYTES:]))
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = GZIP.to_bytes(2, "big")
    data[CRC_AT : CRC_AT + 4] = calc_crc32c(bytes(data[ATTRIBUTES_AT:])).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("encode", [bytes, compressed])
def test_a_bad_header_key_costs_only_its_record(encode: Callable[[bytes], bytes]) -> None:
    spoiled = batch(5, (b"a", []), (b"b", [("KEYKEY", b"1")]), (b"c", []), spoil=(b"KEYKEY", b"\xffKEY\xfe\xff"))
    found = parse(TP, encode(spoiled), None, 5)
    assert [record.key for record in found.records] == [b"a", b"b", b"c"]
    assert list(found.faults) == [6]
    assert "header key is not UTF-8" in found.faults[6]
    assert found.end == 8


def test_a_codec_without_library_costs_its_batch_and_no_other() -> None:
    unreadable = batch(5, (b"a", []), (b"b", []), attributes=UNKNOWN_CODEC)
    found = parse(TP, unreadable + batch(7, (b"c", [])), None, 5)
    assert [(record.offset, record.key) for record in found.records] == [(6, None), (7, b"c")]
    assert found.records[0].value == unreadable
    assert "offsets 5 to 6, whole batch" in found.faults[6]
    assert found.end == 8


def test_a_wrong_checksum_costs_its_batch() -> None:
    found = parse(TP, batch(5, (b"a", []), right_crc=False), None, 5)
    assert "checksum" in found.faults[5]
    assert found.end == 6


def test_records_below_the_position_and_cut_off_batches_are_left_out() -> None:
    data = batch(5, (b"a", []), (b"b", [])) + batch(7, (b"c", []))[:-3]
    found = parse(TP, data, None, 6)
    assert [record.key for record in found.records] == [b"b"]
    assert found.end == 7


def test_aborted_records_are_not_read() -> None:
    data = batch(5, (b"a", []), producer=42) + batch(6, (b"b", []), producer=43) + batch(7, (b"c", []))
    found = parse(TP, data, [(42, 5)], 5)
    assert [record.key for record in found.records] == [b"b", b"c"]
    assert found.end == 8
