"""Versions of the contract live side by side: what was released once is read for ever, and what is new hurts nobody.

`released/` holds each release's schemas as they were; none is ever edited. A changed contract gets the next minor version:
`compaction-monitor schema export tests/compaction_events/released/1.1/json`, and its `asyncapi.yaml` beside that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
import yaml
from hypothesis import given, settings

from compaction_events.codec import decode, encode
from compaction_events.errors import ContractError
from compaction_events.examples import EXAMPLES
from compaction_events.facts import Fact, OpenEnum
from compaction_events.schema import CONTRACT_VERSION, DIALECT, schemas
from tests.compaction_events.compatibility import Schema, drawn, unread

RELEASED = Path(__file__).with_name("released")
CURRENT = schemas()
NOTES = ("title", "description")


def released(version: Path) -> dict[str, Schema]:
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in (version / "json").iterdir()}


VERSIONS = {path.name: released(path) for path in RELEASED.iterdir()}
EACH = [
    pytest.param(old, CURRENT.get(name), id=f"{version}:{name}")
    for version, all_ in VERSIONS.items()
    for name, old in all_.items()
]
each_released = pytest.mark.parametrize(("old", "new"), EACH)


def without_notes(node: Any) -> Any:
    """A schema without what only people read; a field may be called `title`, so not below `properties`."""
    if isinstance(node, list):
        return [without_notes(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        name: {field: without_notes(its) for field, its in value.items()}
        if name in ("properties", "$defs")
        else without_notes(value)
        for name, value in node.items()
        if name not in NOTES
    }


def accepts(schema: Schema, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


class TestVersions:
    def test_there_are_some_and_each_is_whole(self) -> None:
        assert "1.0" in VERSIONS
        for version, all_ in VERSIONS.items():
            assert (RELEASED / version / "asyncapi.yaml").is_file()
            assert {schema["$schema"] for schema in all_.values()} == {DIALECT}

    def test_a_changed_contract_has_a_new_version(self) -> None:
        """Words for people may be bettered at any time."""
        newest = max(VERSIONS, key=lambda version: [int(part) for part in version.split(".")])
        if newest == CONTRACT_VERSION:
            assert without_notes(CURRENT) == without_notes(VERSIONS[newest])
        else:
            assert CONTRACT_VERSION not in VERSIONS


@each_released
class TestEveryRelease:
    def test_an_old_record_is_read(self, old: Schema, new: Schema | None) -> None:
        assert new is not None, "a type is gone"
        assert unread(old, new, newer=False) == []

    def test_a_new_record_is_read_by_old_readers(self, old: Schema, new: Schema) -> None:
        assert unread(new, old, newer=True) == []

    def test_whatever_an_old_sender_says(self, old: Schema, new: Schema) -> None:
        @settings(max_examples=40)
        @given(drawn(old))
        def is_read(value: Any) -> None:
            assert accepts(old, value)
            assert accepts(new, value)
            only_rules_between_fields(new, value)

        is_read()


def only_rules_between_fields(schema: Schema, value: Any) -> None:
    """The codec takes what the schema takes, but for rules that concern several fields at once."""
    name = schema["properties"]["type"]["const"]
    try:
        back = decode(orjson.dumps({**value, "type": name}), check_key=False).event
    except ContractError as error:
        refused = [fault for fault in error.faults if not fault.allowed.startswith("Value error, ")]
    else:
        refused = []
        assert accepts(schema, orjson.loads(encode(back).value))
    assert refused == []


@pytest.mark.parametrize("version", VERSIONS)
class TestExamples:
    def test_old_ones_are_read_by_the_code_and_the_new_schemas(self, version: str) -> None:
        document = yaml.safe_load((RELEASED / version / "asyncapi.yaml").read_text(encoding="utf-8"))
        examples = {
            name: example
            for name, message in document["components"]["messages"].items()
            for example in message.get("examples", ())
        }
        assert {f"{name}.v1.json" for name in examples} == set(VERSIONS[version])
        for name, example in examples.items():
            headers = [(header, text.encode()) for header, text in example["headers"].items()]
            read = decode(orjson.dumps(example["payload"]), headers, example["payload"]["session_id"].encode())
            assert (read.event.type, read.ce_id) == (name, example["headers"]["ce_id"])
            assert orjson.loads(encode(read.event).value) == example["payload"]
            assert accepts(CURRENT[f"{name}.v1.json"], example["payload"])

    @pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
    def test_new_ones_are_read_by_the_old_schemas(self, version: str, event: Fact) -> None:
        old = VERSIONS[version].get(f"{event.type}.v1.json")
        if old is not None:  # of a type that came later its readers know nothing
            assert accepts(old, orjson.loads(encode(event).value))


def fields_of(value: Any) -> Any:
    """Every object in a value, itself included."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from fields_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from fields_of(inner)


class TestReadersOfToday:
    """What a sender of a later version may do to them."""

    @pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
    def test_fields_they_do_not_know_are_left_out(self, event: Fact) -> None:
        value = orjson.loads(encode(event).value)
        free = value.get("evidence"), value.get("reason", {}).get("evidence")  # any field there is known
        for found in [found for found in fields_of(value) if not any(found is its for its in free)]:
            found["added_later"] = {"any": ["value", 1, None]}
        assert decode(orjson.dumps(value), encode(event).headers, encode(event).key).event == event
        assert accepts(CURRENT[f"{event.type}.v1.json"], value)

    @pytest.mark.parametrize(
        ("event", "field"),
        [(event, name) for event in EXAMPLES for name, value in event if isinstance(value, OpenEnum)],
        ids=lambda part: part if isinstance(part, str) else part.type,
    )
    def test_words_they_do_not_know_read_as_other(self, event: Fact, field: str) -> None:
        value = {**orjson.loads(encode(event).value), field: "a word of a later version"}
        read = decode(orjson.dumps(value), encode(event).headers, encode(event).key).event
        assert read == event.model_copy(update={field: "other"})


def change(schema: Schema, *path: str) -> Schema:
    for step in path:
        schema = schema[step]
    return schema


BREAKS: dict[str, Callable[[Schema], Any]] = {
    ".pinned: removed": lambda new: change(new, "properties").pop("pinned"),
    ".span_id: type string is integer": lambda new: change(new, "properties", "span_id").update(type="integer"),
    ".later: required": lambda new: (
        change(new, "properties").update(later={"type": "string"}), new["required"].append("later")
    ),
    ".pinned: required": lambda new: new["required"].append("pinned"),
    ".proposition: maxLength 256 is 64": lambda new: change(new, "properties", "proposition").update(maxLength=64),
    ".turn: minimum 0 is 1": lambda new: change(new, "properties", "turn").update(minimum=1),
    ".span_id: format None is uuid": lambda new: change(new, "properties", "span_id").update(format="uuid"),
    ".pinned: default False is True": lambda new: change(new, "properties", "pinned").update(default=True),
    ".span_id: any text is one of ['a']": lambda new: change(new, "properties", "span_id").update(enum=["a"]),
    ": other fields are refused": lambda new: new.update(additionalProperties=False),
}  # fmt: skip


class TestABreakIsSeen:
    """The comparison itself, by changes nobody may make."""

    @pytest.mark.parametrize("told", BREAKS)
    def test_to_an_old_sender(self, told: str) -> None:
        old = CURRENT["proposition.stated.v1.json"]
        new = deepcopy(old)
        BREAKS[told](new)
        assert unread(old, new, newer=False) == [told]

    def test_a_word_less(self) -> None:
        old = CURRENT["remediation.acknowledged.v1.json"]
        new = deepcopy(old)
        change(new, "$defs", "AckStatus")["enum"].remove("deferred")
        assert unread(old, new, newer=False) == [".status: ['deferred'] not read"]

    def test_a_member_of_a_union_less(self) -> None:
        old = CURRENT["remediation.acknowledged.v1.json"]
        new = deepcopy(old)
        change(new, "properties", "detail")["anyOf"].pop()
        assert unread(old, new, newer=False) == [".detail: type null is string"]

    def test_in_what_is_nested(self) -> None:
        old = CURRENT["remediation.requested.v1.json"]
        new = deepcopy(old)
        change(new, "$defs", "ExpandStep", "properties").pop("leaf_spans")
        new["$defs"]["ExpandStep"]["required"].remove("leaf_spans")
        # Both of the plans that have steps have them no more.
        assert set(unread(old, new, newer=False)) == {".plan.steps[].leaf_spans: removed"}

    def test_to_an_old_reader(self) -> None:
        """An open set may grow, a closed one may not; a new field is no harm; a bound that was lifted is."""
        old = CURRENT["alert.raised.v1.json"]
        new = deepcopy(old)
        change(new, "properties").update(later={"type": "string"})
        change(new, "$defs", "Basis")["enum"].append("guessed")
        assert unread(new, old, newer=True) == []
        change(new, "$defs", "Severity")["enum"].append("fatal")
        change(new, "properties", "subjects")["maxItems"] = 30
        assert unread(new, old, newer=True) == [".severity: ['fatal'] not read", ".subjects: maxItems 30 is 20"]

    def test_drawn_records_see_it_too(self) -> None:
        old = CURRENT["proposition.stated.v1.json"]
        new = deepcopy(old)
        change(new, "properties", "turn")["maximum"] = 1_000

        @settings(max_examples=200, database=None)
        @given(drawn(old))
        def all_read(value: Any) -> None:
            assert accepts(new, value)

        with pytest.raises(AssertionError):
            all_read()
