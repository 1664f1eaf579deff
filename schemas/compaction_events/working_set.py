"""What an adapter or a middleware hands to the recorder: messages, what was counted of them, what is known of a pass."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from compaction_events.facts import SummaryKind, Trigger
from compaction_events.measures import estimated_tokens


class Message(NamedTuple):
    """One message of a working set.

    Args:
        id: Unique in the session; a message that stays in the set keeps it.
        text: What the user and the agent say and do: typed text, replies, the arguments of tool calls.
        bulk: What only rides along (tool results, attached files, the tool's own notes). It has weight, but names no span:
            among that much text two anchors would meet by chance.
        typed: Whether the user typed it: it opens a span.
        depth: 0 = raw, 1 = a summary of raw messages, and so on.
        tokens: What somebody counted of it; estimated from the text where not given.
        children: Of a summary: the ids of the summaries it was written from; None: not known.
        leaves: Of a summary: the ids of the raw messages it was written from, beside those of its children; None: not known.
    """

    id: str
    text: str
    bulk: str = ""
    typed: bool = False
    depth: int = 0
    tokens: int | None = None
    children: tuple[str, ...] | None = None
    leaves: tuple[str, ...] | None = None

    @property
    def full(self) -> str:
        """All of it."""
        return f"{self.text}\n{self.bulk}" if self.bulk else self.text

    @property
    def weight(self) -> int:
        """Its tokens, counted or estimated."""
        return estimated_tokens(self.full) if self.tokens is None else self.tokens


class Tokens(NamedTuple):
    """What somebody counted of a set. Absent: added up from its messages (total, summary), or not known (overhead)."""

    total: int | None = None
    overhead: int | None = None
    summary: int | None = None


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
    token_budget: int | None = None
