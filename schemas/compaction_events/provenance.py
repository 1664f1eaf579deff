"""What summaries were written from: the leaves each still reaches, what expanding it would bring, its checkpoint.

Pointers are followed only as far as what they point to is there: a summary whose sources were deleted reaches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from compaction_events.entropy import METHOD, Entropy, entropy
from compaction_events.facts import MAX_SUMMARIES, ChildVersion, SummaryItem, Turns
from compaction_events.working_set import Message

MAX_CHILDREN = 4_096


class Leaf(NamedTuple):
    """One raw message: the span it is in, and its size."""

    span: int
    tokens: int


class Provenance:
    """The summaries of one session.

    Args:
        leaves: Whether adapters tell which raw messages a summary covers; without, only what is written from what is kept.
    """

    def __init__(self, *, leaves: bool) -> None:
        self.knows_leaves = leaves
        self._leaves: dict[str, Leaf] = {}
        self._reach: dict[str, frozenset[str]] = {}
        self._texts: dict[str, str] = {}

    def leaf(self, message: Message, span: int) -> None:
        """A raw message, the first time it is seen."""
        if self.knows_leaves:
            self._leaves[message.id] = Leaf(span, message.weight)

    def is_new(self, summary: Message) -> bool:
        return summary.id not in self._reach

    def add(self, summary: Message) -> None:
        """A summary, the first time it is seen; its children were added before."""
        reach = {leaf for leaf in summary.leaves or () if leaf in self._leaves}
        for child in summary.children or ():
            reach |= self._reach.get(child, frozenset())
        self._reach[summary.id] = frozenset(reach)
        self._texts[summary.id] = summary.text

    def keep(self, messages: Iterable[Message]) -> None:
        """Forget the texts of all summaries but these; what they reach stays known."""
        self._texts = {message.id: self._texts[message.id] for message in messages if message.id in self._texts}

    def spans(self, summary: str) -> frozenset[int]:
        """The spans that a summary still reaches."""
        return frozenset(self._leaves[leaf].span for leaf in self._reach.get(summary, ()))

    def inventory(self, messages: Sequence[Message]) -> tuple[SummaryItem, ...] | None:
        """The summaries of a set, in its order; None where it is not known what they cover."""
        summaries = [message for message in messages if message.depth]
        if not self.knows_leaves or any(message.leaves is None for message in summaries):
            return None
        return tuple(self._item(message) for message in summaries[:MAX_SUMMARIES])

    def _item(self, summary: Message) -> SummaryItem:
        expanded = sum(self._leaves[leaf].tokens for leaf in self._reach.get(summary.id, ()))
        spans = len(self.spans(summary.id))
        return SummaryItem(
            summary_id=summary.id, depth=summary.depth, tokens=summary.weight, leaf_spans=spans, expanded_tokens=expanded
        )

    def turns(self, summary: Message) -> Turns | None:
        """The first and the last span a summary reaches."""
        spans = self.spans(summary.id)
        return Turns(first=min(spans), last=max(spans)) if spans else None

    def entropy(self, summary: Message) -> Entropy | None:
        """What its children hold; None unless it was written from several summaries and nothing else.

        Raw text beside the children would be in the summary, but not in the figure.
        """
        children = summary.children or ()
        texts = [self._texts[child] for child in children if child in self._texts]
        if summary.leaves or len(texts) < 2 or len(texts) != len(children):
            return None
        return entropy(texts, summary.text, summary.weight)


def child_versions(summary: Message) -> tuple[ChildVersion, ...]:
    """A summary is written once: its version is always 1, and so is that of the children it read."""
    return tuple(ChildVersion(node_id=child, version=1) for child in (summary.children or ())[:MAX_CHILDREN])


__all__ = ["METHOD", "Leaf", "Provenance", "child_versions"]
