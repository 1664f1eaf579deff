"""Which orders cannot both be obeyed, which is the worse, and what holds an order back."""

from __future__ import annotations

from itertools import product

import pytest

from compaction_events.findings import Action
from compaction_monitor.loop.conflicts import MAX_LANES, contradict, held_back, rank, spend, stands
from compaction_monitor.loop.step import Step
from compaction_monitor.rules import AgentRules, LoopRules, Rules
from compaction_monitor.state.session import OpenAlert, OpenOrder, Session

HOUR_US = 3_600_000_000


def order(
    action: str, subject: str = "", status: str = "sent", check: str = "drift", expands: tuple[str, ...] = ()
) -> OpenOrder:
    return OpenOrder("id", action, check, "alert", subject, status, 1, 0, 0, 0, None, None, expands, "")


def step_at(at_us: int = 0, loop: LoopRules | None = None, **told: object) -> Step:
    session = Session(agent="agent")
    for name, value in told.items():
        setattr(session, name, value)
    return Step("session-1", session, Rules(default=AgentRules(loop=loop or LoopRules())), at_us, "cause", 0)


ON_SESSION = {frozenset({"halt_and_rehydrate", "recompact"}), frozenset({"halt_and_rehydrate", "resume"})}
ON_SUBJECT = {
    frozenset({settles, regenerates})
    for settles, regenerates in product(("stop_regenerating", "rebalance"), ("run_trial_regeneration", "regenerate_parent"))
}


@pytest.mark.parametrize("pair", list(product(Action, Action)), ids=lambda pair: f"{pair[0]} with {pair[1]}")
def test_contradictions_are_these_and_no_others(pair: tuple[Action, Action]) -> None:
    a, b = (action.value for action in pair)
    kinds = frozenset({a, b})
    assert contradict(order(a, "n1"), order(b, "n1")) == (kinds in ON_SESSION | ON_SUBJECT)
    assert contradict(order(a, "n1"), order(b, "n2")) == (kinds in ON_SESSION)


@pytest.mark.parametrize(
    ("why", "a", "b", "both_wrong"),
    [
        ("one drops what the other expands", ("drop_summary", ("s1",)), ("halt_and_rehydrate", ("s2", "s1")), True),
        ("in either order", ("rehydrate", ("s1",)), ("drop_summary", ("s1", "s2")), True),
        ("different summaries", ("drop_summary", ("s1",)), ("rehydrate", ("s2",)), False),
        ("two that drop the same", ("drop_summary", ("s1",)), ("drop_summary", ("s1",)), False),
        ("two that expand the same", ("halt_and_rehydrate", ("s1",)), ("rehydrate", ("s1",)), False),
        ("nothing named", ("drop_summary", ()), ("rehydrate", ()), False),
    ],
)
def test_summaries(why: str, a: tuple[str, tuple[str, ...]], b: tuple[str, tuple[str, ...]], both_wrong: bool) -> None:
    first, second = (order(action, expands=expands) for action, expands in (a, b))
    assert contradict(first, second) == contradict(second, first) == both_wrong, why


@pytest.mark.parametrize("action", ["halt_and_rehydrate", "recompact"])
def test_what_stands(action: str) -> None:
    """A halt that was carried out goes on until it is resumed."""
    standing = {
        status for status in ("waiting", "sent", "deferred", "accepted", "completed") if stands(order(action, status=status))
    }
    done = {"completed"} if action == "halt_and_rehydrate" else set()
    assert standing == {"sent", "deferred", "accepted"} | done


def test_the_worse_finding_comes_first_and_one_that_is_over_last() -> None:
    def ranked(severity: str, alert_id: str = "alert") -> int:
        return rank(step_at(alerts=(OpenAlert("drift", alert_id, severity, (), 0, 1, None, "measured"),)), order("recompact"))

    assert [ranked("critical"), ranked("warning"), ranked("info"), ranked("critical", "another")] == [0, 1, 2, 3]


class TestHeldBack:
    def test_by_the_cool_down_of_its_own_check(self) -> None:
        held = [
            held_back(step_at(cooling=(("drift", 5), ("other", 9)), compactions=n), order("recompact")) for n in (5, 6, 7, 8, 9)
        ]
        assert held == ["cooldown", "cooldown", "cooldown", "", ""]

    def test_not_by_the_cool_down_where_it_does_not_count(self) -> None:
        assert held_back(step_at(cooling=(("drift", 5),), compactions=5), order("recompact")._replace(at_once=True)) == ""

    def test_nodes_have_cool_downs_of_their_own_counted_in_commits(self) -> None:
        of_node = order("run_trial_regeneration", "n1", check="trial")
        other = order("run_trial_regeneration", "n2", check="trial")
        step = step_at(compactions=50, commits=7)
        spend(step, of_node)
        assert step.session.cooling == (("trial:n1", 7),)
        assert (held_back(step, of_node), held_back(step, other)) == ("cooldown", "")

    @pytest.mark.parametrize(("orders_ago_us", "held"), [((0, 1, 2, 3), ""), ((0, 1, 2, 3, 4), "breaker")])
    def test_by_the_breaker_of_the_session(self, orders_ago_us: tuple[int, ...], held: str) -> None:
        now = 10 * HOUR_US
        step = step_at(now, ordered_us=tuple(now - HOUR_US + 1 + ago for ago in orders_ago_us))
        assert held_back(step, order("recompact")._replace(at_once=True)) == held

    def test_what_was_an_hour_ago_does_not_count(self) -> None:
        step = step_at(10 * HOUR_US, ordered_us=(9 * HOUR_US,) * 5)
        assert held_back(step, order("recompact")._replace(at_once=True)) == ""

    def test_not_at_all_where_neither_holds(self) -> None:
        exempt = order("recompact")._replace(exempt=True)
        step = step_at(0, cooling=(("drift", 0),), ordered_us=(0,) * 5)
        assert held_back(step, exempt) == ""
        spend(step, exempt)
        assert (step.session.cooling, step.session.ordered_us) == ((("drift", 0),), (0,) * 5)

    def test_the_cool_down_is_named_before_the_breaker(self) -> None:
        step = step_at(0, cooling=(("drift", 0),), ordered_us=(0,) * 5)
        assert held_back(step, order("recompact")) == "cooldown"


class TestSpend:
    def test_a_check_has_one_entry_the_latest(self) -> None:
        step = step_at(7, compactions=4, cooling=(("drift", 1), ("other", 2)), ordered_us=(3,))
        spend(step, order("recompact"))
        assert step.session.cooling == (("other", 2), ("drift", 4))
        assert step.session.ordered_us == (3, 7)

    def test_orders_older_than_the_breakers_time_are_forgotten(self) -> None:
        step = step_at(2 * HOUR_US, ordered_us=(0, HOUR_US, HOUR_US + 1))
        spend(step, order("recompact"))
        assert step.session.ordered_us == (HOUR_US + 1, 2 * HOUR_US)

    def test_the_oldest_cool_downs_are_forgotten(self) -> None:
        step = step_at(cooling=tuple((f"trial:n{n}", n) for n in range(MAX_LANES)))
        spend(step, order("recompact"))
        assert len(step.session.cooling) == MAX_LANES
        assert (step.session.cooling[0][0], step.session.cooling[-1][0]) == ("trial:n1", "drift")
