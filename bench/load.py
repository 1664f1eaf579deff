"""The events of the benchmarks: `round.completed` as an emitter sends it, about 400 bytes, in binary mode.

A load is `sessions` x `rounds`, round by round over all sessions, so that two events of a session are never neighbours.
One event in 100 ends with a fallback summary, which raises an alert and an order that the session's next round takes back;
one session in 20 goes through an inversion every 40 rounds: 5 findings for 100 events in all. Everything is a function of
the numbers: no chance, no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from compaction_events.builders import EPOCH
from compaction_events.codec import Encoded, encode
from compaction_events.facts import RoundCompleted

AGENT = "coder-3"
CYCLE_ROUNDS = 40
FALLBACK_EVERY = 100


@dataclass(frozen=True, slots=True)
class Load:
    """So many sessions, so many rounds each."""

    name: str
    sessions: int
    rounds: int

    @property
    def records(self) -> int:
        return self.sessions * self.rounds

    def scaled(self, share: float) -> Load:
        """As many rounds of fewer sessions."""
        return Load(self.name, max(1, round(self.sessions * share)), self.rounds)


STEADY = Load("500x200", 500, 200)
FRESH = Load("100000x1", 100_000, 1)
# More sessions of a partition than are kept decoded or are in a batch, each seen again only after all others: from the
# second round on all are read from the store.
STORED = Load("60000x3", 60_000, 3)
LOADS = {load.name: load for load in (STEADY, FRESH, STORED)}


def session_id(index: int) -> str:
    return hashlib.blake2b(b"%d" % index, digest_size=16).hexdigest()


def event(session: int, number: int, *, failed: bool | None = None) -> RoundCompleted:
    """Round `number` (from 1) of a session. `failed`: whether its summary is a fallback; by default one in 100 is."""
    if failed is None:
        failed = (session + number) % FALLBACK_EVERY == 0
    place = number % CYCLE_ROUNDS
    inverting = session % 20 == 0 and place > CYCLE_ROUNDS - 4
    raw_ratio = 0.2 - 0.01 * (place - CYCLE_ROUNDS) if inverting else 0.85 - 0.007 * place
    total = 96_000 + 37 * (session + number) % 4_000
    return RoundCompleted.model_validate(
        {
            "session_id": session_id(session),
            "agent": AGENT,
            "round": number,
            "at": EPOCH + timedelta(seconds=30 * number, microseconds=session),
            "trigger": "budget",
            "after": {
                "raw_tokens": int(total * raw_ratio),
                "summary_tokens": total - int(total * raw_ratio),
                "distinct_source_spans": 180 - 8 * (place - CYCLE_ROUNDS + 4) if inverting else 214 - place // 20,
                "query_cosine_retained": round(0.41 + 0.004 * place, 4),
                "summary_depth_max": 2 if place > CYCLE_ROUNDS // 2 else 1,
            },
            "topology": "tree",
            "max_depth": 6,
            "token_budget": 128_000,
            "claimed_records": 14,
            "read_records": 14,
            "summary_kind": "fallback" if failed else "ok",
        }
    )


def events(load: Load) -> Iterator[Encoded]:
    """Every event of a load, encoded, in the order in which it is sent."""
    for number in range(1, load.rounds + 1):
        for session in range(load.sessions):
            yield encode(event(session, number), source="bench")
