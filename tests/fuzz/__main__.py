"""`make fuzz RECORDS=n`: the seed is printed first, one JSON line last; exit 1 if anything did not hold."""

from __future__ import annotations

import argparse
import json
import random
import sys

from tests.fuzz.run import Outcome, Run

TOLD_EVERY = 50_000


def main() -> int:
    """Run, print, and say by the exit code whether all held."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    options.add_argument("--records", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = options.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    next_at = TOLD_EVERY

    def told(outcome: Outcome) -> None:
        nonlocal next_at
        if outcome.records >= next_at:
            next_at += TOLD_EVERY
            print(f"{outcome.records:,} records, {outcome.refused.total():,} refused", file=sys.stderr, flush=True)

    outcome = Run(chosen.seed)(chosen.records, told)
    for wrong in outcome.wrong:
        print(wrong, file=sys.stderr)
    print(json.dumps(outcome.document()))
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
