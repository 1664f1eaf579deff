"""The stream of an inverting run: what the agent reads, round by round, as spans with embeddings. Drawn once per seed.

The opening gather is what the agent has before its first pass; then every round brings the same number of spans.
A span is about one sub-topic. How relevant sub-topics are to the query differs, and spans scatter around their sub-topic.

Source: "What structural signals indicate that hierarchical context compaction has crossed the salience inversion
boundary", What Was Observed.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

QUERY_AXIS: Final = 0  # the query is the first axis of the space; any unit vector would do


@dataclass(frozen=True, slots=True)
class World:
    """What the agent works on. Every figure has its reason; those marked *fitted* were chosen on the fitting seeds.

    Attributes:
        token_budget, rounds: Observed.
        opening_spans: Observed at the start.
        opening_ratio: Raw share of the budget in round 1, observed.
        round_spans: *Fitted*: sets the pace. At 20 the onset comes two rounds later, and without decay hardly ever; at 40
            two rounds earlier.
        span_tokens: Mean of a later span: the observed 0.09 of the budget over the 37 spans observed with it.
        token_spread: Of the logarithm of a span's tokens: a paragraph beside a page. From 0.2 to 0.6 nothing moves but the
            onset without decay, by three rounds.
        topics: *Fitted*: with 8 a sub-topic gathers material so fast that deep summaries crowd raw out by round 8; with 24
            they do three rounds later.
        relevance, topic_spread, span_spread: Cosine of a span to the query: its mean gives the observed 0.41 of round 1
            (summaries are a little above it). *Fitted*: without a spread between sub-topics the recency decay does next
            to nothing, see the ablation; with spans that scatter by 0.15 the onset without decay comes after round 30.
        topic_share: *Fitted*: what spans of one sub-topic have in common beside the query. It does not average out, so
            it caps how relevant a summary can look; at 0.1 the cosine ends at 0.74.
        dimensions: 64 and 128 cannot be told apart.
    """

    token_budget: int = 180_000
    rounds: int = 40
    opening_spans: int = 214
    opening_ratio: float = 0.71
    round_spans: int = 30
    span_tokens: float = 438.0
    token_spread: float = 0.4
    topics: int = 16
    relevance: float = 0.385
    topic_spread: float = 0.14
    span_spread: float = 0.11
    topic_share: float = 0.275
    dimensions: int = 64


class Spans:
    """Every span of a run, in the order in which they arrive.

    Args:
        seed: The same seed gives the same spans, whatever the loop does with them.

    Attributes:
        embedding: Unit vectors, one a row.
        tokens, topic, arrival: Of each span; the round in which it arrives, from 1.
    """

    def __init__(self, world: World, seed: int) -> None:
        draw = np.random.default_rng([seed, 1])
        later = world.rounds - 1
        count = world.opening_spans + later * world.round_spans
        self.arrival: Ints = np.concatenate(
            [np.ones(world.opening_spans, np.int64), np.repeat(np.arange(2, world.rounds + 1), world.round_spans)]
        )
        self.topic: Ints = draw.integers(0, world.topics, count)
        self.embedding = _embeddings(world, self.topic, draw)
        self.tokens = _tokens(world, count, draw)

    def __len__(self) -> int:
        return len(self.tokens)


def _embeddings(world: World, topic: Ints, draw: np.random.Generator) -> Floats:
    """A part along the query, a part along the sub-topic, and the rest the span's own."""
    # The quantiles of the spread, not draws of it: no run may lack its relevant sub-topics by chance.
    quantiles = [NormalDist().inv_cdf((place + 0.5) / world.topics) for place in range(world.topics)]
    of_topic = world.relevance + world.topic_spread * draw.permutation(np.array(quantiles))
    along_query = np.clip(of_topic[topic] + world.span_spread * draw.standard_normal(len(topic)), -0.6, 0.9)
    topics = _beside_query(draw.standard_normal((world.topics, world.dimensions)))
    own = _beside_query(draw.standard_normal((len(topic), world.dimensions)))
    rest = np.sqrt(np.maximum(0.0, 1.0 - along_query**2 - world.topic_share**2))
    spans = world.topic_share * topics[topic] + rest[:, None] * own
    spans[:, QUERY_AXIS] = along_query
    return unit(spans)


def _tokens(world: World, count: int, draw: np.random.Generator) -> Ints:
    """Log-normal sizes; the opening comes to exactly its share of the budget, each round's arrivals to exactly theirs."""
    sizes = np.exp(world.token_spread * draw.standard_normal(count))
    opening, later = sizes[: world.opening_spans], sizes[world.opening_spans :].reshape(-1, world.round_spans)
    opening = opening / opening.sum() * world.opening_ratio * world.token_budget
    later = later / later.sum(axis=1, keepdims=True) * world.round_spans * world.span_tokens
    tokens: Ints = np.maximum(1, np.floor(np.concatenate([opening, later.ravel()]))).astype(np.int64)
    return tokens


def _beside_query(vectors: Floats) -> Floats:
    vectors[:, QUERY_AXIS] = 0.0
    return unit(vectors)


def unit(vectors: Floats) -> Floats:
    """Each row at length 1."""
    lengths: Floats = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    scaled: Floats = vectors / lengths[:, None]
    return scaled
