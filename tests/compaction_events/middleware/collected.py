"""What a watched agent reported."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from compaction_events.facts import CheckpointWritten, Fact, RoundCompleted
from compaction_events.middleware import Live

START = datetime(2026, 5, 4, 9, tzinfo=UTC)
RULE = "Never open port 8417 beside conf/app.toml"


class Collected(list[Fact]):
    """Facts, in order; a clock that goes on by a minute at every look."""

    def live(self, source: str) -> Live:
        looks = iter(range(1_000))
        return Live(self.append, agent="a", source=source, clock=lambda: START + timedelta(minutes=next(looks)))

    @property
    def types(self) -> list[str]:
        return [fact.type for fact in self]

    @property
    def rounds(self) -> list[tuple[Any, ...]]:
        """(session, round, depth, claimed records, kind, spans seen, leaf spans of the summaries)."""
        return [
            (
                fact.session_id,
                fact.round,
                fact.after.summary_depth_max,
                fact.claimed_records,
                fact.summary_kind,
                fact.source_spans_seen,
                [item.leaf_spans for item in fact.summaries or ()],
            )
            for fact in self
            if isinstance(fact, RoundCompleted)
        ]

    @property
    def edges(self) -> list[tuple[str, list[str]]]:
        """Every checkpoint with its children."""
        return [
            (fact.node_id, [child.node_id for child in fact.children]) for fact in self if isinstance(fact, CheckpointWritten)
        ]
