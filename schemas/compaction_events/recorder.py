"""From messages to facts: what every adapter and middleware has in common.

An agent, or the adapter that reads its files, says which messages were in the working set before a pass and which are
after it; the recorder measures both and makes the facts. Everything is inferred, and derived from the content alone:
the same messages give the same facts, byte for byte. No text is in them, only ids, hashes and numbers.

```python
recorder = Recorder("session-1", "my-agent", source="my-middleware", topology=Topology.chain, eviction=Eviction.overflow)
emit(recorder.started(at))
recorder.before(messages)
for fact in recorder.passed(messages_after, Pass(1, at)):
    emit(fact)
```
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from compaction_events.facts import (
    Basis,
    CheckpointWritten,
    Composition,
    Eviction,
    Fact,
    PropositionStated,
    RoundCompleted,
    Scorer,
    SessionEnded,
    SessionStarted,
    Sources,
    SpansMethod,
    Topology,
)
from compaction_events.measures import Quotes, Relevance, Spans, anchors, scorer_name
from compaction_events.propositions import Tracked
from compaction_events.provenance import METHOD, Provenance, child_versions
from compaction_events.working_set import UNCOUNTED, Message, Pass, Tokens

__all__ = ["UNCOUNTED", "Message", "Pass", "Recorder", "Tokens"]

_MAX_METHOD_CHARS: Final = 256


class Recorder:
    """Makes the facts of one session.

    Call `started`, then for each pass `before` and `passed` (or `after` and `made`), then `ended`.

    Args:
        session_id: As the agent stores it.
        agent: Which agent.
        source: Which adapter or middleware says so.
        topology: How the agent's summaries relate.
        eviction: When the agent evicts; None: not known.
        leaves: Whether the messages say which raw messages a summary covers.
        reachable: How a span counts as reachable: `pointer` where the agent can fetch what its summaries point to (this
            needs `leaves`), else `lexical`, by what the texts still say.
        summary_budget_tokens: What a summary may be at most; None: not known.
    """

    def __init__(
        self,
        session_id: str,
        agent: str,
        *,
        source: str,
        topology: Topology,
        eviction: Eviction | None,
        leaves: bool = False,
        reachable: SpansMethod = SpansMethod.lexical,
        summary_budget_tokens: int | None = None,
    ) -> None:
        self.session_id = session_id
        self.agent = agent
        self.source = source
        self.topology = topology
        self.eviction = eviction
        self.quoted: dict[int, tuple[tuple[int, int], ...]] = {}
        self._by_pointer = reachable is SpansMethod.pointer
        self._summary_budget_tokens = summary_budget_tokens
        self._spans = Spans()
        self._quotes = Quotes()
        self._tracked = Tracked()
        self._provenance = Provenance(leaves=leaves)
        self._query: str | None = None
        self._relevance: Relevance | None = None
        self._span: int | None = None
        self._span_of: dict[str, int | None] = {}
        self._anchors: dict[str, frozenset[str]] = {}
        self._standing: frozenset[int] = frozenset()
        self._before: Composition | None = None
        self._made: list[Fact] = []

    def started(
        self, at: datetime, *, agent_version: str | None = None, token_budget: int | None = None, max_depth: int | None = None
    ) -> SessionStarted:
        """The session's first fact. Its scorer is what measures `query_cosine_retained` here.

        Raises:
            ImportError: what measures is not installed (extra `[adapters]`).
        """
        return SessionStarted(
            session_id=self.session_id,
            agent=self.agent,
            agent_version=agent_version,
            started_at=at,
            token_budget=token_budget,
            max_depth=max_depth,
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
        self._anchors = {message.id: self._anchors_of(message) for message in messages}
        kept_whole = {self._span_of.get(message.id) for message in messages if message.typed}
        standing = self._spans.standing(self._anchors.values())
        self._standing = frozenset(span for span in self._standing if span in standing or span in kept_whole)
        cosine = self._relevance.after(_texts(messages)) if self._relevance else None
        # A message that stays whole is quoted as well as one that a summary quotes.
        self.quoted[this.number] = self._quotes.passed("\n".join(m.text for m in messages if m.depth or m.typed))
        self._span_of = {message.id: self._span_of.get(message.id, self._span) for message in messages}
        measured = [self._checkpoint(message, this.at) for message in messages if message.depth]
        self._provenance.keep(messages)
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
            token_budget=this.token_budget,
            source_spans_seen=self._spans.seen,
            spans_method=SpansMethod.pointer if self._by_pointer else SpansMethod.lexical,
            summaries=self._provenance.inventory(messages),
            summaries_total=sum(bool(m.depth) for m in messages) if self._provenance.knows_leaves else None,
            claimed_records=this.claimed,
            read_records=this.read,
            summary_kind=this.summary_kind,
            propositions_retained=self._tracked.stated_by(self._anchors.values()) if len(self._tracked) else None,
            token_method=_method(this.token_method, entropy=any(measured)),
            basis=Basis.inferred,
        )

    def made(self) -> list[Fact]:
        """The facts that measuring brought along since the last call: propositions stated, checkpoints written."""
        made, self._made = self._made, []
        return made

    def passed(self, messages: Sequence[Message], this: Pass, tokens: Tokens = UNCOUNTED) -> Iterator[Fact]:
        """`after`, and before it the facts it brought along, in the order in which a log should have them."""
        completed = self.after(messages, this, tokens)
        yield from self.made()
        yield completed

    def ended(self, at: datetime) -> SessionEnded:
        """The session's last fact."""
        return SessionEnded(session_id=self.session_id, agent=self.agent, ended_at=at)

    def _note(self, messages: Iterable[Message], query: str | None) -> None:
        """Give every new raw message to its span, and take in what the user states in it."""
        if self._query is None:
            self._query = query
        for message in messages:
            if message.depth and self._provenance.is_new(message):
                # It was there when watching began: no pass of ours wrote it.
                self._provenance.add(message)
            if message.depth or message.id in self._span_of:
                continue
            # Where pointers count, what came before the user's first word is a span too: a summary of it is no orphan.
            if message.typed or (self._by_pointer and self._span is None):
                self._span = self._spans.open()
            if message.typed:
                self._quotes.typed(message.text)
                self._query = self._query or message.text or None
                self._state(message)
            self._span_of[message.id] = self._span
            if self._span is not None:
                self._provenance.leaf(message, self._span)
                if message.text:
                    found = self._anchors[message.id] = self._anchors_of(message)
                    self._spans.add(self._span, found)

    def _state(self, message: Message) -> None:
        assert self._span is not None
        for new in self._tracked.state(message.text):
            self._made.append(
                PropositionStated(
                    session_id=self.session_id,
                    proposition=new.id,
                    turn=self._span,
                    span_id=message.id,
                    pinned=new.pinned,
                )
            )

    def _anchors_of(self, message: Message) -> frozenset[str]:
        known = self._anchors.get(message.id)
        return frozenset(anchors(message.text)) if known is None else known

    def _checkpoint(self, summary: Message, at: datetime) -> bool:
        """Take in a new summary; where it is known what it was written from, as a checkpoint. Whether it has an entropy."""
        if not self._provenance.is_new(summary):
            return False
        self._provenance.add(summary)
        if summary.children is None:
            return False
        measured = self._provenance.entropy(summary)
        self._made.append(
            CheckpointWritten(
                session_id=self.session_id,
                node_id=summary.id,
                level=summary.depth,
                version=1,
                written_at=at,
                children=child_versions(summary),
                retained=self._tracked.stated_by([self._anchors[summary.id]]),
                sources=Sources.children if summary.children else Sources.raw,
                budget_tokens=self._summary_budget_tokens,
                child_joint_entropy_bits=measured and measured.joint_bits,
                child_redundancy=measured and measured.redundancy,
                bits_per_token=measured and measured.bits_per_token,
                turns=self._provenance.turns(summary),
                basis=Basis.inferred,
            )
        )
        return measured is not None

    def _composition(self, messages: Sequence[Message], tokens: Tokens, cosine: float | None) -> Composition:
        """Split a set's tokens: summaries by their text, overhead as known, raw is the rest.

        The rest, and not the sum of the raw texts: the agent's count is exact, and files it re-reads itself need not be
        among the messages.
        """
        summary = tokens.summary if tokens.summary is not None else sum(m.weight for m in messages if m.depth)
        raw = sum(message.weight for message in messages if not message.depth)
        overhead = tokens.overhead
        if tokens.total is not None:
            summary = min(summary, tokens.total)
            overhead = None if overhead is None else min(overhead, tokens.total - summary)
            raw = tokens.total - summary - (overhead or 0)
        return Composition(
            raw_tokens=raw,
            summary_tokens=summary,
            overhead_tokens=overhead,
            distinct_source_spans=len(self._reachable(messages) if self._by_pointer else self._standing),
            query_cosine_retained=cosine,
            summary_depth_max=max((message.depth for message in messages), default=0),
        )

    def _reachable(self, messages: Sequence[Message]) -> frozenset[int]:
        """The spans in the set raw, or pointed to by one of its summaries."""
        raw = {span for message in messages if not message.depth and (span := self._span_of[message.id]) is not None}
        return frozenset(raw).union(*(self._provenance.spans(message.id) for message in messages if message.depth))


def _texts(messages: Sequence[Message]) -> dict[str, str]:
    # With its length: what was cleared out of a message makes it another text under the same id.
    return {f"{message.id} {len(message.full)}": message.full for message in messages if message.text or message.bulk}


def _method(tokens: str | None, *, entropy: bool) -> str | None:
    """How tokens were counted, and what measured the entropy of the checkpoints beside this round."""
    parts = [*([tokens] if tokens else []), *([f"entropy={METHOD}"] if entropy else [])]
    return " ".join(parts)[:_MAX_METHOD_CHARS] or None
