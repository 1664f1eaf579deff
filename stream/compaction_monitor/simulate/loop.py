"""A simulated agent and the monitor, in one process: what the agent reports is checked, and what is ordered, obeyed.

The monitor is the worker's own core; only Kafka is missing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from compaction_events.facts import Fact
from compaction_events.findings import AlertRaised, Finding, RemediationRequested
from compaction_monitor.harness import Offline
from compaction_monitor.rules import Rules


class Heard(NamedTuple):
    """A finding, and the fact that it was published for."""

    cause: Fact
    finding: Finding


Obey = Callable[[RemediationRequested], Iterable[Fact]]


class Watched:
    """One session under the monitor's eyes.

    Args:
        obey: How its controller answers an order; None: nobody does.
        also: Told of every fact as it is reported (an emitter's `emit`).

    Attributes:
        heard: Everything the monitor published, in order.
        reported: Every fact, in order.
    """

    def __init__(self, obey: Obey | None = None, also: Callable[[Fact], object] | None = None) -> None:
        self.heard: list[Heard] = []
        self.reported: list[Fact] = []
        self._monitor = Offline(Rules())
        self._obey, self._also = obey, also

    def report(self, facts: Iterable[Fact]) -> None:
        """Facts go to the monitor one after the other; orders are obeyed before the next of them."""
        waiting = deque(facts)
        while waiting:
            fact = waiting.popleft()
            self.reported.append(fact)
            if self._also is not None:
                self._also(fact)
            found = [published.finding for published in self._monitor.feed([fact])]
            self.heard += [Heard(fact, finding) for finding in found]
            waiting.extendleft(reversed(self._obeyed(found)))

    def _obeyed(self, found: Iterable[Finding]) -> list[Fact]:
        """What is reported of the orders among these findings, one order after the other."""
        if self._obey is None:
            return []
        return [fact for order in found if isinstance(order, RemediationRequested) for fact in self._obey(order)]

    def firsts(self) -> dict[str, Fact]:
        """The fact for which each check first raised an alert, in the order of the alerts."""
        found: dict[str, Fact] = {}
        for cause, finding in self.heard:
            if isinstance(finding, AlertRaised):
                found.setdefault(finding.name, cause)
        return found

    def orders(self) -> Counter[str]:
        """How many orders were given, by action."""
        return Counter(f.action.value for _, f in self.heard if isinstance(f, RemediationRequested) and f.attempt == 1)
