"""`demo`: a session that goes wrong, through a real broker and a real worker, and what they say about it."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from compaction_events.codec import Decoded, ce_id
from compaction_events.facts import Fact, RoundCompleted
from compaction_events.findings import AlertRaised, RemediationRequested
from compaction_monitor import golden
from compaction_monitor.cli import acting, options, output
from compaction_monitor.cli.broker import EMBEDDED, broker_problems
from compaction_monitor.cli.charts import bar, glyphs
from compaction_monitor.cli.exits import Code, Problem, extra
from compaction_monitor.cli.render import steps
from compaction_monitor.cli.sources import Sources
from compaction_monitor.cli.stage import stage
from compaction_monitor.cli.watching import finding_document, finding_words
from compaction_monitor.cli.wording import number, plan, tokens
from compaction_monitor.report.document import SessionReport, total_tokens
from compaction_monitor.rules import Rules

if TYPE_CHECKING:
    from compaction_monitor.shell.client import Sender
    from compaction_monitor.shell.settings import Settings

CHECK: Final = "salience_inversion"
ANSWER_S: Final = 20.0
# Slow enough to read while something happens, quicker when all has been said.
PAUSE_S, LATE_PAUSE_S, LATE_ROUND = 0.14, 0.06, 18
NEXT: Final = (
    ("compaction-monitor scan", "what compaction did to your own sessions"),
    ("compaction-monitor worker --broker embedded", "a monitor on this machine; agents send to 127.0.0.1:9092"),
    ("compaction-monitor watch", "its findings, live"),
)


def where() -> tuple[Text, ...]:
    """Where the command is, for whom `make demo` installed it beside the PATH."""
    beside = Path(sys.executable).parent / "activate"
    if shutil.which("compaction-monitor") or not beside.is_file():
        return ()
    return (Text.assemble("The command is not on the PATH; ", (f". {beside}", "bold"), " puts it there."),)


class Scenario(StrEnum):
    """What is played."""

    textbook = "textbook"
    inversion = "inversion"
    saturation = "saturation"


class Scene(NamedTuple):
    """One session to send."""

    title: str
    facts: list[Fact]


class Outcome(NamedTuple):
    """What came of it: rounds by session, and everything the worker published."""

    rounds: dict[str, list[dict[str, Any]]]
    findings: list[Decoded]


def demo(
    broker: Annotated[
        str,
        typer.Option("--broker", metavar="embedded|HOST:PORT", help="Where to run it; on a broker of yours with own topics."),
    ] = EMBEDDED,
    scenario: Annotated[
        Scenario, typer.Option("--scenario", help="Two fixed sessions, or an agent that really compacts, alone and obeying.")
    ] = Scenario.textbook,
    json: options.Json = False,
) -> None:
    """Watch a session go wrong: starts broker and worker, sends two sessions, shows what the monitor says, and ends.

    The first is the textbook case of a salience inversion, the second a small Claude Code transcript.
    With --scenario a reference agent runs live instead, first alone, then with a controller that obeys the orders.
    Nothing is left behind.
    """
    began = time.monotonic()
    show = _Show(quiet=json)
    if scenario is not Scenario.textbook:
        _act(scenario, broker, show)
        return
    with stage(broker, show.note) as settings, broker_problems():
        outcome = asyncio.run(_play(settings, list(scenes()), show))
    inversion = found_inversion(outcome)
    seconds = time.monotonic() - began
    if json:
        output.json_document(_document(outcome, inversion, broker, seconds))
    else:
        show.summary(inversion, outcome, seconds)


def _act(scenario: Scenario, broker: str, show: _Show) -> None:
    began = time.monotonic()
    with extra("simulate"):
        played = list(acting.roles(scenario))
    with stage(broker, show.note) as settings, broker_problems():
        sessions, heard = asyncio.run(_played(settings, played, show))
    if show.quiet:
        findings = [finding_document(decoded) for decoded in heard]
        output.json_document({"scenario": scenario.value, "broker": broker, "sessions": sessions, "findings": findings})
        return
    show.title("In the end")
    for session in sessions:
        show.line(f"  {session['session_id']:<26}  {session['outcome']}")
    show.line(
        f"\n{time.monotonic() - began:.1f} s, nothing left behind. Over many seeds: compaction-monitor simulate {scenario}"
    )


async def _played(settings: Settings, played: list[acting.Role], show: _Show) -> tuple[list[dict[str, Any]], list[Decoded]]:
    from compaction_monitor.shell import client

    rules = options.rules(settings.checks_file)
    sessions = []
    async with client.findings(settings, from_start=True) as published:
        listener = _Listener(published)
        try:
            for role in played:
                show.title(role.title)
                act = acting.Act(role, settings, listener, show, rules)
                await act.play()
                rounds = act.report.document()["rounds"]
                sessions.append({"session_id": role.session_id, "outcome": role.outcome(), "rounds": rounds})
        finally:
            await listener.stop()
    return sessions, listener.heard


def scenes() -> Iterator[Scene]:
    """The two sessions."""
    yield Scene("A tree of summaries, 40 rounds: the scorer starts to prefer summaries to the evidence", list(golden.series()))
    with as_file(files("compaction_monitor") / "demo_session.jsonl") as path:
        items = list(Sources([path]).read())
    yield Scene("A Claude Code transcript, read by the adapter", [item.fact for item in items])


async def _play(settings: Settings, played: list[Scene], show: _Show) -> Outcome:
    from compaction_monitor.shell import client

    rules = options.rules(settings.checks_file)  # the worker's
    async with client.findings(settings, from_start=True) as published, client.Sender(settings, "demo") as sender:
        listener = _Listener(published)
        try:
            rounds = {}
            for scene in played:
                show.title(scene.title)
                report = await _send(scene, sender, listener, show, rules)
                rounds[report.session_id] = report.document()["rounds"]
        finally:
            await listener.stop()
    return Outcome(rounds, listener.heard)


async def _send(scene: Scene, sender: Sender, listener: _Listener, show: _Show, rules: Rules) -> SessionReport:
    """Send a session round by round. The same fold runs here, so what the worker has to say is known before it says it."""
    report = SessionReport(scene.facts[0].session_id, "demo")
    for fact in scene.facts:
        await sender.send(fact)
        await sender.flush()
        if isinstance(fact, RoundCompleted):
            show.round(fact)
        expected = [ce_id(finding) for finding in report.add(fact, rules)]
        for decoded in await listener.wait_for(expected):
            show.finding(decoded)
        if isinstance(fact, RoundCompleted) and not show.quiet:
            await asyncio.sleep(LATE_PAUSE_S if fact.round >= LATE_ROUND else PAUSE_S)
    return report


class _Listener:
    """Collects what the worker publishes."""

    def __init__(self, published: Any) -> None:
        self.heard: list[Decoded] = []
        self._published = published
        self._more = asyncio.Event()
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for decoded in self._published:
            self.heard.append(decoded)
            self._more.set()

    async def wait_for(self, ids: list[str]) -> list[Decoded]:
        """The publications with these ids.

        Raises:
            Problem: The worker does not publish them.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                while missing := set(ids) - {decoded.ce_id for decoded in self.heard}:
                    if self._task.done():
                        await self._task
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            why = f"{len(missing)} of {len(ids)} findings did not come."
            raise Problem(Code.failed, f"The worker did not answer within {ANSWER_S:g} s.", why) from None
        by_id = {decoded.ce_id: decoded for decoded in self.heard}
        return [by_id[wanted] for wanted in ids]

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


def found_inversion(outcome: Outcome) -> tuple[AlertRaised, RemediationRequested]:
    """The alert the demo is about, and its order.

    Raises:
        Problem: There is none.
    """
    events = [decoded.event for decoded in outcome.findings]
    alert = next((event for event in events if isinstance(event, AlertRaised) and event.name == CHECK), None)
    orders = [event for event in events if isinstance(event, RemediationRequested)]
    order = next((order for order in orders if alert and order.reason.alert_id == alert.id), None)
    if alert is None or order is None:
        raise Problem(Code.failed, f"The worker did not report {CHECK}.")
    return alert, order


def _document(
    outcome: Outcome, inversion: tuple[AlertRaised, RemediationRequested], broker: str, seconds: float
) -> dict[str, Any]:
    alert, order = inversion
    return {
        "broker": broker,
        "seconds": round(seconds, 2),
        "sessions": [{"session_id": session_id, "rounds": rounds} for session_id, rounds in outcome.rounds.items()],
        "findings": [finding_document(decoded) for decoded in outcome.findings],
        "inversion": {
            "name": alert.name,
            "session_id": alert.session_id,
            "round": alert.evidence["round"],
            "alert_id": alert.id,
            "order_id": order.id,
            "plan": order.plan.model_dump(mode="json", exclude_none=True),
        },
    }


class _Show:
    """What is seen of it, as it happens."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self._out = output.console()
        self._glyphs = glyphs(self._out.encoding)

    def note(self, text: str) -> None:
        output.note(text)

    def title(self, text: str) -> None:
        self._print(Text(f"\n{text}", style="bold"))

    def line(self, text: str) -> None:
        self._print(Text(text))

    def fact(self, fact: Fact) -> None:
        if isinstance(fact, RoundCompleted):
            self.round(fact)
        elif (words := acting.said(fact)) is not None:
            self.line(words)

    def round(self, fact: RoundCompleted) -> None:
        after = fact.after
        kept = after.raw_tokens + after.summary_tokens
        ratio = after.raw_tokens / kept if kept else 0.0
        line = Text(f"  round {fact.round:>2}  raw_ratio ")
        line.append(bar(ratio, 20, self._glyphs), style="green" if ratio >= 0.5 else "yellow" if ratio >= 0.25 else "red")
        spans = "-" if after.distinct_source_spans is None else after.distinct_source_spans
        line.append(f" {ratio:.2f}  spans {spans:>3}  cosine {number(after.query_cosine_retained)}  ")
        depth = "-" if after.summary_depth_max is None else after.summary_depth_max
        read = "" if fact.claimed_records is None else f"  read {fact.read_records}/{fact.claimed_records} records"
        read = "  rehydrated" if fact.cause == "rehydration" else read
        line.append(f"depth {depth}  {tokens(total_tokens(after))} tokens{read}", style="dim")
        self._print(line)

    def finding(self, decoded: Decoded) -> None:
        self._print(Text("            ").append_text(finding_words(decoded.event, self._out.encoding)))

    def summary(self, inversion: tuple[AlertRaised, RemediationRequested], outcome: Outcome, seconds: float) -> None:
        alert, order = inversion
        found = order.plan.model_dump(mode="json", exclude_none=True)
        others = sorted({event.name for d in outcome.findings if isinstance(event := d.event, AlertRaised)} - {CHECK})
        width = max(len(command) for command, _ in NEXT)
        self._print(
            Panel(
                Group(
                    Text(alert.message),
                    Text(alert.description, style="dim"),
                    Text.assemble("\nThe plan: ", plan(found)),
                    steps(found),
                    Text(f"\nAlso found: {', '.join(others)}. {seconds:.1f} s, nothing left behind.", style="dim"),
                    Text("\nNext:"),
                    *(Text.assemble((f"  {command:<{width}}", "bold"), f"  {what}") for command, what in NEXT),
                    *where(),
                ),
                title=Text(f"{CHECK} in round {alert.evidence['round']} of {alert.session_id}", style="bold red"),
                title_align="left",
            )
        )

    def _print(self, what: Any) -> None:
        if not self.quiet:
            self._out.print(what, soft_wrap=isinstance(what, Text))
