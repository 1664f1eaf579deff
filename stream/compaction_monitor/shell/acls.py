"""Who may do what on the brokers: one table of rights by role, and how Kafka's own tools and Strimzi are told them.

| role | does |
|---|---|
| agent | reports: `Emitter`, `ingest` |
| controller | takes orders and answers them: `Controller` |
| monitor | is the worker |
| reader | reads findings: `FindingsConsumer`, `watch`, `bridge` |
| operator | creates topics, works on dead letters |

A right that is not in here is not needed. Whoever has two roles in one process needs both.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from compaction_monitor.shell.settings import Settings
from compaction_monitor.shell.topics import TABLES, changelog


class Role(StrEnum):
    """What a principal is for."""

    agent = "agent"
    controller = "controller"
    monitor = "monitor"
    reader = "reader"
    operator = "operator"


class Right(NamedTuple):
    """Operations on a resource. `kind`: topic, group or transactionalId; `prefix`: on all whose names begin so."""

    kind: str
    name: str
    operations: tuple[str, ...]
    prefix: bool = False


def rights(role: Role, settings: Settings, group: str | None = None) -> tuple[Right, ...]:
    """What a role has to be allowed.

    Args:
        settings: Names of topics and of the app.
        group: The consumer group of a reader or controller; None: any that begins with the app's name and a dash.
    """
    read, write = ("Describe", "Read"), ("Describe", "Write")
    events = [Right("topic", name, write) for name in settings.events_topics]
    outcomes, findings, letters = settings.outcomes_topic, settings.findings_topic, settings.dead_letters_topic
    # Never the worker's own group, whose name is the app's: who joins that gets its partitions.
    of_group = Right("group", group or f"{settings.app_id}-", ("Read",), prefix=group is None)
    match role:
        case Role.agent:
            # `ingest` asks for both topics before it begins.
            return (*events, Right("topic", outcomes, ("Describe",)))
        case Role.controller:
            # It reads its own answers too: after a restart an order is answered as before.
            return (Right("topic", findings, read), Right("topic", outcomes, (*read, "Write")), of_group)
        case Role.reader:
            return (Right("topic", findings, read), of_group)
        case Role.operator:
            return _operator(settings, write)
        case Role.monitor:
            own = f"{settings.app_id}-"
            return (
                *(Right("topic", name, read) for name in settings.input_topics),
                Right("topic", findings, write),
                Right("topic", letters, write),
                Right("topic", own, (*read, "Write"), prefix=True),  # changelogs
                Right("group", settings.app_id, ("Read",)),
                Right("transactionalId", own, write, prefix=True),
            )


def _operator(settings: Settings, write: tuple[str, ...]) -> tuple[Right, ...]:
    """`topics` creates and compares, `dead-letters` reads, settles and sends again."""
    names = (*settings.topics, *(changelog(settings.app_id, table) for table in TABLES))
    make = ("Create", "DescribeConfigs")
    letters = settings.dead_letters_topic
    more = dict.fromkeys(settings.input_topics, write) | {letters: (*write, "Read")}
    return tuple(Right("topic", name, tuple(sorted({"Describe", *make, *more.get(name, ())}))) for name in names)


_OPTION = {"topic": "--topic", "group": "--group", "transactionalId": "--transactional-id"}


def commands(granted: Iterable[Right], principal: str, brokers: Sequence[str]) -> list[str]:
    """The lines for `kafka-acls.sh`; what is allowed alike is in one."""
    alike: dict[tuple[str, tuple[str, ...], bool], list[str]] = {}
    for kind, name, operations, prefix in granted:
        alike.setdefault((kind, operations, prefix), []).append(name)
    lines = []
    for (kind, operations, prefix), names in alike.items():
        words = ["kafka-acls.sh", "--bootstrap-server", ",".join(brokers), "--add", "--allow-principal", principal]
        words += [word for operation in operations for word in ("--operation", operation)]
        words += [word for name in names for word in (_OPTION[kind], name)]
        words += ["--resource-pattern-type", "prefixed"] if prefix else []
        lines.append(shlex.join(words))
    return lines


def kafka_user(granted: Iterable[Right], name: str, cluster: str) -> dict[str, Any]:
    """Strimzi's resource of an account with these rights, that shows a password (SCRAM-SHA-512)."""
    acls = [
        {
            "resource": {"type": right.kind, "name": right.name, "patternType": "prefix" if right.prefix else "literal"},
            "operations": list(right.operations),
            "host": "*",
        }
        for right in granted
    ]
    return {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaUser",
        "metadata": {"name": name, "labels": {"strimzi.io/cluster": cluster}},
        "spec": {"authentication": {"type": "scram-sha-512"}, "authorization": {"type": "simple", "acls": acls}},
    }
