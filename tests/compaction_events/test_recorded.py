"""Recorded events, and two small things that the clients rest on."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from compaction_events import background, builders
from compaction_events.background import Background
from compaction_events.bounded import Bounded
from compaction_events.codec import encode
from compaction_events.errors import ContractError, Reason
from compaction_events.recorded import read_events, read_lines

FIRST, SECOND = builders.started(), builders.completed(1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    structured = b'{"specversion":"1.0","id":"x","type":"session.started","data":' + encode(FIRST).value + b"}"
    path.write_bytes(encode(FIRST).value + b"\r\n\n" + structured + b"\n[1]\n" + encode(SECOND).value)
    return path


def test_events_in_order_and_faults_by_line(path: Path) -> None:
    faults: dict[int, Reason] = {}
    found = list(read_events(path, lambda number, error: faults.update({number: error.reason})))
    assert [one.event for one in found] == [FIRST, FIRST, SECOND]
    assert [one.ce_id for one in found][1] == "x"
    assert faults == {4: Reason.not_json}


def test_lines_with_their_numbers_and_sizes(path: Path) -> None:
    found = list(read_lines(path))
    assert [number for number, _, _ in found] == [1, 3, 4, 5]
    assert sum(size for _, size, _ in found) == path.stat().st_size - 1  # the empty line is passed over
    assert [isinstance(read, ContractError) for _, _, read in found] == [False, False, True, False]


def test_without_a_taker_the_first_fault_names_its_line(path: Path) -> None:
    with pytest.raises(ContractError, match="line 4, value"):
        list(read_events(path))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_events(tmp_path / "none"))


def test_the_oldest_is_forgotten_first() -> None:
    last: Bounded[str, int] = Bounded(2)
    for n, key in enumerate("abac"):
        last[key] = n
    assert dict(last) == {"a": 2, "c": 3}


def test_a_loop_in_the_background_goes_on_between_calls() -> None:
    ticked = threading.Event()

    async def later() -> asyncio.Task[None]:
        async def tick() -> None:
            ticked.set()

        return asyncio.create_task(tick())

    async def fails() -> None:
        raise ValueError("told")

    with Background("test") as loop:
        loop.run(later())
        assert ticked.wait(10)
        with pytest.raises(ValueError, match="told"):
            loop.run(fails())


class Ends:
    """Which of two tasks ended first: one that was begun from outside, and one that it rests on."""

    def __init__(self, *, cleans_up: bool) -> None:
        self.order: list[str] = []
        self.cleans_up = cleans_up
        self.client_was_left_alone = False
        self.under_way = threading.Event()

    async def client(self) -> None:
        try:
            self.under_way.set()
            await asyncio.Event().wait()
        finally:
            self.order.append("client")

    async def begun(self) -> None:
        client = asyncio.create_task(self.client())
        try:
            await asyncio.Event().wait()
        finally:
            self.client_was_left_alone = not client.cancelling()
            if self.cleans_up:
                client.cancel()
                await asyncio.wait([client])
            else:  # for ever, until it is cancelled once more
                await asyncio.Event().wait()
            self.order.append("begun")


def test_what_was_begun_is_cleaned_up_before_what_it_rests_on() -> None:
    ends = Ends(cleans_up=True)
    with Background("test") as loop:
        loop.submit(ends.begun())
        assert ends.under_way.wait(10)
    assert ends.client_was_left_alone
    assert ends.order == ["client", "begun"]


def test_what_does_not_clean_up_in_time_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "CLEAN_UP_S", 0.05)
    ends = Ends(cleans_up=False)
    with Background("test") as loop:
        loop.submit(ends.begun())
        assert ends.under_way.wait(10)
    assert ends.order == ["client"]
