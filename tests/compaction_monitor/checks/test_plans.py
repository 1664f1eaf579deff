"""Rehydration and rebalance plans: cases with their whys, worked out by hand, and what holds for every inventory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction_events.facts import MAX_COUNT, MAX_SUMMARIES, Composition, SummaryItem
from compaction_events.findings import MAX_FINDING_BYTES, HaltAndRehydrate
from compaction_monitor.checks.plans import MAX_STEPS, in_plan_order, needed_tokens, plan_halt, plan_rebalance, plan_rehydrate


def item(summary_id: str, depth: int = 1, tokens: int = 100, leaf_spans: int = 4, expanded_tokens: int = 300) -> SummaryItem:
    return SummaryItem(
        summary_id=summary_id, depth=depth, tokens=tokens, leaf_spans=leaf_spans, expanded_tokens=expanded_tokens
    )


def working_set(raw: int, summary: int, spans: int | None = None, overhead: int | None = None) -> Composition:
    return Composition(raw_tokens=raw, summary_tokens=summary, distinct_source_spans=spans, overhead_tokens=overhead)


class Halt(NamedTuple):
    why: str
    after: Composition
    summaries: Sequence[SummaryItem] | None
    steps: list[tuple[str, float]]  # id and the raw ratio after it
    complete: bool
    over: int | None = None
    budget: int | None = None


HALTS = [
    Halt("no inventory: the target is all there is to say", working_set(100, 900), None, [], False, None, 1_000),
    Halt("an empty inventory: nothing to expand", working_set(100, 900), [], [], False, 0, 1_000),
    Halt("3 of 10 is the target of 0.30: equality reaches it", working_set(300, 700), [item("a")], [], True),
    Halt("one token less does not", working_set(299, 701), [item("a", tokens=1, expanded_tokens=1)], [("a", 0.3)], True),
    Halt("an empty working set has no ground", working_set(0, 0), [], [], False),
    Halt("100 + 300 of 1000 + 300 - 100 is a third", working_set(100, 900), [item("a")], [("a", 1 / 3)], True),
    Halt("the shallower first: it is the least compressed", working_set(100, 900), [item("deep", 2), item("low", 1)],
         [("low", 1 / 3)], True),
    Halt("of one depth the one with most sources", working_set(100, 900), [item("few", leaf_spans=3), item("many")],
         [("many", 1 / 3)], True),
    Halt("of equals the first by id", working_set(100, 900), [item("b"), item("a")], [("a", 1 / 3)], True),
    Halt("step by step until it is reached, no further", working_set(0, 1_000),
         [item("a", 1, 100, 9, 100), item("b", 1, 100, 8, 100), item("c", 1, 100, 7, 100), item("d", 2)],
         [("a", 0.1), ("b", 0.2), ("c", 0.3)], True),
    Halt("orphans have nothing to expand to", working_set(100, 900), [item("orphan", leaf_spans=0)], [], False),
    Halt("sources without a token bring nothing back: that would be a drop", working_set(100, 900),
         [item("empty", expanded_tokens=0)], [], False),
    Halt("all expanded and still short: said so", working_set(0, 1_000), [item("a", 1, 100, 1, 100)], [("a", 0.1)], False),
    Halt("a summary named twice is expanded once", working_set(0, 1_000), [item("a", 1, 100, 1, 100)] * 2,
         [("a", 0.1)], False),
    Halt("tokens over budget at the end: 1200 of 1000", working_set(100, 900), [item("a")], [("a", 1 / 3)], True, 200, 1_000),
    Halt("system prompt and tools need room too, but are in no ratio", working_set(100, 900, overhead=50), [item("a")],
         [("a", 1 / 3)], True, 250, 1_000),
    Halt("room to spare is not a negative excess", working_set(100, 900), [item("a")], [("a", 1 / 3)], True, 0, 5_000),
    Halt("nothing to do, but over budget already", working_set(600, 700), [], [], True, 300, 1_000),
    Halt("an inventory that says more summary tokens than the set has does not go below nothing", working_set(0, 50),
         [item("a", 1, 100, 4, 10)], [("a", 1.0)], True),
]  # fmt: skip


class Floor(NamedTuple):
    why: str
    spans: int | None
    summaries: Sequence[SummaryItem] | None
    steps: list[str]
    complete: bool


FLOOR_TARGET = 10

FLOORS = [
    Floor("no inventory: the target only", 3, None, [], False),
    Floor("an empty inventory: nothing left to reload from", 3, [], [], False),
    Floor("only orphans: nothing left to reload from", 3, [item("a", leaf_spans=0)], [], False),
    Floor("the target is met already", 10, [item("a")], [], True),
    Floor("spans not known: counted from the steps alone", None, [item("a", leaf_spans=10)], ["a"], True),
    Floor("6 + 4 of one depth are 10", 9, [item("a", leaf_spans=6), item("b", leaf_spans=4)], ["a", "b"], True),
    Floor("no step beyond the target", 9, [item("a", leaf_spans=6), item("b"), item("c", leaf_spans=3)], ["a", "b"], True),
    Floor("6 at depth 1 and 4 above them may be the same sources: not claimed", 9,
          [item("a", leaf_spans=6), item("b", 2, leaf_spans=4)], ["a", "b"], False),
    Floor("depth 2 alone reaches it", 9, [item("a", leaf_spans=6), item("b", 2, leaf_spans=10), item("c", 3)],
          ["a", "b"], True),
    Floor("what is reachable now and what is reloaded may be the same: not added up", 6, [item("a", leaf_spans=9)],
          ["a"], False),
]  # fmt: skip


class TestHalt:
    @pytest.mark.parametrize("case", HALTS, ids=lambda case: case.why)
    def test_case(self, case: Halt) -> None:
        plan = plan_halt(case.after, case.summaries, 0.30, case.budget)
        assert [(step.summary_id, step.projected_raw_ratio) for step in plan.steps] == case.steps
        assert (plan.complete, plan.tokens_over_budget) == (case.complete, case.over)
        assert plan.target_raw_ratio == 0.30

    def test_a_step_says_what_it_changes(self) -> None:
        (step,) = plan_halt(working_set(100, 900), [item("a", 1, 120, 7, 320)], 0.30, None).steps
        assert (step.depth, step.leaf_spans, step.adds_raw_tokens, step.removes_summary_tokens) == (1, 7, 320, 120)


class TestFloor:
    @pytest.mark.parametrize("case", FLOORS, ids=lambda case: case.why)
    def test_case(self, case: Floor) -> None:
        plan = plan_rehydrate(working_set(100, 900, case.spans), case.summaries, FLOOR_TARGET, None)
        assert ([step.summary_id for step in plan.steps], plan.complete) == (case.steps, case.complete)
        assert plan.target_spans == FLOOR_TARGET

    def test_ratio_and_budget_are_projected_as_in_a_halt(self) -> None:
        plan = plan_rehydrate(working_set(100, 900, 3), [item("a")], FLOOR_TARGET, 1_000)
        assert [step.projected_raw_ratio for step in plan.steps] == [pytest.approx(1 / 3)]
        assert plan.tokens_over_budget == 200


class TestBounds:
    """A finding is at most 64 KiB, whatever the inventory."""

    @pytest.mark.parametrize("name", ["s{:03}", "{:03}" + "x" * 253, "{:03}" + "\N{SNOWMAN}" * 253, "{:03}" + "\x01" * 253])
    def test_listed_steps_are_cut_and_counted_on(self, name: str) -> None:
        inventory = [item(name.format(n), 1, 10, 1, 10) for n in range(MAX_SUMMARIES)]
        after = working_set(0, 10 * MAX_SUMMARIES)
        halt = plan_halt(after, inventory, 1.0, 1_000)
        floor = plan_rehydrate(after, inventory, MAX_SUMMARIES, 1_000)
        for plan in (halt, floor):
            assert 0 < len(plan.steps) <= MAX_STEPS
            assert len(orjson.dumps(plan.model_dump(mode="json"))) <= MAX_FINDING_BYTES * 5 // 8
            assert plan.complete, "over all steps, listed or not"
            assert plan.tokens_over_budget == 10 * MAX_SUMMARIES - 1_000
            assert [step.summary_id for step in plan.steps] == [s.summary_id for s in in_plan_order(inventory)][
                : len(plan.steps)
            ]

    def test_short_ids_are_cut_by_number(self) -> None:
        inventory = [item(f"s{n:03}", 1, 10, 1, 10) for n in range(MAX_STEPS + 1)]
        after = working_set(0, 10 * len(inventory))
        assert len(plan_halt(after, inventory[:-1], 1.0, None).steps) == MAX_STEPS
        assert len(plan_halt(after, inventory, 1.0, None).steps) == MAX_STEPS

    def test_the_largest_counts_do_not_overflow_the_contract(self) -> None:
        inventory = [item("a", 1, 0, MAX_COUNT, MAX_COUNT), item("b", 1, 0, MAX_COUNT, MAX_COUNT)]
        plan = plan_halt(working_set(MAX_COUNT, MAX_COUNT), inventory, 0.9, 0)
        assert plan.tokens_over_budget == MAX_COUNT
        assert needed_tokens(float(MAX_COUNT), 0.0, 1e-9) == MAX_COUNT
        assert plan_rebalance("n", MAX_COUNT - 1, MAX_COUNT, []).options[0].budget_tokens == MAX_COUNT


ITEMS = st.lists(
    st.builds(
        SummaryItem,
        summary_id=st.sampled_from([f"s{n}" for n in range(12)]),
        depth=st.integers(1, 4),
        tokens=st.integers(0, 400),
        leaf_spans=st.integers(0, 9),
        expanded_tokens=st.integers(0, 900),
    ),
    max_size=12,
)
SETS = st.builds(working_set, st.integers(0, 2_000), st.integers(0, 4_000), st.none() | st.integers(0, 40))
TARGETS = st.integers(0, 100).map(lambda percent: percent / 100)


class TestEveryInventory:
    @settings(max_examples=300, deadline=None)
    @given(after=SETS, inventory=ITEMS, target=TARGETS, budget=st.none() | st.integers(0, 5_000), shuffle=st.randoms())
    def test_halt(
        self, after: Composition, inventory: list[SummaryItem], target: float, budget: int | None, shuffle: random.Random
    ) -> None:
        plan = plan_halt(after, inventory, target, budget)
        assert plan == plan_halt(after, _shuffled(inventory, shuffle), target, budget)
        ratios = [step.projected_raw_ratio for step in plan.steps]
        assert ratios == sorted(ratios), "expanding never lowers the raw ratio"
        raw, total = _walked(after, plan)
        goal = Fraction(str(target))
        assert all(ratio < target for ratio in ratios[:-1]), "no step after the target is reached"
        assert plan.complete == (total > 0 and raw >= goal * total)
        assert plan.complete or len(plan.steps) == len(in_plan_order(inventory)), "short only when all are expanded"
        assert plan.tokens_over_budget == (None if budget is None else max(0, total - budget))

    @settings(max_examples=200, deadline=None)
    @given(after=SETS, inventory=ITEMS, target=st.integers(0, 60), shuffle=st.randoms())
    def test_rehydrate(self, after: Composition, inventory: list[SummaryItem], target: int, shuffle: random.Random) -> None:
        plan = plan_rehydrate(after, inventory, target, None)
        assert plan == plan_rehydrate(after, _shuffled(inventory, shuffle), target, None)
        reloaded = sum(step.leaf_spans for step in plan.steps)
        assert not plan.complete or max(reloaded, after.distinct_source_spans or 0) >= target
        assert plan.complete or len(plan.steps) == len(in_plan_order(inventory))

    @settings(max_examples=100, deadline=None)
    @given(inventory=ITEMS)
    def test_plan_order(self, inventory: list[SummaryItem]) -> None:
        ordered = in_plan_order(inventory)
        keys = [(s.depth, -s.leaf_spans, s.summary_id) for s in ordered]
        assert keys == sorted(keys)
        assert len({s.summary_id for s in ordered}) == len(ordered)
        assert {s.summary_id for s in ordered} == {s.summary_id for s in inventory if s.leaf_spans and s.expanded_tokens}


def _shuffled(inventory: list[SummaryItem], shuffle: random.Random) -> list[SummaryItem]:
    return shuffle.sample(inventory, len(inventory))


def _walked(after: Composition, plan: HaltAndRehydrate) -> tuple[int, int]:
    raw, summary = after.raw_tokens, after.summary_tokens
    for step in plan.steps:
        raw, summary = raw + step.adds_raw_tokens, max(0, summary - step.removes_summary_tokens)
    return raw, raw + summary


class Rebalanced(NamedTuple):
    why: str
    budget: int | None
    needed: int | None
    siblings: list[tuple[str, int]]
    ways: list[tuple[str, int]]  # method and cost, cheapest first


REBALANCES = [
    Rebalanced("the lab's root: raised to 914, or five parts of 190", 190, 794, [], [("raise", 724), ("split", 760)]),
    Rebalanced("a sibling with the headroom takes the 604 that do not fit", 190, 794, [("s", 604)],
               [("promote", 604), ("raise", 724), ("split", 760)]),
    Rebalanced("one token less of headroom is not enough", 190, 794, [("s", 603)], [("raise", 724), ("split", 760)]),
    Rebalanced("two parts are not always enough, here they are", 100, 200, [], [("split", 100), ("raise", 130)]),
    Rebalanced("one token more needs a third part", 100, 201, [], [("raise", 132), ("split", 200)]),
    Rebalanced("equal costs: the node's own room before a sibling's", 100, 200, [("s", 100)],
               [("split", 100), ("promote", 100), ("raise", 130)]),
    Rebalanced("no budget at all cannot be split", 0, 100, [], [("raise", 115)]),
    Rebalanced("the need fits: nothing to rebalance", 100, 100, [("s", 500)], []),
    Rebalanced("the need is not known: nothing is guessed", 100, None, [("s", 500)], []),
    Rebalanced("the budget is not known: nothing is guessed", None, 100, [("s", 500)], []),
    Rebalanced("a sibling over its own budget has no headroom", 190, 794, [("s", -5)], [("raise", 724), ("split", 760)]),
]  # fmt: skip


class TestRebalance:
    @pytest.mark.parametrize("case", REBALANCES, ids=lambda case: case.why)
    def test_case(self, case: Rebalanced) -> None:
        plan = plan_rebalance("n", case.budget, case.needed, case.siblings)
        assert [(way.method, way.cost_tokens) for way in plan.options] == case.ways
        assert (plan.node_id, plan.needed_tokens) == ("n", case.needed)

    def test_each_way_says_all_that_it_takes(self) -> None:
        ways = {way.method: way for way in plan_rebalance("n", 190, 794, [("s", 700)], keep_trial=2).options}
        assert ways["raise"].budget_tokens == 914
        assert (ways["split"].parts, ways["split"].budget_tokens) == (5, 190)
        assert (ways["promote"].sibling_id, ways["promote"].headroom_tokens) == ("s", 700)

    def test_the_sibling_with_most_headroom_then_the_first_by_id(self) -> None:
        siblings = [("a", 650), ("c", 900), ("b", 900)]
        for order in (siblings, siblings[::-1]):
            assert plan_rebalance("n", 190, 794, order).options[0].sibling_id == "b"

    def test_the_trial_to_keep_is_passed_on(self) -> None:
        assert plan_rebalance("n", 190, 794, [], keep_trial=2).keep_trial == 2
        assert plan_rebalance("n", 190, 794, []).keep_trial is None

    @settings(max_examples=200, deadline=None)
    @given(
        budget=st.integers(1, 5_000), needed=st.integers(0, 20_000), headrooms=st.lists(st.integers(-100, 9_000), max_size=6)
    )
    def test_each_way_is_enough_and_the_cheapest_is_first(self, budget: int, needed: int, headrooms: list[int]) -> None:
        plan = plan_rebalance("n", budget, needed, [(f"s{n}", room) for n, room in enumerate(headrooms)])
        costs = [way.cost_tokens for way in plan.options]
        assert costs == sorted(costs)
        assert bool(plan.options) == (needed > budget)
        for way in plan.options:
            if way.method == "raise":
                assert way.budget_tokens is not None
                assert 100 * way.budget_tokens >= 115 * needed > 100 * (way.budget_tokens - 1)
            elif way.method == "split":
                assert way.parts is not None
                assert way.parts * budget >= needed > (way.parts - 1) * budget
            else:
                assert way.headroom_tokens is not None
                assert way.headroom_tokens == max(headrooms)
                assert budget + way.cost_tokens == needed <= budget + way.headroom_tokens


class TestNeededTokens:
    def test_rounded_up_to_whole_tokens(self) -> None:
        assert needed_tokens(1_000.0, 0.7, 1.0) == 300
        assert needed_tokens(1_000.0, 0.7, 3.0) == 100
        assert needed_tokens(1_001.0, 0.0, 2.0) == 501

    @pytest.mark.parametrize("missing", [(None, 0.5, 1.0), (10.0, None, 1.0), (10.0, 0.5, None)])
    def test_not_known(self, missing: tuple[float | None, float | None, float | None]) -> None:
        assert needed_tokens(*missing) is None
