"""How fast sessions are read and checked: one JSON line with MB/s/core. `python -m bench.scan [PATH…]`

Without a path, made-up Claude Code sessions of 4 MB are written to a temporary folder: prose, tool results and code in
the proportions of real ones, three passes each. `mb_per_s_core` is of one process by its own CPU clock, the loading of
libraries left out; `folder_mb_per_s` is of all workers by the wall clock, everything included.

    python -m bench.scan [--sessions 16] [--workers N] [PATH…]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from compaction_monitor.cli.scanning import scan_session, scanned
from compaction_monitor.cli.sources import Sources
from compaction_monitor.rules import Rules

MB = 1_000_000
SESSION_BYTES = 4 * MB
PASSES = 3


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scan", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if not given.paths:
            for number in range(given.sessions):
                write(Path(folder) / f"session-{number}.jsonl", number)
        print(json.dumps(measured(given.paths or [Path(folder)], given.workers)))


def measured(paths: Sequence[Path], workers: int) -> dict[str, Any]:
    """Every figure; the first session is read once before, so that libraries are loaded and caches warm."""
    sources = Sources(paths)
    scan_session(sources.sessions[0], Rules())
    began = time.process_time()
    rounds = sum(len(scan_session(session, Rules()).document["rounds"]) for session in sources.sessions)
    cpu_s = time.process_time() - began
    began = time.perf_counter()
    scanned(Sources(paths), Rules(), workers)
    wall_s = time.perf_counter() - began
    return {
        "bench": "scan",
        "files": len(sources.files),
        "mb": round(sources.size / MB, 1),
        "rounds": rounds,
        "cpu_s": round(cpu_s, 2),
        "mb_per_s_core": round(sources.size / MB / cpu_s, 1),
        "workers": workers,
        "folder_s": round(wall_s, 2),
        "folder_mb_per_s": round(sources.size / MB / wall_s, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 0),
        "python": sys.version.split()[0],
    }


def write(path: Path, seed: int) -> None:
    """One session, the same for the same seed."""
    dice = random.Random(seed)
    with path.open("wb") as file:
        parent: str | None = None
        for number, record in enumerate(records(dice)):
            told = {
                "parentUuid": parent,
                "sessionId": path.stem,
                "uuid": f"u{number}",
                "isSidechain": False,
                "version": "2.1.29",
            }
            at = f"2026-05-04T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z"
            file.write(orjson.dumps({**told, "timestamp": at, **record}) + b"\n")
            parent = f"u{number}"


def records(dice: random.Random) -> Iterator[dict[str, Any]]:
    """Turns until the session is as large as it is to be: typed, replied, called, answered; now and then a pass."""
    words = [f"{dice.choice('bcdfglmnprst')}{dice.choice('aeiou')}{n:x}" for n in range(4_000)]
    written, passes = 0, 0

    def prose(count: int) -> str:
        return " ".join(dice.choices(words, k=count))

    while written < SESSION_BYTES:
        path = f"src/{dice.choice(words)}/{dice.choice(words)}.py"
        yield said("user", f"Never change {path} without a test; {prose(30)}")
        for _ in range(8):
            usage = {"input_tokens": 9, "cache_read_input_tokens": 60_000 + written // 40}
            call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": f"grep -n {dice.choice(words)} {path}"}}
            yield said("assistant", [{"type": "text", "text": prose(40)}, call], usage=usage)
            result = "\n".join(f"{path}:{n}: {prose(12)} = {prose(1)}({n * 37})" for n in range(40))
            written += len(result) + 900
            yield said("user", [{"type": "tool_result", "tool_use_id": "t", "content": result}])
        if written > SESSION_BYTES * (passes + 1) / (PASSES + 1):
            passes += 1
            metadata = {"trigger": "auto", "preTokens": 150_000 + passes}
            yield {"type": "system", "subtype": "compact_boundary", "compactMetadata": metadata}
            yield {**said("user", f"{path}: {prose(1_200)}"), "isCompactSummary": True}


def said(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": role, "message": {"role": role, "content": content, **fields}}


if __name__ == "__main__":
    main()
