"""A million checkpoints through the core, in the worker's store: how fast, and in how much memory. One JSON line.

The shape of a session of many hours: a leaf every 8 turns, a mid every 64, a root every 512, each over those below it;
one mid in fifty has too little room (so its root is looked at), one root in ten is regenerated, one constraint in a
hundred is missed. The bounds of a session are far below what one of them sends, so most of it is forgotten on the way.

`events_per_s` is the fold's alone, `with_store_per_s` with writing its rows; making the records is in neither.

    python -m bench.tree [--events 1000000] [--sessions 1] [--batch 500] [--store rocksdict|memory] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from compaction_events.codec import SPEC_VERSION, TYPE_PREFIX
from compaction_monitor.core import MonitorCore
from compaction_monitor.effects import CHECKPOINTS, SESSIONS, TABLES
from compaction_monitor.rules import Rules
from compaction_monitor.shell.store import Stores
from compaction_monitor.state.cache import row_key
from compaction_monitor.state.nodes import Ledger

OUTCOMES, EVENTS = "compaction.outcomes", "compaction.events"
START = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS_A_TURN = 0.14  # a million turns in forty hours
LEAF, MID, ROOT = 8, 64, 512
TRACKED = [f"{number:016x}" for number in range(19)]
ROOM = {"budget_tokens": 1_200, "child_joint_entropy_bits": 9_000.0, "child_redundancy": 0.5, "bits_per_token": 4.0}


class Record(NamedTuple):
    """What aiokafka hands out, as far as the fold looks at it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: Sequence[tuple[str, bytes]]


def records(session_ids: Sequence[str], partition: int) -> Iterator[Record]:
    """The sessions' logs, turn by turn, in one partition; without end."""
    streams = [session(session_id) for session_id in session_ids]
    offset = 0
    while True:
        for session_id, stream in zip(session_ids, streams, strict=True):
            kind, at, event = next(stream)
            headers = [
                ("ce_specversion", SPEC_VERSION),
                ("ce_id", f"{session_id}-{offset}".encode()),
                ("ce_type", f"{TYPE_PREFIX}{kind}.v1".encode()),
            ]
            value = orjson.dumps({"session_id": session_id, **event})
            timestamp = int(at.timestamp() * 1_000)
            yield Record(EVENTS, partition, offset, timestamp, session_id.encode(), value, headers)
            offset += 1


def session(session_id: str) -> Iterator[tuple[str, datetime, dict[str, Any]]]:
    """One session's facts: type, time, fields."""
    yield "session.started", START, {"agent": "bench", "started_at": START, "topology": "tree"}
    for turn, proposition in enumerate(TRACKED):
        yield (
            "proposition.stated",
            START,
            {"proposition": proposition, "turn": turn, "span_id": "span", "pinned": turn < 5},
        )
    turn = 0
    while True:
        turn += LEAF
        at = START + timedelta(seconds=SECONDS_A_TURN * turn)
        yield "checkpoint.written", at, leaf(turn, at)
        if turn % MID == 0:
            yield "checkpoint.written", at, parent("mid", 2, turn, MID, LEAF, "leaf", at)
        if turn % ROOT == 0:
            event = parent("root", 3, turn, ROOT, MID, "mid", at)
            yield "checkpoint.written", at, event
            yield from beside(turn, at, event)


def leaf(turn: int, at: datetime) -> dict[str, Any]:
    retained = [TRACKED[(turn // LEAF + number) % 19] for number in range(12)]
    turns = {"first": turn - LEAF + 1, "last": turn}
    return {"node_id": f"leaf-{turn:09}", "level": 1, "version": 1, "written_at": at, "retained": retained,
            "sources": "raw", "budget_tokens": 300, "turns": turns}  # fmt: skip


def parent(kind: str, level: int, turn: int, covers: int, step: int, below: str, at: datetime) -> dict[str, Any]:
    children = [{"node_id": f"{below}-{child:09}", "version": 1} for child in range(turn - covers + step, turn + 1, step)]
    retained = [TRACKED[(turn // covers + number) % 19] for number in range(11)]
    room = {**ROOM, "budget_tokens": 900} if level == 2 and turn // MID % 50 == 0 else ROOM
    turns = {"first": turn - covers + 1, "last": turn}
    return {"node_id": f"{kind}-{turn:09}", "level": level, "version": 1, "written_at": at, "retained": retained,
            "children": children, "turns": turns, **room}  # fmt: skip


def beside(turn: int, at: datetime, root: dict[str, Any]) -> Iterator[tuple[str, datetime, dict[str, Any]]]:
    """What happens to a root now and then after it was written."""
    later = at + timedelta(milliseconds=1)
    if turn // ROOT % 10 == 0:
        anew = {**root, "at": later, "version": 2, "retained": root["retained"][1:]}
        del anew["written_at"]
        yield "checkpoint.regenerated", later, anew
    if turn // ROOT % 2 == 0:
        missing = {"node_id": root["node_id"], "proposition": TRACKED[turn // ROOT % 19], "at": later, "by": "bench"}
        yield "proposition.missed", later, missing


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 2**20, 1)


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    stores = Stores(args.store, folder, 64)
    core = MonitorCore(Rules(), 1, OUTCOMES)
    store = stores[0]
    partition = core.open(0, store)
    ids = [f"session-{number:04}" for number in range(args.sessions)]
    log = records(ids, 0)
    counts: Counter[tuple[str, ...]] = Counter()
    largest, folding, storing, cached = dict.fromkeys((SESSIONS, CHECKPOINTS), 0), 0.0, 0.0, 0
    gc.collect()
    before = peak = rss_mb()
    middle = 0.0
    for start in range(0, args.events, args.batch):
        batch = list(islice(log, min(args.batch, args.events - start)))
        begun = time.process_time()
        effects = partition.apply(batch)
        folded = time.process_time()
        store.write({table: effects.writes.get(table, {}) for table in TABLES}, {})
        partition.committed(effects)
        folding += folded - begun
        storing += time.process_time() - folded
        counts.update(effects.counts)
        for table, longest in largest.items():
            largest[table] = max([longest, *(len(row) for row in effects.writes[table].values() if row is not None)])
        if start // args.batch % 50 == 0:
            peak = max(peak, rss_mb())
            middle = middle or (rss_mb() if start >= args.events // 2 else 0.0)
        cached = max(cached, len(partition._trees._rows))
    ledgers = [Ledger.from_bytes(row) for row in (store.get(CHECKPOINTS, row_key(name)) for name in ids) if row is not None]
    result = {
        "events": args.events, "sessions": args.sessions, "batch": args.batch, "store": args.store,
        "events_per_s": round(args.events / folding), "with_store_per_s": round(args.events / (folding + storing)),
        "rss_mb": {"before": before, "middle": middle, "after": rss_mb(), "peak": max(peak, rss_mb())},
        "largest_row_bytes": largest, "nodes_kept": sum(ledger.nodes for ledger in ledgers),
        "forgotten": sum(ledger.forgotten for ledger in ledgers), "most_rows_cached": cached,
        "facts": sum(number for name, number in counts.items() if name[0] == "facts" and name[-1] == "new"),
        "findings": sum(number for name, number in counts.items() if name[0] == "findings"),
        "dead_letters": sum(number for name, number in counts.items() if name[0] == "dead_letters"),
    }  # fmt: skip
    stores.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tree", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--store", choices=("rocksdict", "memory"), default="rocksdict")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not args.profile:
            print(json.dumps(run(args, Path(folder))))
            return
        profile = cProfile.Profile()
        profile.runcall(run, args, Path(folder))
        pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
