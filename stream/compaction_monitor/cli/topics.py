"""`topics`: what the broker lacks, creating it, and who needs which rights on it."""

from __future__ import annotations

import asyncio
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from compaction_monitor.cli import options, output
from compaction_monitor.cli.broker import Broker, Set, broker_problems, client_settings
from compaction_monitor.cli.exits import Code, Problem, extra

if TYPE_CHECKING:
    from compaction_monitor.shell.settings import Settings
    from compaction_monitor.shell.topics import Plan, Topic

app = typer.Typer(
    help="The topics a monitor needs: what the broker lacks, creating it, and who needs which rights.", no_args_is_help=True
)
DAY_S = 86_400
NAME_OF_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")

Copies = Annotated[int, typer.Option("--replication-factor", min=1, max=9, help="Copies of each partition; 3 in production.")]
EventsDays = Annotated[float, typer.Option("--events-days", min=0.01, help="How long events are kept.")]
OutcomesDays = Annotated[float, typer.Option("--outcomes-days", min=0.01, help="How long answers are kept.")]
FindingsDays = Annotated[float, typer.Option("--findings-days", min=0.01, help="How long findings are kept.")]
DeadDays = Annotated[float, typer.Option("--dead-letters-days", min=0.01, help="How long dead letters are kept.")]


@app.command("plan")
def plan(
    broker: Broker = None,
    replication_factor: Copies = 1,
    events_days: EventsDays = 7,
    outcomes_days: OutcomesDays = 7,
    findings_days: FindingsDays = 30,
    dead_letters_days: DeadDays = 14,
    settings: Set = None,
    json: options.Json = False,
) -> None:
    """Show which topics are missing and which are not as they should be. Changes nothing.

    Exits 4 if a topic is so different that the worker would refuse it or compute something else.
    """
    days = (events_days, outcomes_days, findings_days, dead_letters_days)
    _run(client_settings(broker, settings), replication_factor, days, creating=False, json=json)


@app.command("apply")
def apply(
    broker: Broker = None,
    replication_factor: Copies = 1,
    events_days: EventsDays = 7,
    outcomes_days: OutcomesDays = 7,
    findings_days: FindingsDays = 30,
    dead_letters_days: DeadDays = 14,
    settings: Set = None,
    json: options.Json = False,
) -> None:
    """Create the topics that are missing. Nothing is ever altered or deleted.

    Exits 4 if a topic that was there is so different that the worker would refuse it or compute something else.
    """
    days = (events_days, outcomes_days, findings_days, dead_letters_days)
    _run(client_settings(broker, settings), replication_factor, days, creating=True, json=json)


# The names of `shell.acls.Role`, which needs an extra to be imported; a test holds the two together.
Role = StrEnum("Role", ["agent", "controller", "monitor", "reader", "operator"])


@app.command("acls")
def acls(
    role: Annotated[Role, typer.Option("--role", help="What the principal is for; who is two things needs both.")],
    principal: Annotated[str, typer.Option("--principal", metavar="User:NAME", help="Who the brokers know it as.")],
    group: Annotated[
        str | None, typer.Option("--group", help="Of a reader or controller. [default: any that begins with APP_ID-]")
    ] = None,
    strimzi: Annotated[
        str | None, typer.Option("--strimzi", metavar="CLUSTER", help="A KafkaUser of this cluster instead, for kubectl apply.")
    ] = None,
    broker: Broker = None,
    settings: Set = None,
    json: options.Json = False,
) -> None:
    """Print the rights that a role needs, as commands for kafka-acls.sh. Asks no broker and changes nothing."""
    chosen = client_settings(broker, settings)
    with extra("monitor"):
        from compaction_monitor.shell import acls as table
    kind, _, name = principal.partition(":")
    if kind != "User" or not name or (strimzi and not NAME_OF_RESOURCE.fullmatch(name)):
        allowed = "with --strimzi User: and a name of Kubernetes: a-z, 0-9, - and ." if strimzi else "User:NAME"
        raise Problem(Code.usage, f"--principal {principal}: allowed is {allowed}.")
    granted = table.rights(table.Role(role), chosen, group)
    lines = table.commands(granted, principal, chosen.brokers)
    if strimzi:
        output.json_document(table.kafka_user(granted, name, strimzi))
    elif json:
        output.json_document(
            {"role": role.value, "principal": principal, "rights": [right._asdict() for right in granted], "commands": lines}
        )
    else:
        typer.echo("\n".join(lines))


def wanted(settings: Settings, replication_factor: int = 1, days: tuple[float, ...] = (7, 7, 30, 14)) -> tuple[Topic, ...]:
    """Every topic of a monitor with these settings; `days` of retention: events, outcomes, findings, dead letters."""
    with extra("monitor"):
        from compaction_monitor.shell import topics
    return topics.expected(
        app_id=settings.app_id,
        events=settings.events_topics,
        outcomes=settings.outcomes_topic,
        findings=settings.findings_topic,
        dead_letters=settings.dead_letters_topic,
        partitions=settings.partitions,
        replication_factor=replication_factor,
        retention=topics.Retention(*(round(count * DAY_S) for count in days)),
    )


async def create(settings: Settings, topics_wanted: tuple[Topic, ...]) -> Plan:
    """Create what is missing of these topics."""
    from compaction_monitor.shell import client, topics

    async with client.admin(settings) as admin:
        return await topics.apply(admin, topics_wanted)


async def _compare(settings: Settings, topics_wanted: tuple[Topic, ...]) -> Plan:
    from compaction_monitor.shell import client, topics

    async with client.admin(settings) as admin:
        return topics.plan(topics_wanted, await topics.read(admin, topics_wanted))


def _run(settings: Settings, copies: int, days: tuple[float, ...], *, creating: bool, json: bool) -> None:
    topics_wanted = wanted(settings, copies, days)
    with broker_problems():
        made = asyncio.run((create if creating else _compare)(settings, topics_wanted))
    if json:
        output.json_document(_document(made, topics_wanted, created=creating))
    else:
        _show(made, created=creating)
    if made.breaking:
        raise typer.Exit(int(Code.invalid))


def _document(made: Plan, topics_wanted: tuple[Topic, ...], *, created: bool) -> dict[str, Any]:
    def described(topic: Topic) -> dict[str, Any]:
        return {
            "name": topic.name,
            "partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
            "config": dict(topic.config),
        }

    return {
        "wanted": len(topics_wanted),
        "created" if created else "missing": [described(topic) for topic in made.missing],
        "differences": [
            {"topic": d.topic, "setting": d.setting, "expected": d.expected, "actual": d.actual, "breaking": d.breaking}
            for d in made.differences
        ],
    }


def _show(made: Plan, *, created: bool) -> None:
    out = output.console()
    if not made:
        out.print(Text("Every topic is there, and as it should be.", style="green"))
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for column in ("", "topic", "partitions", "copies", "settings"):
        table.add_column(column)
    for topic in made.missing:
        config = ", ".join(f"{key}={value}" for key, value in topic.config.items())
        word = Text("created" if created else "missing", style="green" if created else "yellow")
        table.add_row(word, topic.name, str(topic.partitions), str(topic.replication_factor), config)
    if made.missing:
        out.print(table)
    for difference in made.differences:
        out.print(Text(str(difference), style="red" if difference.breaking else "yellow"))
    if made.missing and not created:
        out.print(Text("Create them: compaction-monitor topics apply", style="dim"))
