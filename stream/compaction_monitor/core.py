"""The pure middle, one partition number at a time: records in, effects out. What the Faust shell runs.

No Kafka, no clock, no logging: time is the records' append time, and `now` of a tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from compaction_events.codec import decode, encode
from compaction_events.errors import ContractError, Reason
from compaction_events.facts import EVENT_TYPES, OUTCOME_TYPES, Fact, RoundCompleted
from compaction_events.findings import Finding
from compaction_events.ids import publication_id
from compaction_monitor import fold as folding
from compaction_monitor.dead_letters import REPLAY, dead_letter, fault, receipt
from compaction_monitor.effects import CHECKPOINTS, SESSIONS, Effects, Outgoing, Reader, Record, Standing
from compaction_monitor.partitioner import partition_of
from compaction_monitor.rules import Rules
from compaction_monitor.soundness import unsound
from compaction_monitor.state.cache import Row, RowCache, SessionRows
from compaction_monitor.state.nodes import Ledger, Node
from compaction_monitor.state.session import NEVER_MS, CorruptStateError, Session, StateError, peek
from compaction_monitor.state.tree import NO_TREE
from compaction_monitor.tally import Tally

SOURCE = "compaction-monitor"
CACHED_SESSIONS = 2_000
SWEEP_ROWS_FIRST = 2_000  # per tick until every row has been seen once after assignment, then:
SWEEP_ROWS = 200
# A tick is computed without a pause and is one transaction, and a silent session can have thousands of checkpoints: once
# it has written so many rows the sweep goes on with the next tick.
SWEEP_WRITES = 5_000
DUE_SESSIONS = 1_000  # likewise: after a long time without a commit, the orders of a whole fleet can be due at once
_EVENTS = frozenset(EVENT_TYPES)
_OUTCOMES = frozenset(OUTCOME_TYPES)


def publication(finding: Finding, traceparent: bytes | None = None) -> Outgoing:
    """A finding as a record: keyed by its session, its `ce_id` derived from id, type and attempt."""
    found = encode(
        finding,
        source=SOURCE,
        id=publication_id(finding.id, finding.type, finding.attempt),
        traceparent=traceparent,
    )
    return Outgoing(found.key, found.value, found.headers)


@dataclass(slots=True)
class MonitorCore:
    """Makes the partitions' folds.

    Args:
        rules: The operator's settings.
        partitions: Of every topic.
        outcomes_topic: Where only answers belong.
        agents: Those that metrics name.
    """

    rules: Rules
    partitions: int
    outcomes_topic: str
    agents: frozenset[str] = frozenset()

    def open(self, partition: int, rows: Reader) -> MonitorPartition:
        """The fold of one partition number over its committed rows."""
        return MonitorPartition(self, partition, rows)


@dataclass(slots=True)
class MonitorPartition:
    """The fold of one owned partition number.

    Between `apply` or `tick` and `committed` it changes nothing of its own, so the same batch can be computed again.
    `_known` keeps recently used sessions decoded; `_due` the sessions whose orders a tick will have to see to.
    """

    core: MonitorCore
    number: int
    rows: Reader
    _known: dict[bytes, Session] = field(default_factory=dict)
    _due: dict[bytes, int] = field(default_factory=dict)
    _swept: bytes = b""
    _seen_all: bool = False
    _trees: RowCache = field(default_factory=RowCache)
    _pending: tuple[Effects, _Batch] | None = None
    _tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self._tally = Tally(self.core.agents)

    @property
    def standing(self) -> Standing:
        """How the sessions stand after what was committed."""
        return Standing(self._tally.counts, self._tally.complete)

    def apply(self, records: Sequence[Record]) -> Effects:
        """Fold records in log order; bad ones become dead letters, everything after them is processed.

        Raises:
            StateError: A row that is needed cannot be used. Nothing is wrong with the record.
        """
        batch = _Batch(self)
        for record in records:
            try:
                batch.fold(record)
            except ContractError as error:
                batch.refuse(record, error)
            except StateError:
                raise
            except Exception as error:  # noqa: BLE001 - a fault of ours in one record must not stop the log
                batch.check_rows(len(record.key or b"").to_bytes(4, "big")[2:] + (record.key or b""))
                kind = f"{type(error).__name__} at offset {record.offset}"
                batch.refuse(record, fault(Reason.internal_error, "value", kind, "a record this version can fold"))
        return self._remember(batch)

    def undecodable(self, records: Sequence[Record], detail: str) -> Effects:
        """Dead-letter records that the client library could not read."""
        batch = _Batch(self)
        for record in records:
            batch.refuse(record, fault(Reason.undecodable_record, "record", detail, "a readable Kafka record"))
        return self._remember(batch)

    def tick(self, now_ms: int) -> Effects:
        """Order deadlines, and a share of the sweep: each tick looks at the next rows for silent sessions."""
        batch = _Batch(self)
        due = (key for key, due_ms in self._due.items() if due_ms <= now_ms)
        for key in list(islice(due, DUE_SESSIONS)):
            session = batch.session(key)
            if session is not None:
                with batch.rows_checked(key):
                    batch.put(key, folding.tick(_session_id(key), session, now_ms, self.core.rules))
        self._sweep(batch, now_ms)
        return self._remember(batch)

    def committed(self, effects: Effects) -> None:
        """Keep what the batch computed, now that it is durable."""
        if self._pending is None or self._pending[0] is not effects:
            return
        batch = self._pending[1]
        self._take(batch.swept)
        was: list[Session] = []
        now: list[Session] = []
        for key, session in batch.sessions.items():
            before = self._known.pop(key, None) or batch.read.get(key)
            if self._tally.counts_key(key):
                if before is not None:
                    was.append(before)
                if session is not None:
                    now.append(session)
            self._due.pop(key, None)
            if session is None:
                continue
            self._known[key] = session
            if session.due_ms != NEVER_MS:
                self._due[key] = session.due_ms
        for key in list(self._known)[: max(0, len(self._known) - CACHED_SESSIONS)]:
            del self._known[key]
        self._tally.change(was, now)
        for rows in batch.rows.values():
            self._trees.committed(rows, effects.writes[CHECKPOINTS])
        self._pending = None

    def _remember(self, batch: _Batch) -> Effects:
        try:
            return self._encoded(batch)
        except Exception:
            for key in batch.sessions:
                batch.check_rows(key)
            raise

    def _encoded(self, batch: _Batch) -> Effects:
        batch.effects.counts.update(batch.counted)
        writes = batch.effects.writes[SESSIONS]
        for key, session in batch.sessions.items():
            writes[key] = None if session is None else session.to_bytes()
        checkpoints = batch.effects.writes[CHECKPOINTS]
        for rows in batch.rows.values():
            for key, row in rows.items():
                checkpoints[key] = None if row is None else row.to_bytes()
        self._pending = (batch.effects, batch)
        return batch.effects

    def _sweep(self, batch: _Batch, now_ms: int) -> None:
        limit = SWEEP_ROWS if self._seen_all else SWEEP_ROWS_FIRST
        rows = self.rows.scan(SESSIONS, self._swept, limit)
        expiry_ms = self.core.rules.expiry_s * 1_000
        due: dict[bytes, int] = {}
        seen = written = 0
        for key, row in rows:
            if written >= SWEEP_WRITES:
                break
            seen += 1
            due_ms, silent_since_ms = peek(row)
            if due_ms != NEVER_MS:
                due[key] = due_ms
            if now_ms - silent_since_ms > expiry_ms and key not in batch.sessions:
                batch.expire(key)
                written += 1 + len(batch.rows.get(key, ()))
        batch.swept = _Swept(rows[:seen], due, last=seen == len(rows) < limit)

    def _take(self, swept: _Swept | None) -> None:
        """The sweep has come so far; before the sessions of its batch, which are counted as they have been read."""
        if swept is None:
            return
        for key, due_ms in swept.due.items():
            self._due.setdefault(key, due_ms)
        if not self._seen_all:
            self._tally.read(swept.rows, swept.last)
        self._seen_all = self._seen_all or swept.last
        self._swept = b"" if swept.last else swept.rows[-1][0]


class _Swept(NamedTuple):
    """What a tick's share of the sweep has seen; `due` as in `MonitorPartition`, `last`: there are no more rows."""

    rows: Sequence[tuple[bytes, bytes]]
    due: dict[bytes, int]
    last: bool


class _Batch:
    """The working place of one batch: sessions as they become, and what goes out."""

    def __init__(self, partition: MonitorPartition) -> None:
        self.partition = partition
        self.rules = partition.core.rules
        self.effects = Effects()
        self.sessions: dict[bytes, Session | None] = {}
        self.rows: dict[bytes, dict[bytes, Row | None]] = {}  # of the checkpoints table, by session
        self.swept: _Swept | None = None
        self.counted: list[tuple[str, ...]] = []
        self.read: dict[bytes, Session] = {}  # from their rows

    def fold(self, record: Record) -> None:
        """Decode one record, fold it into its session, keep what it leads to."""
        decoded = decode(record.value, record.headers, record.key)
        event = decoded.event
        self._check_topic(record, event)
        # `row_key` of the session's id, which `decode` has found to be the record's key.
        assert record.key is not None
        key = len(record.key).to_bytes(2, "big") + record.key
        session = self.session(key)
        if session is None:
            self._check_partition(record, event)
        rows = self.tree(key) if session is not None and session.has_tree else NO_TREE
        folded = folding.fold(session, event, decoded.ce_id, self.rules, record.timestamp, rows)
        self.put(key, folded, decoded.traceparent)
        after = folded.session
        if type(event) is RoundCompleted and after is not None and (session is None or after.window is not session.window):
            # A round that counts, for the metrics: they add it up after the commit, because here it would cost each event.
            base = after.source_spans if after.topology != "chain" else _spans_before(event)
            self.effects.rounds.append((after.agent, after.window[-1], base))
        if record.headers and record.headers[-1][0] == REPLAY:
            self._confirm(record, folded)

    def session(self, key: bytes) -> Session | None:
        """The session as this batch has made it so far."""
        if key in self.sessions:
            return self.sessions[key]
        known = self.partition._known.get(key)
        if known is not None:
            return known
        row = self.partition.rows.get(SESSIONS, key)
        if row is None:
            return None
        read = self.read[key] = Session.from_bytes(row)
        return read

    def tree(self, key: bytes) -> SessionRows:
        """The checkpoints of a session as this batch has made them so far."""
        return SessionRows(self.partition.rows, self.partition._trees, self.rows.setdefault(key, {}), key)

    def put(self, key: bytes, folded: folding.Folded, traceparent: bytes | None = None) -> None:
        """Keep a session's new state, and publish its findings with the trace of the record behind them."""
        self.sessions[key] = folded.session
        self.counted += folded.counted
        if folded.nodes or folded.ledger is not None or folded.ledger_gone:
            self.tree(key).keep(folded.nodes, folded.ledger, gone=folded.ledger_gone)
        if folded.findings:
            self.effects.examples.update(dict.fromkeys(folded.counted, _session_id(key)))
            self.effects.findings += [publication(finding, traceparent) for finding in folded.findings]

    def expire(self, key: bytes) -> None:
        """Close a session that has been silent for too long, and forget it."""
        session = self.session(key)
        if session is None:
            return
        with self.rows_checked(key):
            self.put(key, folding.expire(_session_id(key), session, self.rules, self.tree(key)))

    @contextmanager
    def rows_checked(self, key: bytes) -> Iterator[None]:
        """What fails here for no fault of its rows goes on as it is."""
        try:
            yield
        except StateError:
            raise
        except Exception:
            self.check_rows(key)
            raise

    def check_rows(self, key: bytes) -> None:
        """Look closely at what is remembered of a session, after something has failed on it.

        Raises:
            CorruptStateError: A row is not as we write it: the session would go wrong with every record from now on.
        """
        for session in (self.read.get(key), self.partition._known.get(key), self.session(key)):
            if session is not None and (field := unsound(session)):
                raise CorruptStateError(f"the state of session {_session_id(key)!r} is broken: {field}")
        tree = self.tree(key)
        rows: list[tuple[str, Ledger | Node]] = [("ledger", tree.ledger()), *tree.nodes()]
        for name, row in rows:
            if field := unsound(row):
                raise CorruptStateError(f"the checkpoints of session {_session_id(key)!r} are broken: {name!r}, {field}")

    def _confirm(self, record: Record, folded: folding.Folded) -> None:
        """Tell whoever sent a dead letter again what became of it."""
        found = receipt(record, folded.counted)
        if found is not None:
            self.effects.dead_letters.append(found)

    def refuse(self, record: Record, error: ContractError) -> None:
        """Send a record to the dead letters."""
        self.effects.dead_letters.append(dead_letter(record, error))
        self.counted.append(("dead_letters", record.topic, error.reason.value))

    def _check_topic(self, record: Record, event: Fact) -> None:
        if type(event) not in (_OUTCOMES if record.topic == self.partition.core.outcomes_topic else _EVENTS):
            raise fault(Reason.wrong_topic, "type", f"{event.type} on {record.topic}", "the topic of its kind")

    def _check_partition(self, record: Record, event: Fact) -> None:
        """Only where a session is new: one that is known here has been in the right place."""
        right = partition_of(event.session_id.encode(), self.partition.core.partitions)
        if record.partition != right:
            allowed = f"{right}, by murmur2 of the key (librdkafka: murmur2_random)"
            raise fault(Reason.wrong_partition, "partition", str(record.partition), allowed)


def _spans_before(event: RoundCompleted) -> int | None:
    return event.before.distinct_source_spans if event.before is not None else None


def _session_id(key: bytes) -> str:
    return key[2:].decode()
