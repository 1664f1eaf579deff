"""The agent with a checkpoint hierarchy: its summariser, its tree, and what the monitor says of it."""

from __future__ import annotations

import pytest

from compaction_events.codec import decode, encode
from compaction_events.facts import CheckpointWritten
from compaction_events.findings import AlertRaised, RebalanceOption
from compaction_monitor.checks.plans import plan_rebalance
from compaction_monitor.harness import Offline
from compaction_monitor.simulate import sessions, variants
from compaction_monitor.simulate.hierarchy import BITS_PER_TOKEN, entropy, need_tokens, overflow, parts_by_need
from compaction_monitor.simulate.keeper import ROOT, Keeper
from compaction_monitor.simulate.rebalancing import KeepController

SEED = 7


@pytest.fixture
def keeper() -> Keeper:
    return sessions.built(SEED)


def test_a_seed_is_a_session() -> None:
    first, again, other = (list(Keeper(seed).build()) for seed in (SEED, SEED, SEED + 1))
    assert [fact.model_copy(update={"session_id": "s"}) for fact in first] == [
        fact.model_copy(update={"session_id": "s"}) for fact in again
    ]
    assert first != other


def test_the_tree_is_the_observed_one(keeper: Keeper) -> None:
    levels = [node.level for node in keeper.nodes.values()]
    assert (levels.count(1), levels.count(2), levels.count(3)) == (64, 8, 1)
    assert len(keeper.facts.constraints) == 19
    assert all(4 <= keeper.facts.all[number].turn <= 429 for number in keeper.facts.constraints)


def test_nothing_is_lost_below_the_root(keeper: Keeper) -> None:
    below = [node for node in keeper.nodes.values() if node.level < 3]
    assert all(node.retained == node.content for node in below)
    assert keeper.nodes[ROOT].content >= keeper.facts.constraints


def test_a_node_never_says_more_than_fits(keeper: Keeper) -> None:
    root = keeper.nodes[ROOT]
    for _ in range(10):
        keeper.regenerate(root)
        assert root.retained <= root.content
        said = keeper.facts.tokens(root.retained)
        assert root.budget_tokens - 30 < said <= root.budget_tokens


def test_two_calls_differ_and_a_node_with_room_says_everything(keeper: Keeper) -> None:
    root = keeper.nodes[ROOT]
    assert len({keeper.summariser.write(root) for _ in range(5)}) > 1
    root.budget_tokens = need_tokens(keeper.facts, root)
    assert keeper.summariser.write(root) == root.content


def test_the_entropy_reported_is_the_need(keeper: Keeper) -> None:
    for node in keeper.nodes.values():
        joint, redundancy = entropy(keeper.facts, node)
        need = need_tokens(keeper.facts, node)
        assert joint * (1 - redundancy) == pytest.approx(need * BITS_PER_TOKEN)
        assert joint * (1 - redundancy) <= need * BITS_PER_TOKEN + 1e-9


def test_parts_by_need_hold_everything_once(keeper: Keeper) -> None:
    root = keeper.nodes[ROOT]
    parts = parts_by_need(keeper.facts, root.content, root.budget_tokens)
    assert sum(map(len, parts)) == len(root.content)
    assert frozenset().union(*parts) == root.content
    assert all(keeper.facts.tokens(part) <= root.budget_tokens for part in parts)


def test_what_overflows_makes_the_rest_fit(keeper: Keeper) -> None:
    mid = keeper.nodes["mid-3"]
    mid.budget_tokens = need_tokens(keeper.facts, mid) // 2
    assert keeper.facts.tokens(mid.content - overflow(keeper.facts, mid)) <= mid.budget_tokens


@pytest.mark.parametrize(("remedy", "parts"), [("raise", 1), ("split", 4), ("halves", 2)])
def test_a_way_is_taken_as_it_was_planned(keeper: Keeper, remedy: str, parts: int) -> None:
    root = keeper.nodes[ROOT]
    plan = plan_rebalance(ROOT, root.budget_tokens, need_tokens(keeper.facts, root), [])
    wanted = next((way for way in plan.options if way.method == remedy), RebalanceOption(method="split", cost_tokens=0))
    KeepController(keeper, remedy).rebalance(plan)  # type: ignore[arg-type]
    assert len(keeper.roots) >= parts
    assert len(keeper.roots) in (wanted.parts or parts, (wanted.parts or parts) + 1, parts)
    fits = all(need_tokens(keeper.facts, node) <= node.budget_tokens for node in keeper.roots)
    assert fits is (remedy != "halves")


def test_the_monitor_takes_a_split_for_a_rebalance(keeper: Keeper) -> None:
    monitor = Offline()
    monitor.feed([keeper.started(), *keeper.stated(), *keeper.announced()])
    for _ in range(4):
        monitor.feed([keeper.regenerate(keeper.nodes[ROOT])])
    alerts = [published.finding for published in monitor.published if isinstance(published.finding, AlertRaised)]
    assert [alert.name for alert in alerts] == ["regeneration_loop"]
    root = keeper.nodes[ROOT]
    done = KeepController(keeper, "split").rebalance(
        plan_rebalance(ROOT, root.budget_tokens, need_tokens(keeper.facts, root), [])
    )
    assert done is not None
    monitor.feed(done.facts)
    assert "alert.resolved" in [published.finding.type for published in monitor.published]
    assert not monitor.dead_letters


def test_every_event_keeps_to_the_contract() -> None:
    for loop in (False, True):
        _, watch = sessions.whole(SEED, loop=loop)
        for fact in watch.reported:
            encoded = encode(fact)
            assert decode(encoded.value, encoded.headers, encoded.key).event == fact
        monitor = Offline()
        monitor.feed(watch.reported, batch=64)
        assert not monitor.dead_letters
        assert not [key for key in monitor.counts if key[-1] in ("late", "duplicate", "unknown_node", "forgotten")]


def test_an_order_about_a_node_that_is_gone_is_rejected(keeper: Keeper) -> None:
    controller = KeepController(keeper)
    del keeper.nodes[ROOT]
    assert controller.rebalance(plan_rebalance(ROOT, 100, 200, [])) is None


def test_without_the_loop_the_monitor_sees_the_regeneration_loop() -> None:
    _, watch = sessions.whole(SEED, loop=False)
    assert list(watch.firsts()) == ["regeneration_loop"]


def test_a_stale_root_recovers_with_one_regeneration() -> None:
    case = variants.stale(SEED)["recovers much"]
    assert case["stale"] and case["superset"] and case["settled"]
    assert case["regenerations"] == 1
    assert case["after"] == 19 > case["before"]


def test_a_healthy_looking_root_over_a_mid_that_lost_it() -> None:
    found = variants.silent(SEED)
    assert found["all mids"]["raised"] and found["one mid"]["raised"] and not found["healthy"]["raised"]
    assert found["all mids"]["regeneration_changes_nothing"] and found["all mids"]["lost_below"]
    assert found["one mid"]["ways"] == ["promote"]


def test_leaves_are_written_from_raw(keeper: Keeper) -> None:
    facts = [fact for fact in Keeper(SEED).build() if isinstance(fact, CheckpointWritten)]
    assert {fact.sources.value for fact in facts if fact.level == 1} == {"raw"}
    assert {fact.sources.value for fact in facts if fact.level > 1} == {"children"}
