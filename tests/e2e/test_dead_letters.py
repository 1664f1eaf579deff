"""`dead-letters` against a broker and the worker: listed once, shown without text, replayed, late, refused, dropped."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from compaction_events.builders import at, completed, started
from compaction_events.codec import encode
from compaction_events.facts import Fact
from compaction_monitor.cli.app import app
from compaction_monitor.cli.exits import Code
from compaction_monitor.shell.embedded import EmbeddedBroker
from tests.e2e.test_cli import PARTITIONS, Ran, Tool, own_worker, published
from tests.e2e.workers import partition_of, producer, read_all

SECRET = "please never delete the production database"
SESSION = "session-1"
TOLD = encode(completed(3, at=at(20))).headers
Eventually = Callable[..., Awaitable[Any]]


class InProcess(Tool):
    """The same command without a process of its own, which would take longer to start than all it does."""

    def run(self, *arguments: str | Path, timeout_s: float = 90) -> Ran:
        words = [str(word) for word in arguments]
        with ThreadPoolExecutor(1) as thread:  # one without a loop: the command brings its own
            done = thread.submit(CliRunner().invoke, app, words, prog_name="compaction-monitor", env=self.environment)
            result = done.result(timeout_s)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def tool(embedded_broker: EmbeddedBroker, app_id: str, tmp_path: Path) -> Tool:
    made = InProcess(embedded_broker.address, app_id, tmp_path)
    made.json("topics", "apply")
    return made


@pytest.fixture
def worker(tool: Tool) -> Iterator[subprocess.Popen[bytes]]:
    process, _ = own_worker(tool)
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()


class Sender:
    """Puts records on the events topic; a name is that of the dead letter it would become."""

    def __init__(self, tool: Tool, out: Any) -> None:
        self._tool, self._out = tool, out

    async def good(self, *facts: Fact) -> None:
        for fact in facts:
            key, value, headers = encode(fact)
            await self._out.send_and_wait(f"{self._tool.app_id}.events", value, key=key, headers=headers)

    async def bad(self, key: bytes | None, value: bytes, headers: Any = ()) -> str:
        partition = partition_of(SESSION.encode(), PARTITIONS)
        topic = f"{self._tool.app_id}.events"
        sent = await self._out.send_and_wait(topic, value, key=key, headers=list(headers), partition=partition)
        return f"{topic}/{partition}/{sent.offset}"


def changed(fact: Fact, **fields: Any) -> bytes:
    return json.dumps(json.loads(encode(fact).value) | fields).encode()


async def wait_for(tool: Tool, count: int, eventually: Eventually) -> None:
    async def there() -> bool:
        return len(await read_all(tool.broker, f"{tool.app_id}.dead-letters", PARTITIONS)) >= count

    await eventually(there, 60, what=f"{count} records among the dead letters", every_s=0.1)


def listed(tool: Tool, *options: str) -> dict[str, str]:
    return {letter["id"]: letter["state"] for letter in tool.json("dead-letters", "list", *options)["letters"]}


async def test_from_the_list_to_the_end(tool: Tool, worker: subprocess.Popen[bytes], eventually: Eventually) -> None:
    async with producer(tool.broker) as out:
        send = Sender(tool, out)
        await send.good(started(), completed(1, at=at(10)), completed(2, at=at(15)))
        text = await send.bad(b"session-1", json.dumps(SECRET).encode())
        wrong = await send.bad(b"session-1", changed(completed(3, at=at(20)), round=SECRET, agent=7), TOLD)
        keyless = await send.bad(None, encode(completed(4, at=at(25))).value, TOLD)
        late = await send.bad(b"session-1", changed(completed(1, at=at(12)), cause=9))
    await wait_for(tool, 4, eventually)

    # Listed: each once, open, with what there is to say of it.
    document = tool.json("dead-letters", "list")
    assert document["repeats"] == 0
    (first, *_) = document["letters"]
    assert first.pop("at")
    assert first == {
        "id": text, "reason": "not_json", "key": SESSION, "bytes": len(SECRET) + 2, "truncated": [], "state": "open",
    }  # fmt: skip
    assert [(letter["id"], letter["reason"]) for letter in document["letters"]] == [
        (text, "not_json"), (wrong, "invalid_field"), (keyless, "wrong_key"), (late, "invalid_field"),
    ]  # fmt: skip
    people = tool.run("dead-letters", "list")
    assert people.code == 0
    assert "4 dead letters: invalid_field 2, not_json 1, wrong_key 1" in people.out
    assert listed(tool, "--reason", "wrong_key") == {keyless: "open"}
    assert listed(tool, "--topic", "elsewhere") == {}

    # Shown: every fault, and no text unless asked for.
    shown = tool.run("dead-letters", "show", wrong)
    assert "reason: invalid_field" in shown.out
    assert "fault: round: (not shown) (allowed: Input should be a valid integer)" in shown.out
    assert "fault: agent: 7 (allowed: Input should be a valid string)" in shown.out
    assert "header: ce_type=io.compaction_monitor.round.completed.v1" in shown.out
    for command in (("list",), ("list", "--json"), ("show", wrong), ("show", text, "--json")):
        assert SECRET not in tool.run("dead-letters", *command).out
    assert SECRET in tool.run("dead-letters", "show", wrong, "--value").out
    assert json.loads(tool.json("dead-letters", "show", text, "--value")["value"]) == SECRET

    # As it is it is not sent; put right it goes the normal way, and leads to what it leads to.
    still = tool.run("dead-letters", "replay", wrong)
    assert still.code == Code.invalid
    assert "not sent, it still breaks the contract: invalid_field: agent: 7 (allowed" in still.out
    assert SECRET not in still.out
    saved, fixed = tool.folder / "saved.json", tool.folder / "fixed.json"
    assert tool.run("dead-letters", "show", wrong, "--save", saved).code == 0
    gap = {"claimed_records": 10, "read_records": 1, "summary_kind": "ok", "agent": "agent", "round": 3}
    fixed.write_text(json.dumps(json.loads(saved.read_text()) | gap))
    assert tool.json("dead-letters", "replay", wrong, "--value", fixed) == {
        "replayed": [{"id": wrong, "sent": True, "outcome": "new", "effect": True}]
    }
    assert [found["name"] for found in await published(tool) if found["type"] == "alert.raised"] == ["coverage_gap"]
    assert listed(tool) == dict.fromkeys((text, keyless, late), "open")
    assert listed(tool, "--settled")[wrong] == "replayed"

    # The same once more is known; a round before the last has no effect; a key is given where there was none.
    again = tool.run("dead-letters", "replay", wrong, "--value", fixed)
    assert (again.code, again.out) == (0, f"{wrong}  duplicate: no effect\n")
    fixed.write_bytes(encode(completed(1, at=at(12))).value)
    passed = tool.run("dead-letters", "replay", late, "--value", fixed)
    assert (passed.code, passed.out) == (0, f"{late}  late: no effect\n")
    assert tool.run("dead-letters", "replay", keyless).code == Code.invalid
    assert tool.run("dead-letters", "replay", keyless, "--rekey").out == f"{keyless}  new\n"

    # Dropped by filter; named, a dropped one can still be looked at.
    assert tool.json("dead-letters", "drop", "--reason", "not_json") == {"dropped": [text]}
    assert tool.run("dead-letters", "list").out == "No dead letters.\n"
    assert listed(tool, "--settled") == {text: "dropped", wrong: "replayed", keyless: "replayed", late: "replayed"}
    assert tool.json("dead-letters", "show", text)["state"] == "dropped"
    assert worker.poll() is None


async def test_without_a_worker_it_says_that_nobody_has_read_it(tool: Tool, eventually: Eventually) -> None:
    """Replaying twice is harmless: the second time it is known."""
    process, _ = own_worker(tool)
    try:
        async with producer(tool.broker) as out:
            send = Sender(tool, out)
            await send.good(started())
            names = [await send.bad(None, encode(completed(n, at=at(10 * n))).value) for n in (1, 2)]
        await wait_for(tool, 2, eventually)
    finally:
        process.kill()
        process.wait()
    replay = ("dead-letters", "replay", "--all", "--rekey")
    ran = tool.run(*replay, "--wait", "0.5")
    assert (ran.code, ran.out) == (Code.failed, "".join(f"{name}  sent; no worker has read it yet\n" for name in names))
    assert listed(tool) == dict.fromkeys(names, "open")
    process, _ = own_worker(tool)
    try:
        assert tool.json(*replay)["replayed"] == [
            {"id": names[0], "sent": True, "outcome": "late", "effect": False},
            {"id": names[1], "sent": True, "outcome": "duplicate", "effect": False},
        ]
    finally:
        process.kill()
        process.wait()
    assert listed(tool) == {}


async def test_a_letter_that_is_there_twice_is_listed_once(tool: Tool) -> None:
    """As after a log was accepted anew, or from a worker that publishes without transactions."""
    place = {"__connect.errors.topic": b"events", "__connect.errors.partition": b"0", "__connect.errors.offset": b"3"}
    headers = [*place.items(), ("x-reason", b"not_json")]
    async with producer(tool.broker) as out:

        async def write(value: bytes) -> None:
            topic = f"{tool.app_id}.dead-letters"
            await out.send_and_wait(topic, value, key=b"s", headers=headers, partition=0)

        await write(b"one")
        await write(b"one")
        document = tool.json("dead-letters", "list")
        assert (document["repeats"], [letter["id"] for letter in document["letters"]]) == (1, ["events/0/3"])
        tool.json("dead-letters", "drop", "events/0/3")
        await write(b"one")
        assert listed(tool) == {}  # the same again stays dropped
        await write(b"another")
        assert listed(tool) == {"events/0/3": "open"}  # of a topic that was created anew


def test_wrong_usage_and_what_is_not_there(tool: Tool) -> None:
    for words, code, said in (
        (("show", "events/0/1"), Code.not_found, "No dead letter events/0/1."),
        (("drop", "events/0/1"), Code.not_found, "No dead letter events/0/1."),
        (("show", "17"), Code.usage, "17: no TOPIC/PARTITION/OFFSET."),
        (("drop",), Code.usage, "Which ones?"),
        (("replay", "events/0/1", "--all"), Code.usage, "Either names, or"),
        (("replay", "--all", "--value", "x.json"), Code.usage, "--value puts one letter right"),
        (("replay", "events/0/1", "--value", "gone.json"), Code.not_found, "Cannot read gone.json"),
    ):
        ran = tool.run("dead-letters", *words)
        assert (ran.code, said in ran.err) == (code, True), ran.err
    assert tool.json("dead-letters", "drop", "--all") == {"dropped": []}
    assert tool.json("dead-letters", "replay", "--all") == {"replayed": []}
