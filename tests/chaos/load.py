"""What the senders do wrong: records sent again, records that come late, records that break the contract."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from compaction_events.errors import Reason
from tests.e2e import judging
from tests.e2e.fleet import ANSWERED, agent_of, fleet
from tests.e2e.judging import Ready
from tests.e2e.malformed import malformed

SHARE: Final = 0.01


class Load(NamedTuple):
    """What is sent, in this order; how many records of it are there again, late, and bad."""

    log: Sequence[Ready]
    again: int
    late: int
    poisoned: int


def load(events: int, sessions: int, seed: int, app_id: str, partitions: int) -> Load:
    """A fleet's facts; one of a hundred comes again later, one late, and a bad record for each hundred."""
    chosen = random.Random(f"{seed} load")
    good = judging.ready(fleet(events, sessions, seed), app_id, partitions)
    placed: list[tuple[float, Ready]] = []
    again = late = 0
    for number, record in enumerate(good):
        at = float(number)
        # Answers, and what they answer, stay in their order: an answer cannot come before its order.
        if chosen.random() < SHARE and agent_of((record.key or b"").decode()) != ANSWERED:
            late += 1
            at += chosen.randrange(1, 3 * sessions)
        placed.append((at, record))
        if chosen.random() < SHARE:
            again += 1
            placed.append((at + chosen.randrange(1, 3 * sessions) + 0.25, record))
    bad = list(_bad(int(events * SHARE), f"{app_id}.events", partitions, seed))
    placed += [(chosen.randrange(events) + 0.5, record) for record in bad]
    placed.sort(key=lambda place: place[0])
    return Load([record for _, record in placed], again, late, len(bad))


def _bad(count: int, topic: str, partitions: int, seed: int) -> Iterable[Ready]:
    """Not those that the client library cannot read: a plain reader, as the judge is one, cannot either."""
    return (one for reason, one in malformed(count, topic, partitions, seed) if reason is not Reason.undecodable_record)
