"""`make fleet MINUTES=n`: everything that docker-compose.yml describes, natively, under a fleet's traffic, with faults.

Prints each dashboard panel with its query and value, each alerting rule and whether it fired as it must, each finding and the
Alertmanager alert it became; one line of JSON last. Exit 1 if anything was not as it must be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.fleet.faults import long, short
from tests.fleet.plan import Outcome, Plan
from tests.fleet.run import Run


def main() -> int:
    """Run, print, and say by the exit code whether all was right."""
    options = argparse.ArgumentParser(prog="python -m tests.fleet", description=str(__doc__).partition("\n")[0])
    options.add_argument("--minutes", type=float)
    options.add_argument("--short", action="store_true", help="the faults of the tests' form only, in two minutes by default")
    options.add_argument("--out", type=Path, help="folder of the pictures and logs (a new one below the system's)")
    chosen = options.parse_args()
    folder = chosen.out or Path(tempfile.mkdtemp(prefix="fleet-"))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # of a broker that is being stopped
    plan = short(chosen.minutes or 2.0) if chosen.short else long(chosen.minutes or 10.0)
    outcome = asyncio.run(Run(folder, plan, lambda line: print(line, flush=True))())
    report(outcome, plan, folder)
    print(json.dumps(outcome.summary()))
    return 1 if outcome.wrong else 0


def report(outcome: Outcome, plan: Plan, folder: Path) -> None:
    """Everything, for people."""
    _section("panels", outcome.panels)
    _section(f"rules (their times divided by {plan.divide:g})", outcome.rules)
    _section("findings", outcome.alerts)
    print(f"\npictures of the dashboards: {', '.join(str(path) for path in sorted((folder / 'previews').glob('*.png')))}")
    _section("wrong", outcome.wrong)


def _section(title: str, lines: Iterable[object]) -> None:
    print(f"\n== {title}")
    for line in lines:
        print(line)


if __name__ == "__main__":
    sys.exit(main())
