"""The inverting session under the monitor's eyes: what it says, by name, and what obeying it changes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from compaction_events.codec import decode, encode
from compaction_events.facts import AckStatus, Composition, Fact, RemediationAcknowledged, RoundCompleted
from compaction_events.findings import AlertRaised, AlertResolved
from compaction_monitor.harness import Offline
from compaction_monitor.simulate.inversion import NEVER, OBSERVED, VARIANTS, onset, run, runs_per_seed, signature, watched
from compaction_monitor.simulate.loop import Watched
from compaction_monitor.simulate.rehydration import ResearchController
from compaction_monitor.simulate.researcher import Researcher
from tests.oracle import RoundState, reference_round

SEED = 7


@pytest.fixture(scope="module")
def alone() -> Watched:
    return watched(SEED, loop=False)[1]


@pytest.fixture(scope="module")
def helped() -> Watched:
    return watched(SEED, loop=True)[1]


def rounds(facts: list[Fact]) -> list[RoundCompleted]:
    return [fact for fact in facts if isinstance(fact, RoundCompleted)]


def state(after: Composition) -> RoundState:
    assert after.distinct_source_spans is not None and after.query_cosine_retained is not None
    assert after.summary_depth_max is not None
    depth = after.summary_depth_max
    return RoundState(after.raw_tokens, after.summary_tokens, after.distinct_source_spans, after.query_cosine_retained, depth)


def test_every_event_keeps_to_the_contract(alone: Watched, helped: Watched) -> None:
    for watch in (alone, helped):
        for fact in watch.reported:
            encoded = encode(fact)
            assert decode(encoded.value, encoded.headers, encoded.key).event == fact
        monitor = Offline()
        monitor.feed(watch.reported, batch=64)
        assert not monitor.dead_letters
        assert not [key for key in monitor.counts if key[0] == "facts" and key[-1] in ("late", "duplicate", "gap")]


def test_it_inverts_and_the_monitor_says_so_in_that_round(alone: Watched) -> None:
    firsts = alone.firsts()
    assert set(firsts) == {"orphaned_summary", "inversion_risk", "salience_inversion", "depth_pinned"}
    named = {check: fact.round for check, fact in firsts.items() if isinstance(fact, RoundCompleted)}
    assert named["salience_inversion"] == onset(run(Researcher(SEED)))
    assert named["orphaned_summary"] < named["inversion_risk"] < named["salience_inversion"]
    assert 9 <= named["salience_inversion"] <= 15


def test_the_signature_is_the_references(alone: Watched) -> None:
    told = [fact.after for fact in rounds(alone.reported)]
    states = [state(after) for after in told]
    rows = run(Researcher(SEED))
    for (before, now), (row_before, row_now) in zip(pairwise(states), pairwise(rows), strict=True):
        assert (reference_round(before, now, 0) == "inversion") == signature(row_before, row_now)


def test_what_was_read_is_what_was_evicted(alone: Watched) -> None:
    assert all(fact.claimed_records == fact.read_records for fact in rounds(alone.reported))


def test_the_loop_keeps_the_ground(alone: Watched, helped: Watched) -> None:
    last = {name: rounds(watch.reported)[-1].after for name, watch in {"alone": alone, "helped": helped}.items()}
    assert (last["helped"].distinct_source_spans or 0) > 2 * (last["alone"].distinct_source_spans or 0)
    assert last["helped"].raw_tokens > 2 * last["alone"].raw_tokens
    resolved = [f for _, f in helped.heard if isinstance(f, AlertResolved) and f.name == "salience_inversion"]
    assert resolved and all(f.resolved_because == "recovered" for f in resolved)


def test_every_order_is_answered_and_a_halt_ends_with_a_resume(helped: Watched) -> None:
    answers = [fact for fact in helped.reported if isinstance(fact, RemediationAcknowledged)]
    orders = helped.orders()
    assert sum(answer.status is AckStatus.completed for answer in answers) == sum(orders.values())
    assert orders["halt_and_rehydrate"] == orders["resume"] >= 1
    assert orders["cap_depth"] >= 1
    assert "remediation_unacknowledged" not in helped.firsts()


def test_a_rehydration_reaches_its_target_within_the_budget(helped: Watched) -> None:
    raised = [cause for cause, f in helped.heard if isinstance(f, AlertRaised) and f.name == "salience_inversion"]
    after = rounds(helped.reported)
    for cause in raised:
        assert isinstance(cause, RoundCompleted)
        following = after[after.index(cause) + 1]
        total = following.after.raw_tokens + following.after.summary_tokens
        assert following.cause == "rehydration"
        assert following.after.raw_tokens >= 0.3 * total
        assert total <= 180_000


def test_an_order_it_cannot_obey_is_rejected() -> None:
    agent = Researcher(SEED)
    assert "rebalance" not in ResearchController(agent).handlers


def test_a_cap_with_reachability_leaves_nothing_without_ground(helped: Watched) -> None:
    capped = [f for _, f in helped.heard if getattr(getattr(f, "plan", None), "reachability", False)]
    assert capped
    assert all(item.leaf_spans for item in rounds(helped.reported)[-1].summaries or ())


@pytest.mark.parametrize(
    ("name", "inverts"),
    [("reachability, depth 2", False), ("depth 1", False), ("depth penalty 0.20", False), ("depth 2 alone", True)],
)
def test_what_stops_it_and_what_does_not(name: str, inverts: bool) -> None:
    assert (onset(run(Researcher(SEED, VARIANTS[name].how))) < NEVER) is inverts


def test_progress_is_told_for_every_run() -> None:
    assert runs_per_seed() == 2 + len({*VARIANTS.values()}) + 11
    assert VARIANTS["as observed"].how == OBSERVED
