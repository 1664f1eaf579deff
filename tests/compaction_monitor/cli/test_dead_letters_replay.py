"""`dead-letters replay` of many: some at a time, each lot settled before the next is read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from typer.testing import CliRunner

from compaction_events.builders import at, completed
from compaction_events.codec import encode
from compaction_monitor.cli import dead_letters as command
from compaction_monitor.cli.app import app
from compaction_monitor.dead_letters import Again, Letter, Name, Receipt
from compaction_monitor.shell import letters as shell
from compaction_monitor.shell.letters import Entry, Index

COUNT, AT_ONCE = 7, 3
TOPIC = TopicPartition("compaction.dead-letters", 0)
NAMES = [Name("compaction.events", 0, offset) for offset in range(COUNT)]


class Topic:
    """The topic with so many letters, before a worker that reads only the first `read` of them; what was done is in `done`."""

    def __init__(self, read: int) -> None:
        self.read, self.done = read, list[tuple[str, int]]()

    async def index(self) -> Index:
        return Index({name: Entry(name, "wrong_key", None, 1, 0, (), "open", TOPIC, name.offset, 0) for name in NAMES})

    async def letter(self, entry: Entry) -> Letter:
        self.done.append(("letter", entry.offset))
        key, value, headers = encode(completed(entry.offset + 1, at=at(10)))
        return Letter(entry.name, "wrong_key", key, value, headers, "", (), None)

    async def replay(self, records: Mapping[str, tuple[str, Again]], wait_s: float) -> dict[str, Receipt]:
        self.done.append(("send", len(records)))
        answered = list(records)[: self.read]
        self.read -= len(answered)
        return {mark: Receipt(mark, "new") for mark in answered}

    async def settle(self, how: Mapping[Entry, str]) -> None:
        self.done.append(("settle", len(how)))


def replayed(topic: Topic, monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[int, str]:
    @asynccontextmanager
    async def letters(_: object) -> AsyncIterator[Any]:
        yield topic

    monkeypatch.setattr(shell, "letters", letters)
    monkeypatch.setattr(command, "AT_ONCE", AT_ONCE)
    ran = CliRunner().invoke(app, ["dead-letters", "replay", "--all", *options])
    return ran.exit_code, ran.output


def test_each_lot_is_settled_before_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(read=COUNT)
    code, said = replayed(topic, monkeypatch, "--json")
    assert (code, json.loads(said)) == (
        0, {"replayed": [{"id": str(name), "sent": True, "outcome": "new", "effect": True} for name in NAMES]},
    )  # fmt: skip
    assert topic.done == [
        ("letter", 0), ("letter", 1), ("letter", 2), ("send", 3), ("settle", 3),
        ("letter", 3), ("letter", 4), ("letter", 5), ("send", 3), ("settle", 3),
        ("letter", 6), ("send", 1), ("settle", 1),
    ]  # fmt: skip


def test_once_nobody_reads_no_more_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(read=4)
    code, said = replayed(topic, monkeypatch)
    became = [*["new"] * 4, *["sent; no worker has read it yet"] * 2, "not sent: no worker has read those before it"]
    assert (code, said) == (1, "".join(f"{name}  {word}\n" for name, word in zip(NAMES, became, strict=True)))
    assert [done for done in topic.done if done[0] != "letter"] == [("send", 3), ("settle", 3), ("send", 3), ("settle", 1)]
