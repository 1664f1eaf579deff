"""The round checks beside the reference: the same conditions, in its order, but for the deviations.

Whole sessions are folded, and after each round the conditions of the three checks that the reference has are asked,
before any alert is opened. `expected` is a model of both sides: without a deviation it must be the reference, with
all of them it must be ours, so that every difference has the name of the deviation that makes it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction_events.builders import completed, started
from compaction_events.facts import RoundCompleted, SessionStarted
from compaction_monitor.checks.rounds import CHECKS
from compaction_monitor.fold import fold
from compaction_monitor.rules import AgentRules, Rules, Thresholds
from compaction_monitor.state.session import Session
from tests.oracle import RoundState, reference_round

GENERATED = 102_000
IN_REFERENCE = {"salience_inversion": "inversion", "provenance_floor": "floor", "depth_pinned": "pinned"}
LIMITS = Thresholds()
# State is folded as ever; the conditions are asked here, not in `episodes`.
CONDITIONS_ONLY = Rules(default=AgentRules(off=frozenset(CHECKS)))


class Told(NamedTuple):
    """What a session says of itself."""

    source_spans: int = 100
    max_depth: int | None = 3
    topology: str | None = "tree"
    scorer: str | None = None
    depth_penalty: float | None = None
    eviction: str | None = None

    @property
    def start(self) -> SessionStarted:
        scorer = {"name": self.scorer or "cosine", "depth_penalty": self.depth_penalty}
        return started(
            source_spans=self.source_spans,
            max_depth=self.max_depth,
            topology=self.topology,
            scorer=scorer,
            eviction=self.eviction,
        )


class Ground(NamedTuple):
    """What a comparison looks at before: spans, and the cosine in hundredths."""

    spans: int
    cosine: int


class Pass(NamedTuple):
    """A round: raw tokens out of `total`; `before`: what the agent says of the set before this pass."""

    raw: int
    spans: int
    cosine: int
    depth: int
    total: int = 100
    before: Ground | None = None
    inferred: bool = False
    rehydration: bool = False

    def event(self, number: int) -> RoundCompleted:
        before = self.before and {
            "raw_tokens": self.total,
            "summary_tokens": 0,
            "distinct_source_spans": self.before.spans,
            "query_cosine_retained": self.before.cosine / 100,
        }
        return completed(
            number,
            before=before,
            raw_tokens=self.raw,
            summary_tokens=self.total - self.raw,
            distinct_source_spans=self.spans,
            query_cosine_retained=self.cosine / 100,
            summary_depth_max=self.depth,
            cause="rehydration" if self.rehydration else "compaction",
            basis="inferred" if self.inferred else "measured",
        )


class Moment(NamedTuple):
    """One round of a session with what came before it; both counts are of rounds at the deepest level, in a row."""

    told: Told
    last: Pass | None
    now: Pass
    at_deepest: int
    compactions_at_deepest: int


# In the order of the README's Decisions; a difference belongs to the first that makes it.
DEVIATIONS = ("D9", "D6", "D7", "D5", "D8", "D4")


def expected(moment: Moment, on: Sequence[str]) -> str | None:
    """What is said of a round with these deviations on, told from the rules."""
    told, now = moment.told, moment.now
    if now.depth < 2 or ("D6" in on and now.rehydration):
        return None
    levels = told.topology if "D7" in on and told.topology in ("chain", "flat") else ""
    if not levels and _inverts(moment, on):
        return "inversion"
    if _ground_lost(told, now, levels):
        return "floor"
    count = moment.compactions_at_deepest if "D6" in on else moment.at_deepest
    return "pinned" if not levels and count > 5 and now.depth >= (3 if "D4" in on else 2) else None


def _inverts(moment: Moment, on: Sequence[str]) -> bool:
    told, last, now, *_ = moment
    closed = bool(told.depth_penalty) or told.eviction == "overflow" or told.scorer == "none"
    if ("D5" in on and closed) or 4 * now.raw >= max(1, now.total):
        return False
    if "D9" in on and last is None:
        return False
    before = last if "D9" in on else now.before or last
    if before is None:
        return False
    fall, rise = before.spans - now.spans, now.cosine - before.cosine
    if "D8" in on and (now.inferred or (last is not None and last.inferred)):
        return 20 * fall > before.spans and rise > 2
    return fall > 0 and rise > 0


def _ground_lost(told: Told, now: Pass, levels: str) -> bool:
    if levels == "flat":
        return False
    if levels == "chain":
        return now.before is not None and 5 * now.spans < now.before.spans
    return now.spans < max(1, told.source_spans // 5)


def difference(moment: Moment) -> str | None:
    """The deviation at which the answer leaves the reference's for good; None: it does not."""
    reference, culprit = expected(moment, ()), None
    left = False
    for count, deviation in enumerate(DEVIATIONS, 1):
        differs = expected(moment, DEVIATIONS[:count]) != reference
        culprit = deviation if differs and not left else culprit if differs else None
        left = differs
    return culprit


def theirs(moment: Moment) -> str | None:
    """The reference's answer: its previous state is the one before the pass, else the last; on a first round itself."""
    told, last, now, count, _ = moment
    before = now.before or last or now
    prev = RoundState(now.raw, now.total - now.raw, before.spans, before.cosine, now.depth)
    curr = RoundState(now.raw, now.total - now.raw, now.spans, now.cosine, now.depth, count)
    return reference_round(prev, curr, told.source_spans)


def ours(session: Session, event: RoundCompleted) -> str | None:
    """The first of the three conditions that holds; a rehydration opens nothing."""
    if event.cause != "compaction":
        return None
    held = (word for check, word in IN_REFERENCE.items() if CHECKS[check](session, event, LIMITS).holds)
    return next(held, None)


def walk(told: Told, passes: Sequence[Pass]) -> Iterator[tuple[Moment, str | None]]:
    """Every round of a session with our answer to it."""
    session = fold(None, told.start, "start", CONDITIONS_ONLY).session
    last, deepest, counts = None, 0, (0, 0)
    for number, now in enumerate(passes):
        event = now.event(number)
        session = fold(session, event, f"round-{number}", CONDITIONS_ONLY).session
        assert session is not None
        counts, deepest = _count(told, now, deepest, counts)
        yield Moment(told, last, now, *counts), ours(session, event)
        last = now


def _count(told: Told, now: Pass, deepest: int, counts: tuple[int, int]) -> tuple[tuple[int, int], int]:
    """Rounds in a row at the maximum depth (else at the deepest level seen): all of them, and compactions only."""
    if told.max_depth is None and now.depth > deepest:
        counts = (0, 0)
    deepest = max(deepest, now.depth)
    if now.depth < (deepest if told.max_depth is None else told.max_depth):
        return (0, 0), deepest
    return (counts[0] + 1, counts[1] + (not now.rehydration)), deepest


# --- every deviation changes a result --------------------------------------------------------------------------------

CALM = Pass(raw=60, spans=50, cosine=40, depth=3)
LOW = Pass(raw=20, spans=50, cosine=40, depth=3)
INVERTED = Pass(raw=20, spans=40, cosine=45, depth=3)

SHOWN: list[tuple[str, str, Told, list[Pass], str | None, str | None]] = [
    ("D4", "pinned at depth 2 of 2: to cap at 2 would mean nothing", Told(max_depth=2), [CALM._replace(depth=2)] * 6,
     None, "pinned"),
    ("D5", "a scorer that penalises depth does not drift towards summaries", Told(depth_penalty=0.2), [LOW, INVERTED],
     None, "inversion"),
    ("D5", "eviction only at overflow", Told(eviction="overflow"), [LOW, INVERTED], None, "inversion"),
    ("D5", "nothing is scored at all", Told(scorer="none"), [LOW, INVERTED], None, "inversion"),
    ("D6", "a rehydration raises nothing, even one that helped too little", Told(),
     [LOW, INVERTED._replace(rehydration=True)], None, "inversion"),
    ("D6", "nor does it make a hierarchy more pinned", Told(), [CALM, CALM._replace(rehydration=True), *[CALM] * 4],
     None, "pinned"),
    ("D7", "a chain rewrites one summary: its depth is a generation, its cosine moves with it", Told(topology="chain"),
     [LOW, INVERTED], None, "inversion"),
    ("D7", "a chain answers for what stood before the pass: 3 of 17, whatever the session began with",
     Told(topology="chain", source_spans=10), [LOW, INVERTED._replace(spans=3, before=Ground(17, 40))], "floor", "inversion"),
    ("D7", "a sliding window has no levels", Told(topology="flat"), [LOW, INVERTED], None, "inversion"),
    ("D8", "an inferred fall of 2 in 50 is within the margin of 5 %", Told(),
     [LOW, INVERTED._replace(spans=48, inferred=True)], None, "inversion"),
    ("D8", "an inferred rise of 0.02 equals the margin", Told(), [LOW, INVERTED._replace(cosine=42, inferred=True)],
     None, "inversion"),
    ("D8", "a measured round after an inferred one is compared with an estimate", Told(),
     [LOW._replace(inferred=True), INVERTED._replace(spans=49)], None, "inversion"),
    ("D9", "evicting the least salient always raises the mean within the pass; against the last round it fell", Told(),
     [LOW, INVERTED._replace(cosine=39, before=Ground(60, 35))], None, "inversion"),
    ("D9", "on the first known round there is nothing to compare with", Told(),
     [INVERTED._replace(before=Ground(60, 35))], None, "inversion"),
    ("D9", "the last state shows what the pass alone does not: new spans came in and were evicted again", Told(),
     [LOW, INVERTED._replace(before=Ground(39, 35))], "inversion", None),
]  # fmt: skip


class TestEachDeviation:
    @pytest.mark.parametrize(("d", "why", "told", "passes", "we", "they"), SHOWN, ids=[f"{d}: {why}" for d, why, *_ in SHOWN])
    def test_changes_a_result(self, d: str, why: str, told: Told, passes: list[Pass], we: str | None, they: str | None) -> None:
        *_, (moment, answer) = walk(told, passes)
        assert (answer, theirs(moment), difference(moment)) == (we, they, d)

    def test_every_one_is_shown(self) -> None:
        assert {d for d, *_ in SHOWN} == set(DEVIATIONS)


# --- many sessions ---------------------------------------------------------------------------------------------------


def sessions(rng: random.Random, rounds: int) -> Iterator[tuple[Told, list[Pass]]]:
    """Random walks close to every boundary, until so many rounds are drawn."""
    while rounds > 0:
        told, length = _told(rng), rng.randrange(4, 16)
        yield told, list(_passes(rng, told, length))
        rounds -= length


def _told(rng: random.Random) -> Told:
    return Told(
        source_spans=rng.choice((0, 4, 5, 99, 100, 100, 104, 105)),
        max_depth=rng.choice((2, 3, 3, 3, 4, None)),
        topology=rng.choice(("tree",) * 8 + (None, "chain", "chain", "flat")),
        scorer=rng.choice((None,) * 11 + ("none",)),
        depth_penalty=rng.choice((None, None, None, 0.0, 0.0, 0.0, 0.0, 0.2)),
        eviction=rng.choice((None, "continuous", "continuous", "continuous", "overflow")),
    )


def _passes(rng: random.Random, told: Told, length: int) -> Iterator[Pass]:
    spans, cosine = rng.randrange(18, 44), 40
    deep = told.max_depth or rng.choice((2, 3))
    inferring = rng.random() < 0.2
    for _ in range(length):
        spans, cosine = max(0, spans + rng.choice((-3, -2, -1, -1, 0, 1, 2))), cosine + rng.choice((-1, 0, 1, 2, 3))
        total = rng.choice((0, 100, 100, 100, 100, 100, 100, 100))
        before = Ground(spans + rng.choice((-1, 0, 1, 5, 4 * spans, 4 * spans + 1)), cosine + rng.choice((-2, -1, 0, 1)))
        yield Pass(
            raw=min(total, rng.choice((10, 24, 25, 26, 60))),
            spans=spans,
            cosine=cosine,
            depth=rng.choice((deep,) * 12 + (1, 2, 3, 4)),
            total=total,
            before=before._replace(spans=max(0, before.spans)) if rng.random() < 0.3 else None,
            inferred=inferring and rng.random() < 0.7,
            rehydration=rng.random() < 0.08,
        )


def compare(told: Told, passes: Sequence[Pass]) -> Iterator[str]:
    """The name of each round's difference, or `same`; fails on one that no deviation explains."""
    for moment, answer in walk(told, passes):
        reference = theirs(moment)
        assert reference == expected(moment, ()), moment
        assert answer == expected(moment, DEVIATIONS), (moment, answer, reference)
        yield difference(moment) or "same"


class TestReference:
    def test_generated(self) -> None:
        counted = Counter[str]()
        answers = Counter[str | None]()
        for told, passes in sessions(random.Random(9), GENERATED):
            counted.update(compare(told, passes))
        print(f"{counted.total()} rounds: {dict(sorted(counted.items()))}")  # noqa: T201 - the count is what this run shows
        assert counted.total() >= 100_000
        assert set(counted) == {*DEVIATIONS, "same"}
        assert min(counted.values()) >= 200
        for told, passes in sessions(random.Random(10), 5_000):
            answers.update(answer for _, answer in walk(told, passes))
        assert min(answers[word] for word in (None, *IN_REFERENCE.values())) >= 100, "every answer is met"

    @settings(max_examples=150, deadline=None)
    @given(
        told=st.builds(
            Told,
            st.integers(0, 60),
            st.none() | st.integers(1, 4),
            st.sampled_from(["tree", "chain", "flat", None]),
            st.sampled_from([None, "none"]),
            st.sampled_from([None, 0.0, 0.2]),
            st.sampled_from([None, "continuous", "overflow"]),
        ),
        passes=st.lists(
            st.builds(
                Pass,
                st.integers(0, 100),
                st.integers(0, 60),
                st.integers(0, 60),
                st.integers(0, 4),
                st.just(100),
                st.none() | st.builds(Ground, st.integers(0, 60), st.integers(0, 60)),
                st.booleans(),
                st.booleans(),
            ),
            max_size=12,
        ),
    )
    def test_any_session(self, told: Told, passes: list[Pass]) -> None:
        for _ in compare(told, passes):
            pass
