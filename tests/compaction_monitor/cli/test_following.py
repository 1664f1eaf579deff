"""`ingest --follow` killed at any moment: what is in the log at the end is what one run writes."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import orjson
import pytest
import sklearn.feature_extraction.text  # noqa: F401 - loaded before the forks: a child would be killed while it loads

from compaction_events.adapters.following import Follower
from compaction_events.codec import decode
from compaction_events.errors import ContractError
from compaction_monitor.cli import following
from compaction_monitor.cli.exits import Code
from tests.compaction_events.adapters.test_following import transcript, whole
from tests.compaction_monitor.cli.conftest import Run

KILLS = 50


def in_log(path: Path) -> list[str]:
    """The ids in a file of events; what a kill tore is no event."""
    found = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(decode(line, check_key=False).ce_id)
        except ContractError:
            continue
    return found


def forked(folder: Path, log: Path, cursor: Path) -> int:
    """A process that follows until it is killed."""
    child = os.fork()
    if not child:
        try:
            following.run(Follower([folder], cursor), f"file:{log}", None, 0.001, "test")
        finally:
            os._exit(1)
    return child


def to_the_end(folder: Path, log: Path, cursor: Path) -> set[str]:
    """One run that is left alone until the log has all that one reading has; returns that."""
    expected = set(whole(folder))
    child = forked(folder, log, cursor)
    while not log.exists() or set(in_log(log)) != expected:
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended by itself"
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    return expected


def duration_s(sessions: dict[str, bytes], folder: Path) -> float:
    """How long this machine, as it is now, takes for all of it: kills are spread over that."""
    folder.mkdir()
    for name, content in sessions.items():
        (folder / f"{name}.jsonl").write_bytes(content)
    began = time.monotonic()
    to_the_end(folder, folder / "events", folder / "cursor")
    return time.monotonic() - began


def test_killed_fifty_times_while_files_grow(tmp_path: Path) -> None:
    dice = random.Random(8417)
    folder, log, cursor = tmp_path / "sessions", tmp_path / "events.jsonl", tmp_path / "cursor"
    folder.mkdir()
    sessions = {name: b"".join(transcript(name, passes=8)) for name in ("session-a", "session-b")}
    written = dict.fromkeys(sessions, 0)

    def grow() -> None:
        """Some bytes more of each, wherever that cuts a line."""
        for name, content in sessions.items():
            size = dice.randrange(2 * len(content) // (2 * KILLS) + 1)
            with (folder / f"{name}.jsonl").open("ab") as file:
                file.write(content[written[name] : written[name] + size])
            written[name] += size

    undisturbed_s = duration_s(sessions, tmp_path / "undisturbed")
    progress = set()
    for _ in range(KILLS):
        grow()
        child = forked(folder, log, cursor)
        killer = threading.Timer(dice.uniform(0.0, undisturbed_s), os.kill, (child, signal.SIGKILL))
        killer.start()
        grow()
        _, status = os.waitpid(child, 0)
        killer.join()
        assert os.WTERMSIG(status) == signal.SIGKILL
        progress.add(len(in_log(log)) if log.exists() else 0)
    for name, content in sessions.items():
        (folder / f"{name}.jsonl").write_bytes(content)
    expected = to_the_end(folder, log, cursor)
    assert set(in_log(log)) == expected
    # The kills fell into the work, not all before or after it.
    assert len(progress) > 5
    assert len(orjson.loads(cursor.read_bytes())) == len(sessions)


async def test_a_torn_line_is_ended_before_the_next_one(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_bytes(b'{"type":"session.sta')
    (tmp_path / "a.jsonl").write_bytes(b"".join(transcript(passes=1)))
    follower = Follower([tmp_path / "a.jsonl"], tmp_path / "cursor")
    deliver = following.to_file(log)
    for news in follower.poll():
        await deliver(news.facts)
    assert in_log(log) == whole(tmp_path / "a.jsonl")
    assert log.read_bytes().count(b"\n") == 1 + len(in_log(log))


def test_follow_ends_at_a_signal_and_says_what_it_sent(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signalled from within, at its first delivery: what is under way is finished and remembered."""
    (tmp_path / "a.jsonl").write_bytes(b"".join(transcript(passes=1)))
    real = following.to_file

    def to_file(path: Path) -> following.Deliver:
        deliver = real(path)

        async def signalling(facts: object) -> None:
            await deliver(facts)  # type: ignore[arg-type]
            signal.raise_signal(signal.SIGTERM)

        return signalling

    monkeypatch.setattr(following, "to_file", to_file)
    ran = run("ingest", "a.jsonl", "--follow", "--broker", "file:out.jsonl", "--interval", "0.01", "--json")
    expected = whole(tmp_path / "a.jsonl")
    assert (ran.code, ran.document) == (
        Code.ok,
        {"sent": len(expected), "sessions": ["session-a"], "target": "file:out.jsonl"},
    )
    assert in_log(tmp_path / "out.jsonl") == expected
    assert len(list((tmp_path / "home" / ".local" / "state" / "compaction-monitor").iterdir())) == 1


def test_follow_needs_a_path_that_is_there(run: Run) -> None:
    assert run("ingest", "gone", "--follow", "--broker", "file:out.jsonl").code == Code.not_found
