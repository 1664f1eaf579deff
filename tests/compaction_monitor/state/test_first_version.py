"""Rows of the first version, frozen: every later one must read them, as what they were, and go on from them.

`rows-v1.json` holds the bytes of a session with alerts, orders and checkpoints, of one that is a chain and has ended, and
of a progress row; what each of them means, field by field; and what follows when more facts come. It is never written
again: a change of the state's form brings an upgrade on read, and a file of its own.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from compaction_events.builders import acknowledged, at, completed, ended, missed, regenerated
from compaction_events.facts import Fact
from compaction_events.findings import Alert
from compaction_monitor.effects import CHECKPOINTS, PROGRESS, SESSIONS
from compaction_monitor.harness import Offline, Published
from compaction_monitor.shell.lanes import decode_progress
from compaction_monitor.soundness import unsound
from compaction_monitor.state.cache import TRACKED
from compaction_monitor.state.nodes import Ledger, Node, TrackedSet
from compaction_monitor.state.session import Session, peek

FROZEN: dict[str, Any] = orjson.loads(Path(__file__).with_name("rows-v1.json").read_bytes())
LATER: tuple[Fact, ...] = (
    completed(3, distinct_source_spans=10, query_cosine_retained=0.6, summary_depth_max=3, summary_tokens=7_000),
    regenerated("root", 121, version=2, level=2, retained=["p1"], before_retained=["p2"]),
    missed("root", "p2", 122),
    acknowledged("order", "completed", 123),
    completed(4, distinct_source_spans=90, query_cosine_retained=0.3, summary_depth_max=1, raw_tokens=9_000),
    completed(3, "chain", at=at(200), topology="chain", raw_tokens=100, summary_tokens=900),
    ended(300),
)


def meaning(value: Any) -> Any:
    """State as plain JSON: objects by their fields, sets of bits in hexadecimal."""
    if isinstance(value, TrackedSet):
        return [meaning(entry) for entry in value.entries]
    if is_dataclass(value):
        return {field.name: meaning(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return {name: meaning(content) for name, content in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: meaning(content) for name, content in value.items()}
    if isinstance(value, tuple | list):
        return [meaning(content) for content in value]
    return hex(value) if type(value) is int and value >= 2**53 else value


def decoded(table: str, key: bytes, row: bytes) -> Any:
    if table == PROGRESS:
        return decode_progress(row)
    after = key[2 + int.from_bytes(key[:2], "big") :]
    kind: Any = Session if table == SESSIONS else TrackedSet if after == TRACKED else Node if after else Ledger
    return kind.from_bytes(row)


def told(one: Published) -> list[str]:
    finding = one.finding
    return [finding.type, finding.name if isinstance(finding, Alert) else finding.action, one.ce_id]


def frozen_row(entry: Mapping[str, Any]) -> tuple[str, bytes, bytes]:
    return entry["table"], base64.b64decode(entry["key"]), entry["row"].encode()


@pytest.mark.parametrize("entry", FROZEN["rows"], ids=lambda entry: f"{entry['table']}-{base64.b64decode(entry['key'])!r}")
def test_each_means_what_it_meant(entry: dict[str, Any]) -> None:
    table, key, row = frozen_row(entry)
    found = decoded(table, key, row)
    assert meaning(found) == entry["means"]
    if table != PROGRESS:
        assert unsound(found) == ""
    if table == SESSIONS:
        assert list(peek(row)) == entry["peek"]


def test_they_are_of_every_kind() -> None:
    kinds = {type(decoded(*frozen_row(entry))) for entry in FROZEN["rows"]}
    assert kinds == {Session, Ledger, TrackedSet, Node, int}


def test_what_comes_later_is_folded_as_it_was() -> None:
    monitor = Offline()
    for table, key, row in map(frozen_row, FROZEN["rows"]):
        if table in (SESSIONS, CHECKPOINTS):
            monitor.rows[0].tables[table][key] = row
    assert [told(one) for one in monitor.feed(LATER)] == FROZEN["later"]
    assert monitor.dead_letters == []
    for _ in range(2):  # what has orders due is looked at first, and expires with the next
        assert monitor.tick(at(60 * 24 * 3)) == []
    assert [rows.tables for rows in monitor.rows] == [{SESSIONS: {}, CHECKPOINTS: {}}]
