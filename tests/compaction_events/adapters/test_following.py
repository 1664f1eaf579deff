"""What is new in files that grow, turn over and are replaced; nothing missed, and nothing told twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from compaction_events.adapters.following import Follower
from compaction_events.codec import ce_id
from compaction_events.facts import Fact
from tests.compaction_events.adapters import fixtures as made
from tests.compaction_events.adapters.fixtures import facts
from tests.compaction_events.adapters.transcript import Transcript


def transcript(session: str = "session-a", passes: int = 3) -> list[bytes]:
    """A session with passes, line by line; its last pass is complete."""
    lines = Transcript(session)
    lines.user("Never open port 8417 beside conf/app.toml")
    lines.reply("on", 1_000)
    for number in range(passes):
        lines.user(f"Keep step_{number} under {number}00 lines")
        lines.boundary(2_000 + number)
        lines.summary(f"conf/app.toml, step_{number}")
        lines.reply("on", 1_100 + number)
    return lines.lines


def polled(follower: Follower) -> list[Fact]:
    """One look: what is new, delivered."""
    found: list[Fact] = []
    for news in follower.poll():
        found += news.facts
        follower.delivered(news)
    return found


def ids(found: list[Fact]) -> list[str]:
    return [ce_id(fact) for fact in found]


def whole(*paths: Path) -> list[str]:
    """All ids but those of the ends."""
    return ids([fact for fact in facts(*paths) if fact.type != "session.ended"])


def in_pieces(lines: list[bytes]) -> Iterator[bytes]:
    """Every line in two halves, as a writer leaves them."""
    for line in lines:
        yield line[: len(line) // 2]
        yield line[len(line) // 2 :]


def test_a_growing_file_is_told_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follower = Follower([tmp_path], tmp_path / "cursor")
    found: list[Fact] = []
    for piece in in_pieces(transcript()):
        with path.open("ab") as file:
            file.write(piece)
        found += polled(follower)
    assert ids(found) == whole(path)
    assert polled(follower) == []


def test_a_pass_waits_until_its_size_is_known(tmp_path: Path) -> None:
    lines = transcript(passes=1)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(lines[:-1]))
    follower = Follower([tmp_path], tmp_path / "cursor")
    assert [fact.type for fact in polled(follower)] == ["session.started"]
    path.write_bytes(b"".join(lines))
    rest = ["proposition.stated", "proposition.stated", "checkpoint.written", "round.completed"]
    assert [fact.type for fact in polled(follower)] == rest


def test_a_restart_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """A new follower at every step; what was not confirmed as delivered comes again."""
    path, lines, found = tmp_path / "a.jsonl", transcript(), []
    for number in range(1, len(lines) + 1):
        path.write_bytes(b"".join(lines[:number]))
        lost = [news.facts for news in Follower([tmp_path], tmp_path / "cursor").poll()]
        again = polled(Follower([tmp_path], tmp_path / "cursor"))
        assert [fact for part in lost for fact in part] == again
        found += again
    assert ids(found) == whole(path)


def test_a_file_that_is_turned_over_and_goes_on_under_its_name(tmp_path: Path) -> None:
    path, lines = tmp_path / "a.jsonl", transcript()
    follower = Follower([tmp_path], tmp_path / "cursor")
    path.write_bytes(b"".join(lines[:7]))
    found = polled(follower)
    path.rename(tmp_path / "a.jsonl.1")
    found += polled(follower)
    path.write_bytes(b"".join(lines[7:]))
    found += polled(follower)
    assert ids(found) == whole(tmp_path)
    assert len([fact for fact in found if fact.type == "round.completed"]) == 3


def test_a_file_that_is_replaced_by_another_session_s(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(transcript()))
    follower = Follower([tmp_path], tmp_path / "cursor")
    first = polled(follower)
    beside = tmp_path / "new"
    beside.write_bytes(b"".join(transcript("session-b", passes=5)))
    beside.replace(path)
    assert {fact.session_id for fact in first} == {"session-a"}
    assert ids(polled(follower)) == whole(path)


def test_a_session_written_anew_is_told_again_under_the_same_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(transcript()))
    follower = Follower([tmp_path], tmp_path / "cursor")
    first = polled(follower)
    path.write_bytes(b"".join(transcript(passes=1)))
    again = polled(follower)
    assert ids(again) == whole(path)
    assert set(ids(again)) < set(ids(first))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": 7}', b'{"x": [1]}'])
def test_a_damaged_cursor_costs_repeats_only(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(transcript()))
    (tmp_path / "cursor").write_bytes(content)
    assert ids(polled(Follower([path], tmp_path / "cursor"))) == whole(path)


def test_sessions_join_a_folder(tmp_path: Path) -> None:
    follower = Follower([tmp_path], tmp_path / "cursor")
    assert polled(follower) == []
    (tmp_path / "deep").mkdir()
    for name in ("session-b", "session-c"):
        (tmp_path / "deep" / f"{name}.jsonl").write_bytes(b"".join(transcript(name)))
        assert {fact.session_id for fact in polled(follower)} == {name}


@pytest.mark.parametrize("layout", ["lossless-claw", "hermes-lcm"])
def test_a_store_that_grows(layout: str, tmp_path: Path) -> None:
    """A second session in it, too; and before the first summary nothing is told that could still change."""
    store = made.Lcm(tmp_path / "lcm.db", layout)
    follower = Follower([tmp_path], tmp_path / "cursor")
    store.message("user", "Keep span_0 below 100", 10, 1)
    assert polled(follower) == []
    store.summary("a", 0, "span_0", 5, 2, [1])
    first = polled(follower)
    store.message("user", "Keep span_1 below 100", 10, 3)
    store.summary("b", 0, "span_1", 5, 4, [2])
    assert [fact.type for fact in first] == ["session.started", "proposition.stated", "checkpoint.written", "round.completed"]
    assert ids([*first, *polled(follower)]) == whole(store.path)


def test_events_that_join_a_conversation(tmp_path: Path) -> None:
    events = made.openhands_events(tree=False)
    folder = made.write_openhands(tmp_path, events[:4])
    follower = Follower([tmp_path], tmp_path / "cursor")
    found = polled(follower)
    for number, event in enumerate(events[4:], 4):
        (folder / "events" / f"event-{number:05d}-{event['id']}.json").write_bytes(orjson.dumps(event))
    found += polled(follower)
    assert ids(found) == whole(folder)
