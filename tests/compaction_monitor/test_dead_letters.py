"""Dead letters: bounded whatever they hold, read back whole, sent again as they came or put right."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from compaction_events.builders import acknowledged, at, completed, ended, started, written
from compaction_events.codec import MAX_RECORD_BYTES, encode
from compaction_events.errors import ContractError, Fault, Reason
from compaction_events.facts import Fact
from compaction_monitor.dead_letters import (
    DROPPED,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    REPLAY,
    Letter,
    Name,
    Receipt,
    Settled,
    dead_letter,
    fault,
    read,
    sent_again,
    settled,
)
from compaction_monitor.effects import Headers, Outgoing
from compaction_monitor.harness import EVENTS, OUTCOMES, LogRecord, Offline

BROKER_TAKES_BYTES = 1_048_588
WRONG = fault(Reason.not_json, "value", "'x'", "a JSON object")
NAME = Name("events", 2, 7)


def record(key: bytes | None = b"s", value: bytes | None = b"x", headers: Headers = ()) -> LogRecord:
    return LogRecord(*NAME, 1_000, key, value, headers)


def letter(key: bytes | None = b"s", value: bytes | None = b"x", headers: Headers = (), error: ContractError = WRONG) -> Letter:
    found = read(*dead_letter(record(key, value, headers), error))
    assert isinstance(found, Letter)
    return found


def size(outgoing: Outgoing) -> int:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, 0, 1 << 24)
    assert builder.append(0, timestamp=0, key=outgoing.key, value=outgoing.value, headers=list(outgoing.headers)) is not None
    return len(builder.build())


class TestBounds:
    @pytest.mark.parametrize(
        ("came", "cut"),
        [
            pytest.param(record(value=b"v" * 1_000_000), ("value",), id="value"),
            pytest.param(record(key=b"k" * 1_000_000), ("key",), id="key"),
            pytest.param(record(headers=[("h", b"v" * 1_000_000)]), ("headers",), id="one header"),
            pytest.param(record(headers=[("h" * 1_000_000, None)]), ("headers",), id="a header's name"),
            pytest.param(record(headers=[("h", b"v")] * 100_000), ("headers",), id="many headers"),
            pytest.param(record(b"k" * 10_000, b"v" * 600_000, [("h", b"v" * 100_000)]), ("key", "value", "headers"), id="all"),
        ],
    )
    def test_what_is_longer_than_its_place_is_cut_and_named(self, came: LogRecord, cut: tuple[str, ...]) -> None:
        made = dead_letter(came, ContractError(Reason.invalid_field, [Fault("f" * 9_000, "v" * 9_000, "a" * 9_000)] * 50))
        assert size(made) < BROKER_TAKES_BYTES
        found = read(*made)
        assert isinstance(found, Letter)
        assert (found.name, found.reason, found.truncated) == (NAME, "invalid_field", cut)
        assert len(found.key or b"") <= MAX_KEY_BYTES
        assert len(found.value or b"") <= MAX_VALUE_BYTES
        assert len(found.headers) <= MAX_HEADERS

    def test_what_fits_is_whole(self) -> None:
        headers = [("h", b"v" * (MAX_HEADER_BYTES - 1))]
        found = letter(b"k" * MAX_KEY_BYTES, b"v" * MAX_VALUE_BYTES, headers)
        assert (found.key, found.value, found.headers) == (b"k" * MAX_KEY_BYTES, b"v" * MAX_VALUE_BYTES, headers)
        assert found.truncated == ()


class TestRead:
    @given(
        key=st.none() | st.binary(max_size=8),
        value=st.none() | st.binary(max_size=8),
        headers=st.lists(
            st.tuples(
                st.sampled_from(["x-reason", "x-settled", "x-receipt", "x-truncated", "__connect.errors.topic", "ce_id"]),
                st.none() | st.binary(max_size=4),
            ),
            max_size=6,
        ),
    )
    def test_a_senders_headers_never_pass_for_ours(
        self, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
    ) -> None:
        assert letter(key, value, headers) == Letter(
            NAME, "not_json", key, value, headers, "not_json: value: 'x' (allowed: a JSON object)", (), None
        )

    @given(
        st.none() | st.binary(max_size=8),
        st.none() | st.binary(max_size=8),
        st.lists(st.tuples(st.text(max_size=4) | st.just("x-reason"), st.none() | st.binary(max_size=4)), max_size=4),
    )
    def test_what_others_write_there_is_none_of_ours(
        self, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
    ) -> None:
        assert read(key, value, headers) is None

    def test_settled(self) -> None:
        made = settled(NAME, DROPPED)
        assert (made.key, made.value) == (b"events/2/7", None)
        assert read(*made) == Settled(NAME, "dropped")

    def test_every_fault_is_found_again(self) -> None:
        wrong = orjson.loads(encode(completed(1)).value) | dict.fromkeys(("round", "at", "agent", "cause"), -1) | {"after": {}}
        value = orjson.dumps(wrong)
        with pytest.raises(ContractError) as told:
            sent_again(letter(b"session-1", value, encode(completed(1)).headers), "m", "s")
        found = letter(b"session-1", value, encode(completed(1)).headers, told.value)
        assert found.faults == told.value.faults
        assert len(told.value.faults) == 6
        assert letter(b"session-1", value, [], fault(Reason.wrong_partition, "partition", "1", "2")).faults is None


class TestSentAgain:
    def test_as_it_came(self) -> None:
        key, value, headers = encode(completed(1))
        again = sent_again(letter(key, value, headers), "mark", "cli")
        assert again == (completed(1), key, value, [*headers, (REPLAY, b"mark")])

    def test_a_second_time_it_carries_one_mark(self) -> None:
        key, value, headers = encode(completed(1))
        once = letter(key, value, [*headers, (REPLAY, b"first")])
        assert (once.replay, once.headers) == ("first", headers)
        assert sent_again(once, "second", "cli").headers == [*headers, (REPLAY, b"second")]

    def test_put_right_it_gets_new_headers_and_keeps_its_id(self) -> None:
        key, value, _ = encode(completed(1))
        bad = [("ce_type", b"\xff"), ("ce_id", b"given"), ("traceparent", b"00-a-b-01"), ("other", b"1")]
        again = sent_again(letter(key, b"{", bad), "mark", "cli", value)
        expected = encode(completed(1), source="cli", id="given", traceparent=b"00-a-b-01")
        assert again == (completed(1), key, expected.value, [*expected.headers, (REPLAY, b"mark")])
        spoilt = sent_again(letter(key, b"{", [("ce_id", b"\xff")]), "mark", "cli", value)
        assert spoilt.headers == [*encode(completed(1), source="cli").headers, (REPLAY, b"mark")]

    @pytest.mark.parametrize(
        ("broken", "fixed", "reason"),
        [
            pytest.param(letter(b"session-1", b"{"), None, Reason.not_json, id="as it came"),
            pytest.param(letter(b"session-1", b"{"), b"{}", Reason.unknown_type, id="a fix that is none"),
            pytest.param(letter(b"other", b"{"), encode(completed(1)).value, Reason.wrong_key, id="another's session"),
            pytest.param(letter(None, *encode(completed(1))[1:]), None, Reason.wrong_key, id="no key"),
        ],
    )
    def test_what_would_be_refused_again_is_not_sent(self, broken: Letter, fixed: bytes | None, reason: Reason) -> None:
        with pytest.raises(ContractError) as refused:
            sent_again(broken, "mark", "cli", fixed)
        assert refused.value.reason is reason

    def test_rekeyed_by_its_session(self) -> None:
        key, value, headers = encode(completed(1))
        assert sent_again(letter(None, value, headers), "mark", "cli", rekey=True).key == key


def replayed(fact: Fact, monitor: Offline, topic: str = EVENTS, mark: bytes = b"mark") -> Any:
    """What the worker answers when this fact is sent again."""
    key, value, headers = encode(fact)
    before = len(monitor.dead_letters)
    monitor.feed_records([LogRecord(topic, 0, 99, 1_767_607_200_000, key, value, [*headers, (REPLAY, mark)])])
    return [read(*outgoing) for outgoing in monitor.dead_letters[before:]]


class TestReceipt:
    @pytest.mark.parametrize(
        ("fact", "topic", "outcome"),
        [
            (completed(3, at=at(15)), EVENTS, "new"),
            (completed(9, at=at(90)), EVENTS, "new"),
            (completed(1, at=at(5)), EVENTS, "late"),
            (completed(2, at=at(10)), EVENTS, "duplicate"),
            (ended(4), EVENTS, "late"),
            (started(), EVENTS, "repeat"),
            (written("node", 1, 1), EVENTS, "new"),
            (completed(1, "unknown"), EVENTS, "new"),
            (acknowledged("order", "completed", 1), OUTCOMES, "too_late"),
            (acknowledged("order", "completed", 1, "unknown"), OUTCOMES, "unknown_session"),
        ],
        ids=lambda value: getattr(value, "type", value),
    )
    def test_says_what_became_of_it(self, fact: Fact, topic: str, outcome: str) -> None:
        monitor = Offline()
        monitor.feed([started(), completed(1, at=at(5)), completed(2, at=at(10))])
        assert replayed(fact, monitor, topic) == [Receipt("mark", outcome)]

    def test_a_record_that_is_refused_again_is_a_dead_letter_with_its_mark(self) -> None:
        monitor = Offline()
        (found,) = replayed(completed(1), monitor, OUTCOMES)
        assert (found.reason, found.replay, found.headers) == ("wrong_topic", "mark", encode(completed(1)).headers)

    @pytest.mark.parametrize("mark", [b"", b"m" * 65])
    def test_marks_that_are_none_get_no_receipt(self, mark: bytes) -> None:
        assert replayed(completed(1), Offline(), mark=mark) == []

    def test_a_session_and_its_findings_are_as_without_the_mark(self) -> None:
        plain, marked = Offline(), Offline()
        facts = [started(source_spans=100), completed(1, distinct_source_spans=9, summary_depth_max=2)]
        plain.feed(facts)
        marked.feed_records(came._replace(headers=[*came.headers, (REPLAY, b"m")]) for came in marked.records(facts))
        assert [rows.tables for rows in marked.rows] == [rows.tables for rows in plain.rows]
        assert marked.published == plain.published != []
        assert len(marked.dead_letters) == 2


def test_a_dead_letter_is_larger_than_any_record_that_is_read() -> None:
    assert MAX_VALUE_BYTES > MAX_RECORD_BYTES
