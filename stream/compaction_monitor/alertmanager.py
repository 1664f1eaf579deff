"""What an Alertmanager should know: the alerts that fire, and those that ended within the last minutes.

Alertmanager keeps nothing by itself: an alert that is not told again is over for it, and one that is over must be told so
for a while. So this is a state, not a queue. What opened and ended before anybody was told is told as ended, which notifies
nobody. A session has one open alert of a check, so its labels are its identity; when it gets worse its severity, and with it
the identity, changes: the old one ends there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from compaction_events.findings import Alert

SOURCE: Final = "compaction-monitor"
RESOLVED_AGAIN: Final = timedelta(minutes=5)


class Identity(NamedTuple):
    """The labels, in Alertmanager's words."""

    alertname: str
    severity: str
    agent: str
    session_id: str

    @property
    def labels(self) -> dict[str, str]:
        """As they are sent."""
        return {**self._asdict(), "source": SOURCE}


@dataclass(frozen=True, slots=True)
class _Told:
    """`offset`: of the record that says all this, should it have to be read again; `written_at`: when it was written."""

    annotations: dict[str, str]
    starts_at: datetime
    ended_at: datetime | None
    partition: int
    offset: int
    written_at: datetime


class Board:
    """The alerts by identity, from the findings of some partitions, each partition in its order."""

    def __init__(self) -> None:
        self._alerts: dict[Identity, _Told] = {}
        self._open: dict[tuple[str, str], Identity] = {}

    def __len__(self) -> int:
        return len(self._alerts)

    @property
    def firing(self) -> int:
        """How many alerts are open."""
        return len(self._open)

    def take(self, alert: Alert, partition: int, offset: int, written_at: datetime) -> tuple[Identity, ...]:
        """What an alert's publication changes; returns the identities to tell again.

        Args:
            written_at: When the record was written, by the broker's or the monitor's clock; event time may be long ago.
        """
        identity = Identity(alert.name, alert.severity.value, alert.agent, alert.session_id)
        place = (alert.session_id, alert.name)
        before = self._open.pop(place, identity)
        over = alert.status == "resolved"
        if not over:
            self._open[place] = identity
        ended_at = alert.lastReceived if over else None
        self._alerts[identity] = _Told(_annotations(alert), alert.startsAt, ended_at, partition, offset, written_at)
        if before == identity:
            return (identity,)
        old = self._alerts[before]
        self._alerts[before] = replace(old, ended_at=alert.lastReceived, offset=offset, written_at=written_at)
        return (before, identity)

    def forget(self) -> None:
        """Another one goes on with these partitions."""
        self._alerts.clear()
        self._open.clear()

    def prune(self, now: datetime) -> None:
        """Forget what ended long enough ago."""
        for identity, told in list(self._alerts.items()):
            if told.ended_at is not None and told.written_at + RESOLVED_AGAIN < now:
                del self._alerts[identity]

    def identities(self) -> Iterator[Identity]:
        """All that is to be told."""
        return iter(self._alerts)

    def read_again_from(self, partition: int) -> int | None:
        """The first record of a partition that a later run needs to know what this one does; None: none at all."""
        return min((told.offset for told in self._alerts.values() if told.partition == partition), default=None)

    def documents(self, identities: Iterable[Identity], now: datetime, lasting: timedelta) -> list[dict[str, Any]]:
        """As `POST /api/v2/alerts` takes them; identities that are no more are left out.

        Args:
            lasting: How long an open alert fires unless it is told again.
        """
        return [_document(one, self._alerts[one], now, lasting) for one in identities if one in self._alerts]


def _document(identity: Identity, told: _Told, now: datetime, lasting: timedelta) -> dict[str, Any]:
    # An agent's clock may run ahead, and nothing may end before it starts.
    starts_at = min(told.starts_at, now)
    ends_at = now + lasting if told.ended_at is None else max(starts_at, min(told.ended_at, now))
    return {
        "labels": identity.labels,
        "annotations": told.annotations,
        "startsAt": _rfc3339(starts_at),
        "endsAt": _rfc3339(ends_at),
    }


def _annotations(alert: Alert) -> dict[str, str]:
    found = {
        "summary": alert.message,
        "description": alert.description,
        "runbook_url": alert.url,
        "finding_id": alert.id,
        "remediation_id": alert.remediation_id,
        "subjects": ", ".join(alert.subjects),
        "resolved_because": alert.resolved_because,
    }
    return {name: text for name, text in found.items() if text}


def _rfc3339(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
