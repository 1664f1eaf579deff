"""A hierarchy's past, replayed from its present: one round for every summary, in order of creation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Final, NamedTuple

from compaction_events.facts import Eviction, Fact, SpansMethod, SummaryKind, Topology
from compaction_events.recorder import Message, Pass, Recorder

_METHOD: Final = "token_count of the store"


class Said(NamedTuple):
    """One message of the store, in order."""

    id: str
    role: str
    text: str
    tokens: int | None
    at: datetime | None


class Summed(NamedTuple):
    """One summary. `depth`: 1 = of messages. `covers`: its first and last time, for what was deleted under it."""

    id: str
    at: datetime | None
    depth: int
    text: str
    tokens: int | None
    children: tuple[str, ...]
    messages: tuple[str, ...]
    covers: tuple[datetime | None, datetime | None]
    fell_back: bool


class Replay:
    """One session."""

    def __init__(self, session_id: str, agent: str) -> None:
        self.recorder = Recorder(
            session_id,
            agent,
            source=agent,
            topology=Topology.tree,
            eviction=Eviction.continuous,
            leaves=True,
            reachable=SpansMethod.pointer,
        )
        # The set: raw messages in their order, and the summaries not yet condensed. What stands for older ones comes first.
        self._raw: dict[str, tuple[Message, datetime | None]] = {}
        self._summaries: dict[str, Message] = {}
        self.at_end = False
        self._seen: set[str] = set()
        self._last_at: datetime | None = None

    def run(self, messages: Iterable[Said], summaries: Iterable[Summed], names: Collection[str]) -> Iterator[Fact]:
        """The facts.

        Args:
            messages: In order.
            summaries: In order of creation.
            names: The ids of all messages that are still there.
        """
        waiting = iter(messages)
        ahead = next(waiting, None)
        started = False
        for number, summed in enumerate(summaries, 1):
            at = summed.at or self._last_at
            # The last message a summary was written from was there, whatever the clocks say.
            needed = {name for name in summed.messages if name in names and name not in self._seen}
            while ahead is not None and (needed or at is None or ahead.at is None or ahead.at <= at):
                self._add(ahead)
                needed.discard(ahead.id)
                ahead = next(waiting, None)
                if not needed and (ahead is None or at is None):
                    break
            at = at or self._last_at
            if at is None:
                continue
            if not started:
                started = True
                yield self._start(at)
            yield from self._condense(summed, number, at)
        self.at_end = True
        while ahead is not None:
            self._add(ahead)
            ahead = next(waiting, None)
        if not started and self._last_at is not None:
            yield self._start(self._last_at)
        if self._last_at is not None:
            yield self.recorder.ended(self._last_at)

    def _start(self, at: datetime) -> Fact:
        first = next((time for _, time in self._raw.values() if time is not None), at)
        spans = sum(message.typed for message, _ in self._raw.values())
        # What comes before the user's first word is a span too.
        opening = next(iter(self._raw.values()), None)
        spans += opening is not None and not opening[0].typed
        started = self.recorder.started(first)
        return started.model_copy(update={"source_spans": spans or None})

    def _add(self, said: Said) -> None:
        typed = said.role == "user"
        bulk = said.role in ("tool", "system")
        text, rest = ("", said.text) if bulk else (said.text, "")
        self._seen.add(said.id)
        self._raw[said.id] = (Message(said.id, text, rest, typed, tokens=said.tokens), said.at)
        if said.at is not None:
            self._last_at = max(said.at, self._last_at or said.at)

    def _condense(self, summed: Summed, number: int, at: datetime) -> Iterator[Fact]:
        """One pass: its sources leave the set, the summary joins it."""
        self._last_at = max(at, self._last_at or at)
        self.recorder.before(self._set())
        gone = self._gone(summed)
        for name in gone:
            self._raw.pop(name, None)
        for name in summed.children:
            self._summaries.pop(name, None)
        self._summaries[summed.id] = Message(
            summed.id,
            summed.text,
            depth=summed.depth,
            tokens=summed.tokens,
            children=summed.children,
            leaves=summed.messages,
        )
        kind = SummaryKind.fallback if summed.fell_back else SummaryKind.ok if summed.text.strip() else SummaryKind.empty
        claimed = len(summed.messages) + len(summed.children)
        this = Pass(number, at, claimed=claimed, summary_kind=kind, token_method=_METHOD)
        yield from self.recorder.passed(self._set(), this)

    def _gone(self, summed: Summed) -> set[str]:
        """The messages that leave the set: those named, and where summaries below were deleted, those of their time."""
        gone = set(summed.messages)
        first, last = summed.covers
        if first is not None and last is not None and any(child not in self._summaries for child in summed.children):
            gone |= {name for name, (_, at) in self._raw.items() if at is not None and first <= at <= last}
        return gone

    def _set(self) -> list[Message]:
        return [*self._summaries.values(), *(message for message, _ in self._raw.values())]
