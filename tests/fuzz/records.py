"""Records as nobody should send them: plausible sessions, and what a careless or hostile sender makes of them.

Everything comes from one seeded generator, so a seed and a number name a record.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import orjson

from compaction_events.builders import EPOCH, at
from compaction_events.codec import MAX_RECORD_BYTES, TYPE_PREFIX
from compaction_events.facts import MAX_ID_CHARS
from compaction_monitor.dead_letters import REPLAY
from compaction_monitor.harness import EVENTS, OUTCOMES, LogRecord, milliseconds
from compaction_monitor.partitioner import partition_of

PARTITIONS: Final = 2
SESSIONS: Final = 200
BASE_MS: Final = milliseconds(EPOCH)
Headers = list[tuple[str, bytes | None]]
Json = dict[str, Any]

PROPOSITIONS: Final = tuple(f"p{number}" for number in range(12))
NODES: Final = ("leaf-1", "leaf-2", "leaf-3", "mid-1", "mid-2", "root")


def _raw(text: str | bytes) -> Any:
    return orjson.Fragment(text)


def _json(value: Any) -> Any:
    """As text too: a list put into itself has no end."""
    return _raw(orjson.dumps(value))


# Values at and beyond the edges of every type; fragments are what no JSON library would write.
EXTREMES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, -0.0, 1e-320, 1.5, -1.0000001,
    1e308, -1e308, "", " ", "x", "é" * MAX_ID_CHARS, "x" * (MAX_ID_CHARS + 1), "\u0000", "\u202e", "😀" * 64, "other", "tree",
    "2026-01-01T00:00:00Z", "2026-01-01", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2199-12-31T23:59:59.999999+00:00",
    "2200-01-01T00:00:00Z", "1999-12-31T23:59:59Z", "2026-02-30T00:00:00Z", "2026-01-01T00:00:00+14:00", "2026-01-01T00:00:00",
    _json([]), _json({}), _json([[]]), _json([None]), _json([{}]), _json({"": None}), _json(["x"] * 1_001), _json(["p1"] * 40),
    _json([{"node_id": "n", "version": 2**53}] * 513),
    _raw("NaN"), _raw("Infinity"), _raw("-Infinity"), _raw("1e400"), _raw("-1e400"), _raw("1e-400"), _raw("-0"), _raw("1E5"),
    _raw("9" * 400), _raw("0." + "1" * 400), _raw('"\\ud800"'), _raw('"\\udc00\\ud800"'), _raw("01"), _raw("+1"), _raw("1."),
    _raw("'x'"), _raw("undefined"), _raw("1,2"), _raw('1,"round":2'), _raw("[" * 900 + "]" * 900), _raw("[" * 5_000),
    _raw('{"a":' * 200 + "1" + "}" * 200), _raw(b'"\xff\xfe"'), _raw(b'"\xed\xa0\x80"'), _raw("/**/1"), _raw(""),
)  # fmt: skip
TYPES: Final = (
    "round.completed", "session.started", "session.ended", "checkpoint.written", "checkpoint.regenerated", "proposition.stated",
    "proposition.missed", "remediation.acknowledged", "alert.raised", "remediation.requested", "round.forgotten", "",
)  # fmt: skip
HEADER_NAMES: Final = ("ce_type", "ce_id", "content-type", "traceparent", "ce_source", "x-reason", REPLAY, "é", "")
HEADER_VALUES: Final = (
    None, b"", b"\xff\xfe", b"x" * 300, b"application/cloudevents+json", b"application/json", b"APPLICATION/CLOUDEVENTS",
    b"round.completed", f"{TYPE_PREFIX}round.completed.v2".encode(), f"{TYPE_PREFIX}round.completed.v1".encode(),
    b"io.compaction_monitor..v1", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"y" * 70_000,
)  # fmt: skip


class _Session:
    """Where a session of the story stands."""

    __slots__ = ("cosine", "minutes", "name", "raw", "round", "spans", "version")

    def __init__(self, name: str) -> None:
        self.name, self.minutes, self.round, self.version = name, 0.0, 0, 0
        self.raw, self.spans, self.cosine = 900, 60, 0.4


class Records:
    """An endless log. `orders` is what the monitor has asked for, so that some of it is answered."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._sessions = [_Session(f"session-{number}") for number in range(SESSIONS)]
        self._offsets = dict.fromkeys([(topic, n) for topic in (EVENTS, OUTCOMES) for n in range(PARTITIONS)], 0)
        self._before: deque[LogRecord] = deque(maxlen=500)
        self.orders: deque[tuple[str, str, str]] = deque(maxlen=200)
        self.now_ms = BASE_MS

    def next(self) -> LogRecord:
        """The next record of the log."""
        chance = self._chance
        if self._before and chance.random() < 0.05:  # sent again, or late
            old = chance.choice(self._before)
            return self._append(old.topic, old.partition, old.key, old.value, old.headers)
        fact = self._fact()
        session: Any = fact["session_id"]
        kind = fact["type"]
        for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 5))):
            self._spoil(fact)
        value, headers = self._framed(fact, kind)
        if chance.random() < 0.08:
            value = self._bytes_spoilt(value)
        key = self._key(session.encode())
        topic = OUTCOMES if (kind == "remediation.acknowledged") != (chance.random() < 0.01) else EVENTS
        partition = partition_of(session.encode(), PARTITIONS)
        if chance.random() < 0.01:
            partition = chance.randrange(PARTITIONS)
        return self._append(topic, partition, key, value, headers)

    def _append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Any) -> LogRecord:
        offset = self._offsets[topic, partition]
        self._offsets[topic, partition] += 1
        appended_ms = self.now_ms
        if self._chance.random() < 0.002:  # a topic with the producers' own times
            appended_ms = self._chance.choice((0, -1, self.now_ms - 86_400_000, 2**42, 2**62, -(2**63)))
        made = LogRecord(topic, partition, offset, appended_ms, key, value, tuple(headers))
        self._before.append(made)
        return made

    # What a session might say.

    def _fact(self) -> Json:
        chance = self._chance
        session = chance.choice(self._sessions)
        step = (
            chance.choice((30.0, 20.0, 7.0, 1.0, 0.0, -10.0, 5.0))
            if chance.random() < 0.999
            else chance.choice((2_000.0, -2_000.0))
        )
        session.minutes = max(0.0, session.minutes + step)
        self.now_ms = max(self.now_ms, BASE_MS + round(session.minutes * 60_000))
        make = chance.choices(_MAKERS, _WEIGHTS)[0]
        return {"session_id": session.name, **make(self, session)}

    def _now(self, session: _Session) -> str:
        return at(session.minutes).isoformat()

    def _some(self, names: tuple[str, ...]) -> list[str]:
        return self._chance.sample(names, self._chance.randrange(len(names)))

    def _start(self, session: _Session) -> Json:
        chance = self._chance
        return {
            "type": "session.started", "agent": "agent", "started_at": self._now(session),
            "source_spans": chance.randrange(100),
            "topology": chance.choice(("tree", "tree", "chain", "flat")), "max_depth": chance.choice((2, 3)),
            "token_budget": 1_050, "eviction": chance.choice(("continuous", "overflow")),
            "scorer": chance.choice(({"name": "cosine"}, {"name": "cosine", "depth_penalty": 0.5}, {"name": "none"})),
            "controller": chance.choice(("expected", "none")),
        }  # fmt: skip

    def _round(self, session: _Session) -> Json:
        chance = self._chance
        session.round += chance.choice((1, 1, 1, 1, 2, 0))
        session.raw = min(1_000, max(0, session.raw + chance.choice((-150, -80, -20, 30, 300))))
        session.spans = max(0, session.spans + chance.randint(-9, 6))
        session.cosine = min(1.0, max(-1.0, session.cosine + chance.uniform(-0.1, 0.1)))
        after = {
            "raw_tokens": session.raw, "summary_tokens": 1_000 - session.raw, "distinct_source_spans": session.spans,
            "query_cosine_retained": session.cosine, "summary_depth_max": chance.choice((0, 1, 2, 3)),
        }  # fmt: skip
        fact: Json = {
            "type": "round.completed", "agent": "agent", "round": session.round, "at": self._now(session), "after": after,
            "cause": chance.choice(("compaction", "compaction", "rehydration")),
        }  # fmt: skip
        if chance.random() < 0.5:
            fact |= {
                "before": after | {"distinct_source_spans": chance.randrange(90)},
                "trigger": chance.choice(("budget", "manual")),
                "summaries": [self._summary(number) for number in range(chance.randrange(4))], "summaries_total": 4,
                "claimed_records": 10, "read_records": chance.randrange(11), "token_budget": 1_050,
                "spans_method": chance.choice(("pointer", "lexical")), "propositions_retained": self._some(PROPOSITIONS),
                "summary_kind": chance.choice(("ok", "error", "fallback", "empty", "none")),
                "basis": chance.choice(("measured", "inferred")),
            }  # fmt: skip
        return fact

    def _summary(self, number: int) -> Json:
        chance = self._chance
        expanded = chance.randrange(2_000)
        return {
            "summary_id": f"m{number}",
            "depth": 1,
            "tokens": 50,
            "leaf_spans": chance.randrange(5),
            "expanded_tokens": expanded,
        }

    def _end(self, session: _Session) -> Json:
        return {"type": "session.ended", "ended_at": self._now(session)}

    def _node(self, session: _Session) -> Json:
        chance = self._chance
        name = chance.choice(NODES) if chance.random() < 0.95 else f"node-{chance.randrange(10_000)}"
        below = [{"node_id": child, "version": chance.randrange(session.version + 2)} for child in self._some(NODES)[:3]]
        return {
            "node_id": name, "level": chance.choice((1, 2, 3)), "retained": self._some(PROPOSITIONS), "children": below,
            "budget_tokens": chance.choice((50, 100, 2_000)), "child_joint_entropy_bits": chance.choice((40.0, 90.0, 200.5)),
            "child_redundancy": chance.choice((0.0, 0.1, 1.0)), "bits_per_token": chance.choice((1.0, 0.3)),
            "parent_id": chance.choice((None, "root")), "sources": chance.choice(("children", "children", "raw")),
        }  # fmt: skip

    def _written(self, session: _Session) -> Json:
        session.version += 1
        return {
            "type": "checkpoint.written",
            "version": session.version,
            "written_at": self._now(session),
            **self._node(session),
        }

    def _regenerated(self, session: _Session) -> Json:
        session.version += 1
        fact = {"type": "checkpoint.regenerated", "at": self._now(session), "version": session.version, **self._node(session)}
        return fact | {"before_retained": self._some(PROPOSITIONS)} if self._chance.random() < 0.3 else fact

    def _trial(self, session: _Session) -> Json:
        chance = self._chance
        order = chance.choice(self.orders)[1] if self.orders else "order"
        trial = {"trial_number": chance.randint(1, 4), "remediation_id": order}
        return {"type": "checkpoint.regenerated", "at": self._now(session), **trial, **self._node(session)}

    def _stated(self, session: _Session) -> Json:
        chance = self._chance
        name = chance.choice(PROPOSITIONS) if chance.random() < 0.8 else f"q{chance.randrange(2_000)}"
        return {
            "type": "proposition.stated",
            "proposition": name,
            "turn": session.round,
            "span_id": "s",
            "pinned": chance.random() < 0.5,
        }

    def _missed(self, session: _Session) -> Json:
        chance = self._chance
        place = {"node_id": chance.choice(NODES), "proposition": chance.choice(PROPOSITIONS)}
        return {"type": "proposition.missed", **place, "at": self._now(session), "by": "user"}

    def _answer(self, session: _Session) -> Json:
        chance = self._chance
        where = {"session_id": session.name}
        order = "order"
        if self.orders:
            name, order, _ = chance.choice(self.orders)
            where = {"session_id": name}
        status = chance.choice(("accepted", "rejected", "deferred", "completed", "failed", "later"))
        return {
            "type": "remediation.acknowledged",
            "remediation_id": order,
            "status": status,
            "at": self._now(session),
            **where,
        }

    # What becomes of it on the way.

    def _spoil(self, fact: Json) -> None:
        """One change somewhere in the structure."""
        chance = self._chance
        place: Any = fact
        for _ in range(chance.randrange(3)):
            inner = [
                value
                for value in (place.values() if isinstance(place, dict) else place)
                if value and isinstance(value, dict | list)
            ]
            if not inner:
                break
            place = chance.choice(inner)
        if isinstance(place, list):
            place.insert(chance.randrange(len(place) + 1), chance.choice(EXTREMES))
            return
        name = chance.choice(list(place) or [""])
        match chance.randrange(8):
            case 0:
                place.pop(name, None)
            case 1:
                place[name.swapcase()] = place.get(name)
            case 2:
                place[chance.choice(("more", "", "\u0000", "x" * 300))] = chance.choice(EXTREMES)
            case 3:
                place[name] = [place.get(name)]
            case 4:
                place["type"] = chance.choice(TYPES)
            case 5 if type(place.get(name)) is int:
                place[name] = _raw(str(place[name] + chance.choice((-1, 1, 2**31, -(2**40), 0.5))))
            case _:
                place[name] = chance.choice(EXTREMES)

    def _framed(self, fact: Json, kind: str) -> tuple[bytes, Headers]:
        """The value and its headers, in one of the forms of CloudEvents or as plain JSON."""
        chance = self._chance
        form = chance.random()
        headers: Headers = []
        if form < 0.7:
            headers = [
                ("ce_specversion", b"1.0"),
                ("ce_type", f"{TYPE_PREFIX}{kind}.v1".encode()),
                ("content-type", b"application/json"),
            ]
        elif form < 0.85:
            fact = {"specversion": "1.0", "type": f"{TYPE_PREFIX}{kind}.v1", "id": "x", "data": fact}
            headers = [("content-type", b"application/cloudevents+json")] if form < 0.8 else []
        while chance.random() < 0.05:
            headers.insert(chance.randrange(len(headers) + 1), (chance.choice(HEADER_NAMES), chance.choice(HEADER_VALUES)))
        if chance.random() < 0.002:
            headers += [("h", b"v" * chance.randrange(2_000))] * chance.randrange(400)
        if chance.random() < 0.01:
            headers.append((REPLAY, b"%d" % chance.randrange(10**6)))
        return orjson.dumps(fact), headers

    def _bytes_spoilt(self, value: bytes) -> bytes:
        """Changes below JSON: bits, cuts, repeats, garbage, size."""
        chance = self._chance
        spoilt = bytearray(value)
        for _ in range(chance.choice((1, 1, 2, 8))):
            place = chance.randrange(len(spoilt)) if spoilt else 0
            match chance.randrange(7):
                case 0 if spoilt:
                    spoilt[place] ^= 1 << chance.randrange(8)
                case 1:
                    del spoilt[place:]
                case 2:
                    spoilt[place:place] = chance.randbytes(chance.randrange(6))
                case 3:
                    spoilt[place:place] = spoilt[place : place + chance.randrange(40)]
                case 4:
                    del spoilt[place : place + chance.randrange(8)]
                case 5:
                    spoilt[place:place] = chance.choice((b'"', b"{", b"}", b",", b"\\", b"\x00", b"[", b"NaN"))
                case 6 if chance.random() < 0.01:
                    spoilt += b" " * (MAX_RECORD_BYTES * chance.choice((1, 3)))
        return bytes(spoilt)

    def _key(self, right: bytes) -> bytes | None:
        chance = self._chance
        if chance.random() < 0.97:
            return right
        return chance.choice((None, b"", b"\xff", right + b"\x00", right[:-1], b"session-0", b"k" * 300, b"k" * 20_000))


Make = Callable[[Records, _Session], Json]
_KINDS: Final[tuple[tuple[Make, int], ...]] = (
    (Records._round, 40), (Records._written, 12), (Records._regenerated, 6), (Records._trial, 6), (Records._missed, 8),
    (Records._stated, 8), (Records._answer, 12), (Records._start, 3), (Records._end, 1),
)  # fmt: skip
_MAKERS: Final = [make for make, _ in _KINDS]
_WEIGHTS: Final = [weight for _, weight in _KINDS]
