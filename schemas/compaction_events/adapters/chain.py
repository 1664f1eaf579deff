"""What agents have in common that replace old messages by one summary, again and again: a chain.

An adapter says what was said, how large the context was, and where a pass cut; what `before` and `after` are made of is
worked out here. A pass is told once its size is known: by the count beside it, else by the next reply's usage, else, if
there is none, by the text that is left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from compaction_events.adapters.lines import Line, Warnings, read_lines
from compaction_events.facts import Eviction, Fact, SummaryKind, Topology
from compaction_events.recorder import Message, Pass, Recorder, Tokens


@dataclass
class Cut:
    """Where a pass cut: what it leaves, and what the agent counted. `hidden`: the summary is there, but not its text."""

    this: Pass
    before: int | None
    after: int | None
    summary: Message | None
    kept: Sequence[Message]
    overhead: int | None = None
    hidden: bool = False


def kind_of(text: str | None) -> SummaryKind:
    """What a summary's text says of the summariser."""
    if text is None:
        return SummaryKind.none
    return SummaryKind.ok if text.strip() else SummaryKind.empty


class Chain:
    """The working set of one session.

    Args:
        counted: What `before` and `after` come from, as it is named in `token_method`.
    """

    def __init__(self, session_id: str, agent: str, counted: tuple[str, str]) -> None:
        self.recorder = Recorder(session_id, agent, source=agent, topology=Topology.chain, eviction=Eviction.overflow)
        self.messages: list[Message] = []
        self.passes = 0
        self.overhead: int | None = None
        self.overhead_open = True
        self.summary: Message | None = None
        self._counted = counted
        self._pending: Cut | None = None

    def add(self, message: Message | None) -> None:
        """Something was said."""
        if message is not None:
            self.messages.append(message)

    @property
    def awaits_usage(self) -> bool:
        """Whether the next count of a reply's context tells anything that is not known."""
        return self._pending is not None or (self.overhead_open and not self.passes)

    def usage(self, tokens: int | None, said: int | None = None) -> Iterator[Fact]:
        """A reply was made from a context of this size; to be told before the reply is added.

        Args:
            tokens: System prompt and tools included; None where there is no count.
            said: The tokens of what had been said then; by default of the whole set.
        """
        if tokens is None or not self.awaits_usage:
            return
        said = sum(message.weight for message in self.messages) if said is None else said
        # Seen from its start: what was said before the first reply is all there was.
        if self.overhead_open and not self.passes:
            self.overhead = max(0, tokens - said)
        self.overhead_open = False
        yield from self.complete(tokens, said)

    def cut(self, cut: Cut) -> Iterator[Fact]:
        """A pass: measure the set as it finds it, and keep of it what it keeps."""
        yield from self.complete(None, None)
        self.passes += 1
        overhead = self.overhead if cut.overhead is None else cut.overhead
        before_summary = self.summary.tokens if self.summary is not None else None
        self.recorder.before(self.messages, Tokens(cut.before, overhead, before_summary))
        self.messages = [*([cut.summary] if cut.summary is not None else []), *cut.kept]
        self.summary = cut.summary
        self._pending = cut
        if cut.after is not None and not cut.hidden:
            yield from self.complete(None, None)

    def complete(self, usage: int | None, said: int | None) -> Iterator[Fact]:
        """The pass that is under way ends."""
        cut, self._pending = self._pending, None
        if cut is None:
            return
        known = self.overhead if cut.overhead is None else cut.overhead
        total = usage if cut.after is None else cut.after
        method = self._method(cut, usage, known)
        tokens = Tokens(total, known if total is not None else None)
        if cut.hidden and cut.summary is not None:
            tokens = self._with_hidden(cut, total, usage, known, said)
        yield from self.recorder.passed(
            [*([self.summary] if self.summary is not None else []), *cut.kept], replace(cut.this, token_method=method), tokens
        )

    def _with_hidden(self, cut: Cut, total: int | None, usage: int | None, known: int | None, said: int | None) -> Tokens:
        """A summary whose text is not there weighs what the next request had beside all that is known of it."""
        hidden = 0 if usage is None or known is None or said is None else max(0, usage - known - said)
        raw = sum(message.weight for message in cut.kept)
        if total is not None:
            hidden = min(hidden, max(0, total - raw))
        assert cut.summary is not None
        self.summary = cut.summary._replace(tokens=hidden)
        self.messages = [self.summary if message.id == cut.summary.id else message for message in self.messages]
        return Tokens(total, None if total is None else max(0, total - hidden - raw), hidden)

    def _method(self, cut: Cut, usage: int | None, overhead: int | None) -> str:
        before = "estimate" if cut.before is None else self._counted[0]
        after = "estimate" if cut.after is None and usage is None else "usage" if cut.after is None else self._counted[1]
        summary = "next_usage-known" if cut.hidden else "utf8_bytes/4"
        source = "unknown" if overhead is None else "first_usage" if cut.overhead is None else "counted"
        return (
            f"before={before} after={after} summary={summary} overhead={source} raw={'utf8_bytes/4' if cut.hidden else 'rest'}"
        )


class ChainReading(ABC):
    """One session of JSON Lines, read once: iterate over it for its facts.

    Attributes:
        at_end: What follows is only there because the files end here; a longer file may tell it otherwise.
    """

    counted = ("count", "count")

    def __init__(self, paths: Sequence[Path], session_id: str, agent: str) -> None:
        self.warnings = Warnings()
        self.at_end = False
        self.chain = Chain(session_id, agent, self.counted)
        self._paths = paths
        self._started = False
        self.last_at: datetime | None = None

    @property
    def quoted(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """By round, (still there, typed) for the user's messages of each stretch between passes, oldest first."""
        return self.chain.recorder.quoted

    def __iter__(self) -> Iterator[Fact]:
        yield from self.read()
        self.at_end = True
        yield from self.chain.complete(None, None)
        if self._started and self.last_at is not None:
            yield self.chain.recorder.ended(self.last_at)

    def read(self) -> Iterator[Fact]:
        """The facts of all lines."""
        for path in self._paths:
            for line in read_lines(path, self.warnings):
                yield from self.take(line)

    def seen(self, at: datetime | None, version: str | None = None, token_budget: int | None = None) -> Iterator[Fact]:
        """A record of this time; the first one starts the session."""
        if at is None:
            return
        self.last_at = max(at, self.last_at or at)
        if not self._started:
            self._started = True
            yield self.chain.recorder.started(at, agent_version=version, token_budget=token_budget)

    @abstractmethod
    def take(self, line: Line) -> Iterator[Fact]:
        """One record."""
