"""The working set of the example agent: raw spans, summaries of them, a scorer, and a pass that keeps what scores best."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

TURNS_A_PASS = 4
SPAN_TOKENS = 250
FIRST_SPANS = 40
EVICTED = 0.5  # of the raw spans, in each pass
SUMMARY_SIZE = 0.8  # of what it covers
POINTERS = 16  # sources that a summary still names


class Span(NamedTuple):
    """Something said. `cosine`: to the task."""

    span_id: str
    cosine: float


class Summary(NamedTuple):
    """Stands for spans that left the set; `leaves`: those it still names."""

    summary_id: str
    depth: int
    tokens: int
    cosine: float
    leaves: tuple[Span, ...]


class WorkingSet:
    """What the agent has in its context. Everything ever said stays in its log, so a span that is named can be fetched."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._said = self._written = 0
        self.raw: list[Span] = []
        self.summaries: list[Summary] = []
        self.work(FIRST_SPANS)

    def work(self, turns: int = TURNS_A_PASS) -> None:
        """The agent goes on; each turn says something."""
        for _ in range(turns):
            self._said += 1
            self.raw.append(Span(f"span-{self._said:04}", round(self._chance.uniform(0.2, 0.6), 4)))

    def compact(self, max_depth: int) -> None:
        """Evict the least salient raw spans into one summary, and that with the summaries there are into a deeper one."""
        self.raw.sort(key=lambda span: -span.cosine)
        keep = len(self.raw) - int(EVICTED * len(self.raw))
        evicted, self.raw = self.raw[keep:], self.raw[:keep]
        leaves = [*(leaf for summary in self.summaries for leaf in summary.leaves), *evicted]
        depth = min(max_depth, 1 + max((summary.depth for summary in self.summaries), default=0))
        covered = sum(summary.tokens for summary in self.summaries) + SPAN_TOKENS * len(evicted)
        self._written += 1
        self.summaries = [
            Summary(
                f"summary-{self._written}",
                depth,
                round(SUMMARY_SIZE * covered),
                round(min(0.9, 0.6 + 0.05 * self._written), 4),  # denser each time, so the scorer likes it better
                tuple(sorted(leaves, key=lambda span: -span.cosine)[:POINTERS]),
            )
        ]

    def expand(self, summary_id: str) -> None:
        """Fetch the spans that a summary names, and drop it."""
        for summary in [summary for summary in self.summaries if summary.summary_id == summary_id]:
            self.summaries.remove(summary)
            self.raw += [leaf for leaf in summary.leaves if leaf not in self.raw]

    def composition(self) -> dict[str, Any]:
        """What the set is made of, as a round reports it."""
        cosines = [span.cosine for span in self.raw] + [summary.cosine for summary in self.summaries]
        named = {leaf.span_id for summary in self.summaries for leaf in summary.leaves}
        return {
            "raw_tokens": SPAN_TOKENS * len(self.raw),
            "summary_tokens": sum(summary.tokens for summary in self.summaries),
            "distinct_source_spans": len(named | {span.span_id for span in self.raw}),
            "query_cosine_retained": round(sum(cosines) / len(cosines), 4),
            "summary_depth_max": max((summary.depth for summary in self.summaries), default=0),
        }

    def measured(self) -> dict[str, Any]:
        """The same, and the inventory of summaries."""
        items = [
            {
                "summary_id": summary.summary_id,
                "depth": summary.depth,
                "tokens": summary.tokens,
                "leaf_spans": len(summary.leaves),
                "expanded_tokens": SPAN_TOKENS * len(summary.leaves),
            }
            for summary in self.summaries
        ]
        return {**self.composition(), "summaries": items, "spans_method": "pointer"}

    def __str__(self) -> str:
        found = self.composition()
        ratio = found["raw_tokens"] / (found["raw_tokens"] + found["summary_tokens"])
        spans, cosine = found["distinct_source_spans"], found["query_cosine_retained"]
        return f"raw_ratio {ratio:.2f}, {spans} spans, cosine {cosine:.2f}, depth {found['summary_depth_max']}"
