"""Finding sessions and reading damaged files: by content, in the order written, reported and never fatal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction_events import adapters
from compaction_events.adapters import Session, Trouble, Warned, Warnings, lines
from compaction_events.facts import Fact, RoundCompleted
from tests.compaction_events.adapters.transcript import Transcript, facts, rounds

OTHER = "session-b"


def session(session_id: str = "session-a", *, first: int = 1, parent: str | None = None) -> Transcript:
    transcript = Transcript(session_id, first=first, parent=parent)
    transcript.user("Serve port 8417 from conf/app.toml")
    transcript.reply("Port 8417 and conf/app.toml done", 1_009)
    return transcript


def read(*paths: Path) -> tuple[list[Fact], list[Warned]]:
    [found] = adapters.find(paths)
    reading = adapters.read_session(found)
    return list(reading), list(reading.warnings)


def test_find_goes_by_content_and_puts_files_in_the_order_they_were_written(tmp_path: Path) -> None:
    later = Transcript(OTHER, first=50)
    later.user("Hello")
    (tmp_path / "deep").mkdir()
    # The names are the wrong way round, and say nothing of the session.
    first = session().write(tmp_path / "deep" / "z.jsonl")
    second = session(first=10, parent="u2").write(tmp_path / "a.jsonl.1")
    third = later.write(tmp_path / "b.jsonl")
    (tmp_path / "notes.jsonl").write_text('{"note": 1}\n')
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "readme.txt").write_text("not looked at: folders hold much else")
    subagent = Transcript()
    subagent.user("a task", isSidechain=True)
    subagent.write(tmp_path / "deep" / "agent-1.jsonl")
    warnings = Warnings()

    assert adapters.find([tmp_path, first], warnings) == [
        Session((first, second), "session-a", "claude-code"),
        Session((third,), OTHER, "claude-code"),
    ]
    assert list(warnings) == [
        Warned(tmp_path / "deep" / "agent-1.jsonl", Trouble.subagent_file, 0, 1),
        Warned(tmp_path / "empty.jsonl", Trouble.foreign_file, 0, 1),
        Warned(tmp_path / "notes.jsonl", Trouble.foreign_file, 0, 1),
    ]


def test_a_file_given_by_name_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = session().write(tmp_path / "readme.txt")
    assert adapters.find([path]) == [Session((path,), "session-a", "claude-code")]


@pytest.mark.parametrize("make", [lambda path: None, os.mkfifo], ids=["not there", "a pipe, which would block"])
def test_what_cannot_be_read_is_reported(make: Any, tmp_path: Path) -> None:
    make(path := tmp_path / "a.jsonl")
    warnings = Warnings()
    assert (adapters.find([path], warnings), list(warnings)) == ([], [Warned(path, Trouble.unreadable_file, 0, 1)])


def test_without_a_path_the_known_folders_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert adapters.find() == []
    folder = tmp_path / ".claude" / "projects" / "-srv-tides"
    folder.mkdir(parents=True)
    path = session().write(folder / "x.jsonl")
    assert adapters.find() == [Session((path,), "session-a", "claude-code")]


def test_titles_and_snapshots_before_the_first_record(tmp_path: Path) -> None:
    """They name no session, or not the format; the first record that does decides."""
    transcript = Transcript()
    transcript.state("summary", summary="an older title", leafUuid="x")
    transcript.state("file-history-snapshot", messageId="m")
    transcript.state("mode", mode="normal", sessionId="session-a")
    transcript.user("Hello")
    path = transcript.write(tmp_path / "a.jsonl")
    assert adapters.find([path]) == [Session((path,), "session-a", "claude-code")]


def test_one_session_over_several_files_is_one_chain(tmp_path: Path) -> None:
    """The second file begins in the middle of a round, and repeats the end of the first."""
    first = session()
    second = Transcript(first=2, parent="u1")
    second.reply("Port 8417 and conf/app.toml done", 1_009)
    second.user("More")
    second.boundary()
    [found] = rounds(first.write(tmp_path / "b.jsonl"), second.write(tmp_path / "a.jsonl"))
    assert (found.read_records, found.claimed_records, found.source_spans_seen) == (3, 3, 2)


def test_a_resume_under_a_new_id_in_the_same_file_goes_on_where_it_hangs(tmp_path: Path) -> None:
    """Its first record hangs on ours; from then on its id is ours too, also on lines that hang nowhere."""
    transcript = session()
    transcript.parent = None
    transcript.user("A stranger's line", sessionId="session-z")
    transcript.session_id = "session-c"
    transcript.user("Not yet linked")
    transcript.parent = "u2"
    transcript.user("More")
    transcript.boundary()
    path = transcript.write(tmp_path / "a.jsonl")
    found, warned = read(path)
    assert [
        (fact.session_id, fact.read_records, fact.source_spans_seen) for fact in found if isinstance(fact, RoundCompleted)
    ] == [("session-a", 3, 2)]
    assert warned == [Warned(path, Trouble.foreign_line, 3, 2)]


DAMAGE: dict[str, tuple[bytes, list[tuple[Trouble, int, int]]]] = {
    "a torn last line": (b'{"type":"user","uuid":"u9","sess', [(Trouble.torn_line, 3, 1)]),
    "a last line without its newline is whole": (
        b'{"type":"mode","sessionId":"session-a"}',
        [],
    ),
    "not JSON": (b"]oops[\n", [(Trouble.not_json, 3, 1)]),
    "many at once are one report": (b"oops\n\n" * 1_000, [(Trouble.not_json, 3, 1_000)]),
    "zeros, as a crash leaves them": (b"\0" * 512 + b"\n", [(Trouble.not_json, 3, 1)]),
    "not UTF-8, but readable": (
        b'{"type":"user","sessionId":"session-a","message":{"content":"caf\xe9"}}\n',
        [(Trouble.not_utf8, 3, 1)],
    ),
    "not UTF-8 and not JSON": (b"\xff\xfe\n", [(Trouble.not_json, 3, 1)]),
    "JSON, but no object": (b"[1]\n", [(Trouble.foreign_line, 3, 1)]),
    "an object without a type": (b'{"sessionId":"session-a"}\n', [(Trouble.foreign_line, 3, 1)]),
    "another session's": (b'{"type":"user","sessionId":"session-z"}\n', [(Trouble.foreign_line, 3, 1)]),
    "nested deeper than the parser goes": (b"[" * 5_000 + b"]" * 5_000 + b"\n", [(Trouble.not_json, 3, 1)]),
    "a boundary before any time is known": (
        b'{"type":"system","subtype":"compact_boundary","sessionId":"session-a","uuid":"b","timestamp":"?"}\n',
        [],
    ),
}


@pytest.mark.parametrize("why", DAMAGE)
def test_damage_is_reported_and_passed_over(why: str, tmp_path: Path) -> None:
    line, expected = DAMAGE[why]
    transcript = session()
    transcript.raw(line)
    path = transcript.write(tmp_path / "a.jsonl")
    found, warned = read(path)
    assert [fact.type for fact in found if not isinstance(fact, RoundCompleted)] == ["session.started", "session.ended"]
    assert warned == [Warned(path, *trouble) for trouble in expected]


def test_fields_of_any_other_type_break_nothing(tmp_path: Path) -> None:
    transcript = session()
    strange: list[Any] = [None, 7, "x", [], [None, 7, "x", {"type": 7}], {}, {"content": 7}, {"usage": "x"}, True]
    for value in strange:
        for field in ("message", "attachment", "timestamp", "version", "parentUuid", "compactMetadata", "isSidechain"):
            transcript.beside("assistant", **{field: value})
            transcript.beside("attachment", **{field: value})
            transcript.beside("user", **{field: value})
    for value in strange:
        transcript.boundary(preTokens=value, postTokens=value, preservedMessages=value, preservedSegment=value)
        transcript.summary("so far")
    found = rounds(transcript.write(tmp_path / "a.jsonl"))
    assert [one.round for one in found] == list(range(1, len(strange) + 1))


def test_arguments_that_nest_deep_are_read_without_recursion(tmp_path: Path) -> None:
    deep: Any = "8417 conf/app.toml"
    for _ in range(200):
        deep = [deep]
    transcript = session()
    transcript.answer([{"type": "tool_use", "input": deep}])
    transcript.boundary()
    assert len(rounds(transcript.write(tmp_path / "a.jsonl"))) == 1


def test_a_boundary_without_a_time_anywhere_is_reported(tmp_path: Path) -> None:
    transcript = Transcript()
    transcript.record("system", subtype="compact_boundary", timestamp=None)
    path = transcript.write(tmp_path / "a.jsonl")
    assert read(path) == ([], [Warned(path, Trouble.no_time, 1, 1)])


def test_a_line_longer_than_any_message_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 10)
    path = tmp_path / "a"
    path.write_bytes(b'{"a":1}\n' + b"x" * 35 + b"\n" + b'{"b":2}\n')
    warnings = Warnings()
    assert [line.record for line in lines.read_lines(path, warnings)] == [{"a": 1}, {"b": 2}]
    assert list(warnings) == [Warned(path, Trouble.line_too_long, 2, 1)]


def test_ids_longer_than_the_contract_allows_are_no_ids(tmp_path: Path) -> None:
    transcript = Transcript("s" * 257)
    transcript.user("Hello")
    assert adapters.find([transcript.write(tmp_path / "a.jsonl")]) == []


def test_a_session_without_a_pass_has_a_start_and_an_end(tmp_path: Path) -> None:
    assert [fact.type for fact in facts(session().write(tmp_path / "a.jsonl"))] == ["session.started", "session.ended"]


def test_memory_is_the_context_not_the_file(tmp_path: Path) -> None:
    """Many passes: what a pass evicted is gone, but for uuids and anchors."""
    transcript = session()
    for number in range(20):
        transcript.user([{"type": "tool_result", "content": "x " * 10_000}])
        transcript.boundary(2_000 + number)
        transcript.summary("so far")
    [found] = adapters.find([transcript.write(tmp_path / "a.jsonl")])
    reading: Any = adapters.read_session(found)
    held = [sum(len(message.full) for message in reading._set) for _ in iterate(reading)]
    assert max(held) < 50_000


def iterate(reading: Any) -> Iterator[Fact]:
    yield from reading


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import compaction_events.adapters, compaction_events.recorder", False),
        ("from compaction_events import adapters; list(adapters.read([PATH]))", True),
    ],
)
def test_scikit_learn_is_loaded_only_for_a_pass(code: str, loaded: bool, tmp_path: Path) -> None:
    """It takes over a second: a session without a pass, and every import, goes without."""
    transcript = session()
    path = transcript.write(tmp_path / "a.jsonl")
    check = "import sys; from pathlib import Path; PATH = Path(sys.argv[1]); {}; print('sklearn' in sys.modules)"
    run = [sys.executable, "-c", check.format(code), str(path)]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == "False"
    if loaded:
        transcript.boundary()
        transcript.write(path)
        assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == "True"
