"""The job itself, the same for every Python contender: the pure functions of the contract and of the monitor."""

from __future__ import annotations

from compaction_events.codec import Headers, decode
from compaction_monitor.core import publication
from compaction_monitor.effects import Outgoing
from compaction_monitor.fold import fold
from compaction_monitor.rules import Rules
from compaction_monitor.state.session import Session


class Job:
    """Validate, fold, encode."""

    def __init__(self) -> None:
        self._rules = Rules()

    def fold(
        self, session: Session | None, value: bytes | None, headers: Headers, key: bytes | None, timestamp_ms: int
    ) -> tuple[Session | None, list[Outgoing]]:
        """One record into its session: the new session, and the findings to publish."""
        decoded = decode(value, headers, key)
        folded = fold(session, decoded.event, decoded.ce_id, self._rules, timestamp_ms)
        return folded.session, [publication(finding, decoded.traceparent) for finding in folded.findings]

    def row(
        self, row: bytes | None, value: bytes | None, headers: Headers, key: bytes | None, timestamp_ms: int
    ) -> tuple[bytes | None, list[Outgoing]]:
        """The same over the session's row in a table of bytes."""
        session = None if row is None else Session.from_bytes(row)
        after, findings = self.fold(session, value, headers, key, timestamp_ms)
        return (None if after is None else after.to_bytes()), findings
