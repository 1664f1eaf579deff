"""What a run is to do, and what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.fleet.telling import Panel, Rule, Told

if TYPE_CHECKING:
    from tests.fleet.run import Run


class Fault(NamedTuple):
    """Something that goes wrong.

    Attributes:
        at, until: Shares of the run; it comes later where one before it takes longer, and lasts as long.
        fires: The rules that it must lead to.
        beside: It touches nothing that others do, and may happen while they do.
    """

    at: float
    until: float
    what: str
    fires: tuple[str, ...]
    strike: Callable[[Run], Awaitable[None] | None]
    heal: Callable[[Run], Awaitable[None] | None]
    beside: bool = False


class Plan(NamedTuple):
    """A run's faults, and what must come of them.

    Attributes:
        divide: Times of the rules are divided by this.
        scrape_s: Seconds between two looks of Prometheus.
        always: Rules that must fire whatever the faults. `never`: that nothing in this run leads to.
    """

    minutes: float
    divide: float
    scrape_s: int
    session_timeout_s: float
    faults: tuple[Fault, ...]
    always: tuple[str, ...]
    never: tuple[str, ...]

    @property
    def must(self) -> dict[str, bool]:
        """Each rule of which this run says something."""
        fires = (*self.always, *(name for fault in self.faults for name in fault.fires))
        return dict.fromkeys(self.never, False) | dict.fromkeys(fires, True)


@dataclass(slots=True)
class Outcome:
    """What a run led to; `wrong` is empty where all was as it must be."""

    minutes: float
    faults: list[str] = field(default_factory=list)
    kills: int = 0
    ended_by_itself: int = 0
    events: int = 0
    malformed: int = 0
    dead_letters: int = 0
    alerts: list[Told] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    series: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """The figures, for one line of JSON."""
        return {
            "minutes": self.minutes, "faults": len(self.faults), "kills": self.kills,
            "ended_by_itself": self.ended_by_itself, "events": self.events,
            "malformed": self.malformed, "dead_letters": self.dead_letters, "alerts": len(self.alerts),
            "alerts_told": sum(one.told for one in self.alerts),
            "alerts_over_at_once": sum(one.brief and not one.told for one in self.alerts), "rules": len(self.rules),
            "rules_fired": sorted(rule.name for rule in self.rules if rule.fired),
            "panels": len({(panel.dashboard, panel.title) for panel in self.panels}), "queries": len(self.panels),
            "series": self.series, "wrong": self.wrong,
        }  # fmt: skip
