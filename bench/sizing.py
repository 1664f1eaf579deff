"""What a fleet needs: workers, partitions, memory and disk, worked out from what was measured.

    python -m bench.sizing                                      the table of docs/sizing.md
    python -m bench.sizing --sessions 250000 --per-minute 2     one line of it, for a fleet of yours

Nothing is measured here. `MEASURED` holds the figures of bench/README.md with the command that gives each; on a machine
of yours take that command's figure instead, by `--set event_cpu_us=40`.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import NamedTuple

from compaction_monitor.core import CACHED_SESSIONS, SWEEP_ROWS_FIRST
from compaction_monitor.shell import topics
from compaction_monitor.shell.lanes import MAX_MERGED_RECORDS
from compaction_monitor.shell.settings import Settings
from compaction_monitor.shell.transport import MAX_OUTSTANDING
from compaction_monitor.state.cache import CACHED_BYTES

MIB, GIB = 1 << 20, 1 << 30
LIVE = (10_000, 100_000, 1_000_000)
PER_MINUTE = (1.0, 6.0)
# A worker is planned half busy: the other half is for a neighbour that is gone, and for what has piled up meanwhile.
BUSY = 0.5
# Partitions are never added, so there is room for four times the workers.
PARTITIONS_PER_WORKER = 4
FEWEST_PARTITIONS = 8
FEWEST_WORKERS = 2
# A log or store that is being compacted is there twice for a while.
COMPACTING = 2
# Of a changelog's partition the open segment is not compacted, and there is one more before the cleaner comes.
OPEN_SEGMENTS = 2


class Figure(NamedTuple):
    value: float
    unit: str
    what: str
    command: str


MEASURED = {
    "event_cpu_us": Figure(72.0, "µs", "CPU time of an event, the dearer load", "python -m bench (ours, 100000x1)"),
    "event_bytes": Figure(720, "bytes", "a `round.completed` in the log, uncompressed", "tests/test_sizing.py"),
    "row_bytes": Figure(790, "bytes", "a session's row, window full", "python -m bench.cost --part state"),
    "changelog_bytes": Figure(836, "bytes", "that row in the changelog", "python -m bench.cost --part state"),
    "store_bytes": Figure(893, "bytes", "that row on the worker's disk", "python -m bench.cost --part state"),
    "rows_per_s": Figure(98_000, "rows/s", "recovery where the local store is lost", "python -m bench.cost --part recovery"),
    "idle_mib": Figure(185, "MiB", "a worker that had nothing to recover", "python -m bench.cost --part recovery"),
    "decoded_bytes": Figure(2_900, "bytes", "a session kept decoded", "tests/test_sizing.py"),
    "record_bytes": Figure(1_700, "bytes", "that event as a record in memory", "tests/test_sizing.py"),
    "node_bytes": Figure(788, "bytes", "a checkpoint's row, the largest", "python -m bench.tree"),
}
# Settings and bounds of the code, not measured: megabytes for each worker, and for each partition it owns.
STORE_CACHE_MIB = 64  # setting store_cache_mb
MEMTABLES_MIB = 2 * 8  # of RocksDB, for each partition
CHECKPOINTS_MIB = 15 * CACHED_BYTES / MIB  # rows kept decoded, for each partition whose sessions have checkpoints
# What Python's allocator holds beyond the sum: a worker of eight partitions with a backlog, every event of another session,
# was seen at 751 MiB (`python -m bench.cost --part state`), where the sum says 646.
ALLOCATOR = 1.2


# As `topics apply` makes the sessions' changelog.
SEGMENT_BYTES = next(
    int(topic.config["segment.bytes"]) for topic in topics.expected(app_id="") if topic.name.endswith("-sessions-v1-changelog")
)


@dataclass(frozen=True)
class Fleet:
    """What has to be watched.

    Args:
        sessions: Live at once; one that has been silent for a day is no longer kept.
        per_minute: Events of a session in a minute.
        checkpoints: That are kept for a session, on average.
        retention_days: Of the events topic.
    """

    sessions: int
    per_minute: float = 1.0
    checkpoints: float = 0.0
    retention_days: float = 7.0


@dataclass(frozen=True)
class Plan:
    """What it needs. Memory and disk are of one worker, with one of the others gone; topics are of one copy."""

    events_per_s: float
    workers: int
    partitions: int
    memory_mib: int
    volume_gib: int
    recovery_s: float
    gauges_s: float
    changelog_gib: float
    events_gib: float


def plan(fleet: Fleet, figures: dict[str, float] | None = None) -> Plan:
    """The sum: events a second decide the workers, workers the partitions, sessions the disk."""
    of = {name: figure.value for name, figure in MEASURED.items()} | (figures or {})
    events_per_s = fleet.sessions * fleet.per_minute / 60
    needed = math.ceil(events_per_s * of["event_cpu_us"] / 1e6 / BUSY)
    # One more than needed: one may be gone.
    workers = max(FEWEST_WORKERS, needed + 1)
    partitions = max(FEWEST_PARTITIONS, 1 << math.ceil(math.log2(PARTITIONS_PER_WORKER * workers)))
    owned = math.ceil(partitions / (workers - 1))
    sessions = fleet.sessions / partitions * owned
    stored = of["store_bytes"] + fleet.checkpoints * of["node_bytes"]
    kept = of["changelog_bytes"] + fleet.checkpoints * of["node_bytes"]
    decoded_mib = CACHED_SESSIONS * of["decoded_bytes"] / MIB
    # With a backlog: what is handed out, the fetch after it, and a batch under way, each of its events of another session.
    records = MAX_OUTSTANDING + Settings.model_fields["fetch_max_bytes"].default / of["event_bytes"]
    batch_mib = MAX_MERGED_RECORDS * (of["decoded_bytes"] + of["row_bytes"]) / MIB
    each_mib = decoded_mib + records * of["record_bytes"] / MIB + batch_mib + MEMTABLES_MIB
    each_mib += CHECKPOINTS_MIB if fleet.checkpoints else 0
    return Plan(
        events_per_s=events_per_s,
        workers=workers,
        partitions=partitions,
        memory_mib=math.ceil(ALLOCATOR * (of["idle_mib"] + STORE_CACHE_MIB + owned * each_mib)),
        volume_gib=math.ceil(1 + COMPACTING * sessions * stored / GIB),
        recovery_s=sessions * (1 + fleet.checkpoints) / of["rows_per_s"],
        gauges_s=fleet.sessions / partitions / SWEEP_ROWS_FIRST,
        changelog_gib=(COMPACTING * fleet.sessions * kept + OPEN_SEGMENTS * partitions * SEGMENT_BYTES) / GIB,
        events_gib=events_per_s * of["event_bytes"] * fleet.retention_days * 86_400 / GIB,
    )


HEAD = (
    "sessions", "events a minute", "events/s", "workers", "partitions", "memory, MiB", "volume, GiB",
    "recovery, s", "gauges, s", "changelog, GiB", "events topic, GiB",
)  # fmt: skip


def row(fleet: Fleet, figures: dict[str, float] | None = None) -> str:
    made = plan(fleet, figures)
    cells = (
        f"{fleet.sessions:,}", f"{fleet.per_minute:g}", f"{made.events_per_s:,.0f}", str(made.workers), str(made.partitions),
        f"{made.memory_mib:,}", str(made.volume_gib), f"{made.recovery_s:.1f}", f"{made.gauges_s:.0f}",
        f"{made.changelog_gib:.1f}", f"{made.events_gib:,.0f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """The table of docs/sizing.md."""
    fleets = [Fleet(sessions, per_minute) for per_minute in PER_MINUTE for sessions in LIVE]
    return "\n".join([f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|", *map(row, fleets)])


def measured() -> str:
    """The figures that it rests on, as a table."""
    lines = [
        f"| `{name}` | {figure.value:,g} {figure.unit} | {figure.what} | `{figure.command}` |"
        for name, figure in MEASURED.items()
    ]
    return "\n".join(["| figure | | what | from |", "|---|---|---|---|", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.sizing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, help="live at once")
    parser.add_argument("--per-minute", type=float, default=1.0, help="events of a session in a minute")
    parser.add_argument("--checkpoints", type=float, default=0.0, help="kept for a session, on average")
    parser.add_argument("--retention-days", type=float, default=7.0, help="of the events topic")
    parser.add_argument("--set", action="append", default=[], metavar="FIGURE=VALUE", help="a figure of your own machine")
    given = parser.parse_args()
    figures = {}
    for pair in given.set:
        name, _, value = pair.partition("=")
        if name not in MEASURED:
            parser.error(f"--set {pair}: no such figure; known: {', '.join(MEASURED)}")
        figures[name] = float(value)
    if given.sessions is None:
        print(measured(), table(), sep="\n\n")
        return
    fleet = Fleet(given.sessions, given.per_minute, given.checkpoints, given.retention_days)
    print("\n".join([*table().splitlines()[:2], row(fleet, figures)]))


if __name__ == "__main__":
    main()
