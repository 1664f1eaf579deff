"""Hostile input: long ids, many of everything, graphs that are no trees. No row over 128 KiB, no finding over 64 KiB."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from compaction_events.builders import completed, missed, regenerated, started, stated, written
from compaction_events.codec import encode
from compaction_events.facts import Fact
from compaction_events.findings import MAX_FINDING_BYTES
from compaction_monitor.effects import CHECKPOINTS
from compaction_monitor.harness import Offline
from compaction_monitor.state.nodes import MAX_TRACKED, MAX_UNSTATED, TrackedSet, kept_id
from compaction_monitor.state.session import MAX_STATE_BYTES
from compaction_monitor.state.tree import MAX_STEPS
from tests.compaction_monitor.tree.trees import ROOMY, SHORT, counted, props, reads, trial, under

# One byte of JSON a character, two, four in UTF-8, and six for a control character.
FILLERS = ["x", '"', "\U0001f600", "\x01"]


def long(filler: str, number: int, size: int = 256) -> str:
    return f"{number:06}{filler * (size - 6)}"


def largest(monitor: Offline) -> dict[str, int]:
    return {table: max(map(len, rows.values()), default=0) for table, rows in monitor.rows[0].tables.items()}


def assert_bounded(monitor: Offline) -> None:
    assert max(largest(monitor).values()) <= MAX_STATE_BYTES
    assert max((len(encode(one.finding).value) for one in monitor.published), default=0) <= MAX_FINDING_BYTES


@pytest.mark.parametrize("size", [40, 256])
@pytest.mark.parametrize("filler", FILLERS, ids=ascii)
class TestLongIds:
    def test_a_thousand_propositions_with_the_longest_ids_and_spans(self, filler: str, size: int) -> None:
        monitor = Offline()
        facts = [stated(long(filler, n, size), 2**53, span_id=long(filler, n, size), pinned=True) for n in range(1_100)]
        monitor.feed([started(), *facts])
        monitor.feed([completed(1, propositions_retained=[])])
        assert_bounded(monitor)
        assert counted(monitor, "propositions_dropped") == {(): 100}

    def test_as_many_children_as_a_record_holds(self, filler: str, size: int) -> None:
        room = 180_000 // (len(encode(stated(long(filler, 1, size), 1)).value) - 60)
        names = [long(filler, n, size) for n in range(min(4_096, room))]
        monitor = Offline()
        monitor.feed([started(), *(written(name, 1, 1, level=2, retained=["p1"], **SHORT) for name in names[:50])])
        root = written(long(filler, 999_999), 1, 2, level=3, retained=props(1, 20), children=reads(*names), **ROOMY)
        monitor.feed([root, trial(root.node_id, 3, 1, props(11, 30)), missed(root.node_id, "p30", 4)])
        assert not monitor.dead_letters
        assert_bounded(monitor)

    def test_as_many_subjects_as_an_alert_lists_in_every_alert(self, filler: str, size: int) -> None:
        monitor = Offline(under(breaker_orders=1_000))
        nodes = [long(filler, n, size) for n in range(22)]
        monitor.feed([started(long(filler, 0), agent=long(filler, 1)), *wrecks(nodes, long(filler, 0))])
        monitor.feed([stated(long(filler, n, size), n, long(filler, 0), pinned=True) for n in range(22)])
        lost = [
            missed(node, p, 90, long(filler, 0))
            for p, node in zip([long(filler, n, size) for n in range(22)], nodes, strict=True)
        ]
        monitor.feed([*lost, completed(5, long(filler, 0), propositions_retained=[])])
        assert {name for _, name, *_ in counted(monitor, "findings")} >= {"saturated", "regeneration_loop", "constraint_lost"}
        assert_bounded(monitor)


def wrecks(nodes: Sequence[str], session_id: str) -> Iterator[Fact]:
    """Nodes that are saturated and regenerated in a loop."""
    for node in nodes:
        yield written(node, 1, 10, session_id, level=1, retained=props(1, 200), **SHORT)
        yield trial(node, 11, 1, props(100, 299), session_id=session_id)
        yield regenerated(node, 12, session_id, level=1, version=2, retained=props(100, 299), **SHORT)
        yield regenerated(node, 13, session_id, level=1, version=3, retained=props(1, 200), **SHORT)


def test_a_hundred_trials_of_a_thousand_propositions() -> None:
    monitor = Offline(under(trials_max=100))
    held = [long("x", n, 40) for n in range(1_000)]
    monitor.feed([started(), written("root", 1, 1, level=3, retained=held[:400], **SHORT)])
    monitor.feed([trial("root", 1 + n, n, held) for n in range(1, 101)])
    assert_bounded(monitor)


class TestTracked:
    def stored(self, monitor: Offline) -> TrackedSet:
        return TrackedSet.from_bytes(monitor.rows[0].tables[CHECKPOINTS][b"\x00\x09session-1\x00\x00"])

    def test_what_is_only_retained_leaves_room_for_what_is_stated(self) -> None:
        monitor = Offline()
        monitor.feed([started(), written("a", 1, 1, retained=[f"u{n}" for n in range(1_000)])])
        monitor.feed([stated(f"s{n}", n, pinned=True) for n in range(600)])
        tracked = self.stored(monitor)
        assert (len(tracked.entries), sum(entry.pinned for entry in tracked.entries)) == (
            MAX_TRACKED,
            MAX_TRACKED - MAX_UNSTATED,
        )

    def test_its_statement_may_come_later(self) -> None:
        monitor = Offline()
        monitor.feed([started(), written("a", 1, 1, retained=["p"]), stated("p", 7, pinned=True), stated("p", 9)])
        assert self.stored(monitor).entries == (("p", 7, "span-7", True, True),)

    def test_pinned_once_is_pinned_for_good(self) -> None:
        monitor = Offline()
        monitor.feed([started(), stated("p", 7), stated("p", 9, pinned=True), stated("p", 11)])
        assert self.stored(monitor).entries == (("p", 7, "span-7", True, True),)

    def test_a_long_id_is_known_again_by_its_hash(self) -> None:
        monitor = Offline()
        monitor.feed([started(), stated("é" * 200, 7), written("a", 1, 1, retained=["é" * 200])])
        assert [entry.proposition for entry in self.stored(monitor).entries] == [kept_id("é" * 200)]


def test_a_graph_in_which_everything_is_under_everything() -> None:
    """Walks have a budget: a fact costs milliseconds, whatever was sent before it."""
    monitor = Offline()
    names = [f"n{n}" for n in range(200)]
    under_all = {"level": 2, "retained": ["q"], "children": reads(*names), **SHORT}
    monitor.feed([started(), stated("p", 1, pinned=True)])
    facts = [written(name, 1, 1, parent_id=names[n - 1], **under_all) for n, name in enumerate(names)]
    monitor.feed(facts, batch=200)
    begun = time.process_time()
    monitor.feed([written("n3", 2, 2, **under_all), missed("n3", "p", 3), missed("n4", "p", 3)])
    assert time.process_time() - begun < 1.0
    assert not monitor.dead_letters
    assert MAX_STEPS < 200 * 200
    assert_bounded(monitor)


def test_the_highest_levels_and_counts_that_a_record_can_have() -> None:
    monitor = Offline()
    big = 2**53
    room = {**ROOMY, "budget_tokens": big, "child_joint_entropy_bits": float(big), "bits_per_token": 1e-300}
    facts = [
        written("leaf", big, 1, level=big, retained=["p"]),
        written("mid", big, 2, level=big, children=reads("leaf")),
        written("root", big, 3, level=big, retained=["q"], children=reads("mid"), turns={"first": 0, "last": big}, **room),
    ]
    monitor.feed([started(), stated("p", big), *facts, missed("root", "p", 4), trial("root", 5, 1, ["r"])])
    assert not monitor.dead_letters
    assert_bounded(monitor)
