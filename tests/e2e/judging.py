"""What the real worker must have made of a log, whatever was done to it: the pure fold over the same log says it.

Of steady sessions everything is the log's: each publication in its order, each row to the byte. Elsewhere ticks and
answers change orders, the loop's own alerts and what the row keeps of them; there alerts of the checks must be the
same, and orders keep their invariants.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, combinations
from operator import attrgetter
from typing import Any, Final, NamedTuple

from aiokafka.errors import LeaderNotAvailableError

from compaction_events.codec import decode, encode
from compaction_events.facts import Fact, RemediationAcknowledged
from compaction_events.findings import Alert, Finding, RemediationRequested, RemediationWithdrawn
from compaction_monitor.effects import CHECKPOINTS, SESSIONS
from compaction_monitor.harness import EVENTS, OUTCOMES, LogRecord, Offline, Published
from compaction_monitor.loop.conflicts import contradict, stands
from compaction_monitor.partitioner import partition_of
from compaction_monitor.shell.transactions import Transactor
from compaction_monitor.state.cache import TRACKED
from compaction_monitor.state.nodes import Node
from compaction_monitor.state.session import Session
from tests.e2e import workers
from tests.e2e.fleet import STEADY, agent_of, rules

log = logging.getLogger(__name__)

LOOP: Final = ("remediation_unacknowledged", "remediation_ineffective")
BATCH_BYTES: Final = 200_000
SETTLED_S: Final = 60.0
CONNECT: Final = "__connect.errors."
Tables = dict[str, dict[bytes, bytes]]


class Ready(NamedTuple):
    """A record as a producer sends it."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Sent(NamedTuple):
    """Where the log has it."""

    offset: int
    record: Ready


class Verdict(NamedTuple):
    """How far what came out differs from the oracle's; all zero is right.

    Attributes:
        lost: Records of the log that the worker did not get past.
        missing: Publications that the oracle has and the topic has not; `unknown`: the other way round.
        repeated: Publications that are there more than once.
        disordered: Sessions whose publications are all there, in another order.
        orders_wrong: Sessions whose orders or alerts break an invariant.
        states_different: Rows of the tables that differ.
        letters_wrong: Bad records that are not in the dead letters once, with their reason, and what else is there.
    """

    lost: int
    missing: int
    unknown: int
    repeated: int
    disordered: int
    orders_wrong: int
    states_different: int
    letters_wrong: int = 0


RIGHT: Final = Verdict(0, 0, 0, 0, 0, 0, 0)


def ready(facts: Iterable[Fact], app_id: str, partitions: int) -> list[Ready]:
    """Facts as their producers send them."""
    made = []
    for fact in facts:
        key, value, headers = encode(fact)
        topic = "outcomes" if isinstance(fact, RemediationAcknowledged) else "events"
        made.append(Ready(f"{app_id}.{topic}", partition_of(key, partitions), key, value, headers))
    return made


async def send(out: Any, records: Iterable[Ready]) -> list[Sent]:
    """Send in order, batched by hand."""
    open_batches: dict[tuple[str, int], tuple[Any, list[Ready]]] = {}
    sent: list[tuple[Any, list[Ready]]] = []

    async def close(place: tuple[str, int]) -> None:
        batch, held = open_batches.pop(place)
        batch.close()
        while True:
            try:
                sent.append((await out.send_batch(batch, place[0], partition=place[1]), held))
                return
            except LeaderNotAvailableError:  # of a broker that is being restarted; nothing was taken yet
                await asyncio.sleep(0.1)

    for record in records:
        place = (record.topic, record.partition)
        fields: dict[str, Any] = {"key": record.key, "value": record.value, "headers": list(record.headers)}
        if place in open_batches and open_batches[place][0].append(timestamp=None, **fields) is None:
            await close(place)
        if place not in open_batches:
            open_batches[place] = (out.create_batch(), [])
            open_batches[place][0].append(timestamp=None, **fields)
        open_batches[place][1].append(record)
    for place in list(open_batches):
        await close(place)
    logged = [(await future, held) for future, held in sent]
    return [Sent(base.offset + n, record) for base, held in logged for n, record in enumerate(held)]


def oracle(events: Sequence[Any], outcomes: Sequence[Any], partitions: int) -> Offline:
    """The pure fold over both logs, in the order in which the broker appended to them.

    Between the logs there is no other order. It matters where a late start has begun a life a day before the answer to
    an order of the life it replaces: read after it, that answer closes the session.
    """
    offline = Offline(rules(), partitions)
    logs = ((EVENTS, events), (OUTCOMES, outcomes))
    both = [LogRecord(topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers) for topic, rs in logs for r in rs]
    both.sort(key=attrgetter("timestamp"))  # stable: each log keeps its own order
    offline.feed_records(both, batch=200)
    return offline


async def published(broker: str, app_id: str, partitions: int) -> list[Published]:
    """Every finding, read committed."""
    records = await workers.read_all(broker, f"{app_id}.findings", partitions)
    decoded = [decode(record.value, record.headers, record.key) for record in records]
    return [Published(one.event, one.ce_id) for one in decoded]  # type: ignore[arg-type]  # findings, by the topic


async def tables(broker: str, app_id: str, partitions: int) -> Tables:
    """The rows of the tables, as their changelogs have them."""
    return {name: await workers.state(broker, app_id, partitions, f"{name}-v1") for name in (SESSIONS, CHECKPOINTS)}


async def settle(broker: str, app_id: str, partitions: int) -> None:
    """End whatever transaction a worker has left behind, as its next owner would: only then all that was committed is read.

    Raises:
        TimeoutError: One does not end.
    """
    options = {"bootstrap_servers": broker}
    async with asyncio.timeout(SETTLED_S):
        for partition in range(partitions):
            owner = Transactor(partition, f"{app_id}-{partition}", options, timeout_s=SETTLED_S, request_s=SETTLED_S)
            await owner.start()
            await owner.stop()


async def judge(broker: str, app_id: str, partitions: int) -> Verdict:
    """Compare all that workers, ended by now, have made of this app's log with what the pure fold makes of it."""
    await settle(broker, app_id, partitions)
    events, outcomes = f"{app_id}.events", f"{app_id}.outcomes"
    lost = 0
    for topic in (events, outcomes):
        reached = await workers.progress(broker, app_id, partitions, topic)
        lost += sum(end - reached.get(p, 0) for p, end in (await workers.ends(broker, topic, partitions)).items())
    read = [await workers.read_all(broker, topic, partitions) for topic in (events, outcomes)]
    offline = oracle(read[0], read[1], partitions)
    found = await published(broker, app_id, partitions)
    letters = await workers.read_all(broker, f"{app_id}.dead-letters", partitions)
    wrong = different_letters(offline.dead_letters, letters)
    return compare(offline, found, await tables(broker, app_id, partitions))._replace(lost=lost, letters_wrong=wrong)


def different_letters(wanted: Iterable[Any], given: Iterable[Any]) -> int:
    """How many dead letters only one side has, or has more often."""
    sides = [Counter((letter.key, letter.value, *_origin(dict(letter.headers))) for letter in side) for side in (wanted, given)]
    return ((sides[0] - sides[1]) + (sides[1] - sides[0])).total()


def _origin(headers: dict[str, bytes | None]) -> tuple[bytes | None, ...]:
    """Of which log (the oracle's topics are named otherwise), where in it, and why it was refused."""
    topic = (headers[f"{CONNECT}topic"] or b"").rpartition(b".")[2]
    return (topic, *(headers[name] for name in (f"{CONNECT}partition", f"{CONNECT}offset", "x-reason")))


def compare(offline: Offline, found: Sequence[Published], rows: Tables) -> Verdict:
    """What differs between the oracle, and what was published and kept."""
    wanted = _by_session(one for one in offline.published if _exact(one.finding))
    given = _by_session(one for one in found if _exact(one.finding))
    all_wanted, all_given = Counter(chain(*wanted.values())), Counter(chain(*given.values()))
    repeats = Counter(one.ce_id for one in found)
    right_rows: Tables = {name: {} for name in (SESSIONS, CHECKPOINTS)}
    for partition in offline.rows:
        for name, table in right_rows.items():
            table.update(partition.tables[name])
    apart = different(right_rows, rows)
    for name, key in apart[:5]:
        is_, should_be = (_row(name, key, tables[name].get(key)) for tables in (rows, right_rows))
        log.warning("%s %r is\n%r, not\n%r", name, key, is_, should_be)
    return Verdict(
        lost=0,
        missing=len(all_wanted.keys() - all_given.keys()),
        unknown=len(all_given.keys() - all_wanted.keys()),
        repeated=sum(count - 1 for count in repeats.values()),
        disordered=sum(1 for name in wanted if wanted[name] != given[name] and sorted(wanted[name]) == sorted(given[name])),
        orders_wrong=len(broken_sessions(found, rows[SESSIONS])),
        states_different=len(apart),
    )


def different(wanted: Tables, given: Tables) -> list[tuple[str, bytes]]:
    """The rows that differ, by table and key."""
    keys = {(name, key) for tables in (wanted, given) for name, table in tables.items() for key in table}
    return [
        (name, key)
        for name, key in sorted(keys)
        if _row(name, key, wanted[name].get(key)) != _row(name, key, given[name].get(key))
    ]


def _row(table: str, key: bytes, row: bytes | None) -> Any:
    """What the log alone decides of a row."""
    end = 2 + int.from_bytes(key[:2], "big")
    if row is None or agent_of(key[2:end].decode()) == STEADY:
        return row
    if table == CHECKPOINTS:
        is_node = key[end:] not in (b"", TRACKED)
        return Node.from_bytes(row)._replace(orders=0) if is_node else row
    session = Session.from_bytes(row)
    session.orders, session.cooling, session.ordered_us = (), (), ()
    session.alerts = tuple(alert for alert in session.alerts if alert.check not in LOOP)
    session.answered, session.appended_ms, session.active_us = False, 0, 0
    return session


def _exact(finding: Finding) -> bool:
    return agent_of(finding.session_id) == STEADY or (isinstance(finding, Alert) and finding.name not in LOOP)


def _by_session(publications: Iterable[Published]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for one in publications:
        found[one.finding.session_id].append(one.ce_id)
    return found


def broken_sessions(found: Iterable[Published], rows: dict[bytes, bytes]) -> set[str]:
    """Sessions whose orders, or the loop's own alerts, are not as they must be."""
    attempts: dict[str, int] = {}
    firing: dict[str, int] = {}
    withdrawn: dict[str, int] = {}
    wrong = {key[2:].decode() for key, row in rows.items() if not _consistent(Session.from_bytes(row))}
    for one in found:
        finding = one.finding
        if isinstance(finding, RemediationRequested):
            right = finding.attempt == attempts.get(finding.id, 0) + 1
            attempts[finding.id] = finding.attempt
        elif isinstance(finding, RemediationWithdrawn):
            # Once for each time it was sent; it may come again after it has given way.
            right = finding.attempt == attempts.get(finding.id) != withdrawn.get(finding.id)
            withdrawn[finding.id] = finding.attempt
        elif finding.status == "firing":
            right = finding.attempt == firing.get(finding.id, 0) + 1
            firing[finding.id] = finding.attempt
        else:
            right = firing.pop(finding.id, None) == finding.attempt
        if not right:
            wrong.add(finding.session_id)
    return wrong


def _consistent(session: Session) -> bool:
    standing = [order for order in session.orders if stands(order)]
    unique = len({order.id for order in session.orders}) == len(session.orders)
    return unique and not any(contradict(a, b) for a, b in combinations(standing, 2))
