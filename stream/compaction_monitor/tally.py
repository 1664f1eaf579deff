"""How the sessions of a partition stand, and which alerts fire in them, without counting them anew each time.

The rows are read once after an assignment, by the sweep, in key order, some with each tick. From then on a session's
changes are added; as long as the sweep has not come to its key they are not, because it will be read as it is then.
So the numbers are those of the rows, whoever had the partition before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from compaction_monitor.state.session import UNREADABLE, CorruptStateError, Session, standing_fields

OTHER: Final = "other"
STATES: Final = ("critical", "warning", "info", "blind", "healthy", "new", "ended")

Place = tuple[str, str, Sequence[Sequence[Any]]]


def agent_label(agent: str, agents: frozenset[str]) -> str:
    """An agent's name as a label: agents say their own names, so only those that the operator expects are kept."""
    return agent if agent in agents else OTHER


def state_of(ended: bool, alerts: Sequence[Sequence[Any]], window: Sequence[Sequence[Any]]) -> str:
    """A session in one word, the worst that holds.

    Args:
        ended: It said that it is over.
        alerts: As `OpenAlert`.
        window: As `Round`.
    """
    if alerts:
        severities = {alert[2] for alert in alerts}
        return STATES[min(map(STATES.index, severities))]
    if ended:
        return "ended"
    if not window:
        return "new"
    # Whatever else is known, without reachable spans nobody can say that all is well.
    return "blind" if window[-1][7] is None else "healthy"


class Tally:
    """The numbers of one partition.

    Attributes:
        counts: As in `Effects.counts`, of what is instead of what happened.
        complete: All rows are in.
    """

    def __init__(self, agents: frozenset[str]) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.complete = False
        self._agents = agents
        self._reached = b""

    def counts_key(self, key: bytes) -> bool:
        """Whether a session's changes count, or it has still to be read."""
        return self.complete or key <= self._reached

    def read(self, rows: Sequence[tuple[bytes, bytes]], last: bool) -> None:
        """Count rows of the first sweep; `last`: there are no more.

        Raises:
            StateError: A row is of a newer version, or not what any version writes.
        """
        for _, row in rows:
            agent, window, ended, alerts = standing_fields(row)
            try:
                self._add((agent, state_of(ended, alerts, window), alerts), 1)
            except UNREADABLE as error:
                raise CorruptStateError(f"a session's state cannot be counted: {error!r}") from error
        self.complete = last
        if rows:
            self._reached = rows[-1][0]

    def change(self, was: Sequence[Session], now: Sequence[Session]) -> None:
        """Sessions became others: these are gone, those have come."""
        before, after = Counter(map(_place, was)), Counter(map(_place, now))
        for place in before.keys() | after.keys():
            if number := after[place] - before[place]:
                self._add(place, number)

    def _add(self, place: Place, number: int) -> None:
        agent = agent_label(place[0], self._agents)
        self.counts["sessions", agent, place[1]] += number
        for check, _, severity, *_ in place[2]:
            self.counts["findings_open", agent, check, severity] += number


def _place(session: Session) -> Place:
    alerts, window = session.alerts, session.window
    # The usual one first: of a large fleet every event may be of another session.
    state = "healthy" if window and not alerts and window[-1][7] is not None and not session.ended else ""
    return session.agent, state or state_of(session.ended, alerts, window), alerts
