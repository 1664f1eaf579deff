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

from tests.chaos.run import Plan, Run
from tests.e2e.brokers import Kafka
from tests.e2e.judging import RIGHT, Verdict


def report(run: Run, verdict: Verdict) -> dict[str, object]:
    """Everything of a run in one line of JSON."""
    plan, outcome = run.plan, run.outcome
    return {
        "seed": plan.seed, "kills": plan.kills, "zombies": plan.zombies, "fenced": outcome.fenced,
        "broker_restarts": plan.broker_restarts, "restarts": outcome.restarts, "events": plan.events,
        **verdict._asdict(), "takeover_s": outcome.takeover_s, "unexpected": outcome.wrong,
    }  # fmt: skip


def main() -> int:
    """Run, print, and say by the exit code whether all was right."""
    options = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    options.add_argument("--kills", type=int, default=20, help="SIGTERM and SIGKILL by halves")
    options.add_argument("--zombies", type=int, default=0, help="SIGSTOP for longer than the session timeout, SIGCONT")
    options.add_argument("--broker-restarts", type=int, default=0, help="clean and hard by turns")
    options.add_argument("--events", type=int, help="5,000 for each fault unless told")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = options.parse_args()
    faults = chosen.kills + chosen.zombies + chosen.broker_restarts
    events = chosen.events or max(20_000, 5_000 * faults)
    plan = Plan(chosen.seed, events, max(100, events // 200), chosen.kills, chosen.zombies, chosen.broker_restarts)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # of brokers that are being restarted
    print(f"seed {plan.seed}", flush=True)
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"logs in {folder}", flush=True)
    (folder / "kafka").mkdir()
    with Kafka(folder / "kafka") as broker:
        run = Run(plan, broker, f"chaos-{plan.seed}", folder)
        verdict = asyncio.run(run())
    print(json.dumps(report(run, verdict) | {"took_s": round(time.monotonic() - begun)}))
    return 0 if verdict == RIGHT and not run.outcome.wrong else 1


if __name__ == "__main__":
    sys.exit(main())
