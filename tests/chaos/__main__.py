"""`make chaos KILLS=n`: a long run on a Kafka of its own. The seed is printed first, one JSON line last; exit 1 if wrong."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.parts import ProxiedKafka
from tests.chaos.plan import Plan, is_right, report
from tests.chaos.run import Run


def main() -> int:
    """Run, print, and say by the exit code whether all was right."""
    options = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    options.add_argument("--kills", type=int, default=20, help="SIGTERM and SIGKILL by halves")
    options.add_argument("--zombies", type=int, default=0, help="SIGSTOP for longer than the session timeout, SIGCONT")
    options.add_argument("--broker-restarts", type=int, default=0, help="hard (SIGKILL) and clean by turns")
    options.add_argument("--scalings", type=int, default=0, help="from one worker to three and back")
    options.add_argument("--full-disks", type=int, default=0, help="no room for a worker's store (mounts a tmpfs: needs root)")
    options.add_argument("--lost-stores", type=int, default=0, help="a worker's store is deleted beneath it")
    options.add_argument("--slow-brokers", type=int, default=0, help="the workers' connections are slow, then cut")
    options.add_argument("--clock-jumps", type=int, default=0, help="a worker's wall clock is set off")
    options.add_argument("--events", type=int, help="5,000 for each fault unless told")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = vars(options.parse_args())
    told, seed = chosen.pop("events"), chosen.pop("seed")
    events = told or max(20_000, 5_000 * sum(chosen.values()))
    plan = Plan(seed, events, max(100, events // 200), **chosen)
    for name in ("aiokafka", "compaction_events"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # of brokers that are being restarted, and orders that fail
    print(f"seed {plan.seed}", flush=True)
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"logs in {folder}", flush=True)
    (folder / "kafka").mkdir()
    with ProxiedKafka(folder / "kafka") as broker:
        run = Run(plan, broker, f"chaos-{plan.seed}", folder)
        verdict = asyncio.run(run())
    print(json.dumps(report(plan, run.outcome, verdict) | {"took_s": round(time.monotonic() - begun)}))
    return 0 if is_right(verdict, run.outcome) else 1


if __name__ == "__main__":
    sys.exit(main())
