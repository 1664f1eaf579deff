"""JSON Schemas of every type on the wire, generated from the models, so that they cannot drift from the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from compaction_events.codec import TYPE_PREFIX, TYPES, VERSION

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Major: the `v1` in every type. Minor: how often something was added since; what was there stays as it was.
CONTRACT_VERSION = "1.0"


def schemas() -> dict[str, dict[str, Any]]:
    """One JSON Schema per type, by file name (`round.completed.v1.json`)."""
    found: dict[str, dict[str, Any]] = {}
    for name, model in TYPES.items():
        schema = model.model_json_schema(mode="validation")
        found[f"{name}.{VERSION}.json"] = {"$schema": DIALECT, "$id": f"{TYPE_PREFIX}{name}.{VERSION}", **schema}
    return found


def export(folder: Path) -> list[Path]:
    """Write every schema into `folder`, which is created if it is not there; return the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, schema in schemas().items():
        path = folder / name
        path.write_bytes(orjson.dumps(schema, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")
        paths.append(path)
    return paths
