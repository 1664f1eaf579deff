"""All topics of one monitor: what they should be, how a broker differs from that, and creating what is missing.

The house rules:
- Every topic has the same partition count: all work for a partition number runs in one task and commits in one transaction.
- Partitions are never added: the sessions of a partition would move away from their state. Nothing is ever deleted or altered.
- Inputs carry append time, because deadlines and expiry count from the time the log received a record.
- Findings are never log-compacted: a consumer that was away must see each alert raised and resolved, not the last word only.
- Changelogs are compacted in small segments: only closed segments are compacted, and a restart reads what is left.

`expected` and `plan` are pure; `read` and `apply` talk to the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

from compaction_events import topics as contract
from compaction_events.security import let_in

DEFAULT_PARTITIONS = contract.DEFAULT_PARTITIONS
TABLES = ("sessions-v1", "checkpoints-v1", "progress-v1")
_MIB = 1024 * 1024
_ALREADY_EXISTS = 36
_UNKNOWN_TOPIC = 3
# Settings that change what the worker computes or loses; the others change cost and durability.
_BREAKING = frozenset({"partitions", "cleanup.policy", "message.timestamp.type"})


class TopicsError(RuntimeError):
    """The broker refused to create or to describe a topic; the message names the topic and the broker's reason."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long each log is kept, in seconds. Events should outlive the longest stop of the worker."""

    events_s: int = contract.EVENTS.retention_s
    outcomes_s: int = contract.OUTCOMES.retention_s
    findings_s: int = contract.FINDINGS.retention_s
    dead_letters_s: int = contract.DEAD_LETTERS.retention_s


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. `config` holds only the settings that matter here; a broker's topic has many more."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """A topic that exists and is not as expected."""

    topic: str
    setting: str
    expected: str
    actual: str

    @property
    def breaking(self) -> bool:
        """Whether the worker would compute something else, or lose data, with the topic as it is."""
        return self.setting in _BREAKING

    def __str__(self) -> str:
        return f"{self.topic}: {self.setting} is {self.actual}, expected {self.expected}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a broker lacks. `missing` is created by `apply`; `differences` are for the operator."""

    missing: tuple[Topic, ...] = ()
    differences: tuple[Difference, ...] = ()

    @property
    def breaking(self) -> tuple[Difference, ...]:
        return tuple(difference for difference in self.differences if difference.breaking)

    def __bool__(self) -> bool:
        return bool(self.missing or self.differences)


def changelog(app_id: str, table: str) -> str:
    """The name Faust gives the changelog of a table.

    >>> changelog("compaction-monitor", "sessions-v1")
    'compaction-monitor-sessions-v1-changelog'
    """
    return f"{app_id}-{table}-changelog"


def expected(
    *,
    app_id: str,
    events: Sequence[str] = (contract.EVENTS.name,),
    outcomes: str = contract.OUTCOMES.name,
    findings: str = contract.FINDINGS.name,
    dead_letters: str = contract.DEAD_LETTERS.name,
    partitions: int = DEFAULT_PARTITIONS,
    replication_factor: int = 1,
    retention: Retention = Retention(),
) -> tuple[Topic, ...]:
    """Every topic of one monitor: inputs, outputs, changelogs, in this order."""
    configs = {name: _log(retention.events_s) for name in events}
    configs[outcomes] = _log(retention.outcomes_s)
    configs[findings] = _log(retention.findings_s)
    configs[dead_letters] = _log(retention.dead_letters_s)
    configs |= {changelog(app_id, table): _compacted(table) for table in TABLES}
    # With three copies a write waits for two, so that the loss of one broker neither stops the monitor nor loses a commit.
    durable = {"min.insync.replicas": "2"} if replication_factor >= 3 else {}
    # Deadlines and expiry count from the time at which the broker appended an input. In what a worker writes the broker
    # would refuse any other time more than an hour ahead of its own: a clock that jumps would stop the partition.
    common = {"message.timestamp.type": "LogAppendTime"} | durable
    return tuple(Topic(name, partitions, replication_factor, config | common) for name, config in configs.items())


def _log(retention_s: int) -> dict[str, str]:
    return {"cleanup.policy": "delete", "retention.ms": str(retention_s * 1000)}


def _compacted(table: str) -> dict[str, str]:
    # Progress is a handful of keys rewritten with every batch: nearly all of its log is garbage soon.
    segment_bytes = (4 if table == "progress-v1" else 64) * _MIB
    return {"cleanup.policy": "compact", "segment.bytes": str(segment_bytes), "min.cleanable.dirty.ratio": "0.1"}


def plan(wanted: Iterable[Topic], actual: Mapping[str, Topic]) -> Plan:
    """What differs between the topics wanted and the broker's.

    Args:
        wanted: As from `expected`.
        actual: The broker's topics by name, as from `read`.
    """
    missing = []
    differences: list[Difference] = []
    for topic in wanted:
        found = actual.get(topic.name)
        if found is None:
            missing.append(topic)
        else:
            differences += _differences(topic, found)
    return Plan(tuple(missing), tuple(differences))


def _differences(wanted: Topic, found: Topic) -> Iterable[Difference]:
    if found.partitions != wanted.partitions:
        yield Difference(wanted.name, "partitions", str(wanted.partitions), str(found.partitions))
    if found.replication_factor != wanted.replication_factor:
        replication = str(wanted.replication_factor), str(found.replication_factor)
        yield Difference(wanted.name, "replication factor", *replication)
    for setting, value in wanted.config.items():
        actual = found.config.get(setting, "unset")
        if actual != value:
            yield Difference(wanted.name, setting, value, actual)


@asynccontextmanager
async def connect(**connection: Any) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client. `connection` is aiokafka's: `bootstrap_servers`, and what SASL and TLS need.

    Raises:
        AccessError: The broker does not let us in.
        KafkaError: No broker answers.
    """
    admin = AIOKafkaAdminClient(**connection)
    try:
        # Inside, because a client that found no broker has a connection to close as well.
        async with let_in(connection):
            await admin.start()
        yield admin
    finally:
        await admin.close()


async def read(admin: AIOKafkaAdminClient, wanted: Iterable[Topic]) -> dict[str, Topic]:
    """Those of the wanted topics that the broker has, with the settings that `wanted` names.

    Raises:
        TopicsError: The broker refused to describe one.
    """
    # All topics are asked for, not these by name: asking for a missing one creates it where auto-create is on.
    present = {topic["topic"]: topic for topic in await admin.describe_topics()}
    wanted_here = [topic for topic in wanted if topic.name in present]
    if not wanted_here:
        return {}
    configs = await _read_configs(admin, wanted_here)
    return {name: _topic(present[name], config) for name, config in configs.items()}


def _topic(described: Mapping[str, Any], config: Mapping[str, str]) -> Topic:
    partitions = described["partitions"]
    replicas = min((len(partition["replicas"]) for partition in partitions), default=0)
    return Topic(described["topic"], len(partitions), replicas, config)


async def _read_configs(admin: AIOKafkaAdminClient, wanted: Sequence[Topic]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic.name, dict(topic.config)) for topic in wanted]
    configs = {}
    for response in await admin.describe_configs(resources):
        for code, message, _kind, name, entries in response.resources:
            # Listed a moment ago and unknown now: deleted in between, or not everywhere known yet.
            if code == _UNKNOWN_TOPIC:
                continue
            _raise_for(code, name, message, "describe")
            configs[name] = {entry[0]: entry[1] for entry in entries}
    return configs


async def apply(admin: AIOKafkaAdminClient, wanted: Sequence[Topic], *, timeout_s: float = 30.0) -> Plan:
    """Create the topics that are missing, and return once the broker lists them.

    Returns:
        The topics created (`missing`) and how the others differ. Nothing is deleted or altered.

    Raises:
        TopicsError: The broker refused one, or does not list a new one in time.
    """
    before = plan(wanted, await read(admin, wanted))
    if not before.missing:
        return before
    await _create(admin, before.missing)
    try:
        async with asyncio.timeout(timeout_s):
            # Created at the controller first; the brokers hear of it a moment later.
            while (after := plan(wanted, await read(admin, wanted))).missing:  # noqa: ASYNC110 - no event tells us
                await asyncio.sleep(0.05)
    except TimeoutError:
        names = ", ".join(topic.name for topic in before.missing)
        raise TopicsError(f"Created, but not listed by the broker within {timeout_s:g} s: {names}") from None
    return Plan(before.missing, after.differences)


async def _create(admin: AIOKafkaAdminClient, topics: Sequence[Topic]) -> None:
    new = [NewTopic(t.name, t.partitions, t.replication_factor, topic_configs=dict(t.config)) for t in topics]
    response = await admin.create_topics(new)
    for name, code, message in response.topic_errors:
        # Another worker or operator was faster; the next look at the broker says whether theirs is right.
        if code != _ALREADY_EXISTS:
            _raise_for(code, name, message, "create")


def _raise_for(code: int, topic: str, message: str | None, what: str) -> None:
    if code:
        raise TopicsError(f"The broker refused to {what} topic {topic}: {message or for_code(code).__name__}")
