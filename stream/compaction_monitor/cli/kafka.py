"""`ingest`, `replay` and `watch`: files to the broker, and findings from it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compaction_events.findings import Severity
from compaction_monitor.cli import following, options, output
from compaction_monitor.cli.broker import Broker, Set, broker_problems, client_settings
from compaction_monitor.cli.exits import Code, Problem, extra
from compaction_monitor.cli.sources import EVENTS, Item, Sources
from compaction_monitor.cli.watching import Filter, finding_document, finding_text
from compaction_monitor.cli.wording import counted

if TYPE_CHECKING:
    from compaction_monitor.shell.settings import Settings

SOURCE = "compaction-monitor"


def ingest(
    paths: options.Paths = None,
    broker: Broker = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on while agents write; with --broker file:PATH into a file.")
    ] = False,
    cursor: Annotated[
        Path | None, typer.Option("--cursor", metavar="FILE", help="With --follow: remembers what was sent.")
    ] = None,
    interval: Annotated[float, typer.Option("--interval", min=0.01, help="With --follow: seconds between two looks.")] = 1.0,
    settings: Set = None,
    json: options.Json = False,
) -> None:
    """Send sessions from their files to the events topic; the worker's findings are those of scan, with the same ids.

    Reads what scan reads; for sessions that are over: the end of a file counts as the end of its session.
    The same file again changes nothing: its rounds are known. With --follow sessions are sent while agents write them,
    and a restart goes on where it stopped.
    """
    if follow:
        _follow(paths or [], broker, settings, cursor, interval, json=json)
        return
    sources = Sources(paths or [])
    if not sources.files:
        raise Problem(Code.not_found, "No session and no recorded event in these files.", "\n".join(sources.warnings))
    chosen = client_settings(broker, settings)
    with output.progress("Sending", sources.size) as bar:
        items = ((0.0, item) for item in sources.read(lambda size: bar.advance(bar.task_ids[0], size)))
        document = _send(chosen, items)
    _report(document, sources.warnings, json=json)


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Recorded events: one JSON event a line.")],
    speed: Annotated[float, typer.Option("--speed", min=0.0, help="1: as recorded; 60: a minute a second; 0: at once.")] = 1.0,
    broker: Broker = None,
    settings: Set = None,
    json: options.Json = False,
) -> None:
    """Send recorded events to the events topic, at the pace at which they happened or faster."""
    sources = Sources([file])
    if sources.files != [file] or not sources.events:
        raise Problem(
            Code.invalid, f"{file} holds no recorded events.", "\n".join(sources.warnings),
            "For session files of an agent: compaction-monitor ingest",
        )  # fmt: skip
    chosen = client_settings(broker, settings)
    document = _send(chosen, paced(sources.read(), speed))
    _report(document, sources.warnings, json=json)


def watch(
    session: Annotated[str | None, typer.Option("--session", help="Only this session.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Only agents that match; * and ? are wildcards.")] = None,
    severity: Annotated[Severity | None, typer.Option("--severity", help="Only alerts as bad as this or worse.")] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="From the oldest the log has, not from now on.")] = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more, or stop at the end.")] = True,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Stop after this many findings.")] = None,
    broker: Broker = None,
    settings: Set = None,
    json: options.Json = False,
) -> None:
    """Show findings as they are published (committed ones only). With --json one line each."""
    chosen = client_settings(broker, settings)
    wanted = Filter(session=session, agent=agent, severity=severity)
    with broker_problems():
        asyncio.run(_watch(chosen, wanted, from_start=from_start, follow=follow, limit=limit, json=json))


async def _watch(settings: Settings, wanted: Filter, *, from_start: bool, follow: bool, limit: int | None, json: bool) -> None:
    from compaction_monitor.shell import client

    shown = 0
    async with client.findings(settings, from_start=from_start, follow=follow) as found:
        if follow:
            output.note(f"watching {settings.findings_topic} at {', '.join(settings.brokers)}; end with Ctrl-C")
        async for decoded in found:
            if not wanted.takes(decoded.event):
                continue
            if json:
                output.json_line(finding_document(decoded))
            else:
                out = output.console()
                out.print(finding_text(decoded.event, out.encoding), soft_wrap=True)
            shown += 1
            if shown == limit:
                return


def paced(items: Iterable[Item], speed: float) -> Iterator[tuple[float, Item]]:
    """Each item with the seconds to wait before it.

    Args:
        speed: How much faster than recorded; 0: no waits.
    """
    last: datetime | None = None
    for item in items:
        at = item.fact.occurred_at
        wait_s = (at - last).total_seconds() / speed if speed and at is not None and last is not None else 0.0
        yield max(0.0, wait_s), item
        last = max(at, last) if at is not None and last is not None else at or last


def _follow(
    paths: Sequence[Path], broker: str | None, pairs: list[str] | None, cursor: Path | None, interval_s: float, *, json: bool
) -> None:
    for path in paths:
        if not path.exists():
            raise Problem(Code.not_found, f"No such file or folder: {path}", todo="Check the path.")
    chosen = None if broker and broker.startswith(following.FILE) else client_settings(broker, pairs)
    target = broker if chosen is None and broker else ",".join(chosen.brokers if chosen else ())
    with extra("adapters"):
        from compaction_events.adapters.following import Follower
    with broker_problems() if chosen is not None else nullcontext(), extra("adapters"):
        follower = Follower(paths, cursor or following.cursor_of(paths, target))
        document = following.run(follower, target, chosen, interval_s, SOURCE)
    if json:
        output.json_document({**document, "target": target})
        return
    typer.echo(f"Sent {counted(document['sent'], 'event')} of {counted(len(document['sessions']), 'session')} to {target}.")


def _send(settings: Settings, items: Iterable[tuple[float, Item]]) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        from compaction_monitor.shell.client import Sender

        types: Counter[str] = Counter()
        sessions: set[str] = set()
        async with Sender(settings, SOURCE) as sender:
            for wait_s, item in items:
                if wait_s:
                    await sender.flush()
                    await asyncio.sleep(wait_s)
                await sender.send(item.fact, item.ce_id if item.source == EVENTS else None)
                types[item.fact.type] += 1
                sessions.add(item.fact.session_id)
        return {
            "broker": list(settings.brokers), "topic": settings.events_topics[0], "sent": sender.sent,
            "too_large": sender.too_large, "types": dict(types), "sessions": sorted(sessions),
        }  # fmt: skip

    with broker_problems():
        return asyncio.run(run())


def _report(document: dict[str, Any], warnings: Sequence[str], *, json: bool) -> None:
    if json:
        output.json_document({**document, "warnings": list(warnings)})
        return
    sent, sessions = counted(document["sent"], "event"), counted(len(document["sessions"]), "session")
    typer.echo(f"Sent {sent} of {sessions} to {document['topic']} at {', '.join(document['broker'])}.")
    if document["too_large"]:
        output.warn(f"{counted(document['too_large'], 'event')} too large for a record, not sent")
    output.warn_all(warnings)
