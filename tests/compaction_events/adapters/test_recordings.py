"""The figures of the recordings' README, one by one: real sessions, pseudonymised, read where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from compaction_events import adapters
from compaction_events.codec import ce_id, encode
from compaction_events.facts import Composition, Fact, RoundCompleted, SummaryKind, Trigger

RECORDINGS = Path(__file__).parents[4] / "shared" / "recordings" / "claude-code"
pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recordings are not beside this checkout")

Quoted = tuple[tuple[int, int], ...]


class Round(NamedTuple):
    """`before`, `after`: tokens; `read` of `claimed` records; `spans` after of before the pass."""

    trigger: Trigger
    before: int
    after: int
    read: int
    claimed: int
    quoted: Quoted
    spans: tuple[int, int]


BUDGET, MANUAL = Trigger.budget, Trigger.manual
EXPECTED = {
    "three-rounds.jsonl": [
        Round(BUDGET, 156_699, 66_549, 188, 229, ((14, 14),), (7, 14)),
        Round(BUDGET, 155_241, 60_458, 273, 286, ((0, 14), (9, 10)), (9, 18)),
        Round(BUDGET, 155_413, 59_943, 325, 353, ((0, 14), (0, 10), (16, 17)), (10, 26)),
    ],
    "three-rounds-in-four-files": [
        Round(BUDGET, 155_782, 68_294, 224, 252, ((4, 5),), (4, 5)),
        Round(BUDGET, 155_528, 46_162, 431, 463, ((0, 5), (16, 18)), (9, 23)),
        Round(BUDGET, 155_179, 52_843, 297, 303, ((0, 5), (0, 18), (5, 5)), (10, 14)),
    ],
    "broken-chain-empty-summary.jsonl": [
        Round(BUDGET, 167_979, 51_665, 224, 241, ((9, 10),), (8, 13)),
        Round(MANUAL, 149_025, 43_265, 14, 777, ((0, 10), (1, 11)), (0, 20)),
    ],
    "with-post-tokens.jsonl": [Round(MANUAL, 297_190, 16_970, 438, 449, ((7, 8),), (8, 8))],
}


def total(composition: Composition | None) -> int:
    assert composition is not None
    return composition.raw_tokens + composition.summary_tokens + (composition.overhead_tokens or 0)


def spans(composition: Composition | None) -> int:
    assert composition is not None and composition.distinct_source_spans is not None
    return composition.distinct_source_spans


def read_one(name: str) -> tuple[list[Fact], adapters.Reading]:
    [session] = adapters.find([RECORDINGS / name])
    reading = adapters.read_session(session)
    return list(reading), reading


@pytest.mark.parametrize("name", EXPECTED)
def test_the_readme_s_figures(name: str) -> None:
    facts, reading = read_one(name)
    assert [fact.type for fact in facts] == ["session.started", *["round.completed"] * len(EXPECTED[name]), "session.ended"]
    found = [fact for fact in facts if isinstance(fact, RoundCompleted)]
    assert [
        Round(
            fact.trigger or Trigger.other,
            total(fact.before),
            total(fact.after),
            fact.read_records or 0,
            fact.claimed_records or 0,
            reading.quoted[fact.round],
            (spans(fact.after), spans(fact.before)),
        )
        for fact in found
    ] == EXPECTED[name]
    # The short summary of the failure is not an empty one.
    assert {fact.summary_kind for fact in found} == {SummaryKind.ok}
    assert [fact.after.summary_depth_max for fact in found] == list(range(1, len(found) + 1))
    assert list(reading.warnings) == []


def test_only_the_known_failure_has_a_gap_and_falls_below_the_floor() -> None:
    """The lab's claim: from generation 2 on the failure alone keeps less than 0.20 of the spans, the others 0.27 to 1."""
    gaps, kept = {}, {}
    for name in EXPECTED:
        for fact in read_one(name)[0]:
            if isinstance(fact, RoundCompleted):
                assert fact.read_records is not None and fact.claimed_records is not None
                gaps[name, fact.round] = fact.read_records / fact.claimed_records
                if fact.round > 1:
                    kept[name, fact.round] = spans(fact.after) / spans(fact.before)
    failure = ("broken-chain-empty-summary.jsonl", 2)
    assert [key for key, ratio in gaps.items() if ratio < 0.5] == [failure]
    assert [key for key, ratio in kept.items() if ratio < 0.20] == [failure]
    assert all(0.27 <= ratio <= 1 for key, ratio in kept.items() if key != failure)


def test_the_folder_holds_four_sessions_of_which_one_lies_in_four_files() -> None:
    assert [tuple(path.name for path in session.paths) for session in adapters.find([RECORDINGS])] == [
        ("part-1.jsonl", "part-2.jsonl", "part-3.jsonl", "part-4.jsonl"),
        ("three-rounds.jsonl",),
        ("broken-chain-empty-summary.jsonl",),
        ("with-post-tokens.jsonl",),
    ]


def test_read_again_everything_is_the_same_byte_for_byte() -> None:
    first, second = ([(encode(fact).value, ce_id(fact)) for fact in adapters.read([RECORDINGS])] for _ in range(2))
    assert first == second
