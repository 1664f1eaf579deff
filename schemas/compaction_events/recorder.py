"""From messages to facts: what every adapter and middleware has in common.

An agent, or the adapter that reads its files, says which messages were in the working set before a pass and which are
after it; the recorder measures both and makes the facts. Everything is inferred, and derived from the content alone:
the same messages give the same facts, byte for byte.

Source: design §3, §4 (Chains); formats §3, §5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from compaction_events.facts import (
    Basis,
    Composition,
    Eviction,
    RoundCompleted,
    Scorer,
    SessionEnded,
    SessionStarted,
    SpansMethod,
    SummaryKind,
    Topology,
    Trigger,
)
from compaction_events.measures import Quotes, Relevance, Spans, estimated_tokens, scorer_name


class Message(NamedTuple):
    """One message of a working set.

    Args:
        id: Unique in the session; a message that stays in the set keeps it.
        text: What the user and the agent say and do: typed text, replies, the arguments of tool calls.
        bulk: What only rides along (tool results, attached files, the tool's own notes). It has weight, but names no span:
            among that much text two anchors would meet by chance.
        typed: Whether the user typed it: it opens a span.
        depth: 0 = raw, 1 = a summary of raw messages, and so on.
    """

    id: str
    text: str
    bulk: str = ""
    typed: bool = False
    depth: int = 0

    @property
    def full(self) -> str:
        """All of it."""
        return f"{self.text}\n{self.bulk}" if self.bulk else self.text


class Tokens(NamedTuple):
    """What somebody counted of a set. Absent: estimated from the text (total), or not known (overhead)."""

    total: int | None = None
    overhead: int | None = None


UNCOUNTED = Tokens()


@dataclass(frozen=True)
class Pass:
    """What is known of one pass beside its messages. `claimed` and `read` are counts of records."""

    number: int
    at: datetime
    trigger: Trigger | None = None
    claimed: int | None = None
    read: int | None = None
    summary_kind: SummaryKind | None = None
    token_method: str | None = None


class Recorder:
    """Makes the facts of one session.

    Call `started`, then for each pass `before` and `after`, then `ended`.

    Args:
        session_id: As the agent stores it.
        agent: Which agent.
        source: Which adapter or middleware says so.
        topology: How the agent's summaries relate.
        eviction: When the agent evicts.
    """

    def __init__(self, session_id: str, agent: str, *, source: str, topology: Topology, eviction: Eviction) -> None:
        self.session_id = session_id
        self.agent = agent
        self.source = source
        self.topology = topology
        self.eviction = eviction
        self.quoted: dict[int, tuple[tuple[int, int], ...]] = {}
        self._spans = Spans()
        self._quotes = Quotes()
        self._query: str | None = None
        self._relevance: Relevance | None = None
        self._span: int | None = None
        self._span_of: dict[str, int | None] = {}
        self._standing: frozenset[int] = frozenset()
        self._before: Composition | None = None

    def started(self, at: datetime, *, agent_version: str | None = None) -> SessionStarted:
        """The session's first fact. Its scorer is what measures `query_cosine_retained` here.

        Raises:
            ImportError: what measures is not installed (extra `[adapters]`).
        """
        return SessionStarted(
            session_id=self.session_id,
            agent=self.agent,
            agent_version=agent_version,
            started_at=at,
            topology=self.topology,
            eviction=self.eviction,
            scorer=Scorer(name=scorer_name()),
            source=self.source,
        )

    def before(self, messages: Sequence[Message], tokens: Tokens = UNCOUNTED, *, query: str | None = None) -> Composition:
        """The working set as a pass finds it.

        Args:
            messages: All of the set, in order; those known from the last pass are recognised by their ids.
            tokens: What is known of its size.
            query: The session's fixed query; the first typed message where not given. Only the first one counts.
        """
        self._note(messages, query)
        typed = {span for message in messages if message.typed and (span := self._span_of[message.id]) is not None}
        # What the last pass left standing, and what was typed since: a span that is lost does not come back.
        self._standing |= typed
        if self._query is not None and self._relevance is None:
            self._relevance = Relevance(self._query)
        cosine = self._relevance.before(_texts(messages)) if self._relevance else None
        self._before = self._composition(messages, tokens, cosine)
        return self._before

    def after(self, messages: Sequence[Message], this: Pass, tokens: Tokens = UNCOUNTED) -> RoundCompleted:
        """The working set as the pass leaves it, its new summaries among the messages.

        Raises:
            RuntimeError: `before` was not called for this pass.
        """
        if self._before is None:
            raise RuntimeError("call before() with the set as the pass finds it, then after()")
        kept_whole = {self._span_of.get(message.id) for message in messages if message.typed}
        standing = self._spans.standing(message.text for message in messages)
        self._standing = frozenset(span for span in self._standing if span in standing or span in kept_whole)
        cosine = self._relevance.after(_texts(messages)) if self._relevance else None
        summaries = [message.text for message in messages if message.depth]
        self.quoted[this.number] = self._quotes.passed("\n".join(summaries))
        self._span_of = {message.id: self._span_of.get(message.id, self._span) for message in messages}
        before, self._before = self._before, None
        return RoundCompleted(
            session_id=self.session_id,
            agent=self.agent,
            round=this.number,
            at=this.at,
            trigger=this.trigger,
            before=before,
            after=self._composition(messages, tokens, cosine),
            topology=self.topology,
            source_spans_seen=self._spans.seen,
            spans_method=SpansMethod.lexical,
            claimed_records=this.claimed,
            read_records=this.read,
            summary_kind=this.summary_kind,
            token_method=this.token_method,
            basis=Basis.inferred,
        )

    def ended(self, at: datetime) -> SessionEnded:
        """The session's last fact."""
        return SessionEnded(session_id=self.session_id, agent=self.agent, ended_at=at)

    def _note(self, messages: Iterable[Message], query: str | None) -> None:
        """Give every new raw message to its span."""
        if self._query is None:
            self._query = query
        for message in messages:
            if message.depth or message.id in self._span_of:
                continue
            if message.typed:
                self._span = self._spans.open()
                self._quotes.typed(message.text)
                self._query = self._query or message.text or None
            self._span_of[message.id] = self._span
            if self._span is not None and message.text:
                self._spans.add(self._span, message.text)

    def _composition(self, messages: Sequence[Message], tokens: Tokens, cosine: float | None) -> Composition:
        """Split a set's tokens: summaries by their text, overhead as known, raw is the rest.

        The rest, and not the sum of the raw texts: the agent's count is exact, and files it re-reads itself need not be
        among the messages.
        """
        summary = sum(estimated_tokens(message.text) for message in messages if message.depth)
        raw = sum(estimated_tokens(message.full) for message in messages if not message.depth)
        overhead = tokens.overhead
        if tokens.total is not None:
            summary = min(summary, tokens.total)
            overhead = None if overhead is None else min(overhead, tokens.total - summary)
            raw = tokens.total - summary - (overhead or 0)
        return Composition(
            raw_tokens=raw,
            summary_tokens=summary,
            overhead_tokens=overhead,
            distinct_source_spans=len(self._standing),
            query_cosine_retained=cosine,
            summary_depth_max=max((message.depth for message in messages), default=0),
        )


def _texts(messages: Sequence[Message]) -> list[str]:
    return [message.full for message in messages if message.text or message.bulk]
