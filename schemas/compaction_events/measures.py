"""What no agent stores and every adapter must work out from text: tokens, anchors, spans that still stand, quotes, cosine.

All of it is offline and deterministic. Text comes in and numbers go out: nothing here keeps a message, only its anchors
(names, paths, numbers, quoted strings), and of a typed message its first 30 characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

RARE_SPANS = 3
STANDING_ANCHORS = 2
QUOTE_CHARS = 30
QUOTE_MIN_CHARS = 10
# Longer runs without a space are blobs (base64, minified code): no summary repeats them.
_MAX_ANCHOR_CHARS = 200
_COSINE_DIGITS = 6
_MISSING = "measuring what agents wrote needs the extra: pip install 'compaction-monitor[adapters]'"
# Each alternative is bounded or takes a run that starts only where none is under way: linear in the text.
_CANDIDATE = re.compile(r"`([^`\n]{2,80})`|\"([^\"\n]{3,60})\"|([\w@~./][\w@~./:+-]*)")
_NUMBER = re.compile(r"\d{2,}")
_JOINED = re.compile(r"\w[._/:-]+\w")
_CAMEL = re.compile(r"[a-z0-9][A-Z]")
_OTHER = re.compile(r"[^a-z0-9]+")


def estimated_tokens(text: str) -> int:
    """Tokens of a text nobody counted: its UTF-8 bytes / 4, rounded up.

    Bytes, not characters: scripts beyond ASCII take more tokens a character, and more bytes.

    >>> estimated_tokens("eight ch")
    2
    """
    return (len(text.encode("utf-8", "replace")) + 3) // 4


def anchors(text: str) -> Iterator[str]:
    """What survives paraphrase, lower-cased: quoted strings, paths, names with an inner joint or capital, numbers.

    >>> sorted(set(anchors("keep `max depth` at 12 in src/app.py, see parseHeader, please.")))
    ['12', 'max depth', 'parseheader', 'src/app.py']
    """
    for ticked, quoted, run in _CANDIDATE.findall(text):
        if ticked or quoted:
            yield (ticked or quoted).strip().lower()
            continue
        word = run.strip("./:+-~")
        if len(word) > _MAX_ANCHOR_CHARS:
            continue
        if _NUMBER.fullmatch(word) or _JOINED.search(word) or "_" in word.strip("_") or _CAMEL.search(word):
            yield word.lower()


class Spans:
    """Which source spans still stand in a working set, judged by their rare anchors.

    A span is one message typed by the user and all that follows until the next. It stands while at least two anchors
    that occur in at most three spans are found in the set.
    """

    def __init__(self) -> None:
        self.seen = 0
        # Anchor to the spans it occurs in; emptied once it is common, so that memory follows what can still tell.
        self._where: dict[str, tuple[int, ...]] = {}

    def open(self) -> int:
        """Begin the next span; returns its number, from 0."""
        self.seen += 1
        return self.seen - 1

    def add(self, span: int, found: Iterable[str]) -> None:
        """Give a span more of its anchors."""
        where = self._where
        for anchor in set(found):
            spans = where.get(anchor)
            if spans is None:
                where[anchor] = (span,)
            elif spans and span not in spans:
                where[anchor] = (*spans, span) if len(spans) < RARE_SPANS else ()

    def standing(self, texts: Iterable[Iterable[str]]) -> frozenset[int]:
        """The spans that stand in a set made of texts with these anchors."""
        found = {anchor for text in texts for anchor in text}
        hits = Counter(span for anchor in found for span in self._where.get(anchor, ()))
        return frozenset(span for span, count in hits.items() if count >= STANDING_ANCHORS)


def _plain(text: str) -> str:
    return _OTHER.sub(" ", text.lower()).strip()


class Quotes:
    """How many of the user's own messages a summary still quotes, by the pass before which they were typed.

    A message counts if its first 30 characters, lower-cased and with every run of other characters than a-z0-9 made one
    space, are at least 10; it is quoted if they occur in the summary treated the same way.
    """

    def __init__(self) -> None:
        self._groups: list[list[str]] = [[]]

    def typed(self, text: str) -> None:
        """One more message typed by the user since the last pass."""
        # Enough of the text for 30 characters that count, however many others are between them.
        head = _plain(text[: 100 * QUOTE_CHARS])[:QUOTE_CHARS]
        if len(head) >= QUOTE_MIN_CHARS:
            self._groups[-1].append(head)

    def passed(self, summary: str) -> tuple[tuple[int, int], ...]:
        """A pass ended. Returns (still quoted, typed) for each stretch between passes, oldest first."""
        plain = _plain(summary)
        counts = tuple((sum(head in plain for head in group), len(group)) for group in self._groups)
        self._groups.append([])
        return counts


def scorer_name() -> str:
    """What measures the cosine, with its version. Does not import it: that takes over a second.

    Raises:
        ImportError: scikit-learn is not installed (extra `[adapters]`).
    """
    try:
        return f"hashing-tfidf/scikit-learn-{version('scikit-learn')}"
    except PackageNotFoundError:
        raise ModuleNotFoundError(_MISSING, name="sklearn") from None


class Relevance:
    """Mean cosine of a working set to the session's query, by hashing TF-IDF.

    The document frequencies are those of the set before the pass, so the sets before and after one pass are measured
    alike; between passes the figure is only a rough guide.

    Raises:
        ImportError: scikit-learn is not installed (extra `[adapters]`).
    """

    def __init__(self, query: str) -> None:
        try:
            # Here and not above: it takes over a second, and the base install does not have it.
            from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
        except ImportError:
            raise ModuleNotFoundError(_MISSING, name="sklearn") from None
        self._counts: Any = HashingVectorizer(n_features=2**18, alternate_sign=False, norm=None)
        self._weights: Any = TfidfTransformer()
        self._query = query
        self._rows: Any = None
        self._names: list[str] = []

    def before(self, texts: Mapping[str, str]) -> float | None:
        """The set before a pass, by message id; sets the document frequencies."""
        if not texts:
            return None
        counts = self._counted(texts)
        self._weights.fit(counts)
        return self._mean(counts)

    def after(self, texts: Mapping[str, str]) -> float | None:
        """The set after it."""
        if not texts or not hasattr(self._weights, "idf_"):
            return None
        return self._mean(self._counted(texts))

    def _counted(self, texts: Mapping[str, str]) -> Any:
        """The terms of each text; those of a message that was in the last set are not counted again."""
        from scipy.sparse import vstack

        known = [place for place, name in enumerate(self._names) if name in texts]
        stay = [self._names[place] for place in known]
        new = [name for name in texts if name not in frozenset(stay)]
        parts = [self._rows[known]] if known else []
        if new:
            parts.append(self._counts.transform([texts[name] for name in new]))
        self._rows = parts[0] if len(parts) == 1 else vstack(parts, format="csr")
        self._names = [*stay, *new]
        return self._rows

    def _mean(self, counts: Any) -> float:
        query = self._weights.transform(self._counts.transform([self._query]))
        cosines = (self._weights.transform(counts) @ query.T).toarray()
        # Rounded, so that the last bit of another processor's sum does not make it another fact.
        return min(1.0, round(float(cosines.mean()), _COSINE_DIGITS))
