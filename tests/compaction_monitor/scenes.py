"""What the tests of whole sessions share: rounds in one line, findings in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from compaction_events.builders import completed
from compaction_events.facts import Fact, RoundCompleted
from compaction_events.findings import AlertRaised, AlertResolved, Finding, RemediationRequested
from compaction_monitor.harness import Offline, Published


class Event(NamedTuple):
    """A fact, everything that is to be published for it, and why."""

    why: str
    fact: Fact
    says: Sequence[str] = ()


def said(finding: Finding) -> str:
    """One finding in one line: what, how bad, which publication of it, about whom."""
    match finding:
        case AlertRaised():
            words = ["raised", finding.name, finding.severity, f"#{finding.attempt}", *finding.subjects]
        case AlertResolved():
            words = ["resolved", finding.name, finding.severity, str(finding.resolved_because)]
        case RemediationRequested():
            about = "" if finding.action == "resume" else finding.subject  # which halt: an id, not a word
            words = ["order", finding.action, "for", finding.reason.check, f"#{finding.attempt}", about]
        case _:
            words = ["withdrawn", finding.action, finding.because]
    return " ".join(filter(None, words))


def lines(published: Iterable[Published]) -> list[str]:
    return [said(found.finding) for found in published]


def play(events: Sequence[Event], monitor: Offline | None = None) -> Offline:
    """Feed the facts one by one; all that is published must be what the events say, no more and no less."""
    monitor = monitor or Offline()
    told = [(event.why, lines(monitor.feed([event.fact]))) for event in events]
    assert told == [(event.why, list(event.says)) for event in events]
    assert monitor.dead_letters == []
    ids = [found.ce_id for found in monitor.published]
    assert len(set(ids)) == len(ids), "a ce_id names one publication"
    return monitor


def tree_round(
    number: int, raw: int, spans: int | None, cosine: float | None = None, depth: int | None = 2, **more: Any
) -> RoundCompleted:
    """A round of a working set of 1,000 tokens, `raw` of them raw."""
    ground = {"distinct_source_spans": spans, "query_cosine_retained": cosine, "summary_depth_max": depth}
    told: dict[str, Any] = {"raw_tokens": raw, "summary_tokens": 1_000 - raw, **ground, **more}
    return completed(number, **told)


def chain_pass(number: int, before: int, after: int, **more: Any) -> RoundCompleted:
    """A pass of a chain, by the spans that stand before and after it; its depth is its generation."""
    stood = {"raw_tokens": 800, "summary_tokens": 200, "distinct_source_spans": before}
    return tree_round(number, 300, after, None, number, before=stood, topology="chain", **more)


def with_summaries(number: int, leaves: dict[str, int], **more: Any) -> RoundCompleted:
    """A round with its inventory: how many leaves each retained summary still reaches."""
    items = [
        {"summary_id": name, "depth": 1, "tokens": 10, "leaf_spans": count, "expanded_tokens": 10 * count}
        for name, count in leaves.items()
    ]
    return tree_round(number, 600, None, None, 1, summaries=items, spans_method="pointer", **more)
