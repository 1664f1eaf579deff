"""What Python makes of some thousand records: the file that the Java port verifies itself with at every start.

The first line holds the texts of the alerts; each further one a record, and what decode, fold and publication make of it.
Rules that only observe, because the port publishes alerts and no orders.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson

from bench.load import STEADY, events
from compaction_events.builders import EPOCH
from compaction_events.codec import decode, encode
from compaction_events.errors import ContractError
from compaction_events.facts import RoundCompleted
from compaction_monitor.checks.evidence import WORDS
from compaction_monitor.checks.rounds import CHECKS
from compaction_monitor.core import publication
from compaction_monitor.fold import fold
from compaction_monitor.rules import AgentRules, Rules
from compaction_monitor.state.session import Session

RULES = Rules(default=AgentRules(observe=True))
RECORDS = 3_000
SESSIONS = 60


def write(path: Path) -> None:
    """Write the file, whole or not at all."""
    texts = {
        "runbook_url": RULES.runbook_url,
        "words": {check: [WORDS[check].message, WORDS[check].description] for check in CHECKS},
    }
    partial = path.with_suffix(".partial")
    partial.write_bytes(b"\n".join([orjson.dumps(texts), *map(orjson.dumps, vectors())]))
    partial.replace(path)


def vectors() -> Iterator[dict[str, Any]]:
    sessions: dict[bytes, Session | None] = {}
    timestamp_ms = int((EPOCH + timedelta(days=200)).timestamp() * 1000)
    for key, value, headers in records():
        timestamp_ms += 7
        vector: dict[str, Any] = {
            "key": key.decode(),
            "value": value.decode(),
            "headers": {name: content.decode() for name, content in headers},
            "timestamp": timestamp_ms,
            "refused": False,
        }
        try:
            decoded = decode(value, headers, key)
        except ContractError:
            yield vector | {"refused": True}
            continue
        folded = fold(sessions.get(key), decoded.event, decoded.ce_id, RULES, timestamp_ms)
        sessions[key] = folded.session
        assert folded.session is not None
        found = [publication(finding, decoded.traceparent) for finding in folded.findings]
        yield vector | {
            "state": orjson.loads(folded.session.to_bytes()),
            "findings": [
                {"value": orjson.loads(f.value or b""), "ce_id": (dict(f.headers)["ce_id"] or b"").decode()} for f in found
            ],
        }


def records() -> Iterator[tuple[bytes, bytes, list[tuple[str, bytes]]]]:
    """Rounds of the benchmark's own load, of sessions in every kind of trouble, and some that break the contract."""
    steady = events(STEADY)
    for _ in range(STEADY.sessions * 2):
        yield next(steady)
    chosen = random.Random(0)
    sessions = [_Trouble(f"trouble-{index}", chosen) for index in range(SESSIONS)]
    for _ in range(RECORDS):
        key, value, headers = encode(RoundCompleted.model_validate(chosen.choice(sessions).next()), source="bench")
        if chosen.random() < 0.05:
            key, value, headers = _broken(key, value, headers, chosen)
        yield key, value, headers


class _Trouble:
    """A session that wanders: every input is absent now and then, every threshold is crossed in both directions."""

    def __init__(self, session_id: str, chosen: random.Random) -> None:
        self._id, self._chosen = session_id, chosen
        self._topology = chosen.choice(["tree", "tree", "tree", "chain", "flat", "other", None])
        self._basis = chosen.choice(["measured", "measured", "inferred"])
        self._max_depth = chosen.choice([None, None, 3, 4])
        self._round, self._at, self._raw, self._spans, self._cosine, self._depth = 0, EPOCH, 0.7, 200, 0.4, 1

    def next(self) -> dict[str, Any]:
        chosen = self._chosen
        self._round += chosen.choice([1] * 20 + [0, 2, -3])
        self._round = max(0, self._round)
        self._at += timedelta(
            seconds=chosen.choice([200] * 12 + [900] * 12 + [0, -60, 90_000, 2e7]), microseconds=chosen.choice([0, 17])
        )
        self._raw = min(0.9, max(0.05, self._raw + chosen.uniform(-0.12, 0.1)))
        self._spans = min(214, max(0, self._spans + chosen.randint(-15, 11)))
        self._cosine = round(min(0.99, max(-0.2, self._cosine + chosen.choice([-0.02, 0.02, 0.02, 0.031]))), 3)
        self._depth = max(0, min(4, self._depth + chosen.choice([0, 0, 0, 0, 1, -1])))
        total = chosen.choice([0, 90_000, 120_000, 127_000])
        after = {
            "raw_tokens": int(total * self._raw),
            "summary_tokens": total - int(total * self._raw),
            "distinct_source_spans": self._some(self._spans),
            "query_cosine_retained": self._some(self._cosine),
            "summary_depth_max": self._some(self._depth),
        }
        event = {
            "session_id": self._id,
            "agent": "agent-é",
            "round": self._round,
            "at": self._at,
            "cause": chosen.choice(["compaction"] * 12 + ["rehydration", "other"]),
            "trigger": self._some(chosen.choice(["budget", "manual", "soon"])),
            "after": after,
            "before": self._some(
                {"raw_tokens": 1, "summary_tokens": 2, "distinct_source_spans": self._spans * chosen.choice([1, 3, 6])}
            ),
            "topology": self._some(self._topology),
            "max_depth": self._some(self._max_depth),
            "token_budget": self._some(128_000),
            "source_spans_seen": self._some(300),
            "spans_method": self._some(chosen.choice(["pointer", "pointer", "lexical"])),
            "summaries": chosen.choice([None, None, self._summaries()]),
            "summaries_total": chosen.choice([None, 4]),
            "claimed_records": self._some(14),
            "read_records": self._some(chosen.choice([14, 6, 7])),
            "summary_kind": chosen.choice(["ok"] * 8 + ["fallback", "error", "empty", "none", "odd", None]),
            "propositions_retained": chosen.choice([None, ("p1", "p2")]),
            "basis": self._basis,
        }
        return {name: value for name, value in event.items() if value is not None}

    def _some(self, value: Any) -> Any:
        return value if self._chosen.random() < 0.93 else None

    def _summaries(self) -> list[dict[str, Any]]:
        leaves = self._chosen.choice([(3, 4), (0, 4), (0, 0), (2, 0)])
        return [
            {"summary_id": f"s{index}", "depth": 1, "tokens": 100, "leaf_spans": count, "expanded_tokens": 900}
            for index, count in enumerate(leaves)
        ]


def _broken(key: bytes, value: bytes, headers: list[tuple[str, bytes]], chosen: random.Random) -> Any:
    """One of the ways in which a record breaks the contract."""
    ways = [
        (b"other", value),
        (key, value[:-9]),
        (key, value.replace(b'"round":', b'"round":-')),
        (key, value.replace(b'"raw_tokens":', b'"raw_tokens":1.5,"x":')),
        (key, value.replace(b'"at":"2026', b'"at":"1926')),
        (key, value.replace(b'"agent":', b'"agents":')),
        (key, value.replace(b'"cause":"', b'"cause":null,"y":"')),
        (key, value + b" true"),
    ]
    changed = chosen.choice(ways)
    return (*changed, headers)
