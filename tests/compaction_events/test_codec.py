"""The codec by cases: every type in every mode, the CloudEvents package as witness, and what must be refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson
import pytest
from cloudevents.core.bindings import kafka as cloudevents_kafka
from cloudevents.core.bindings.kafka import KafkaMessage
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from compaction_events import builders
from compaction_events.codec import (
    MAX_RECORD_BYTES,
    MAX_TRACEPARENT_BYTES,
    TYPES,
    Headers,
    ce_id,
    ce_type,
    decode,
    encode,
)
from compaction_events.errors import ContractError, Reason
from compaction_events.examples import EXAMPLES
from compaction_events.facts import Fact, RoundCompleted
from compaction_events.ids import publication_id

ENDED = builders.ended(90)
BODY = {"session_id": "s", "ended_at": "2026-01-01T00:00:00Z"}
BINARY: Headers = [("ce_type", b"io.compaction_monitor.session.ended.v1")]
STRUCTURED: Headers = [("content-type", b"application/cloudevents+json; charset=UTF-8")]
ROUND = {
    "type": "round.completed",
    "session_id": "s",
    "agent": "a",
    "round": 1,
    "at": "2026-01-01T00:00:00Z",
    "after": {"raw_tokens": 1, "summary_tokens": 0},
}


def body(**fields: Any) -> bytes:
    return orjson.dumps(BODY | {"type": "session.ended"} | fields)


def round_with(**fields: Any) -> bytes:
    return orjson.dumps(ROUND | fields)


def after_with(**fields: Any) -> bytes:
    return round_with(after={"raw_tokens": 1, "summary_tokens": 0, **fields})


def nested(depth: int) -> bytes:
    return b'{"type":"session.ended","session_id":"s","x":' + b"[" * depth + b"]" * depth + b"}"


def test_there_is_an_example_of_every_type() -> None:
    assert {event.type for event in EXAMPLES} == set(TYPES)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
class TestEveryType:
    def test_binary(self, event: Fact) -> None:
        record = encode(event, source="agent-7", traceparent=b"00-1-2-01")
        assert record.key == event.session_id.encode()
        assert decode(record.value, record.headers, record.key) == (event, ce_id(event), b"00-1-2-01")

    def test_structured(self, event: Fact) -> None:
        data = orjson.loads(encode(event).value)
        envelope = {"specversion": "1.0", "id": "given", "source": "x", "type": ce_type(event), "data": data}
        key = event.session_id.encode()
        for headers in (STRUCTURED, [], [("content-type", b"Application/CloudEvents+json"), *encode(event).headers[3:4]]):
            assert decode(orjson.dumps(envelope), headers, key) == (event, "given", None)

    def test_plain(self, event: Fact) -> None:
        value = encode(event).value
        assert decode(value, [], event.session_id.encode()) == (event, ce_id(event), None)
        long_name = orjson.dumps(orjson.loads(value) | {"type": ce_type(event)})
        assert decode(long_name, check_key=False).event == event

    def test_the_cloudevents_package_reads_ours(self, event: Fact) -> None:
        record = encode(event)
        message = KafkaMessage(dict(record.headers), record.key, record.value)
        read = cloudevents_kafka.from_kafka(message, JSONFormat())
        assert (read.get_id(), read.get_type(), read.get_subject()) == (ce_id(event), ce_type(event), event.session_id)
        assert (read.get_specversion(), read.get_source()) == ("1.0", "compaction-events")
        # The package makes up a time where there is none.
        assert event.occurred_at in (read.get_time(), None)
        assert read.get_data() == orjson.loads(record.value)

    def test_we_read_the_cloudevents_package(self, event: Fact) -> None:
        theirs = CloudEvent(
            {"id": "their-id", "source": "/x", "type": ce_type(event), "datacontenttype": "application/json"},
            orjson.loads(encode(event).value),
        )
        for convert in (cloudevents_kafka.to_binary, cloudevents_kafka.to_structured):
            message = convert(theirs, JSONFormat(), lambda _: event.session_id)
            assert isinstance(message.key, str)
            read = decode(message.value, list(message.headers.items()), message.key.encode())
            assert read == (event, "their-id", None)

    def test_unknown_fields_are_ignored(self, event: Fact) -> None:
        later = orjson.loads(encode(event).value) | {"a_field_of_next_year": {"x": [1, None]}}
        assert decode(orjson.dumps(later), check_key=False).event == event

    def test_its_time_is_in_the_header(self, event: Fact) -> None:
        given = dict(encode(event).headers).get("ce_time")
        assert (None if given is None else datetime.fromisoformat(given.decode())) == event.occurred_at


def test_an_unknown_word_reads_as_other() -> None:
    event = decode(round_with(cause="hibernation", basis="dreamt", spans_method="x"), check_key=False).event
    assert isinstance(event, RoundCompleted)
    assert (event.cause, event.basis, event.spans_method) == ("other", "other", "other")


def test_a_finding_without_id_gets_that_of_its_publication() -> None:
    for event in EXAMPLES:
        if event.type.startswith(("alert.", "remediation.re", "remediation.w")):
            plain = decode(encode(event).value, check_key=False)
            identity = getattr(event, "id")  # noqa: B009 - only findings have one
            assert plain.ce_id == publication_id(identity, event.type, getattr(event, "attempt"))  # noqa: B009 - likewise


def test_a_given_id_and_time_win() -> None:
    record = encode(ENDED, id="mine", time=datetime(2026, 5, 1, tzinfo=UTC))
    assert dict(record.headers)["ce_time"] == b"2026-05-01T00:00:00Z"
    assert decode(record.value, record.headers, record.key).ce_id == "mine"


@pytest.mark.parametrize("traceparent", [None, b"", b"x" * (MAX_TRACEPARENT_BYTES + 1)])
def test_a_wild_traceparent_does_not_travel_on(traceparent: bytes | None) -> None:
    assert decode(body(), [("traceparent", traceparent)], check_key=False).traceparent is None


@pytest.mark.parametrize(
    ("attribute", "header", "read"),
    [
        ("00-1-2-01", None, b"00-1-2-01"),
        ("00-1-2-01", b"00-9-9-01", b"00-9-9-01"),
        ("x" * (MAX_TRACEPARENT_BYTES + 1), None, None),
        ("ü", None, None),
        ("", None, None),
        (7, None, None),
        (None, None, None),
    ],
)
def test_a_structured_record_has_its_trace_inside(attribute: Any, header: bytes | None, read: bytes | None) -> None:
    envelope = {
        "specversion": "1.0",
        "type": ce_type(ENDED),
        "data": orjson.loads(encode(ENDED).value),
        "traceparent": attribute,
    }
    headers = [*STRUCTURED, *([] if header is None else [("traceparent", header)])]
    for sent in (headers, headers[len(STRUCTURED) :]):
        assert decode(orjson.dumps(envelope), sent, check_key=False).traceparent == read


def test_a_record_of_the_largest_size_is_read() -> None:
    value = body(padding="x" * (MAX_RECORD_BYTES - len(body(padding=""))))
    assert len(value) == MAX_RECORD_BYTES
    assert decode(value, check_key=False).event.session_id == "s"


def test_null_is_absent() -> None:
    assert decode(body(agent=None), [("ce_source", None), ("content-type", None)], check_key=False).event.session_id == "s"


class Bad(NamedTuple):
    why: str
    value: bytes | None
    reason: Reason
    fields: tuple[str, ...]
    headers: Headers = ()
    key: bytes | None = b"s"


BAD = [
    Bad("a tombstone", None, Reason.empty_value, ("value",)),
    Bad("no bytes", b"", Reason.empty_value, ("value",)),
    Bad("a byte too many", b" " * (MAX_RECORD_BYTES + 1), Reason.record_too_large, ("value",)),
    Bad("not JSON", b"{", Reason.not_json, ("value",)),
    Bad("not JSON, binary mode", b"{", Reason.not_json, ("value",), BINARY),
    Bad("not an object", b"[1]", Reason.not_json, ("value",)),
    Bad("not an object, binary mode", b"[1]", Reason.not_json, ("value",), BINARY),
    Bad("not an object, structured", b"[1]", Reason.not_json, ("value",), STRUCTURED),
    Bad("two objects", body() + body(), Reason.not_json, ("value",), BINARY),
    Bad("bad UTF-8", b'{"session_id":"\xff"}', Reason.not_json, ("value",), BINARY),
    Bad("bad UTF-8, plain", b'{"type":"session.ended","session_id":"\xff"}', Reason.not_json, ("value",)),
    Bad("half a surrogate pair", b'{"session_id":"\\ud800"}', Reason.not_json, ("value",), BINARY),
    Bad("NaN in a known field", b'{"session_id":NaN}', Reason.not_json, ("value",), BINARY),
    Bad("NaN in an unknown field", body()[:-1] + b',"x":NaN}', Reason.not_json, ("value",), BINARY),
    Bad("Infinity, plain", body()[:-1] + b',"x":-Infinity}', Reason.not_json, ("value",)),
    Bad("deeper than any reader goes", nested(100_000), Reason.not_json, ("value",), BINARY),
    Bad("deeper, plain", nested(100_000), Reason.not_json, ("value",)),
    Bad(
        "read but not written again",
        b'{"specversion":"1.0","type":"session.ended","data":' + nested(400) + b"}",
        Reason.not_json,
        ("value",),
    ),
    Bad("ce_type null", body(), Reason.bad_headers, ("ce_type",), [("ce_type", None)]),
    Bad("ce_type empty", body(), Reason.bad_headers, ("ce_type",), [("ce_type", b"")]),
    Bad("ce_type not UTF-8", body(), Reason.bad_headers, ("ce_type",), [("ce_type", b"\xff")]),
    Bad("ce_id null", body(), Reason.bad_headers, ("ce_id",), [("ce_id", None)]),
    Bad("ce_id not UTF-8", body(), Reason.bad_headers, ("ce_id",), [("ce_id", b"\xff")]),
    Bad("ce_id too long", body(), Reason.bad_headers, ("ce_id",), [("ce_id", b"x" * 257)]),
    Bad("no type at all", b"{}", Reason.unknown_type, ("type",)),
    Bad("a type that is no text", body(type=["session.ended"]), Reason.unknown_type, ("type",)),
    Bad("a type of somebody else", body(type="session.paused"), Reason.unknown_type, ("type",)),
    Bad("the same in the header", body(), Reason.unknown_type, ("type",), [("ce_type", b"com.github.push.v1")]),
    Bad("a later version", body(type="io.compaction_monitor.session.ended.v2"), Reason.unknown_version, ("type",)),
    Bad("the same in the header", body(), Reason.unknown_version, ("type",), [("ce_type", b"session.ended.v9")]),
    Bad("header and value disagree", round_with(), Reason.invalid_field, ("type", "ended_at"), BINARY),
    Bad("structured without data", orjson.dumps({"type": "session.ended"}), Reason.invalid_field, ("data",), STRUCTURED),
    Bad(
        "structured, id no text",
        orjson.dumps({"type": "session.ended", "id": 7, "data": BODY}),
        Reason.invalid_field,
        ("id",),
        STRUCTURED,
    ),
    Bad("fields missing, all told", b'{"type":"session.ended"}', Reason.invalid_field, ("session_id", "ended_at")),
    Bad("wrong types, all told", body(session_id=7, ended_at=7), Reason.invalid_field, ("session_id", "ended_at")),
    Bad("a session without name", body(session_id=""), Reason.invalid_field, ("session_id",), (), b""),
    Bad("an id too long", body(session_id="s" * 257), Reason.invalid_field, ("session_id",), (), b"s" * 257),
    Bad("a time without zone", body(ended_at="2026-01-01T00:00:00"), Reason.invalid_field, ("ended_at",)),
    Bad("a time before our time", body(ended_at="1999-12-31T23:59:59Z"), Reason.invalid_field, ("ended_at",)),
    Bad("a time after it", body(ended_at="2200-01-01T00:00:00Z"), Reason.invalid_field, ("ended_at",)),
    Bad("round below 0", round_with(round=-1), Reason.invalid_field, ("round",)),
    Bad("a round and a half", round_with(round=1.5), Reason.invalid_field, ("round",)),
    Bad("a round in quotes", round_with(round="1"), Reason.invalid_field, ("round",)),
    Bad("a round that is true", round_with(round=True), Reason.invalid_field, ("round",)),
    Bad("negative tokens", after_with(raw_tokens=-1), Reason.invalid_field, ("after.raw_tokens",)),
    Bad("more than a double counts", after_with(raw_tokens=2**53 + 1), Reason.invalid_field, ("after.raw_tokens",)),
    Bad("cosine above 1", after_with(query_cosine_retained=1.01), Reason.invalid_field, ("after.query_cosine_retained",)),
    Bad("cosine below -1", after_with(query_cosine_retained=-2), Reason.invalid_field, ("after.query_cosine_retained",)),
    Bad("an overflowing number, plain", after_with()[:-1] + b',"x":1e999}', Reason.not_json, ("value",)),
    Bad(
        "an overflowing number, binary mode",
        b'{"session_id":"s","agent":"a","started_at":"2026-01-01T00:00:00Z","scorer":{"name":"x","depth_penalty":1e999}}',
        Reason.invalid_field,
        ("scorer.depth_penalty",),
        [("ce_type", b"session.started")],
    ),
    Bad("a word that is no word", round_with(cause=3), Reason.invalid_field, ("cause",)),
    Bad(
        "too many propositions",
        round_with(propositions_retained=["p"] * 1_001),
        Reason.invalid_field,
        ("propositions_retained",),
    ),
    Bad("too many summaries", round_with(summaries=[None] * 513), Reason.invalid_field, ("summaries.0",)),
    Bad(
        "a hundred thousand bad items, one fault",
        round_with(propositions_retained=[0] * 100_000),
        Reason.invalid_field,
        ("propositions_retained.0",),
    ),
    Bad("no key", body(), Reason.wrong_key, ("key",), (), None),
    Bad("another session's key", body(), Reason.wrong_key, ("key",), (), b"t"),
    Bad("a key that is not UTF-8", body(), Reason.wrong_key, ("key",), (), b"\xff"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.why.replace(" ", "-"))
def test_refused(case: Bad) -> None:
    with pytest.raises(ContractError) as refused:
        decode(case.value, case.headers, case.key)
    assert (refused.value.reason, tuple(fault.field for fault in refused.value.faults)) == (case.reason, case.fields)
    assert len(str(refused.value)) < 2_048


def test_rules_between_fields() -> None:
    trial = {"type": "checkpoint.regenerated", "session_id": "s", "node_id": "n", "level": 1, "retained": []}
    for extra, said in (
        ({}, "exactly one of version"),
        ({"version": 1, "trial_number": 1, "remediation_id": "r"}, "exactly one of version"),
        ({"trial_number": 1}, "remediation_id is required"),
        ({"version": 1, "child_joint_entropy_bits": 4.0}, "bits_per_token is required"),
    ):
        with pytest.raises(ContractError, match=said):
            decode(orjson.dumps(trial | {"at": "2026-01-01T00:00:00Z"} | extra), check_key=False)


def test_a_message_names_ten_faults_and_counts_the_rest() -> None:
    error = ContractError(Reason.invalid_field, [("f", "v", "a")] * 13)  # type: ignore[list-item]
    assert str(error).endswith("; and 3 more")
    assert len(error.faults) == 13
