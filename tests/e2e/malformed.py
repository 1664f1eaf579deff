"""Records that break the contract, each kind with the reason it must be refused for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson

from compaction_events.builders import acknowledged, completed
from compaction_events.codec import TYPE_PREFIX, encode
from compaction_events.errors import Reason
from compaction_monitor.partitioner import partition_of
from tests.e2e.judging import Ready

UNREADABLE: Final = "unreadable"
"""A header key that `Spoiled` writes as bytes that are not UTF-8."""
HUGE_EVERY: Final = 500  # a record above 256 KiB is 256 KiB of the test's time
UNREADABLE_EVERY: Final = 500  # each stands alone in a transaction
Headers = list[tuple[str, bytes | None]]
Bad = tuple[bytes | None, bytes | None, Headers]


class Spoiled(str):
    """A header's key that is no UTF-8 on the wire."""

    def encode(self, *_: Any) -> bytes:
        """What the batch's builder writes."""
        return b"\xff\xfeKEY"


def _plain(value: bytes, session: str) -> Bad:
    return session.encode(), value, []


def _told(session: str, **fields: Any) -> Bad:
    """A round with some fields changed, or (None) left out."""
    key, value, headers = encode(completed(1, session))
    told = orjson.loads(value) | fields
    return key, orjson.dumps({name: field for name, field in told.items() if field is not None}), [*headers]


def _after(session: str, **fields: Any) -> Bad:
    return _told(session, after={"raw_tokens": 1, "summary_tokens": 1} | fields)


def _raw(session: str, old: bytes, new: bytes) -> Bad:
    key, value, headers = encode(completed(1, session))
    assert old in value
    return key, value.replace(old, new), [*headers]


def _header(session: str, name: str, content: bytes | None) -> Bad:
    key, value, headers = encode(completed(1, session))
    return key, value, [(known, content if known == name else had) for known, had in headers]


def _keyed(session: str, key: bytes | None) -> Bad:
    _, value, headers = encode(completed(1, session))
    return key, value, [*headers]


def _deep(session: str, levels: int) -> Bad:
    return _raw(session, b'"round":1', b'"round":1,"more":' + b"[" * levels + b"]" * levels)


def _answer(session: str) -> Bad:
    key, value, headers = encode(acknowledged("order", "completed", 1, session))
    return key, value, [*headers]


KINDS: Final[tuple[tuple[Reason, Callable[[str], Bad]], ...]] = (
    (Reason.not_json, lambda s: _plain(b"not JSON", s)),
    (Reason.not_json, lambda s: _plain(b'{"type": "round.completed"', s)),
    (Reason.not_json, lambda s: _plain(b"[]", s)),
    (Reason.not_json, lambda s: _plain(b"7", s)),
    (Reason.not_json, lambda s: _plain(b"\xff\xfe\x00", s)),
    (Reason.not_json, lambda s: _raw(s, b'"agent"', b'"agent\xff"')),
    (Reason.not_json, lambda s: _raw(s, b'"round":1', b'"round":NaN')),
    (Reason.not_json, lambda s: _raw(s, b'"round":1', b'"round":1,"more":-Infinity')),
    (Reason.not_json, lambda s: _deep(s, 50_000)),
    (Reason.not_json, lambda s: _plain(b'{"type":' * 5_000, s)),
    (Reason.invalid_field, lambda s: _told(s, round="1")),
    (Reason.invalid_field, lambda s: _told(s, round=-1)),
    (Reason.invalid_field, lambda s: _told(s, round=True)),
    (Reason.invalid_field, lambda s: _told(s, at="yesterday")),
    (Reason.invalid_field, lambda s: _told(s, at=0)),
    (Reason.invalid_field, lambda s: _told(s, after=None)),
    (Reason.invalid_field, lambda s: _told(s, agent=None, at=None)),
    (Reason.invalid_field, lambda s: _told(s, session_id="s" * 257)),
    (Reason.invalid_field, lambda s: _after(s, raw_tokens=[])),
    (Reason.invalid_field, lambda s: _after(s, raw_tokens=2**60)),
    (Reason.invalid_field, lambda s: _after(s, query_cosine_retained=1.5)),
    (Reason.empty_value, lambda s: (s.encode(), b"", [])),
    (Reason.empty_value, lambda s: (s.encode(), None, [])),
    (Reason.wrong_key, lambda s: _keyed(s, b"another")),
    (Reason.wrong_key, lambda s: _keyed(s, b"\xff\xfe")),
    (Reason.wrong_key, lambda s: _keyed(s, None)),
    (Reason.unknown_type, lambda s: _header(s, "ce_type", f"{TYPE_PREFIX}round.forgotten.v1".encode())),
    (Reason.unknown_type, lambda s: _plain(b'{"type": 7}', s)),
    (Reason.unknown_type, lambda s: _plain(b"{}", s)),
    (Reason.unknown_version, lambda s: _header(s, "ce_type", f"{TYPE_PREFIX}round.completed.v2".encode())),
    (Reason.bad_headers, lambda s: _header(s, "ce_type", None)),
    (Reason.bad_headers, lambda s: _header(s, "ce_type", b"\xff\xfe")),
    (Reason.bad_headers, lambda s: _header(s, "ce_id", b"\xff\xfe")),
    (Reason.bad_headers, lambda s: _header(s, "ce_id", b"")),
    (Reason.wrong_topic, _answer),
)


def malformed(count: int, topic: str, partitions: int, seed: int = 1) -> Iterator[tuple[Reason, Ready]]:
    """So many malformed records in equal shares of every kind, each with its reason; few of the costly ones."""
    chosen = random.Random(seed)
    for number in range(count):
        session = f"malformed-{number}"
        right = partition_of(session.encode(), partitions)
        if number % HUGE_EVERY == 1:
            reason, (key, value, headers) = Reason.record_too_large, _plain(b'"' + b"x" * 300_000 + b'"', session)
        elif number % UNREADABLE_EVERY == 2:
            reason, (key, value, headers) = Reason.undecodable_record, _told(session)
            headers.append((Spoiled(UNREADABLE), b"value"))
        elif number % 30 == 3:
            reason, (key, value, headers) = Reason.wrong_partition, _told(session)
            yield reason, Ready(topic, (right + chosen.randrange(1, partitions)) % partitions, key, value, headers)
            continue
        else:
            reason, make = KINDS[number % len(KINDS)]
            key, value, headers = make(session)
        yield reason, Ready(topic, right, key, value, headers)
