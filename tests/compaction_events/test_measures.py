"""Anchors, spans, quotes, tokens and cosine, each against figures worked out by hand."""

from __future__ import annotations

import math
import re
import sys
import time
from collections import Counter
from importlib import metadata

import pytest

from compaction_events.measures import Quotes, Relevance, Spans, anchors, estimated_tokens, scorer_name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("keep `max depth` here", ["max depth"], id="in backticks"),
        pytest.param('say "no entry" twice', ["no entry"], id="quoted"),
        pytest.param("see src/app.py.", ["src/app.py"], id="a path, without the full stop"),
        pytest.param("/etc/hosts and ~/x/y", ["etc/hosts", "x/y"], id="paths from a root"),
        pytest.param("max_depth maxDepth MaxDepth", ["max_depth", "maxdepth", "maxdepth"], id="identifiers"),
        pytest.param("port 8417, 7 times", ["8417"], id="a number of two digits or more"),
        pytest.param("4.15 v2.1.29 CR-207 02:30", ["4.15", "v2.1.29", "cr-207", "02:30"], id="joined"),
        pytest.param("Plain words, Capitals too. _ - / ...", [], id="plain words are none"),
        pytest.param("x" * 300 + "_y", [], id="a blob is none"),
    ],
)
def test_anchors(text: str, expected: list[str]) -> None:
    assert list(anchors(text)) == expected


@pytest.mark.parametrize("unit", ["a", "/", "a/", "`", '"', "a.", "A", "_", "`a\n", '"a'])
def test_anchors_take_time_linear_in_the_text(unit: str) -> None:
    """A pattern that backtracks would take minutes for one minified file."""
    started = time.perf_counter()
    for _ in anchors(unit * 300_000):
        pass
    assert time.perf_counter() - started < 10


def test_a_span_stands_with_two_rare_anchors() -> None:
    spans = Spans()
    for text in ("a_1 b_1 common_x", "a_2 b_2 common_x", "a_3 common_x", "a_4 b_4 common_x"):
        spans.add(spans.open(), anchors(text))
    assert [
        spans.standing(map(anchors, texts))
        for texts in (
            ["a_1 b_1"],
            ["a_1", "b_1"],  # in the set, wherever in it
            ["a_1 a_1"],  # one anchor, twice
            ["a_1 common_x"],  # common_x is in four spans: it tells nothing
            ["a_2 b_2 a_3 A_4 B_4"],
            [],
        )
    ] == [{0}, {0}, set(), set(), {1, 3}, set()]


def test_an_anchor_is_rare_in_up_to_three_spans() -> None:
    spans = Spans()
    for _ in range(3):
        spans.add(spans.open(), ["shared_a", "shared_b"])
    assert spans.standing([["shared_a", "shared_b"]]) == {0, 1, 2}
    spans.add(spans.open(), ["shared_a"])
    assert spans.standing([["shared_a", "shared_b"]]) == set()
    # It does not become rare again.
    spans.add(spans.open(), ["shared_a"])
    assert spans.standing([["shared_a", "shared_b"]]) == set()


def test_quotes_by_stretch() -> None:
    quotes = Quotes()
    for text in ("Keep the port!", "ok", "???", "Never, ever round heights to fewer than two decimals"):
        quotes.typed(text)
    first = quotes.passed("User: keep the PORT. never ever round heights to fe...")
    quotes.typed("Use metric units")
    assert (first, quotes.passed("keep the port"), quotes.passed("use metric units")) == (
        ((2, 2),),
        ((1, 2), (0, 1)),
        ((0, 2), (1, 1), (0, 0)),
    )


def test_tokens_are_estimated_from_bytes() -> None:
    assert [estimated_tokens(text) for text in ("", "a", "abcd", "abcde", "潮汐", "\ud800")] == [0, 1, 1, 2, 2, 1]


def by_hand(query: str, before: list[str], texts: list[str]) -> float:
    """TF-IDF with smooth idf and L2 norm, as the textbook has it."""

    def terms(text: str) -> Counter[str]:
        return Counter(re.findall(r"\b\w\w+\b", text.lower()))

    df = Counter(term for text in before for term in set(terms(text)))

    def vector(text: str) -> dict[str, float]:
        raw = {term: n * (math.log((1 + len(before)) / (1 + df[term])) + 1) for term, n in terms(text).items()}
        norm = math.sqrt(sum(weight**2 for weight in raw.values()))
        return {term: weight / norm for term, weight in raw.items()}

    wanted = vector(query)
    return sum(sum(weight * wanted.get(term, 0) for term, weight in vector(text).items()) for text in texts) / len(texts)


def test_cosine_is_the_mean_over_the_items() -> None:
    query = "tide tables for the harbour"
    before = ["tide tables for the harbour", "reading the tables of the harbour", "a gauge that drifts"]
    after = ["tide tables, and a gauge", "tests"]
    relevance = Relevance(query)
    # The weights stay those of the set before the pass: only so can the two be compared.
    assert [relevance.before(named(before)), relevance.after(named(after))] == pytest.approx(
        [by_hand(query, before, before), by_hand(query, before, after)], abs=1e-6
    )


def named(texts: list[str]) -> dict[str, str]:
    """Each text under a name of its own: the same text, the same name."""
    return {f"id of {text}": text for text in texts}


def test_what_stays_is_not_counted_again_and_counts_the_same() -> None:
    query = "tide tables for the harbour"
    first, stays, last = "tide tables", "the harbour at night", "a gauge that drifts"
    relevance = Relevance(query)
    relevance.before(named([first, stays]))
    relevance.after(named([stays]))
    assert relevance.before(named([last, stays])) == pytest.approx(by_hand(query, [last, stays], [last, stays]), abs=1e-6)


def test_cosine_of_nothing_is_unknown() -> None:
    relevance = Relevance("query")
    assert (relevance.after({"a": "text"}), relevance.before({}), relevance.before({"a": "other"}), relevance.after({})) == (
        None,
        None,
        0.0,
        None,
    )


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    monkeypatch.setattr("compaction_events.measures.version", missing)
    with pytest.raises(ImportError, match=re.escape("pip install 'compaction-monitor[adapters]'")):
        Relevance("query")
    with pytest.raises(ImportError, match=re.escape("pip install 'compaction-monitor[adapters]'")):
        scorer_name()
