"""The inverting agent: what its mechanics keep to, whatever comes out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from compaction_monitor.simulate.compaction import Compaction, rewrite, summarise
from compaction_monitor.simulate.inversion import NO_DECAY, OBSERVED, VARIANTS, run
from compaction_monitor.simulate.material import Spans, World
from compaction_monitor.simulate.memory import Memory
from compaction_monitor.simulate.researcher import Researcher

SEED = 7
BUDGET = World().token_budget


def memory_of(seed: int = SEED) -> Memory:
    return Memory(Spans(World(), seed), np.random.default_rng([seed, 2]), OBSERVED.wording_noise)


def test_a_seed_is_a_session() -> None:
    first, again, other = (run(Researcher(seed)) for seed in (SEED, SEED, SEED + 1))
    assert first == again
    assert first != other


def test_the_loop_does_not_change_what_arrives() -> None:
    decay, none = Researcher(SEED), Researcher(SEED, NO_DECAY)
    run(decay)
    run(none)
    spans = slice(0, decay.memory.span_count)
    assert np.array_equal(decay.memory.tokens[spans], none.memory.tokens[spans])
    assert np.array_equal(decay.memory.cosine[spans], none.memory.cosine[spans])


def test_round_one_is_everything_summarised_once() -> None:
    agent = Researcher(SEED)
    row = agent.step()
    assert (row.spans, row.depth, row.orphans) == (214, 1, 0)
    assert row.raw_ratio == pytest.approx(0.71, abs=0.005)
    assert agent.memory.sources(agent.memory.summaries).sum(axis=0)[:214].tolist() == [1] * 214


@pytest.mark.parametrize("name", ["as observed", "no recency decay", "reachability, depth 2", "depth penalty 0.20"])
def test_the_set_fills_its_budget_and_never_exceeds_it(name: str) -> None:
    rows = run(Researcher(SEED, VARIANTS[name].how))
    assert all(0.96 * BUDGET <= row.tokens <= BUDGET for row in rows)


def test_spans_are_reachable_only_while_their_text_is_in_the_set() -> None:
    agent = Researcher(SEED)
    while not agent.done:
        row = agent.step()
        memory = agent.memory
        kept = set(memory.spans.tolist())
        assert row.spans == len(kept)
        for item, leaves in zip(memory.summaries, memory.leaves(memory.summaries), strict=True):
            sources = np.flatnonzero(memory.sources(np.array([item]))[0])
            assert leaves == len(kept & set(sources.tolist()))


def test_the_hierarchy_grows_by_one_level_a_round_at_most() -> None:
    depths = [row.depth for row in run(Researcher(SEED))]
    assert all(now - before <= 1 for before, now in pairwise(depths))
    assert max(depths) == 3


def test_the_newest_spans_stay() -> None:
    agent = Researcher(SEED)
    while not agent.done:
        agent.step()
        arrived = np.flatnonzero(agent._arrival <= agent.now)[-OBSERVED.tail_spans :]
        assert agent.memory.kept[arrived].all()


def test_a_rewrite_is_another_text_of_the_same_length() -> None:
    memory = memory_of()
    same = np.flatnonzero(memory.topic[: memory.span_count] == 0)
    memory.bring_in(same[:6], 1)
    old = memory.write([same[:3]], np.array([2]), np.array([900]), 1)
    new = memory.write([same[3:6]], np.array([1]), np.array([700]), 2)
    said, looked = memory.content[old[0]].copy(), float(memory.cosine[old[0]])
    rewrite(memory, new, old, 2)
    (again,) = [item for item in memory.summaries if item not in new]
    assert not memory.kept[old[0]]
    assert memory.written[again] == 2
    assert memory.tokens[again] == 900
    assert not np.allclose(memory.content[again], said)
    assert memory.cosine[again] != looked
    assert set(np.flatnonzero(memory.sources(np.array([again]))[0])) == set(same[:6])
    assert set(np.flatnonzero(memory.flags(memory.founding[[again]])[0])) == set(same[:3])


def test_summaries_are_of_one_sub_topic_and_of_a_few_spans() -> None:
    memory = memory_of()
    spans = np.arange(60)
    memory.bring_in(spans, 1)
    made = summarise(memory, spans, OBSERVED, 1)
    sources = memory.sources(made)
    assert sources[:, :60].sum(axis=0).tolist() == [1] * 60
    assert sources.sum(axis=1).max() <= OBSERVED.chunk
    for item, row in zip(made, sources, strict=True):
        assert {int(topic) for topic in memory.topic[: memory.span_count][row]} == {int(memory.topic[item])}


@pytest.mark.parametrize("depth", [2, 3])
def test_the_hard_invariant_holds_after_every_round(depth: int) -> None:
    agent = Researcher(SEED, replace(OBSERVED, grounded=True, max_depth=depth))
    while not agent.done:
        row = agent.step()
        assert row.orphans == row.cited_ungrounded == 0
        assert row.spans >= OBSERVED.span_floor
        assert (agent.memory.founding_leaves(agent.memory.summaries) > 0).all()


def test_without_the_invariant_no_token_is_pinned() -> None:
    assert not any(row.pinned_tokens for row in run(Researcher(SEED)))


def test_eviction_only_at_overflow_lets_rounds_pass() -> None:
    rows = run(Researcher(SEED, replace(OBSERVED, overflow_only=True)))
    assert 2 < sum(row.passed for row in rows) < 20
    assert all(row.tokens <= BUDGET for row in rows)


def test_salience_without_decay_does_not_know_the_round() -> None:
    agent = Researcher(SEED, Compaction(recency_weight=0.0))
    agent.step()
    agent.step()
    kept = agent.memory.items
    out = np.setdiff1d(np.arange(214), kept)
    assert agent.memory.cosine[out].max() < np.sort(agent.memory.cosine[kept])[OBSERVED.tail_spans]
