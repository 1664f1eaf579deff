"""Cores and clocks of this machine: who runs where, and what a process has used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PINS = hasattr(os, "sched_setaffinity")


def cores() -> tuple[int, int] | None:
    """The core of the contender and the core of the broker; None where processes cannot be pinned or there is one core."""
    if not PINS:
        return None
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else None


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Run the block, and every process started in it, on one core."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pinned_to(core: int | None) -> Callable[[], None] | None:
    """For `subprocess.Popen(preexec_fn=…)`."""
    return None if core is None else lambda: os.sched_setaffinity(0, {core})


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all its threads so far; NaN where /proc is missing."""
    if sys.platform != "linux":
        return float("nan")
    # The name in parentheses may hold spaces; user and system time are the 14th and 15th fields.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """Resident memory of a process, MiB; NaN where /proc is missing."""
    if sys.platform != "linux":
        return float("nan")
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return resident * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files(pid: int) -> int:
    """File descriptors of a process; 0 where /proc is missing."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir())) if sys.platform == "linux" else 0


def threads(pid: int) -> int:
    """Threads of a process; 0 where /proc is missing."""
    return len(list(Path(f"/proc/{pid}/task").iterdir())) if sys.platform == "linux" else 0


def describe() -> dict[str, object]:
    """What the figures were taken on."""
    model = "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next(
            (line.partition(": ")[2] for line in info.read_text().splitlines() if line.startswith("model name")), model
        )
    return {"cpu": model, "cores": os.cpu_count(), "python": sys.version.split()[0], "load_average": os.getloadavg()[0]}
