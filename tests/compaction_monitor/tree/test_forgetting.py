"""What is forgotten for room, in which order, and what happens to what was said about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compaction_events.builders import at, missed, written
from compaction_events.facts import Fact
from compaction_monitor.effects import CHECKPOINTS, SESSIONS
from compaction_monitor.harness import Offline
from compaction_monitor.state.nodes import Ledger, Node
from compaction_monitor.tree import forgetting
from compaction_monitor.tree.forgetting import oldest
from tests.compaction_monitor.tree.trees import SHORT, counted, evidence, in_short, props, reads, tracked, trial

START = tracked(*props(1, 40), pinned=["p1"])


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "MAX_NODES", 8)
    monkeypatch.setattr(forgetting, "FORGET_NODES", 3)


def ledger(monitor: Offline) -> Ledger:
    rows = monitor.rows[0].tables[CHECKPOINTS]
    return Ledger.from_bytes(rows[min(rows)])


def names(monitor: Offline) -> list[str]:
    """The nodes that are kept, without the session's ledger and its tracked propositions."""
    keys = sorted(monitor.rows[0].tables[CHECKPOINTS])
    return sorted(filter(None, (key[len(keys[0]) + 2 :].decode() for key in keys)))


def branch(number: int) -> Iterator[Fact]:
    """A mid over two leaves, ten minutes after the one before."""
    at = 10 * number
    yield from (written(f"leaf-{number}{side}", 1, at + n, retained=["p2"]) for n, side in enumerate("ab"))
    children = reads(f"leaf-{number}a", f"leaf-{number}b")
    yield written(f"mid-{number}", 1, at + 2, level=2, retained=["p2"], children=children)


def test_whole_branches_go_from_their_leaves_upwards_the_oldest_first() -> None:
    monitor = Offline()
    monitor.feed([*START, *branch(1), *branch(2), *branch(3)])
    assert names(monitor) == ["leaf-2a", "leaf-2b", "leaf-3a", "leaf-3b", "mid-2", "mid-3"]
    assert counted(monitor, "nodes_forgotten") == {(): 3}
    assert (ledger(monitor).nodes, ledger(monitor).forgotten) == (6, 3)


def test_a_parent_with_known_children_stays_however_old() -> None:
    monitor = Offline()
    root = written("root", 1, 0, level=3, children=reads("leaf-3a"))
    monitor.feed([*START, root, *branch(1), *branch(2), *branch(3)])
    assert names(monitor) == ["leaf-2a", "leaf-2b", "leaf-3a", "leaf-3b", "mid-2", "mid-3", "root"]


def test_a_ring_has_no_leaves_so_its_oldest_goes() -> None:
    nodes = {f"n{n}": Node(level=2, version=1, at_us=n, children=((f"n{(n + 1) % 4}", 1),)) for n in range(4)}
    assert oldest(nodes, 2) == ["n0", "n1"]


def test_no_more_than_there_are() -> None:
    assert oldest({"own": Node(level=1, version=1, at_us=1, children=(("own", 1),))}, 5) == ["own"]


def test_the_repeat_of_a_forgotten_node_is_known_as_one() -> None:
    monitor = Offline()
    monitor.feed([*START, *branch(1), *branch(2), *branch(3)])
    before = dict(monitor.rows[0].tables[CHECKPOINTS])
    assert in_short(monitor.feed(branch(1))) == []
    assert monitor.rows[0].tables[CHECKPOINTS] == before
    assert counted(monitor, "facts")["checkpoint.written", "forgotten"] == 3


def test_a_later_version_of_it_is_a_new_node() -> None:
    monitor = Offline()
    monitor.feed([*START, *branch(1), *branch(2), *branch(3), written("mid-1", 2, 100, level=2)])
    assert "mid-1" in names(monitor)


def test_a_new_root_is_found_when_the_old_one_is_gone() -> None:
    monitor = Offline()
    monitor.feed([*START, written("root", 1, 0, level=9), *branch(1), *branch(2), *branch(3)])
    assert (ledger(monitor).root, ledger(monitor).root_level) == ("mid-3", 2)


def test_what_was_said_of_it_is_closed() -> None:
    monitor = Offline()
    old = [
        written("old", 1, 1, level=1, retained=props(1, 20), **SHORT),
        trial("old", 2, 1, props(11, 30)),
        written("lossy", 1, 3, level=1, retained=["p2"]),
        missed("lossy", "p1", 4),
        written("asked", 1, 5, level=1, retained=props(1, 20), **SHORT),
        trial("asked", 6, 1, props(1, 20)),
    ]
    monitor.feed([*START, *old, *branch(1)])
    assert in_short(monitor.feed([*branch(2)])) == [
        "resolved saturated expired old",
        "withdrawn rebalance old: expired",
        "resolved upstream_loss expired p1",
        "withdrawn escalate_to_raw p1: expired",
        "withdrawn run_trial_regeneration asked: expired",
    ]
    assert dict(ledger(monitor).missing) == {}


def test_what_rests_on_a_tree_with_holes_says_so() -> None:
    monitor = Offline()
    monitor.feed([*START, *branch(1), *branch(2), *branch(3)])
    found = monitor.feed([written("lossy", 1, 100, retained=["p2"]), missed("lossy", "p1", 101)])
    assert evidence(found, "upstream_loss")["complete"] is False


class TestExpiry:
    def test_leaves_no_row(self) -> None:
        monitor = Offline()
        monitor.feed([*START, *branch(1), *branch(2)])
        monitor.tick(at(60 * 24 * 3))
        assert monitor.rows[0].tables == {SESSIONS: {}, CHECKPOINTS: {}}

    def test_what_comes_after_it_begins_with_nothing(self) -> None:
        monitor = Offline()
        monitor.feed([*START, *branch(1), *branch(2), written("late", 1, 60 * 24 * 3)])
        assert (names(monitor), ledger(monitor)) == (["late"], Ledger(nodes=1, root="late", root_level=1))
