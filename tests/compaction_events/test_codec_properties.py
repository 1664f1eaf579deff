"""The codec over generated input: nothing but ContractError comes out, and what is encoded comes back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction_events import builders
from compaction_events.codec import MAX_RECORD_BYTES, TYPES, ce_id, ce_type, decode, encode
from compaction_events.errors import ContractError, Reason
from compaction_events.facts import Fact
from tests.compaction_events.strategies import JSON_VALUES, instances

VALID = [
    builders.started(),
    builders.completed(3, distinct_source_spans=40, query_cosine_retained=0.5),
    builders.written("n", 1, 5, retained=["p"]),
    builders.acknowledged("order", "accepted", 5),
]
HEADER_NAMES = st.sampled_from(["ce_type", "ce_id", "content-type", "traceparent", "ce_source"]) | st.text(max_size=5)
HEADER_VALUES = st.none() | st.binary(max_size=8) | st.sampled_from([b"round.completed", b"application/cloudevents+json"])
HEADERS = st.lists(st.tuples(HEADER_NAMES, HEADER_VALUES), max_size=4)


def only_contract_error(value: bytes | None, headers: Any, key: bytes | None) -> None:
    refused = None
    try:
        decode(value, headers, key)
    except ContractError as error:
        refused = error
    assert refused is None or (refused.faults and refused.reason in Reason and len(str(refused)) < 4_096)


@given(st.none() | st.binary(max_size=200), HEADERS, st.none() | st.binary(max_size=8))
def test_any_bytes(value: bytes | None, headers: list[tuple[str, bytes | None]], key: bytes | None) -> None:
    only_contract_error(value, headers, key)


@given(JSON_VALUES, HEADERS)
def test_any_json(value: Any, headers: list[tuple[str, bytes | None]]) -> None:
    only_contract_error(orjson.dumps(value), headers, b"s")


@given(st.sampled_from(VALID), st.data())
def test_any_field_spoilt(event: Fact, data: st.DataObject) -> None:
    fields = orjson.loads(encode(event).value)
    path = data.draw(st.sampled_from(sorted(fields)))
    spoilt = fields | {path: data.draw(JSON_VALUES)}
    for value, headers in (
        (orjson.dumps(spoilt), encode(event).headers),
        (orjson.dumps(spoilt), []),
        (orjson.dumps({"specversion": "1.0", "id": spoilt.get("id"), "type": ce_type(event), "data": spoilt}), []),
    ):
        only_contract_error(value, headers, event.session_id.encode())


@given(st.sampled_from(VALID), st.data())
def test_any_byte_spoilt(event: Fact, data: st.DataObject) -> None:
    record = encode(event)
    place = data.draw(st.integers(0, len(record.value) - 1))
    cut = data.draw(st.integers(0, 3))
    value = record.value[:place] + data.draw(st.binary(max_size=3)) + record.value[place + cut :]
    only_contract_error(value, record.headers, record.key)


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=60)
@given(data=st.data())
def test_what_is_encoded_comes_back(name: str, data: st.DataObject) -> None:
    event = data.draw(instances(TYPES[name]))
    record = encode(event)
    if len(record.value) > MAX_RECORD_BYTES:
        return
    back = decode(record.value, record.headers, record.key)
    assert back.event == event
    assert back.ce_id == ce_id(event)
    # A second trip changes nothing, and neither does the way in.
    assert encode(back.event).value == record.value
    assert decode(record.value, [], record.key).event == event
