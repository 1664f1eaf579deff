"""What the tests of orders share: steps, a monitor with the orders it gave, an inverted session to begin with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from compaction_events.builders import acknowledged, at, started
from compaction_events.facts import Fact
from compaction_events.findings import RemediationRequested
from compaction_monitor.harness import Offline, Published
from compaction_monitor.rules import AgentRules, Rules
from tests.compaction_monitor.scenes import lines, tree_round

Step = tuple[str, Callable[["Table"], list[Published]], list[str]]
HALT = "order halt_and_rehydrate for salience_inversion #1"
RAISED = "raised salience_inversion critical #1"


class Table:
    """A monitor, and the orders given so far by their action."""

    def __init__(self, rules: Rules) -> None:
        self.monitor = Offline(rules)

    def last(self, action: str) -> str:
        """The id of the last order of an action."""
        found = [one.finding for one in self.monitor.published if isinstance(one.finding, RemediationRequested)]
        return [order.id for order in found if order.action == action][-1]

    def ended(self) -> dict[str, int]:
        """How orders ended, as `action outcome`."""
        return {f"{name[1]} {name[2]}": n for name, n in self.monitor.counts.items() if name[0] == "orders_ended"}


def give(fact: Fact, *says: str, why: str = "") -> Step:
    return why, lambda table: table.monitor.feed([fact]), list(says)


def answer(action: str, status: str, minutes: float, *says: str, why: str = "") -> Step:
    return (
        why or f"{status}",
        lambda table: table.monitor.feed([acknowledged(table.last(action), status, minutes)]),
        list(says),
    )


def tick(minutes: float, *says: str, why: str = "") -> Step:
    return why or f"{minutes} min", lambda table: table.monitor.tick(at(minutes)), list(says)


class Case(NamedTuple):
    why: str
    steps: list[Step]
    ended: dict[str, int]
    rules: AgentRules = AgentRules()


def inverted(*more: Step, **told: Any) -> list[Step]:
    """A session whose second round (at minute 90) is inverted."""
    start = {"source_spans": 100, "max_depth": 3, "controller": "expected", **told}
    return [
        give(started(**start)),
        give(tree_round(1, 400, 60, 0.40)),
        give(tree_round(2, 200, 50, 0.45), RAISED, HALT, why="inverted"),
        *more,
    ]


def over(number: int, **more: Any) -> Step:
    resolved = "resolved salience_inversion critical recovered"
    return give(tree_round(number, 350, 50, 0.40, **more), resolved, "order resume for salience_inversion #1", why="over")


def failing(number: int, kind: str, *says: str, **more: Any) -> Step:
    return give(tree_round(number, 600, 90, None, 1, summary_kind=kind, **more), *says, why=kind)


UNACKNOWLEDGED = "raised remediation_unacknowledged warning #1 ID"
RECOMPACT = ["raised summary_failed critical #1", "order recompact for summary_failed #1"]
FLOOR = ["raised provenance_floor critical #1", "order rehydrate for provenance_floor #1"]


def shown(published: list[Published], table: Table) -> list[str]:
    """Lines, with the ids of orders shortened."""
    orders = {one.finding.id for one in table.monitor.published if isinstance(one.finding, RemediationRequested)}
    return [" ".join("ID" if word in orders else word for word in line.split()) for line in lines(published)]


def played(*steps: Step, rules: AgentRules | None = None) -> Table:
    table = Table(Rules(default=rules or AgentRules()))
    for _, run, _ in steps:
        run(table)
    return table


def found(table: Table, kind: type[Any], name: str) -> Any:
    """The last finding of a kind, by its check or its action."""
    every = [one.finding for one in table.monitor.published if isinstance(one.finding, kind)]
    return [one for one in every if name in (getattr(one, "name", ""), getattr(one, "action", ""))][-1]
