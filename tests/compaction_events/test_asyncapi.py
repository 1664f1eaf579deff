"""The AsyncAPI document: valid for the official parser and schema, and true of topics, records and headers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from compaction_events import topics
from compaction_events.asyncapi import document
from compaction_events.codec import TYPES, decode, encode
from compaction_events.errors import Reason
from compaction_events.examples import EXAMPLES
from compaction_events.facts import Fact
from compaction_monitor.dead_letters import MAX_VALUE_BYTES, REPLAY, Name, dead_letter, fault, receipt, settled
from compaction_monitor.harness import EVENTS, LogRecord
from compaction_monitor.shell.settings import Settings
from compaction_monitor.shell.topics import expected
from tests import node

ROOT = Path(__file__).parents[2]
DOCUMENT = document()
SCHEMAS = DOCUMENT["components"]["schemas"]
# The document is written for tools that know 3.0.0.
TOLERATED = {"asyncapi-latest-version"}


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return node.prepared(ROOT / "tests" / "asyncapi", tmp_path_factory.mktemp("node"))


@pytest.fixture
def parsed(checker: Path, tmp_path: Path) -> Callable[[Any], dict[str, Any]]:
    """What the official parser says of a document."""

    def parse(found: Any) -> dict[str, Any]:
        path = tmp_path / "asyncapi.json"
        path.write_text(json.dumps(found), encoding="utf-8")
        told: dict[str, Any] = json.loads(node.run(checker, "parse.mjs", str(path)))
        return told

    return parse


def against(schema: dict[str, Any], value: Any) -> list[str]:
    """What is wrong with a value by one of the document's schemas."""
    whole = {**schema, "components": {"schemas": SCHEMAS}}
    checker = jsonschema.Draft7Validator(whole, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)
    return [error.message for error in checker.iter_errors(value)]


class TestTheOfficialTools:
    def test_the_parser_takes_the_published_file(self, checker: Path) -> None:
        told = json.loads(node.run(checker, "parse.mjs", str(ROOT / "schemas" / "asyncapi.yaml")))
        assert told["read"]
        assert [found for found in told["diagnostics"] if found[1] not in TOLERATED] == []

    def test_the_parser_would_say_what_is_wrong(self, parsed: Callable[[Any], dict[str, Any]]) -> None:
        spoilt = deepcopy(DOCUMENT)
        spoilt["operations"]["sendAlerts"]["action"] = "publish"
        told = parsed(spoilt)
        assert not told["read"]
        assert any(severity == 0 and path.startswith("operations") for severity, _, _, path in told["diagnostics"])

    def test_the_schema_of_the_specification_takes_it(self, checker: Path) -> None:
        path = checker / "node_modules" / "@asyncapi" / "specs" / "schemas" / "3.0.0.json"
        validator = jsonschema.Draft7Validator(json.loads(path.read_text(encoding="utf-8")))
        assert [error.message for error in validator.iter_errors(DOCUMENT)] == []
        spoilt = deepcopy(DOCUMENT)
        spoilt["channels"]["events"]["bindings"]["kafka"]["partitions"] = "eight"
        assert [list(error.path) for error in validator.iter_errors(spoilt)] == [["channels", "events"]]


def text_headers(headers: dict[str, str]) -> list[tuple[str, bytes | None]]:
    return [(name, content.encode()) for name, content in headers.items()]


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
class TestRecords:
    def test_every_record_is_as_the_document_says(self, event: Fact) -> None:
        message = DOCUMENT["components"]["messages"][event.type]
        headers = {name: content.decode() for name, content in encode(event, traceparent=b"00-a-b-01").headers}
        assert against(message["headers"], headers) == []
        # A proposition that is stated has no time of its own.
        timeless = {"ce_time"} if event.occurred_at is None else set()
        assert set(headers) == set(SCHEMAS["CloudEventHeaders"]["properties"]) - timeless
        assert against(message["payload"], json.loads(encode(event).value)) == []

    def test_its_example_is_that_record(self, event: Fact) -> None:
        (example,) = DOCUMENT["components"]["messages"][event.type]["examples"]
        assert decode(json.dumps(example["payload"]).encode(), text_headers(example["headers"]), check_key=False).event == event

    def test_another_types_record_is_not(self, event: Fact) -> None:
        other = next(name for name in TYPES if name != event.type)
        message = DOCUMENT["components"]["messages"][other]
        assert against(message["headers"], {name: content.decode() for name, content in encode(event).headers})
        assert against(message["payload"], json.loads(encode(event).value))


REFUSED = LogRecord(EVENTS, 0, 7, 0, b"s", b"x" * (MAX_VALUE_BYTES + 1), ())
REPLAYED = REFUSED._replace(headers=[(REPLAY, b"mark")])
IN_DEAD_LETTERS = {
    "deadLetter": dead_letter(REFUSED, fault(Reason.not_json, "", "", "")),
    "receipt": receipt(REPLAYED, [("facts", "round.completed", "late")]),
    "settled": settled(Name(EVENTS, 0, 7), "dropped"),
}


@pytest.mark.parametrize("name", IN_DEAD_LETTERS)
def test_what_is_in_dead_letters_is_as_the_document_says(name: str) -> None:
    sent = IN_DEAD_LETTERS[name]
    assert sent is not None
    message = DOCUMENT["components"]["messages"][name]
    headers = {header: (content or b"").decode() for header, content in sent.headers}
    assert against(message["headers"], headers) == []
    assert set(headers) == set(message["headers"]["properties"])
    assert (message["payload"] == {"type": "null"}) == (sent.value is None)
    assert IN_DEAD_LETTERS.keys() == DOCUMENT["channels"]["deadLetters"]["messages"].keys()


def test_an_order_and_its_answers_belong_together_by_the_orders_id() -> None:
    operation = DOCUMENT["operations"]["requestRemediation"]
    assert operation["reply"]["channel"] == {"$ref": "#/channels/outcomes"}
    payloads = {event.type: json.loads(encode(event).value) for event in EXAMPLES}
    correlated = set()
    for name in ("remediation.requested", "remediation.withdrawn", "remediation.acknowledged"):
        location = DOCUMENT["components"]["messages"][name]["correlationId"]["location"]
        correlated.add(payloads[name][location.removeprefix("$message.payload#/")])
    assert len(correlated) == 1


class TestTopics:
    """One table: the document, the program's defaults and the README say the same."""

    def test_the_channels_are_the_topics_that_are_created(self) -> None:
        created = {topic.name: topic for topic in expected(app_id="x")}
        channels = DOCUMENT["channels"].values()
        assert [channel["address"] for channel in channels] == [topic.name for topic in topics.TOPICS]
        for channel in channels:
            topic, binding = created[channel["address"]], channel["bindings"]["kafka"]
            kept = binding["topicConfiguration"]
            assert binding["partitions"] == topic.partitions
            assert (topic.config["cleanup.policy"], topic.config["retention.ms"]) == (
                ",".join(kept["cleanup.policy"]),
                str(kept["retention.ms"]),
            )

    def test_every_type_has_one_topic(self) -> None:
        assert [model.model_fields["type"].default for topic in topics.TOPICS for model in topic.types] == list(TYPES)

    def test_the_settings_default_to_them(self) -> None:
        assert Settings(_env_file=None).topics == tuple(topic.name for topic in topics.TOPICS)
        assert Settings(_env_file=None).partitions == topics.DEFAULT_PARTITIONS

    def test_the_readme_says_the_same(self) -> None:
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        table = readme.split("| topic | who writes | what |\n|---|---|---|\n")[1].split("\n\n")[0]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        assert [(name.strip("`"), writer) for name, writer, _ in rows] == [
            (topic.name, topic.writer) for topic in topics.TOPICS
        ]
        for topic, (_, _, what) in zip(topics.TOPICS, rows, strict=True):
            assert re.findall(r"`([a-z.]+)`", what) == [model.model_fields["type"].default for model in topic.types]
