"""The command line against a broker: what it sends, what comes back, how its processes begin and end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from compaction_events.builders import completed, ended, started
from compaction_events.codec import encode
from compaction_monitor import golden
from compaction_monitor.cli.exits import Code
from compaction_monitor.shell import topics
from compaction_monitor.shell.embedded import EmbeddedBroker
from tests.e2e.brokers import free_ports
from tests.e2e.workers import read_all

PARTITIONS = 4
RECORDINGS = Path(__file__).parents[3] / "shared" / "recordings" / "claude-code"
TRANSCRIPT = Path(golden.__file__).with_name("demo_session.jsonl")
Eventually = Callable[..., Awaitable[Any]]


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Tool:
    """The command with a broker, and topics of this test's own."""

    def __init__(self, broker: str, app_id: str, folder: Path) -> None:
        self.broker, self.app_id, self.folder = broker, app_id, folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("COMPACTION_MONITOR_")}
        names = {"outcomes_topic": "outcomes", "findings_topic": "findings", "dead_letters_topic": "dead-letters"}
        settings = {name: f"{app_id}.{word}" for name, word in names.items()}
        settings |= {"app_id": app_id, "events_topics": f"{app_id}.events", "partitions": str(PARTITIONS)}
        self.environment |= {f"COMPACTION_MONITOR_{name.upper()}": value for name, value in settings.items()}
        self.environment |= {"COMPACTION_MONITOR_BROKERS": broker, "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "120"}

    def command(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, "-m", "compaction_monitor", *map(str, arguments)]

    def run(self, *arguments: str | Path, timeout_s: float = 90) -> Ran:
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
            timeout=timeout_s,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    def json(self, *arguments: str | Path) -> Any:
        ran = self.run(*arguments, "--json")
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    def start(self, *arguments: str | Path) -> subprocess.Popen[bytes]:
        with (self.folder / "process.log").open("wb") as log:
            return subprocess.Popen(
                self.command(*arguments),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return (self.folder / "process.log").read_text()


def own_worker(tool: Tool) -> tuple[subprocess.Popen[bytes], int]:
    """A worker on this test's topics, and its web port."""
    port = free_ports(1)[0]
    options: list[str | Path] = ["--store", "memory", "--datadir", tool.folder / "data", "--name", "one"]
    return tool.start("worker", "--web-port", str(port), *options), port


@pytest.fixture
def tool(embedded_broker: EmbeddedBroker, app_id: str, tmp_path: Path) -> Tool:
    made = Tool(embedded_broker.address, app_id, tmp_path)
    assert len(made.json("topics", "apply")["created"]) == 7
    return made


@pytest.fixture
def worker(tool: Tool) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    process, port = own_worker(tool)
    yield process, port
    if process.poll() is None:
        process.kill()
    process.wait()


def is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/ready", timeout=2) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False


def ids(findings: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
    """Ids of alerts and orders, from scan or from the wire."""
    kinds = {"alert.raised": "alert", "remediation.requested": "order"}
    return {
        (kind, found["id"])
        for found in findings
        if (kind := found.get("kind") or kinds.get(found["type"]))
    }  # fmt: skip


def scanned(tool: Tool, *paths: Path) -> set[tuple[str, str]]:
    return ids([found for session in tool.json("scan", *paths)["sessions"] for found in session["findings"]])


async def published(tool: Tool) -> list[dict[str, Any]]:
    records = await read_all(tool.broker, f"{tool.app_id}.findings", PARTITIONS)
    return [json.loads(record.value) for record in records]


def recorded(tool: Tool) -> Path:
    """Two sessions of recorded events, one of them with a session that went wrong."""
    facts = [*golden.series(), golden.ending()]
    other = [started("other"), completed(1, "other", claimed_records=10, read_records=1, summary_kind="ok"), ended(90, "other")]
    path = tool.folder / "events.jsonl"
    path.write_bytes(b"".join(encode(fact).value + b"\n" for fact in (*facts, *other)))
    return path


@pytest.mark.smoke
async def test_ingest_finds_what_scan_finds(
    tool: Tool, worker: tuple[subprocess.Popen[bytes], int], eventually: Eventually
) -> None:
    process, _ = worker
    paths = [recorded(tool), TRANSCRIPT, *([RECORDINGS] if RECORDINGS.is_dir() else [])]
    expected = scanned(tool, *paths)
    assert len(expected) >= 8
    assert tool.json("ingest", *paths)["sent"] > 45

    async def all_published() -> bool:
        assert process.poll() is None, tool.log
        return ids(await published(tool)) >= expected

    await eventually(all_published, 60, what="every finding", every_s=0.2)
    # The same files again change nothing: what comes after them on each partition shows that they were read.
    tool.json("ingest", *paths)
    fence = tool.folder / "fence.jsonl"
    facts = [
        completed(1, f"fence-{n}", claimed_records=10, read_records=1, summary_kind="ok", topology="tree") for n in range(40)
    ]
    fence.write_bytes(b"".join(encode(fact).value + b"\n" for fact in facts))
    fences = scanned(tool, fence)
    tool.json("ingest", fence)

    async def fence_reached() -> bool:
        return ids(await published(tool)) >= fences

    await eventually(fence_reached, 60, what="the fence", every_s=0.2)
    found = [finding for finding in await published(tool) if not finding["session_id"].startswith("fence-")]
    assert ids(found) == expected
    # Each publication once: an alert that gets worse or wider is one more, with the next attempt.
    assert max(Counter((f["type"], f["id"], f["attempt"]) for f in found).values()) == 1
    assert not await read_all(tool.broker, f"{tool.app_id}.dead-letters", PARTITIONS)


async def test_worker_starts_and_stops(tool: Tool, worker: tuple[subprocess.Popen[bytes], int], eventually: Eventually) -> None:
    process, port = worker
    await eventually(lambda: is_ready(port) or process.poll() is not None, 40, what="/ready", every_s=0.1)
    assert process.poll() is None, tool.log
    process.send_signal(signal.SIGTERM)
    await eventually(lambda: process.poll() is not None, 20, what="the end of the worker", every_s=0.1)
    assert process.returncode == Code.ok, tool.log
    assert "Traceback" not in tool.log


async def test_replay_and_watch(tool: Tool, worker: tuple[subprocess.Popen[bytes], int], eventually: Eventually) -> None:
    path = recorded(tool)
    assert tool.json("replay", path, "--speed", "0")["types"] == {
        "session.started": 2, "round.completed": 41, "session.ended": 2,
    }  # fmt: skip
    expected = len(scanned(tool, path))
    watching = ("watch", "--from-start", "--no-follow", "--json")

    async def complete() -> bool:
        return len(ids(await published(tool))) >= expected

    await eventually(complete, 60, what="every finding", every_s=0.2)
    lines = [json.loads(line) for line in tool.run(*watching).out.splitlines()]
    assert ids(lines) == scanned(tool, path)
    assert all(line["ce_id"] for line in lines)
    critical = [
        json.loads(line) for line in tool.run(*watching, "--severity", "critical", "--session", golden.SESSION).out.splitlines()
    ]
    assert [(line["type"], line.get("name") or line["action"]) for line in critical] == [
        ("alert.raised", "salience_inversion"),
        ("remediation.requested", "halt_and_rehydrate"),
        ("alert.resolved", "salience_inversion"),
        ("remediation.requested", "resume"),
    ]
    people = tool.run("watch", "--from-start", "--limit", "1", "--agent", golden.AGENT)
    assert people.code == 0
    assert "● warning inversion_risk: raw_ratio 0.42" in people.out
    assert "end with Ctrl-C" in people.err


def test_topics_plan_and_apply(embedded_broker: EmbeddedBroker, app_id: str, tmp_path: Path) -> None:
    tool = Tool(embedded_broker.address, app_id, tmp_path)
    missing = tool.json("topics", "plan")
    assert (missing["wanted"], missing["differences"]) == (7, [])
    assert missing["missing"][0] == {
        "name": f"{app_id}.events",
        "partitions": PARTITIONS,
        "replication_factor": 1,
        "config": {"cleanup.policy": "delete", "retention.ms": "604800000", "message.timestamp.type": "LogAppendTime"},
    }
    created = tool.json("topics", "apply")
    assert created == {"wanted": 7, "created": missing["missing"], "differences": []}
    assert tool.json("topics", "plan") == {"wanted": 7, "missing": [], "differences": []}
    assert tool.run("topics", "apply") == (0, "Every topic is there, and as it should be.\n", "")
    other = tool.run("topics", "plan", "--set", "partitions=8", "--json")
    assert other.code == Code.invalid
    assert {(d["setting"], d["breaking"]) for d in json.loads(other.out)["differences"]} == {("partitions", True)}


def test_missing_topics_are_named(embedded_broker: EmbeddedBroker, app_id: str, tmp_path: Path) -> None:
    tool = Tool(embedded_broker.address, app_id, tmp_path)
    assert tool.run("ingest", TRANSCRIPT) == (
        Code.not_found,
        "",
        f"error: The broker lacks {app_id}.events, {app_id}.outcomes, or hides it from this client.\n"
        "  next: Create what is missing: compaction-monitor topics apply; "
        "or grant its rights: compaction-monitor topics acls\n",
    )
    assert tool.run("watch").code == Code.not_found
    assert tool.run("worker", "--web-port", "0", "--store", "memory").code == Code.config


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(child) for child, parent in map(str.split, listed.splitlines()) if int(parent) == pid]


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class TestDemo:
    def leftovers(self, tool: Tool) -> list[str]:
        return [path.name for path in (tool.folder / "cache" / "compaction-monitor").iterdir()]

    def test_it_ends_by_itself_and_names_the_inversion(
        self, embedded_broker: EmbeddedBroker, app_id: str, tmp_path: Path
    ) -> None:
        tool = Tool(embedded_broker.address, app_id, tmp_path)
        ran = tool.run("demo")
        assert ran.code == 0, ran.err
        for words in (
            "salience_inversion in round 12 of golden-inversion",
            "round 12  raw_ratio █████░░░░░░░░░░░░░░░ 0.24  spans 147  cosine 0.52",
            "● critical salience_inversion",
            "→ order halt_and_rehydrate: stop compacting; expand these 2 summaries until raw_ratio is 0.3",
            "summary-02      1      13     7,800   11,400            0.34",
            "● critical coverage_gap",
            "compaction-monitor scan",
        ):
            assert words in ran.out
        assert "\x1b" not in ran.out
        assert self.leftovers(tool) == []

    async def test_on_a_broker_of_others_its_topics_go_with_it(
        self, embedded_broker: EmbeddedBroker, app_id: str, tmp_path: Path
    ) -> None:
        tool = Tool(embedded_broker.address, app_id, tmp_path)
        document = await asyncio.to_thread(tool.json, "demo", "--broker", embedded_broker.address)
        inversion = document["inversion"]
        assert (inversion["name"], inversion["round"], inversion["plan"]["complete"]) == ("salience_inversion", 12, True)
        assert [len(session["rounds"]) for session in document["sessions"]] == [40, 2]
        async with topics.connect(bootstrap_servers=embedded_broker.address) as admin:
            assert not [topic for topic in await admin.list_topics() if topic.startswith("compaction-demo")]
        assert self.leftovers(tool) == []

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    async def test_interrupted_it_leaves_nothing(
        self, embedded_broker: EmbeddedBroker, app_id: str, tmp_path: Path, eventually: Eventually, number: signal.Signals
    ) -> None:
        tool = Tool(embedded_broker.address, app_id, tmp_path)
        process = tool.start("demo")
        try:
            await eventually(lambda: "round  3" in tool.log, 60, what="the third round", every_s=0.1)
            children = children_of(process.pid)
            assert len(children) == 2
            process.send_signal(number)
            await eventually(lambda: process.poll() is not None, 30, what="the end of the demo", every_s=0.1)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        assert process.returncode == Code.interrupted, tool.log
        assert "Traceback" not in tool.log
        assert not any(map(runs, children))
        assert self.leftovers(tool) == []


async def test_worker_with_its_own_broker(app_id: str, tmp_path: Path, eventually: Eventually) -> None:
    """`--broker embedded`: the other commands find it at the configured address."""
    port, web = free_ports(2)
    tool = Tool(f"127.0.0.1:{port}", app_id, tmp_path)
    process = tool.start("worker", "--broker", "embedded", "--web-port", str(web))
    try:
        await eventually(lambda: is_ready(web) or process.poll() is not None, 60, what="/ready", every_s=0.1)
        assert process.poll() is None, tool.log
        assert tool.json("ingest", TRANSCRIPT)["sent"] > 0
        await eventually(lambda: "coverage_gap" in tool.run("watch", "--from-start", "--no-follow").out, 30, what="the finding")
        process.send_signal(signal.SIGINT)
        await eventually(lambda: process.poll() is not None, 30, what="the end of the worker", every_s=0.1)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == Code.ok, tool.log
    assert {path.name for path in (tool.folder / "cache" / "compaction-monitor").iterdir()} == {"broker", "worker"}
