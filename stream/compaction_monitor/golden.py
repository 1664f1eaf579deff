"""The golden series: the session of the inversion document, drawn round by round. What `demo` sends, what tests check.

Rounds 1 to 40 of a tree with 214 source spans and depth 3: raw_ratio falls piecewise from .71 to .09 at round 28,
reachable spans from 214 to 37 at round 30, the scorer's cosine rises from .41 to .68 at round 28.

Source: "What structural signals indicate that hierarchical context compaction has crossed the salience inversion
boundary", What Was Observed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from compaction_events.facts import (
    Composition,
    Eviction,
    Fact,
    RoundCompleted,
    Scorer,
    SessionEnded,
    SessionStarted,
    SpansMethod,
    SummaryItem,
    SummaryKind,
    Topology,
    Trigger,
)

SESSION = "golden-inversion"
AGENT = "demo-researcher"
START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
ROUND_LENGTH = timedelta(minutes=20)
TOKEN_BUDGET = 180_000
SOURCE_SPANS = 214
RAW_RATIO = ((1, 0.71), (2, 0.54), (8, 0.36), (12, 0.24), (28, 0.09), (40, 0.09))
SPANS = ((1, 214.0), (30, 37.0), (40, 37.0))
COSINE = ((1, 0.41), (28, 0.68), (40, 0.68))
SPAN_TOKENS = 600
INVENTORY_FROM_ROUND = 6


def series(session_id: str = SESSION, start: datetime = START, rounds: int = 40) -> Iterator[Fact]:
    """The session's start and its rounds; it does not end, so that what is open at the end can be seen."""
    yield SessionStarted(
        session_id=session_id,
        agent=AGENT,
        started_at=start,
        token_budget=TOKEN_BUDGET,
        source_spans=SOURCE_SPANS,
        max_depth=3,
        topology=Topology.tree,
        scorer=Scorer(name="embedding-cosine", depth_penalty=0.0, recency_decay=0.1),
        eviction=Eviction.continuous,
        source="demo",
    )
    for number in range(1, rounds + 1):
        yield _round(session_id, start, number)


def ending(session_id: str = SESSION, start: datetime = START, rounds: int = 40) -> SessionEnded:
    """The session's end, one round length after its last round."""
    return SessionEnded(session_id=session_id, agent=AGENT, ended_at=start + ROUND_LENGTH * (rounds + 1))


def along(points: Sequence[tuple[int, float]], at: int) -> float:
    """The value at `at` of the line through the points.

    >>> along(((1, 0.0), (3, 1.0)), 2)
    0.5
    """
    for (left, low), (right, high) in pairwise(points):
        if left <= at <= right:
            return low + (high - low) * (at - left) / (right - left)
    raise ValueError(f"{at} is outside {points[0][0]} to {points[-1][0]}")


def _round(session_id: str, start: datetime, number: int) -> RoundCompleted:
    raw_tokens = round(TOKEN_BUDGET * along(RAW_RATIO, number))
    depth = 1 if number < INVENTORY_FROM_ROUND else 2 if number < 12 else 3
    spans = round(along(SPANS, number))
    summaries = _inventory(TOKEN_BUDGET - raw_tokens, spans, depth) if number >= INVENTORY_FROM_ROUND else None
    return RoundCompleted(
        session_id=session_id,
        agent=AGENT,
        round=number,
        at=start + ROUND_LENGTH * number,
        trigger=Trigger.budget,
        after=Composition(
            raw_tokens=raw_tokens,
            summary_tokens=TOKEN_BUDGET - raw_tokens,
            distinct_source_spans=spans,
            query_cosine_retained=round(along(COSINE, number), 4),
            summary_depth_max=depth,
        ),
        spans_method=SpansMethod.pointer,
        summary_kind=SummaryKind.ok,
        summaries=summaries,
    )


def _inventory(summary_tokens: int, spans: int, depth: int) -> tuple[SummaryItem, ...]:
    """Twelve summaries that share the summary tokens; each still reaches at least one span."""
    count = 12
    items = []
    for index in range(count):
        leaves = max(1, spans // count + (1 if index < spans % count else 0))
        items.append(
            SummaryItem(
                summary_id=f"summary-{index + 1:02d}",
                depth=1 + index * depth // count,
                tokens=summary_tokens // count,
                leaf_spans=leaves,
                expanded_tokens=leaves * SPAN_TOKENS,
            )
        )
    return tuple(sorted(items, key=lambda item: (item.depth, -item.leaf_spans, item.summary_id)))
