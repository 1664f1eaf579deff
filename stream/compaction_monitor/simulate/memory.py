"""What the agent of an inverting run has ever read or written, and which of it is in its working set.

The first items are the spans, in order of arrival; summaries follow as they are written. An item that was evicted stays
in these arrays as in a log, but the agent cannot reach it: the text of a span is only in the working set, so evicting it
leaves the pointers to it dangling. Only somebody outside, who has the raw log, can bring it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from compaction_monitor.simulate.material import QUERY_AXIS, Floats, Ints, Spans, unit

Flags = NDArray[np.bool_]

_ROOM: Final = 1_024
_PER_ITEM: Final = (
    "content", "cosine", "tokens", "level", "topic", "written", "supported", "open", "kept", "pointers", "founding",
)  # fmt: skip


class Memory:
    """Items in parallel arrays; `items` are indices into them.

    Args:
        spans: What will arrive.
        wording: Draws how a summary is worded.
        wording_noise: How far wording moves an embedding off what the text says, as a share of its length.

    Attributes:
        content: What an item says: of a summary, the mean of its sources, in the space of the embeddings.
        cosine: Of the embedding to the query.
        level: 0 is raw, 1 a summary of raw spans, and so on.
        written: The round in which it was written; for a span, in which it came into the set.
        open: A summary that no deeper one has taken up yet.
        kept: It is in the working set.
        pointers: Which spans an item rests on, a bit each; a summary that is rewritten keeps its own and takes those of
            what it read.
        founding: Which of them it rested on when it was first written: what is read later grounds no claim made before.
        supported: The last round after which one of its `founding` spans was in the set.
    """

    def __init__(self, spans: Spans, wording: np.random.Generator, wording_noise: float) -> None:
        self.span_count = len(spans)
        self.count = self.span_count
        room = self.count + _ROOM
        self.content: Floats = np.zeros((room, spans.embedding.shape[1]))
        self.cosine: Floats = np.zeros(room)
        self.tokens: Ints = np.zeros(room, np.int64)
        self.level: Ints = np.zeros(room, np.int64)
        self.topic: Ints = np.zeros(room, np.int64)
        self.written: Ints = np.zeros(room, np.int64)
        self.supported: Ints = np.zeros(room, np.int64)
        self.open: Flags = np.zeros(room, np.bool_)
        self.kept: Flags = np.zeros(room, np.bool_)
        self.pointers: NDArray[np.uint8] = np.zeros((room, -(-self.span_count // 8)), np.uint8)
        self.founding = np.zeros_like(self.pointers)
        self._wording, self._noise = wording, wording_noise
        own = slice(0, self.span_count)
        self.content[own] = spans.embedding
        self.cosine[own] = spans.embedding[:, QUERY_AXIS]
        self.tokens[own] = spans.tokens
        self.topic[own] = spans.topic
        self.pointers[own] = np.packbits(np.eye(self.span_count, dtype=np.bool_), axis=1)
        self.founding[own] = self.pointers[own]

    @property
    def items(self) -> Ints:
        """What is in the working set, oldest first."""
        return np.flatnonzero(self.kept[: self.count])

    @property
    def spans(self) -> Ints:
        """The spans in the working set: those that can still be reached."""
        return np.flatnonzero(self.kept[: self.span_count])

    @property
    def summaries(self) -> Ints:
        """The summaries in the working set."""
        return self.span_count + np.flatnonzero(self.kept[self.span_count : self.count])

    @property
    def total_tokens(self) -> int:
        """Of the working set."""
        return int(self.tokens[: self.count][self.kept[: self.count]].sum())

    def leaves(self, items: Ints) -> Ints:
        """How many spans under each item can still be reached."""
        return self._reachable(self.pointers[items])

    def founding_leaves(self, items: Ints) -> Ints:
        """How many of the spans that each item was first written from can still be reached."""
        return self._reachable(self.founding[items])

    def sources(self, items: Ints) -> Flags:
        """Which spans each item rests on, one row of flags each."""
        return self.flags(self.pointers[items])

    def flags(self, bits: NDArray[np.uint8]) -> Flags:
        """Rows of bits as rows of flags, one for each span."""
        return np.unpackbits(bits, axis=1, count=self.span_count).astype(np.bool_)

    def _reachable(self, bits: NDArray[np.uint8]) -> Ints:
        counted: Ints = np.bitwise_count(bits & np.packbits(self.kept[: self.span_count])).sum(axis=1, dtype=np.int64)
        return counted

    def note_support(self, now: int) -> None:
        """The round is over: which summaries still have what they were first written from."""
        items = self.summaries
        self.supported[items[self.founding_leaves(items) > 0]] = now

    def missing_tokens(self, items: Ints) -> Ints:
        """The size of the spans under each item that are not in the set: what expanding it would add."""
        absent = np.where(self.kept[: self.span_count], 0, self.tokens[: self.span_count]).astype(np.float64)
        found: Ints = np.rint(self.sources(items) @ absent).astype(np.int64)
        return found

    def bring_in(self, spans: Ints, now: int) -> None:
        """Spans come into the set: they arrive, or somebody brings them back from the log."""
        self.kept[spans] = True
        self.written[spans] = now

    def write(self, groups: Sequence[Ints], level: Ints, tokens: Ints, now: int) -> Ints:
        """Write a summary of each group of items: what it says is the mean of them by size, worded anew.

        Returns:
            The new items, in the order of the groups.
        """
        made = np.arange(self.count, self.count + len(groups))
        if not groups:
            return made
        self._make_room(len(groups))
        self.count += len(groups)
        read = np.concatenate(groups)
        starts = np.concatenate([[0], np.cumsum([len(group) for group in groups])[:-1]])
        weight = self.tokens[read].astype(np.float64)
        self.content[made] = (
            np.add.reduceat(self.content[read] * weight[:, None], starts) / np.add.reduceat(weight, starts)[:, None]
        )
        noise = self._noise * unit(self._wording.standard_normal((len(groups), self.content.shape[1])))
        self.cosine[made] = unit(unit(self.content[made]) + noise)[:, QUERY_AXIS]
        self.pointers[made] = np.bitwise_or.reduceat(self.pointers[read], starts)
        self.founding[made] = self.pointers[made]
        self.topic[made] = self.topic[read[starts]]
        self.level[made], self.tokens[made], self.written[made] = level, np.maximum(1, tokens), now
        self.open[made] = self.kept[made] = True
        return made

    def _make_room(self, more: int) -> None:
        if self.count + more <= len(self.kept):
            return
        for name in _PER_ITEM:
            known = getattr(self, name)
            setattr(self, name, np.concatenate([known, np.zeros((_ROOM + more, *known.shape[1:]), known.dtype)]))
