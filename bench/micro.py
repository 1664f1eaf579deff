"""What each step of the worker's own path costs, as a ratio to `orjson.loads` of the same event.

    python -m bench.micro            measure, compare with the stored ratios; exit 1 if one is more than 25 % higher
    python -m bench.micro --store    measure, and store the ratios in bench/micro.json
    python -m bench.micro --profile  where the time of the whole path goes, by function

The lowest of many short runs, each of them beside a run of `orjson.loads`: what other processes take away hardly shows,
and a ratio is the same on a fast machine and on a slow one.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from bench.cluster import PARTITIONS
from bench.load import Load, event, events
from compaction_events.codec import Encoded, decode, encode
from compaction_monitor.checks.rounds import CHECKS
from compaction_monitor.core import MonitorCore, publication
from compaction_monitor.effects import SESSIONS, TABLES
from compaction_monitor.fold import fold
from compaction_monitor.partitioner import partition_of
from compaction_monitor.rules import Rules
from compaction_monitor.shell.metrics import Metrics
from compaction_monitor.shell.worker import GC_OBJECTS
from compaction_monitor.state.session import Session

STORED = Path(__file__).with_name("micro.json")
TOLERANCE = 1.25
ROUNDS = 40
RUN_S = 0.003
BATCH = 2_000
APPENDED_MS = 1_790_000_000_000


class Record(NamedTuple):
    """What aiokafka hands out, as far as the fold looks at it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: Sequence[tuple[str, bytes]]


class Rows:
    """Committed rows in memory: the store's own cost is not the fold's."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {table: {} for table in TABLES}

    def get(self, table: str, key: bytes) -> bytes | None:
        return self.tables[table].get(key)

    def scan(self, table: str, after: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        rows = self.tables[table]
        return [(key, rows[key]) for key in sorted(key for key in rows if key > after)[:limit]]


class Case(NamedTuple):
    """One thing to measure: a call, and how many events it is about."""

    call: Callable[[], object]
    events: int = 1


def records(load: Load) -> list[Record]:
    """Those events of a load that fall into one partition."""
    found: list[Record] = []
    for key, value, headers in events(load):
        partition = partition_of(key, PARTITIONS)
        if partition == 0:
            found.append(Record("events", 0, len(found), APPENDED_MS, key, value, headers))
    return found


def known(rounds: int) -> Session:
    """A session as it is after some rounds without trouble."""
    session: Session | None = None
    for number in range(1, rounds + 1):
        session = fold(session, event(1, number, failed=False), f"e{number}", Rules(), APPENDED_MS).session
    assert session is not None
    return session


def batches(load: Load, before: int = 0) -> Case:
    """The whole pure path, batch by batch. `before`: so many events are in the rows already, from which they are read."""
    waiting = records(load)
    filled: dict[bytes, bytes] = {}
    _through(waiting[:before], filled)
    return Case(lambda: _through(waiting[before:], dict(filled)), len(waiting) - before)


def _through(waiting: Sequence[Record], sessions: dict[bytes, bytes]) -> None:
    rows = Rows()
    rows.tables[SESSIONS] = sessions
    partition = MonitorCore(Rules(), PARTITIONS, "outcomes").open(0, rows)
    for at in range(0, len(waiting), BATCH):
        effects = partition.apply(waiting[at : at + BATCH])
        sessions.update((key, value) for key, value in effects.writes[SESSIONS].items() if value is not None)
        partition.committed(effects)


def counted() -> Case:
    """What a committed batch adds to the metrics."""
    waiting = records(Load("counted", 500, 40))[:BATCH]
    effects = MonitorCore(Rules(), PARTITIONS, "outcomes").open(0, Rows()).apply(waiting)
    metrics = Metrics(topics=("events", "outcomes"))
    return Case(lambda: metrics.add(effects), len(waiting))


def cases() -> dict[str, Case]:
    rules = Rules()
    limits = rules.default.thresholds
    stored = Load("stored", 10_000, 9)
    session = known(12)
    steady, failing = event(1, 13, failed=False), event(1, 13, failed=True)
    sent: Encoded = encode(steady, source="bench")
    row = session.to_bytes()
    finding = fold(session, failing, "e13", rules, APPENDED_MS).findings[0]
    after = fold(session, steady, "e13", rules, APPENDED_MS).session
    assert after is not None
    return {
        "orjson.loads": Case(lambda: orjson.loads(sent.value)),
        "decode": Case(lambda: decode(sent.value, sent.headers, sent.key)),
        "fold": Case(lambda: fold(session, steady, "e13", rules, APPENDED_MS)),
        "fold, first round": Case(lambda: fold(None, steady, "e13", rules, APPENDED_MS)),
        "fold, alert and order": Case(lambda: fold(session, failing, "e13", rules, APPENDED_MS)),
        "checks": Case(lambda: [check(after, steady, limits) for check in CHECKS.values()]),
        "state encode": Case(session.to_bytes),
        "state decode": Case(lambda: Session.from_bytes(row)),
        "finding encode": Case(lambda: publication(finding)),
        "event encode": Case(lambda: encode(steady, source="bench")),
        "metrics": counted(),
        "path, sessions known": batches(Load("known", 500, 40)),
        "path, sessions fresh": batches(Load("fresh", 20_000, 1)),
        "path, sessions stored": batches(stored, before=len(records(stored)) // stored.rounds * (stored.rounds - 1)),
    }


def measure(wanted: dict[str, Case]) -> dict[str, float]:
    """Microseconds for an event, the lowest of all runs."""
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, 20, 20)  # as the worker does
    best = dict.fromkeys(wanted, float("inf"))
    repeats = {name: _repeats(case) for name, case in wanted.items()}
    for _ in range(ROUNDS):
        for name, case in wanted.items():
            begun = time.thread_time_ns()
            for _ in range(repeats[name]):
                case.call()
            spent = (time.thread_time_ns() - begun) / 1e3 / repeats[name] / case.events
            best[name] = min(best[name], spent)
    return best


def _repeats(case: Case) -> int:
    """How many calls make a run."""
    for done in count(1):
        begun = time.perf_counter()
        for _ in range(1 << done):
            case.call()
        if time.perf_counter() - begun > RUN_S:
            return 1 << done
    raise AssertionError


def compare(ratios: dict[str, float], stored: dict[str, float]) -> list[str]:
    """What has become slower beyond the tolerance, in words."""
    return [
        f"{name}: {ratio:.2f} times orjson.loads, stored {stored[name]:.2f}"
        for name, ratio in ratios.items()
        if name in stored and ratio > stored[name] * TOLERANCE
    ]


def profile() -> None:
    case = batches(Load("known", 500, 100))
    profiler = cProfile.Profile()
    profiler.runcall(case.call)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.micro", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    if given.profile:
        profile()
        return 0
    stored: dict[str, Any] = json.loads(STORED.read_text()) if STORED.exists() else {}
    spent = measure(cases())
    unit = spent["orjson.loads"]
    ratios = {name: round(value / unit, 2) for name, value in spent.items()}
    for name, ratio in ratios.items():
        before = f"{stored[name]:>9.2f}" if name in stored else f"{'':>9}"
        print(f"{name:24} {spent[name]:>8.2f} µs {ratio:>8.2f} {before}")
    if given.store:
        STORED.write_text(json.dumps(ratios, indent=1) + "\n")
        return 0
    slower = compare(ratios, stored)
    for line in slower:
        print(f"SLOWER {line}")
    print(json.dumps({"ratios": ratios, "us": {name: round(value, 2) for name, value in spent.items()}, "slower": slower}))
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
