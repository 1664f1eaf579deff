"""Which records a pass claims, and which of them were read: chains whole, broken, forked, rewound and kept."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.compaction_events.adapters.transcript import Transcript, rounds


class Found(NamedTuple):
    read: int | None
    claimed: int | None
    spans_seen: int | None


def found(transcript: Transcript, path: Path) -> list[Found]:
    return [
        Found(one.read_records, one.claimed_records, one.source_spans_seen)
        for one in rounds(transcript.write(path / "a.jsonl"))
    ]


def turn(transcript: Transcript, number: int) -> None:
    """Two records: a message and its reply."""
    transcript.user(f"Task {number} in src/part_{number}.py, please")
    transcript.reply(f"Did src/part_{number}.py")


def test_a_whole_chain_covers_what_hangs_beside_it(tmp_path: Path) -> None:
    """Snapshots and the results of parallel calls hang beside the chain: claimed, not read, and no gap."""
    transcript = Transcript()
    transcript.state("file-history-snapshot", messageId="m1")
    turn(transcript, 1)
    transcript.beside("user", message={"content": [{"type": "tool_result", "content": "parallel"}]})
    turn(transcript, 2)
    transcript.boundary()
    assert found(transcript, tmp_path) == [Found(4, 6, 2)]


def test_progress_and_titles_do_not_drown_a_whole_chain(tmp_path: Path) -> None:
    """Later versions write them by the hundred; counted, they would be read as a gap where nothing was lost."""
    transcript = Transcript()
    turn(transcript, 1)
    for _ in range(50):
        transcript.beside("progress", data={})
        transcript.state("custom-title", customTitle="t", sessionId=transcript.session_id)
    turn(transcript, 2)
    transcript.boundary()
    assert found(transcript, tmp_path) == [Found(4, 4, 2)]


def test_a_chain_broken_by_a_parent_that_is_not_there(tmp_path: Path) -> None:
    """All behind the break was evicted unread, progress included."""
    transcript = Transcript()
    for number in range(5):
        turn(transcript, number)
        transcript.record("progress", data={})
    transcript.parent = "lost"
    turn(transcript, 9)
    transcript.boundary()
    assert found(transcript, tmp_path) == [Found(2, 17, 6)]


def test_a_chain_broken_by_a_new_root(tmp_path: Path) -> None:
    """A resume that begins a new tree: the summary before it was not read either."""
    transcript = Transcript()
    turn(transcript, 1)
    transcript.boundary()
    transcript.summary("Task 1")
    for number in range(2, 5):
        turn(transcript, number)
    transcript.parent = None
    turn(transcript, 5)
    transcript.boundary()
    assert found(transcript, tmp_path) == [Found(2, 2, 1), Found(2, 9, 5)]


def test_a_logical_parent_that_is_not_on_disk(tmp_path: Path) -> None:
    """Then the chain starts at the last thing said, not at what the tool noted after it."""
    transcript = Transcript()
    turn(transcript, 1)
    transcript.record("system", subtype="turn_duration")
    transcript.boundary(logical="not-on-disk")
    assert found(transcript, tmp_path) == [Found(2, 3, 1)]


def test_what_the_user_took_back_is_neither_claimed_nor_a_span(tmp_path: Path) -> None:
    """A rewind: the messages after the point went out of the set before the pass, so it did not evict them."""
    transcript = Transcript()
    turn(transcript, 1)
    point = transcript.parent
    for number in range(2, 7):
        turn(transcript, number)
    transcript.parent = point
    turn(transcript, 7)
    transcript.boundary()
    assert found(transcript, tmp_path) == [Found(4, 4, 2)]


def test_a_rewind_to_right_behind_the_boundary(tmp_path: Path) -> None:
    transcript = Transcript()
    turn(transcript, 1)
    transcript.boundary()
    summary = transcript.summary("Task 1")
    for number in range(2, 7):
        turn(transcript, number)
    transcript.parent = summary
    turn(transcript, 7)
    transcript.boundary()
    assert found(transcript, tmp_path) == [Found(2, 2, 1), Found(3, 3, 2)]


def test_a_rewind_behind_the_last_boundary(tmp_path: Path) -> None:
    """The summary and all after it are out of the set; the chain goes on in records the first pass had read."""
    transcript = Transcript()
    turn(transcript, 1)
    point = transcript.parent
    turn(transcript, 2)
    transcript.boundary()
    transcript.summary("Tasks 1 and 2")
    for number in range(3, 7):
        turn(transcript, number)
    transcript.parent = point
    turn(transcript, 7)
    transcript.boundary()
    assert found(transcript, tmp_path) == [Found(4, 4, 2), Found(2, 2, 3)]


def test_a_circle_ends(tmp_path: Path) -> None:
    transcript = Transcript(parent="u2")
    turn(transcript, 1)
    transcript.boundary()
    assert found(transcript, tmp_path) == [Found(2, 2, 1)]


def test_records_of_a_subagent_are_not_the_session_s(tmp_path: Path) -> None:
    """Inline in older versions: claimed, they would be a gap; their boundaries are passes of another context."""
    transcript = Transcript()
    turn(transcript, 1)
    for _ in range(20):
        transcript.user("a subagent's task", isSidechain=True)
    transcript.record("system", isSidechain=True, subtype="compact_boundary", compactMetadata={"preTokens": 9})
    turn(transcript, 2)
    transcript.boundary()
    assert found(transcript, tmp_path) == [Found(4, 4, 2)]


def kept_transcript(listed: bool) -> Transcript:
    """Two turns, of which the pass keeps the second verbatim; the next records hang on it, as the tool writes them."""
    transcript = Transcript()
    turn(transcript, 1)
    turn(transcript, 2)
    ends = {"headUuid": "u3", "tailUuid": "u4", "anchorUuid": "u6"}
    listing = {"anchorUuid": "u6", "uuids": ["u3", "u4"], "allUuids": ["u3", "u4"]} if listed else None
    transcript.boundary(preservedSegment=ends, preservedMessages=listing)
    transcript.summary("Nothing of note")
    transcript.parent = "u4"
    turn(transcript, 3)
    transcript.boundary()
    transcript.summary("Nothing of note")
    return transcript


def test_records_kept_verbatim_are_claimed_by_the_pass_that_evicts_them(tmp_path: Path) -> None:
    """Not by the one that keeps them. And the chain through them is whole: it ends at the summary above them."""
    for listed in (True, False):
        assert found(kept_transcript(listed), tmp_path) == [
            Found(2, 2, 2),
            Found(5, 5, 3),  # two kept, the summary they now hang below, two new
        ], listed


def test_a_span_whose_message_is_kept_stands_whatever_its_words(tmp_path: Path) -> None:
    first, second = rounds(kept_transcript(listed=True).write(tmp_path / "a.jsonl"))
    # One anchor only, src/part_2.py; kept are 31 + 17 bytes.
    assert [
        (one.before and one.before.distinct_source_spans, one.after.distinct_source_spans, one.after.raw_tokens)
        for one in (first, second)
    ] == [(2, 1, 13), (2, 0, 0)]
