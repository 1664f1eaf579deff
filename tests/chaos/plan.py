"""What a run is to do, what happened in it, and how that is told in one line."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from tests.e2e.judging import RIGHT, Verdict


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, and how often.

    Attributes:
        kills: SIGTERM and SIGKILL by halves.
        zombies: SIGSTOP for `zombie_s`, longer than the session timeout, then SIGCONT.
        broker_restarts: Hard (SIGKILL) and clean by turns.
        scalings: From one worker to three and back.
        full_disks: No room for a worker's store.
        lost_stores: A worker's store is deleted beneath it, and it is killed.
        slow_brokers: Everything that passes is delayed for a while, then every connection is cut.
        clock_jumps: A worker's wall clock is set to another hour, before or after.
    """

    seed: int
    events: int
    sessions: int
    kills: int
    zombies: int = 0
    broker_restarts: int = 0
    scalings: int = 0
    full_disks: int = 0
    lost_stores: int = 0
    slow_brokers: int = 0
    clock_jumps: int = 0
    zombie_s: float = 15.0

    def faults(self) -> list[tuple[int, str]]:
        """Each fault, and how many events are read when it comes."""
        chosen = random.Random(self.seed)
        kinds = [("SIGTERM", "SIGKILL")[number % 2] for number in range(self.kills)]
        kinds += [("broker kill", "broker stop")[number % 2] for number in range(self.broker_restarts)]
        others = {
            "zombie": self.zombies, "scaling": self.scalings, "full disk": self.full_disks, "lost store": self.lost_stores,
            "slow broker": self.slow_brokers, "clock jump": self.clock_jumps,
        }  # fmt: skip
        kinds += [kind for kind, count in others.items() for _ in range(count)]
        chosen.shuffle(kinds)
        moments = sorted(chosen.sample(range(self.events // 50, self.events * 24 // 25), len(kinds)))
        return list(zip(moments, kinds, strict=True))


@dataclass(slots=True)
class Outcome:
    """What happened. `wrong`: what should not have been; `takeover_s`: the longest, by fault."""

    struck: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    fenced: int = 0
    again: int = 0
    late: int = 0
    poisoned: int = 0
    obeyed: int = 0
    compacted: bool = False
    stores_different: int = 0
    wrong: list[str] = field(default_factory=list)
    takeover_s: dict[str, float] = field(default_factory=dict)


def report(plan: Plan, outcome: Outcome, verdict: Verdict) -> dict[str, object]:
    """Everything of a run in one line of JSON."""
    return {
        "seed": plan.seed, "kills": plan.kills, "restarts": outcome.restarts, "events": plan.events,
        "faults": dict(sorted(outcome.struck.items())), "fenced": outcome.fenced,
        "sent_again": outcome.again, "sent_late": outcome.late, "poisoned": outcome.poisoned,
        "orders_obeyed": outcome.obeyed, "compacted": outcome.compacted,
        **verdict._asdict(), "stores_different": outcome.stores_different,
        "takeover_s": dict(sorted(outcome.takeover_s.items())), "unexpected": outcome.wrong,
    }  # fmt: skip


def is_right(verdict: Verdict, outcome: Outcome) -> bool:
    """Whether a run has shown nothing that it must not."""
    return verdict == RIGHT and not outcome.wrong and not outcome.stores_different
