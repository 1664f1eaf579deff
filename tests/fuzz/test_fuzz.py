"""The short form of `make fuzz`, the same for Kafka's batches, and that a fault would be seen."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition

from compaction_events.builders import at, completed, ended, started
from compaction_events.errors import Reason
from compaction_events.facts import RoundCompleted
from compaction_monitor import fold as folding
from compaction_monitor.core import MonitorCore, MonitorPartition
from compaction_monitor.dead_letters import dead_letter, fault
from compaction_monitor.effects import SESSIONS, Effects, Outgoing, Reader, Record
from compaction_monitor.harness import OUTCOMES, LogRecord, Offline
from compaction_monitor.rules import Rules
from compaction_monitor.shell.undecodable import parse
from tests.fuzz.records import PARTITIONS, Records
from tests.fuzz.run import Run

SEED = 7
RECORDS = 5_000
TP = TopicPartition("events", 0)
CRC_AT, ATTRIBUTES_AT, LENGTH_AT, LOG_OVERHEAD, HEADER_BYTES = 17, 21, 8, 12, 61


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return Run(SEED)(RECORDS).document()


def test_nothing_crashes_and_what_is_refused_has_its_reason(document: dict[str, Any]) -> None:
    assert (document["wrong"], document["crashes"], document["records"]) == ([], 0, RECORDS)
    assert set(document["reasons"]) <= set(Reason) - {Reason.internal_error}
    assert document["refused"] == sum(document["reasons"].values())


def test_it_goes_deep_enough_to_prove_something(document: dict[str, Any]) -> None:
    assert document["accepted"] > RECORDS / 3
    assert document["refused"] > RECORDS / 3
    assert len(document["reasons"]) >= 8
    assert len(document["finding_types"]) == 4
    assert document["receipts"] > 0
    assert document["ticks"] > 0


def test_a_seed_names_its_records() -> None:
    once, again, other = (list(islice(iter(Records(seed).next, None), 300)) for seed in (3, 3, 4))
    assert once == again != other


@pytest.mark.parametrize("appended_ms", [0, -1, -(2**63), 2**42, 2**62, 2**63 - 1])
def test_append_times_that_no_clock_shows(appended_ms: int) -> None:
    """Found by it: a finding cannot begin before 2000, where a fact's time is taken back to its append time."""
    monitor = Offline()
    facts = [started(source_spans=100), completed(1, distinct_source_spans=9, summary_depth_max=2), ended(500)]
    monitor.feed_records(record._replace(timestamp=appended_ms) for record in monitor.records(facts))
    monitor.tick(at(600))
    assert monitor.dead_letters == []
    assert [one.finding.type for one in monitor.published] == [
        "alert.raised", "remediation.requested", "alert.resolved", "remediation.withdrawn",
    ]  # fmt: skip


class Faulty:
    """A middle with a fault of its own: what `spoil` makes of the effects of a batch."""

    def __init__(self, spoil: Callable[[Effects, Sequence[Record]], Effects]) -> None:
        self._spoil = spoil
        self._core = MonitorCore(Rules(), PARTITIONS, OUTCOMES)

    def open(self, number: int, rows: Reader) -> Any:
        partition, spoil = self._core.open(number, rows), self._spoil

        class Spoilt:
            tick, committed = partition.tick, partition.committed

            def apply(self, records: Sequence[Record]) -> Effects:
                return spoil(partition.apply(records), records)

        return Spoilt()


def raises(*_: Any) -> Effects:
    raise KeyError("lost")


def drops_letters(effects: Effects, _: Any) -> Effects:
    return replace(effects, dead_letters=[])


def doubles_letters(effects: Effects, _: Any) -> Effects:
    return replace(effects, dead_letters=effects.dead_letters * 2)


def grows_letters(effects: Effects, _: Any) -> Effects:
    return replace(effects, dead_letters=[one._replace(key=b"k" * 2_000_000) for one in effects.dead_letters])


def refuses_all(effects: Effects, records: Sequence[Record]) -> Effects:
    error = fault(Reason.empty_value, "value", "", "")
    return replace(effects, dead_letters=[dead_letter(record, error) for record in records])


def writes_nonsense(effects: Effects, _: Any) -> Effects:
    rows: dict[bytes, bytes | None] = dict.fromkeys(effects.writes[SESSIONS], b'[1,2,3,"' + b"x" * 200_000 + b'"]')
    return replace(effects, writes={**effects.writes, SESSIONS: rows})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (raises, "KeyError('lost')"),
        (drops_letters, "refused for None, expected"),
        (doubles_letters, "a dead letter twice"),
        (grows_letters, "a dead_letter of"),
        (refuses_all, "expected None"),
        (writes_nonsense, "a session of"),
    ],
)
def test_a_fault_in_the_middle_is_seen(spoil: Any, said: str) -> None:
    assert said in " ".join(Run(SEED, Faulty(spoil))(2_000).wrong)


def test_a_crash_that_the_middle_catches_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real = folding.fold

    def fold(session: Any, fact: Any, *rest: Any) -> Any:
        if isinstance(fact, RoundCompleted) and fact.round == 3:
            raise ZeroDivisionError
        return real(session, fact, *rest)

    monkeypatch.setattr(folding, "fold", fold)
    assert "a crash in the fold: internal_error: value: ZeroDivisionError" in Run(SEED)(RECORDS).wrong[0]


def test_a_crash_in_a_tick_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def tick(*_: Any) -> Effects:
        raise OverflowError

    monkeypatch.setattr(MonitorPartition, "tick", tick)
    assert "tick" in Run(SEED)(RECORDS).wrong[0]


def batch(records: Sequence[LogRecord], chance: random.Random) -> bytes:
    """A batch with spoilt records, or a codec that it is not in; length, offsets and count are what a broker looks at."""
    builder = _DefaultRecordBatchBuilderPy(2, 0, False, -1, -1, 0, 1 << 24)
    for offset, record in enumerate(records):
        builder.append(offset, record.timestamp % 2**40, record.key, record.value, list(record.headers))
    data = bytearray(builder.build())
    for _ in range(chance.randrange(4)):
        data[chance.randrange(HEADER_BYTES, len(data))] = chance.randrange(256)
    if chance.random() < 0.2:
        data[ATTRIBUTES_AT + 1] = chance.randrange(8)
    if chance.random() < 0.3:
        del data[chance.randrange(HEADER_BYTES, len(data)) :]
        data[LENGTH_AT:LOG_OVERHEAD] = (len(data) - LOG_OVERHEAD).to_bytes(4, "big")
    if chance.random() < 0.9:
        data[CRC_AT:ATTRIBUTES_AT] = calc_crc32c(bytes(data[ATTRIBUTES_AT:])).to_bytes(4, "big")
    return bytes(data)


def test_batches_that_nobody_should_store_are_read_or_counted() -> None:
    """The tolerant reader: nothing raises, the position moves on, and what it cannot read is told."""
    chance, log = random.Random(SEED), iter(Records(SEED).next, None)
    faults = 0
    for _ in range(1_500):
        records = [record for record in islice(log, chance.randrange(1, 5)) if len(record.value or b"") < 10_000]
        if not records:
            continue
        found = parse(TP, batch(records, chance), [], 0)
        assert found.faults.keys() <= {record.offset for record in found.records}
        assert all(isinstance(detail, str) for detail in found.faults.values())
        faults += bool(found.faults)
        core = MonitorCore(Rules(), PARTITIONS, OUTCOMES).open(0, _NoRows())
        letters = core.undecodable(found.records, next(iter(found.faults.values()), "")).dead_letters
        assert [isinstance(letter, Outgoing) for letter in letters] == [True] * len(found.records)
    assert faults > 300


class _NoRows:
    def get(self, _table: str, _key: bytes) -> None:
        return None

    def scan(self, _table: str, _after: bytes, _limit: int) -> list[tuple[bytes, bytes]]:
        return []
