"""A hostile agent: whatever it sends, it costs a bounded amount, and no session but those that it names notices.

Cost is counted in calls, not in time: it is the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from types import FrameType
from typing import Any

import pytest

from compaction_events.builders import at, completed, ended, missed, regenerated, started, stated, written
from compaction_events.codec import MAX_RECORD_BYTES, encode
from compaction_events.facts import MAX_ID_CHARS, MAX_SUMMARIES, AckStatus, Fact, RemediationAcknowledged
from compaction_events.findings import MAX_FINDING_BYTES
from compaction_monitor import golden
from compaction_monitor.harness import Offline
from compaction_monitor.state.session import MAX_OPEN_FINDINGS, MAX_STATE_BYTES
from compaction_monitor.tree.forgetting import MAX_NODES

NAME = "evil"
RECORDS = 300
# Of a usual round's calls, for the costliest record of all: it may be six hundred times as large.
DEAREST = 200
NEIGHBOUR = "neighbour"
FILLER = "\U0001f600"  # four bytes a character


def long(word: str, number: int) -> str:
    """As long as an id may be."""
    return f"{word}{number:07}".ljust(MAX_ID_CHARS, FILLER)


def short(word: str, number: int) -> str:
    """As many as possible in a record."""
    return f"{word}{number:x}"


def neighbour() -> list[Fact]:
    """A session that inverts, is helped, and inverts again, in a tree of checkpoints."""
    return list(golden.series(NEIGHBOUR, golden.START, 40))


def rounds() -> Iterator[Fact]:
    """Every round with as many summaries and propositions as a record holds, all orphaned, none of them seen before."""
    yield started(NAME, source_spans=1_000, max_depth=3, controller="expected")
    for n in count(1):
        first = n * MAX_SUMMARIES
        orphan = {"depth": 3, "tokens": 2**53, "leaf_spans": 0, "expanded_tokens": 2**53}
        yield completed(
            n, NAME, at=at(n), raw_tokens=n % 7, summary_tokens=2**53, distinct_source_spans=n % 11,
            query_cosine_retained=(n % 10) / 10, summary_depth_max=3, spans_method="pointer",
            summaries=[{"summary_id": short("s", first + k), **orphan} for k in range(MAX_SUMMARIES)],
            propositions_retained=[short("p", n * 1_000 + k) for k in range(1_000)],
            summary_kind="error", claimed_records=2**53, read_records=0,
        )  # fmt: skip


def propositions() -> Iterator[Fact]:
    """Constraints without end, and rounds that have lost them all."""
    for n in count(1):
        yield stated(long("p", n), n, NAME, span_id=long("s", n), pinned=True)
        if n % 20 == 0:
            yield completed(n, NAME, at=at(n), propositions_retained=[])


def checkpoints() -> Iterator[Fact]:
    """Nodes without end, each with as many children as are kept."""
    for n in count(1):
        children = [{"node_id": long("n", n * 100 + k), "version": 1} for k in range(180)]
        retained = [short("p", k) for k in range(1_000)]
        yield written(long("n", n), 1, n / 10, NAME, level=2, children=children, retained=retained)


def _net(n: int) -> list[dict[str, Any]]:
    return [{"node_id": short("n", (n + k) % 120), "version": None} for k in range(120)]


def tangles() -> Iterator[Fact]:
    """A graph in which everything is under everything, rewritten, missed at and tried without end."""
    tight = {"budget_tokens": 1, "child_joint_entropy_bits": 1e9, "child_redundancy": 0.0, "bits_per_token": 1.0}
    yield started(NAME, controller="expected")
    yield from (stated(short("p", k), k, NAME, pinned=True) for k in range(50))
    for n in count(1):
        node, held = short("n", n % 120), [short("p", (n + k) % 50) for k in range(25)]
        yield written(node, n, n, NAME, level=2, children=_net(n), retained=held, parent_id=short("n", (n + 1) % 120), **tight)
        yield missed(node, short("p", (n + 30) % 50), n, NAME)
        yield regenerated(node, n, NAME, level=2, children=_net(n + 1), retained=held[5:], version=n, **tight)
        trial = {"trial_number": 1 + n % 3, "remediation_id": "any"}
        yield regenerated(node, n, NAME, level=2, children=_net(n), retained=held[::-2], **trial, **tight)


def answers() -> Iterator[Fact]:
    """Answers to orders that nobody gave."""
    yield started(NAME, controller="expected")
    for n in count(1):
        status = [*AckStatus][n % 5]
        yield RemediationAcknowledged(
            session_id=NAME, remediation_id=long("r", n), status=status, detail=FILLER * 1_024, at=at(n)
        )


def lives() -> Iterator[Fact]:
    """Begun, inverted, ended, begun again; expired now and then."""
    for n in count(1):
        days = n * 1_440 // 5
        yield started(NAME, started_at=at(days), source_spans=200, max_depth=3, controller="expected")
        for number, (raw, spans, cosine) in enumerate([(60_000, 120, 0.45), (30_000, 30, 0.52)]):
            yield completed(
                number, NAME, at=at(days + number + 1), raw_tokens=raw, summary_tokens=90_000, distinct_source_spans=spans,
                query_cosine_retained=cosine, summary_depth_max=3,
            )  # fmt: skip
        yield ended(days + 3, NAME)


def mimicry() -> Iterator[Fact]:
    """The neighbour's names in every field but the session's: its agent, its nodes, its propositions, answers to its orders."""
    alone = Offline()
    alone.feed(neighbour())
    orders = [one.finding.id for one in alone.published if one.finding.session_id == NEIGHBOUR]
    yield started(NAME, agent=NEIGHBOUR, source=NEIGHBOUR, controller="expected")
    for n in count(1):
        yield stated(short("p", n % 9), n, NAME, span_id=NEIGHBOUR, pinned=True)
        yield written(NEIGHBOUR, n, n, NAME, retained=[short("p", n % 9)], parent_id=NEIGHBOUR)
        yield missed(NEIGHBOUR, short("p", n % 7), n, NAME, by=NEIGHBOUR)
        for status in ("rejected", "completed"):
            yield RemediationAcknowledged(
                session_id=NAME, remediation_id=orders[n % len(orders)], status=AckStatus(status), at=at(n)
            )


ATTACKS = (rounds, propositions, checkpoints, tangles, answers, lives, mimicry)
each_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)


class Calls:
    """How many functions are called within, Python's and C's."""

    def __enter__(self) -> Calls:
        self.count = 0
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, _frame: FrameType, event: str, _of: object) -> None:
        self.count += event in ("call", "c_call")


def costs(monitor: Offline, facts: Iterator[Fact], number: int) -> list[int]:
    """Calls for each of the next facts."""
    found = []
    for record in monitor.records(islice(facts, number)):
        with Calls() as calls:
            monitor.feed_records([record])
        found.append(calls.count)
    return found


def ordinary() -> int:
    """Calls for a round of a usual session, once its window is full."""
    return sorted(costs(Offline(), iter(golden.series("usual", golden.START, 30)), 30))[15]


@each_attack
def test_what_it_leaves_and_what_it_makes_others_read_is_bounded(attack: Callable[[], Iterator[Fact]]) -> None:
    monitor = Offline()
    facts = list(islice(attack(), RECORDS))
    sent = [len(encode(fact).value) for fact in facts]
    assert max(sent) <= MAX_RECORD_BYTES
    at_once = max(len(monitor.feed([fact])) for fact in facts)
    assert not monitor.dead_letters, "they keep to the contract"
    rows = [(key, row) for table in monitor.rows[0].tables.values() for key, row in table.items()]
    assert max(len(row) for _, row in rows) <= MAX_STATE_BYTES
    assert len(rows) <= MAX_NODES + 3  # the session's, its ledger, its propositions
    assert sum(len(key) + len(row) for key, row in rows) <= sum(sent), "less is kept than was sent"
    assert max((len(encode(one.finding).value) for one in monitor.published), default=0) <= MAX_FINDING_BYTES
    assert at_once <= 2 * MAX_OPEN_FINDINGS


# After so many records an attack has filled what it fills; then it goes round in circles, of this length or a part of it.
FULL = {propositions: 1_200, tangles: 960}


@each_attack
def test_a_record_costs_no_more_however_many_were_sent_before(attack: Callable[[], Iterator[Fact]]) -> None:
    monitor, facts, full, seen = Offline(), attack(), FULL.get(attack, 150), 40
    monitor.feed(islice(facts, full))
    once = max(costs(monitor, facts, seen))
    monitor.feed(islice(facts, full - seen))
    assert max(costs(monitor, facts, seen)) <= 1.2 * once
    assert once <= DEAREST * ordinary()


@each_attack
def test_its_neighbours_notice_nothing(attack: Callable[[], Iterator[Fact]]) -> None:
    """In one partition, turn by turn: findings and rows of the other session are those that it has alone."""
    alone, beside = Offline(), Offline()
    hostile = attack()
    for fact in neighbour():
        beside.feed(islice(hostile, 5))
        beside.feed([fact])
        alone.feed([fact])
    assert [one for one in beside.published if one.finding.session_id == NEIGHBOUR] == alone.published
    assert alone.published
    # Without a broker, facts carry the append time along.
    theirs, own = (monitor.session(NEIGHBOUR) for monitor in (beside, alone))
    assert theirs is not None and own is not None
    assert replace(theirs, appended_ms=0) == replace(own, appended_ms=0)
    assert {one.finding.session_id for one in beside.published} <= {NEIGHBOUR, NAME}
