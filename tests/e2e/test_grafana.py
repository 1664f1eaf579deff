"""The dashboards over a real run: every query gives figures, they are true, and all that is exported is shown or listed.

A worker has read a fleet in which most checks fire, with answers, dead letters, blind sessions and a restart in the middle,
and a Prometheus with the shipped rules has scraped its page all the while.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from compaction_events.builders import at, completed, started
from compaction_events.facts import Fact
from compaction_monitor.shell import topics
from compaction_monitor.shell.embedded import EmbeddedBroker
from deploy.grafana.answers import Prometheus, answers, marks, panels
from deploy.grafana.preview import EX_EMPTY, EX_UNREACHABLE
from tests.absent import skip_or_fail
from tests.e2e import judging, workers
from tests.e2e.alertmanagers import ProgramMissingError
from tests.e2e.brokers import free_ports, own_topics
from tests.e2e.fleet import ANSWERED, CHECKS, HURRIED, STEADY, fleet
from tests.e2e.judging import Ready
from tests.e2e.malformed import malformed
from tests.e2e.prometheuses import RULES, PrometheusProcess
from tests.e2e.test_malformed import Producer
from tests.e2e.watch import Watch
from tests.e2e.workers import ROOT, Monitor
from tests.grafana.lint import parse, selectors
from tests.grafana.test_dashboards import BOARDS, Board

PARTITIONS = 4
GOOD, BAD, SESSIONS, BLIND = 6_000, 300, 120, 5
SLICES = 12
DEADLINE_S = 60
CHROMIUM = shutil.which("chromium")
AGENTS = (ANSWERED, HURRIED, STEADY)
# Exported, and in no dashboard.
NOT_SHOWN = {
    "compaction_recovery_records_total": "how much is still to recover is shown instead",
    "process_max_fds": "the limit of open files does not change while a worker runs",
    "process_start_time_seconds": "an alert counts restarts by it",
    "process_virtual_memory_bytes": "resident memory is what a limit is about",
}
ask_each = pytest.mark.parametrize(
    ("board", "panel"),
    [pytest.param(board, panel, id=f"{name}-{panel['title']}") for name, board in BOARDS.items() for panel in panels(board)],
)


class Run(NamedTuple):
    """What has been filled: the Prometheus, and the worker that it has scraped."""

    url: str
    worker: Monitor
    broker: str
    app_id: str
    began: float

    @property
    def minutes(self) -> float:
        """How far back all of it reaches."""
        return (time.time() - self.began) / 60


@pytest.fixture(scope="module")
def filled(embedded_broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("grafana")
    app_id = f"grafana-{uuid.uuid4().hex[:8]}"
    (folder / "checks.toml").write_text(CHECKS)
    settings: dict[str, Any] = {"checks_file": folder / "checks.toml", "metrics_agents": ",".join(AGENTS), "tick_s": 0.2}
    worker = Monitor(embedded_broker.address, app_id, folder, partitions=PARTITIONS, **settings)
    try:
        with PrometheusProcess(folder / "prometheus", [f"127.0.0.1:{worker.port}"]) as server:
            run = Run(server.url, worker, embedded_broker.address, app_id, time.time())
            asyncio.run(_fill(run))
            yield run
    except ProgramMissingError as missing:
        skip_or_fail(str(missing))
    finally:
        worker.kill()


async def _fill(run: Run) -> None:
    """Part by part, each scraped twice before the next one comes."""
    async with topics.connect(bootstrap_servers=run.broker) as admin:
        await topics.apply(admin, own_topics(run.app_id, partitions=PARTITIONS))
    run.worker.start()
    log = _log(run.app_id)
    size = -(-len(log) // SLICES)
    async with workers.producer(run.broker, linger_ms=0, max_request_size=2**21) as out, watching(run) as watch:
        for number in range(SLICES):
            if number == SLICES // 2:
                run.worker.signal(signal.SIGTERM)
                assert await run.worker.ended(15) == 0
                run.worker.start()
            for one in await judging.send(Producer(out, 0), log[number * size : (number + 1) * size]):
                watch.sent(one.record.topic, one.record.partition, one.offset + 1)
            await comes_true(watch.at_the_end, "everything read")
            await comes_true(partial(scraped, run, scrapes(run) + 2), "two scrapes")


def watching(run: Run) -> Watch:
    return Watch(run.broker, run.app_id, PARTITIONS)


async def comes_true(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


def scraped(run: Run, times: float) -> bool:
    return scrapes(run) >= times


def scrapes(run: Run) -> float:
    """How often the worker's page has been scraped."""
    found = Prometheus(run.url).get("query", query="sum(count_over_time(compaction_ready[1h]))")["result"]
    return sum(float(one["value"][1]) for one in found)


def _log(app_id: str) -> list[Ready]:
    blind: list[Fact] = []
    for number in range(BLIND):
        name = f"{STEADY}-blind-{number}"
        blind += [started(name, agent=STEADY), completed(1, name, agent=STEADY, at=at(30), distinct_source_spans=None)]
    good = judging.ready([*fleet(GOOD, SESSIONS), *blind], app_id, PARTITIONS)
    bad = [record for _, record in malformed(BAD, f"{app_id}.events", PARTITIONS)]
    every = len(good) // len(bad)
    for place, record in enumerate(bad):
        good.insert(place * (every + 1), record)
    return good


@ask_each
def test_each_query_gives_figures(filled: Run, board: Board, panel: dict[str, Any]) -> None:
    prometheus = Prometheus(filled.url)
    for answer in answers(panel, prometheus, prometheus.window(60 * filled.minutes)):
        assert answer.lines, f"nothing for {answer.query}"
        assert all(math.isfinite(value) for line in answer.lines for _, value in line.points), answer.query
        named = set(re.findall(r"\{\{(\w+)\}\}", answer.legend))
        assert all(named <= line.labels.keys() for line in answer.lines), answer


def test_the_variables_find_what_there_is_to_choose(filled: Run) -> None:
    prometheus = Prometheus(filled.url)
    window = prometheus.window(60 * filled.minutes)
    found = {}
    for board in BOARDS.values():
        for one in board["templating"]["list"]:
            if one["type"] == "query":
                ((query, label),) = re.findall(r"label_values\((.+), (\w+)\)", one["query"])
                found[one["name"]] = prometheus.get(f"label/{label}/values", **{"match[]": window.fill(query)})
    worker = f"127.0.0.1:{filled.worker.port}"
    assert found == {"job": ["compaction-monitor"], "instance": [worker], "agent": [*AGENTS[:2], "other", AGENTS[2]]}


def test_each_check_is_marked_where_it_begins_to_raise_findings(filled: Run) -> None:
    prometheus = Prometheus(filled.url)
    window = prometheus.window(60 * filled.minutes)
    raised = prometheus.ask('sum by (check) (compaction_findings_total{status="raised",severity="critical"}) > 0', window)
    begun = {labels["check"]: points[0][0] for labels, points in raised}
    first: dict[str, float] = {}
    for mark in marks(BOARDS["compaction-fleet"], prometheus, window):
        severity, check = mark.name.split(": ")
        assert (severity, mark.color) == ("critical", "red")
        first[check] = min(mark.start, first.get(check, math.inf))
    # The commonest are there; of what came once and fell between two scrapes nobody knows when it began.
    assert {"constraint_lost", "salience_inversion", "summary_failed"} <= first.keys() <= begun.keys()
    assert all(begun[check] <= at for check, at in first.items())


def test_a_point_names_its_session(filled: Run) -> None:
    prometheus = Prometheus(filled.url)
    window = prometheus.window(60 * filled.minutes)
    asked = [
        target["expr"]
        for board in BOARDS.values()
        for panel in panels(board)
        for target in panel["targets"]
        if target.get("exemplar")
    ]
    assert len(asked) == 2
    for expr in asked:
        found = prometheus.get("query_exemplars", query=window.fill(expr), start=window.start, end=window.end)
        names = {exemplar["labels"]["session"] for series in found for exemplar in series["exemplars"]}
        assert {name.partition("-")[0] for name in names} == set(AGENTS)


async def test_every_session_is_in_the_picture(filled: Run) -> None:
    rows = await workers.state(filled.broker, filled.app_id, PARTITIONS)
    prometheus = Prometheus(filled.url)
    window = prometheus.window(60 * filled.minutes)
    by_title = {panel["title"]: panel for panel in panels(BOARDS["compaction-fleet"])}
    (states,) = answers(by_title["Sessions by state"], prometheus, window)
    shown = {line.name: line.now for line in states.lines}
    assert sum(shown.values()) == len(rows)
    assert shown["blind"] >= BLIND
    assert shown["critical"] > 0
    (live,) = answers(by_title["Live sessions"], prometheus, window)
    assert [line.now for line in live.lines] == [len(rows) - shown["ended"]]


async def test_all_that_is_exported_is_shown_or_listed(filled: Run) -> None:
    page = (await filled.worker.get("/metrics"))[1].decode()
    samples = set(re.findall(r"^([a-z_:]+)(?=[{ ])", page, re.MULTILINE))
    exported = {re.sub(r"_(bucket|sum|count)$", "", name) for name in samples}
    rules = [
        rule for path in RULES.glob("*.yaml") for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]
    ]
    recorded = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    asked = {expr for board in BOARDS.values() for expr in expressions(board)}
    used = {name for expr in asked for name in names(expr)}
    assert used - exported - recorded.keys() == {"ALERTS"}
    shown = used | {name for name in used & recorded.keys() for name in names(recorded[name])}
    assert exported - shown == NOT_SHOWN.keys()
    assert all(NOT_SHOWN.values())


def expressions(board: Board) -> Iterator[str]:
    yield from (target["expr"] for panel in panels(board) for target in panel["targets"])
    yield from (one["expr"] for one in board["annotations"]["list"])


def names(expr: str) -> set[str]:
    """The metrics that an expression is about, histograms by their one name."""
    return {re.sub(r"_bucket$", "", selector.name) for selector, _ in selectors(parse(expr))}


def every_panel() -> list[tuple[str, Any]]:
    return [(name, panel) for name, board in sorted(BOARDS.items()) for panel in panels(board)]


def preview(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.grafana.preview", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_the_preview_tells_each_query_and_what_it_gives(filled: Run) -> None:
    told = preview("--prometheus", filled.url, "--minutes", str(filled.minutes), "--json")
    assert (told.returncode, told.stderr) == (0, "")
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    queries = [
        (name, panel["title"]) for name, board in sorted(BOARDS.items()) for panel in panels(board) for _ in panel["targets"]
    ]
    assert [(line["dashboard"], line["panel"]) for line in lines] == queries
    assert all(line["values"] for line in lines)
    assert not any("$" in line["query"] for line in lines)
    for_people = preview("--prometheus", filled.url, "--minutes", str(filled.minutes))
    assert for_people.stdout.count("compaction-fleet: Live sessions\n  sum(compaction_sessions{") == 1


def test_the_preview_says_which_panels_have_no_data(filled: Run, tmp_path: Path) -> None:
    with PrometheusProcess(tmp_path, []) as empty:
        told = preview("--prometheus", empty.url, "--json")
    assert told.returncode == EX_EMPTY
    assert told.stderr == f"no data: {', '.join(panel['title'] for _, panel in every_panel())}\n"


def test_the_preview_says_that_nobody_answers() -> None:
    told = preview("--prometheus", f"http://127.0.0.1:{free_ports(1)[0]}")
    assert (told.returncode, told.stdout) == (EX_UNREACHABLE, "")
    assert "no Prometheus answers" in told.stderr


@pytest.mark.chromium
@pytest.mark.skipif(CHROMIUM is None, reason="Debian's Chromium is not installed: apt-get install chromium")
def test_the_preview_draws_every_panel(filled: Run, tmp_path: Path) -> None:
    assert preview("--prometheus", filled.url, "--minutes", str(filled.minutes), "--out", str(tmp_path)).returncode == 0
    for name, board in BOARDS.items():
        page = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert "No data" not in page
        kinds = [panel["type"] for panel in panels(board)]
        assert page.count("<section") == len(kinds)
        assert page.count("<svg") == kinds.count("timeseries") + kinds.count("heatmap")
        assert page.count("<table") == kinds.count("table")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
