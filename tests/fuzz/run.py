"""The pure middle under records that nobody should send, and what must hold whatever comes.

Nothing raises; every record that breaks the contract is a dead letter with a reason of the closed set, and no other is;
dead letters, findings and rows stay within their bounds and can be read again; a batch computed twice is the same twice.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from compaction_events.codec import decode
from compaction_events.errors import ContractError, Reason
from compaction_events.findings import MAX_FINDING_BYTES, RemediationRequested
from compaction_monitor.core import MonitorCore, MonitorPartition
from compaction_monitor.dead_letters import Letter, Name, Receipt, read
from compaction_monitor.effects import CHECKPOINTS, SESSIONS, Effects, Outgoing
from compaction_monitor.harness import OUTCOMES, LogRecord
from compaction_monitor.rules import Rules
from compaction_monitor.shell.store import MemoryStore
from compaction_monitor.state.cache import TRACKED
from compaction_monitor.state.nodes import Ledger, Node, TrackedSet
from compaction_monitor.state.session import MAX_STATE_BYTES, Session, peek
from tests.fuzz.records import PARTITIONS, Records

MAX_LETTER_BYTES: Final = 1_000_000  # what the worker hands to the broker as one batch
DAY_MS: Final = 86_400_000


@dataclass(slots=True)
class Outcome:
    """What a run has seen; `wrong` is empty if all held."""

    seed: int
    records: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    receipts: int = 0
    batches: int = 0
    restarts: int = 0
    ticks: int = 0
    largest: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("dead_letter", "finding", "session", "checkpoint"), 0)
    )
    wrong: list[str] = field(default_factory=list)
    took_s: float = 0.0

    def saw(self, kind: str, size: int, limit: int) -> None:
        """Keep the largest of a kind, and note one that is over its limit."""
        self.largest[kind] = max(self.largest[kind], size)
        if size > limit:
            self.wrong.append(f"a {kind} of {size} bytes, more than {limit}")

    def document(self) -> dict[str, Any]:
        """Everything in one line of JSON."""
        refused = self.refused.total()
        return {
            "seed": self.seed, "records": self.records, "crashes": len(self.wrong), "accepted": self.records - refused,
            "refused": refused, "reasons": dict(self.refused.most_common()), "findings": self.findings.total(),
            "finding_types": dict(self.findings.most_common()), "receipts": self.receipts, "batches": self.batches,
            "restarts": self.restarts, "ticks": self.ticks, "largest_bytes": self.largest, "wrong": self.wrong[:5],
            "took_s": round(self.took_s, 1),
        }  # fmt: skip


class Run:
    """Some records through two partitions, in batches of any size, with ticks, restarts and aborted transactions.

    Args:
        seed: Of the records and of what is done with them.
        core: The middle under test.
    """

    def __init__(self, seed: int, core: Any = None) -> None:
        self.outcome = Outcome(seed)
        self._records = Records(seed)
        self._chance = random.Random(f"run {seed}")
        self._core = core or MonitorCore(Rules(), PARTITIONS, OUTCOMES)
        self._stores = [MemoryStore() for _ in range(PARTITIONS)]
        self._open: dict[int, MonitorPartition] = {}

    def __call__(self, count: int, told: Callable[[Outcome], None] = lambda _: None) -> Outcome:
        """Play so many records; stops at the first thing that is wrong."""
        begun = time.monotonic()
        log = iter(self._records.next, None)
        while self.outcome.records < count and not self.outcome.wrong:
            size = min(self._chance.choice((1, 2, 10, 50, 200)), count - self.outcome.records)
            together = list(islice(log, size))
            for number in range(PARTITIONS):
                self._batch(number, [record for record in together if record.partition == number])
            self.outcome.records += len(together)
            if self._chance.random() < 0.05:
                self._tick()
            self.outcome.took_s = time.monotonic() - begun
            told(self.outcome)
        return self.outcome

    def _batch(self, number: int, records: Sequence[LogRecord]) -> None:
        if not records:
            return
        partition = self._partition(number)
        try:
            effects = partition.apply(records)
            if self._chance.random() < 0.02:  # aborted: computed again
                again = partition.apply(records)
                if (again.writes, again.findings, again.dead_letters) != (
                    effects.writes,
                    effects.findings,
                    effects.dead_letters,
                ):
                    self._wrong("a batch computed twice differs", records)
                effects = again
            self._keep(number, effects)
            self._judge_letters(records, effects)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a crash
            self._wrong(repr(error), records)
        if self._chance.random() < 0.005:
            self._open.clear()
            self.outcome.restarts += 1

    def _tick(self) -> None:
        ahead_ms = self._chance.choice((0, 1_000, 600_000, 3_600_000, DAY_MS + 1, -DAY_MS, 400 * DAY_MS))
        self.outcome.ticks += 1
        for number in range(PARTITIONS):
            try:
                self._keep(number, self._partition(number).tick(self._records.now_ms + ahead_ms))
            except Exception as error:  # noqa: BLE001 - as above
                self.outcome.wrong.append(f"tick {ahead_ms} ms ahead: {error!r}")

    def _partition(self, number: int) -> MonitorPartition:
        if number not in self._open:
            self._open[number] = self._core.open(number, self._stores[number])
        return self._open[number]

    def _keep(self, number: int, effects: Effects) -> None:
        for outgoing in effects.findings:
            self._judge_finding(outgoing)
        for table, limit in ((SESSIONS, MAX_STATE_BYTES), (CHECKPOINTS, MAX_STATE_BYTES)):
            for key, row in effects.writes[table].items():
                if row is not None:
                    self.outcome.saw("session" if table == SESSIONS else "checkpoint", len(row), limit)
                    if self._chance.random() < 0.02:
                        self._judge_row(table, key, row)
        self._stores[number].write(effects.writes, {})
        self._open[number].committed(effects)
        self.outcome.batches += 1

    def _judge_finding(self, outgoing: Outgoing) -> None:
        assert outgoing.value is not None
        self.outcome.saw("finding", len(outgoing.value), MAX_FINDING_BYTES)
        found = decode(outgoing.value, outgoing.headers, outgoing.key).event
        self.outcome.findings[found.type] += 1
        if isinstance(found, RemediationRequested):
            self._records.orders.append((found.session_id, found.id, found.action))

    def _judge_row(self, table: str, key: bytes, row: bytes) -> None:
        """What is written can be read, and says the same when it is written again."""
        after = key[2 + int.from_bytes(key[:2], "big") :]
        kind: Any = Session if table == SESSIONS else TrackedSet if after == TRACKED else Node if after else Ledger
        if kind.from_bytes(row).to_bytes() != row:
            self.outcome.wrong.append(f"a row of {kind.__name__} that reads as another: {row!r}")
        if table == SESSIONS:
            peek(row)

    def _judge_letters(self, records: Sequence[LogRecord], effects: Effects) -> None:
        """Exactly those that break the contract, each once, whole, bounded, for the reason that the codec gives."""
        letters = [read(*outgoing) for outgoing in effects.dead_letters]
        for outgoing in effects.dead_letters:
            self.outcome.saw("dead_letter", size(outgoing), MAX_LETTER_BYTES)
        found = {letter.name: letter for letter in letters if isinstance(letter, Letter)}
        self.outcome.receipts += sum(isinstance(letter, Receipt) for letter in letters)
        if len(found) + sum(isinstance(letter, Receipt) for letter in letters) != len(letters):
            self._wrong("a dead letter twice, or one that is none", records)
        for record in records:
            letter = found.pop(Name(record.topic, record.partition, record.offset), None)
            expected = refusal(record)
            reason = None if letter is None else letter.reason
            if reason == Reason.internal_error:
                self._wrong(f"a crash in the fold: {letter and letter.message}", [record])
            elif reason != expected and not (expected is None and reason in (Reason.wrong_topic, Reason.wrong_partition)):
                self._wrong(f"refused for {reason}, expected {expected}", [record])
            if reason is not None:
                self.outcome.refused[Reason(reason).value] += 1
        if found:
            self._wrong(f"letters of records that nobody sent: {list(found)}", records)

    def _wrong(self, what: str, records: Sequence[LogRecord]) -> None:
        self.outcome.wrong.append(
            f"{what}; of record {self.outcome.records} on: {[record[:7] for record in records[:3]]!r:.20000}"
        )


def refusal(record: LogRecord) -> Reason | None:
    """Why the codec refuses a record."""
    try:
        decode(record.value, record.headers, record.key)
    except ContractError as error:
        return error.reason
    return None


def size(outgoing: Outgoing) -> int:
    """Bytes of a record, at most twenty more on the wire for each header."""
    of_headers = sum(len(name.encode()) + len(value or b"") + 20 for name, value in outgoing.headers)
    return len(outgoing.key or b"") + len(outgoing.value or b"") + of_headers + 100
