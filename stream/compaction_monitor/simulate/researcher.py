"""The agent of an inverting run: a research-and-synthesize session of 40 rounds, which reports what an agent can see.

Source: "What structural signals indicate that hierarchical context compaction has crossed the salience inversion
boundary", What Was Observed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np

from compaction_events.facts import (
    MAX_SUMMARIES,
    Cause,
    Composition,
    Controller,
    Eviction,
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
from compaction_monitor.simulate.compaction import Compaction, evict, rewrite, roll_up, summarise
from compaction_monitor.simulate.material import Spans, World
from compaction_monitor.simulate.memory import Memory

AGENT: Final = "reference-researcher"
COMPACTION: Final = Compaction()
WORLD: Final = World()
START: Final = datetime(2026, 1, 5, 9, tzinfo=UTC)
ROUND_LENGTH: Final = timedelta(minutes=20)  # 40 rounds are a working day and a half; only their order matters
CITED: Final = 5  # a synthesis leans on the few most salient deep summaries


class Row(NamedTuple):
    """The working set after a round.

    Attributes:
        cosine: Unweighted mean over all items, without recency.
        orphans: Summaries without a reachable span.
        cited_ungrounded: Of the `CITED` most relevant summaries of level 2 and deeper, those of which no span that
            they were first written from can be reached: what they claim of it cannot be checked.
        cited_gone_rounds: How long that has been so, on average.
        pinned_tokens: What the scorer would have evicted and the invariant kept.
        passed: The round compacted; False where there was nothing to do.
    """

    number: int
    raw_tokens: int
    summary_tokens: int
    spans: int
    cosine: float
    depth: int
    orphans: int
    summaries: int
    cited_ungrounded: float
    cited_gone_rounds: float
    pinned_tokens: int
    passed: bool

    @property
    def raw_ratio(self) -> float:
        return self.raw_tokens / (self.raw_tokens + self.summary_tokens)

    @property
    def tokens(self) -> int:
        return self.raw_tokens + self.summary_tokens


class Researcher:
    """A session, round by round.

    Args:
        seed: Of its material and of its wording.
        how: The loop's switches.
        world: What it works on.
        session_id: Named in every event. `start`: when it begins.
        controlled: It says that somebody answers orders.

    Attributes:
        rows: One for each round so far.
        halted: Somebody stopped it: it takes in nothing until it may resume.
    """

    def __init__(
        self,
        seed: int,
        how: Compaction = COMPACTION,
        world: World = WORLD,
        *,
        session_id: str = "",
        start: datetime = START,
        controlled: bool = False,
    ) -> None:
        self.world, self.how = world, how
        self.session_id = session_id or f"inversion-{seed}"
        self.start, self.at = start, start
        self.memory = Memory(spans := Spans(world, seed), np.random.default_rng([seed, 2]), how.wording_noise)
        self.rows: list[Row] = []
        self.now = 0
        self.halted = False
        self.controlled = controlled
        self.reported = 0
        self._arrival = spans.arrival
        self._summarised_to = 0
        self._evicted_spans = 0

    @property
    def done(self) -> bool:
        """Its material is used up."""
        return self.now >= self.world.rounds

    def step(self) -> Row:
        """One round: take in what arrives, and compact."""
        self.now += 1
        self.at = self.start + ROUND_LENGTH * self.now
        arrived = np.flatnonzero(self._arrival == self.now)
        self.memory.bring_in(arrived, self.now)
        over = self.memory.total_tokens > self.world.token_budget
        passed = self.now == 1 or over or not self.how.overflow_only
        pinned = self._compact() if passed else 0
        self.rows.append(row := self.measured(pinned, passed=passed))
        return row

    def started(self) -> SessionStarted:
        """The session's first fact."""
        how = self.how
        return SessionStarted(
            session_id=self.session_id,
            agent=AGENT,
            started_at=self.start,
            token_budget=self.world.token_budget,
            source_spans=self.world.opening_spans,
            max_depth=how.max_depth,
            topology=Topology.tree,
            scorer=Scorer(
                name="embedding-cosine",
                depth_penalty=how.depth_penalty,
                recency_decay=1 / how.recency_rounds if how.recency_weight else 0.0,
            ),
            eviction=Eviction.overflow if how.overflow_only else Eviction.continuous,
            source="simulation",
            controller=Controller.expected if self.controlled else None,
        )

    def ended(self) -> SessionEnded:
        """Its last one."""
        return SessionEnded(session_id=self.session_id, agent=AGENT, ended_at=self.at + ROUND_LENGTH)

    def completed(self, row: Row, cause: Cause = Cause.compaction, remediation_id: str | None = None) -> RoundCompleted:
        """The fact about the set as it is now, `row` its measures."""
        compacted = cause is Cause.compaction
        self.reported += 1
        return RoundCompleted(
            session_id=self.session_id,
            agent=AGENT,
            round=self.reported,
            at=self.at,
            cause=cause,
            trigger=Trigger.budget if compacted else None,
            after=Composition(
                raw_tokens=row.raw_tokens,
                summary_tokens=row.summary_tokens,
                distinct_source_spans=row.spans,
                query_cosine_retained=row.cosine,
                summary_depth_max=row.depth,
            ),
            topology=Topology.tree,
            max_depth=self.how.max_depth,
            token_budget=self.world.token_budget,
            spans_method=SpansMethod.pointer,
            summaries=self.inventory(),
            summaries_total=row.summaries,
            # Every span is summarised in the pass it arrives in: what is evicted was read.
            claimed_records=self._evicted_spans if compacted else None,
            read_records=self._evicted_spans if compacted else None,
            summary_kind=SummaryKind.ok if compacted else SummaryKind.none,
            remediation_id=remediation_id,
        )

    def inventory(self) -> tuple[SummaryItem, ...]:
        """The summaries in the set, in plan order."""
        memory = self.memory
        items = memory.summaries
        measures = (memory.level[items], memory.tokens[items], memory.leaves(items), memory.missing_tokens(items))
        listed = [
            SummaryItem(summary_id=f"summary-{i}", depth=int(d), tokens=int(t), leaf_spans=int(n), expanded_tokens=int(e))
            for i, d, t, n, e in zip(items, *measures, strict=True)
        ]
        return tuple(sorted(listed, key=lambda item: (item.depth, -item.leaf_spans, item.summary_id))[:MAX_SUMMARIES])

    def measured(self, pinned_tokens: int = 0, *, passed: bool = True) -> Row:
        """The set as it is now."""
        memory = self.memory
        items, summaries = memory.items, memory.summaries
        orphaned = memory.leaves(summaries) == 0
        deep = summaries[memory.level[summaries] >= 2]
        cited = deep[np.argsort(-memory.cosine[deep], kind="stable")[:CITED]]
        memory.note_support(self.now)
        ungrounded = cited[memory.founding_leaves(cited) == 0]
        raw = int(memory.tokens[memory.spans].sum())
        return Row(
            number=self.now,
            raw_tokens=raw,
            summary_tokens=memory.total_tokens - raw,
            spans=len(memory.spans),
            cosine=round(float(memory.cosine[items].mean()), 6),
            depth=int(memory.level[items].max(initial=0)),
            orphans=int(orphaned.sum()),
            summaries=len(summaries),
            cited_ungrounded=len(ungrounded) / max(1, len(cited)),
            cited_gone_rounds=float((self.now - memory.supported[ungrounded]).mean()) if len(ungrounded) else 0.0,
            pinned_tokens=pinned_tokens,
            passed=passed,
        )

    def _compact(self) -> int:
        """Summarise what has not been summarised yet, and bring the set within its limit."""
        memory, how, now = self.memory, self.how, self.now
        had = memory.spans
        deep = memory.summaries[memory.level[memory.summaries] >= 2]
        roll_up(memory, how, now)
        new = summarise(memory, had[self._arrival[had] > self._summarised_to], how, now)
        if how.rewrites:
            rewrite(memory, new, deep, now)
        self._summarised_to = now
        over = memory.total_tokens > self.world.token_budget
        share = how.overflow_target if how.overflow_only and over else 1.0
        pinned = evict(memory, how, int(share * self.world.token_budget), now)
        self._evicted_spans = len(had) - len(memory.spans)
        return pinned
