"""What must not get lost: the sentences of a user's messages that constrain, named by what survives paraphrase.

A sentence constrains if one of a closed list of words says so ("never", "at most", "must"). Its id is the hash of its
sorted anchors (numbers, identifiers, paths, quoted strings), never of its wording, so the same rule in other words is
the same proposition. A sentence without an anchor is none: it could not be found again. Nothing here keeps a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from compaction_events.facts import MAX_PROPOSITIONS
from compaction_events.ids import text_hash
from compaction_events.measures import anchors

# A message this long is a pasted file; its sentences are not the user's.
MAX_CHARS: Final = 20_000
MAX_SENTENCE_CHARS: Final = 1_000
# A line, or a sentence within one: an end mark and a space. "conf/app.toml" and "v2.1" have no space behind the mark.
_END: Final = re.compile(r"\n+|(?<=[.!?;])\s+")
_RULE: Final = re.compile(
    r"\b(?:never|always|must|mustn't|forbidden|prohibited|mandatory|required|under no circumstances|no matter what)\b",
    re.IGNORECASE,
)
_CONSTRAINT: Final = re.compile(
    r"\b(?:only|do not|don't|cannot|can't|should|shouldn't|needs? to|has to|have to|at (?:most|least)|"
    r"no (?:more|less|fewer) than|without|avoid|keep|except|exactly|ensure|make sure|limit(?:ed)?|not allowed|"
    r"instead of|prefer|require[sd]?|max(?:imum)?|min(?:imum)?|until|unless)\b",
    re.IGNORECASE,
)
_DIGIT: Final = re.compile(r"(?<![\w.])\d(?![\w.]*\w)")


class Proposition(NamedTuple):
    """One sentence that constrains. `anchors`: what names it; `pinned`: it is stated as a rule."""

    id: str
    anchors: frozenset[str]
    pinned: bool


def propositions(text: str) -> Iterator[Proposition]:
    """The propositions of one message, in order; one that is said twice comes twice.

    >>> [(found.id, found.pinned) for found in propositions("Never write to conf/app.toml. Thanks!")]
    [('9de0a5e52329d10b', True)]
    >>> list(propositions("Always be careful."))
    []
    """
    if len(text) > MAX_CHARS:
        return
    for sentence in _END.split(text):
        if len(sentence) > MAX_SENTENCE_CHARS:
            continue
        pinned = _RULE.search(sentence) is not None
        if not pinned and _CONSTRAINT.search(sentence) is None:
            continue
        found = frozenset(anchors(sentence))
        if found:
            # One digit alone is everywhere; beside another anchor it tells two limits apart.
            yield Proposition(name(found | frozenset(_DIGIT.findall(sentence))), found, pinned)


def name(found: frozenset[str]) -> str:
    """The id of a set of anchors."""
    return text_hash("\n".join(sorted(found)))


class Tracked:
    """The tracked set of a session, at most 1,000: which propositions were stated, and which a text still states.

    A text states a proposition if it has all its anchors.
    """

    def __init__(self) -> None:
        self._anchors: dict[str, frozenset[str]] = {}
        # The rarest way in: a proposition is looked at only where the first of its sorted anchors is found.
        self._by_first: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._anchors)

    def state(self, text: str) -> list[Proposition]:
        """Take in one of the user's messages; returns what is new in it."""
        new: list[Proposition] = []
        for found in propositions(text):
            if found.id not in self._anchors and len(self._anchors) < MAX_PROPOSITIONS:
                self._anchors[found.id] = found.anchors
                self._by_first.setdefault(min(found.anchors), []).append(found.id)
                new.append(found)
        return new

    def stated_by(self, texts: Iterable[frozenset[str]]) -> tuple[str, ...]:
        """The propositions that at least one of these texts states, in the order in which they were tracked.

        Args:
            texts: The anchors of each text.
        """
        found = {
            proposition
            for text in texts
            for first in text & self._by_first.keys()
            for proposition in self._by_first[first]
            if self._anchors[proposition] <= text
        }
        return tuple(proposition for proposition in self._anchors if proposition in found)
