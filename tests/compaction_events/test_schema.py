"""The published schemas: generated from the models, never edited, and true of what is sent."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import orjson
import pytest

from compaction_events.codec import TYPES, encode
from compaction_events.examples import EXAMPLES
from compaction_events.facts import Fact
from compaction_events.schema import export, schemas

PUBLISHED = Path(__file__).parents[2] / "schemas" / "json"


def test_published_schemas_are_not_stale(tmp_path: Path) -> None:
    fresh = {path.name: path.read_bytes() for path in export(tmp_path / "json")}
    assert {path.name: path.read_bytes() for path in PUBLISHED.iterdir()} == fresh, "run `compaction-monitor schema export`"


def test_one_schema_a_type() -> None:
    assert set(schemas()) == {f"{name}.v1.json" for name in TYPES}


@pytest.mark.parametrize("name", schemas())
def test_it_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schemas()[name])


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
class TestExamples:
    def test_validates(self, event: Fact) -> None:
        jsonschema.validate(orjson.loads(encode(event).value), schemas()[f"{event.type}.v1.json"])

    def test_the_schema_also_refuses(self, event: Fact) -> None:
        spoilt = orjson.loads(encode(event).value) | {"session_id": "s" * 257}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(spoilt, schemas()[f"{event.type}.v1.json"])
