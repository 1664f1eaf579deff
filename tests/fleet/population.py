"""The fleet's agents: what they report, session by session, through their own emitters; and records that no agent may send.

| agent | what its sessions do |
|---|---|
| steady | compact well; some fall silent in the middle of the run |
| sinking | sink into an inversion, and recover, again and again; all of them at once when told |
| deaf | sink, and nobody answers their orders |
| blind | report a cosine and no spans while told to, else compact well |
| reference-keeper | has a root that cannot hold its children (by mechanics, from `simulate saturation`) |
| careless | its summariser fails, or has read less than half of what it evicts |
| bulk | nothing, until told to be busy; then as steady, but five times as fast |
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from compaction_events.emitter import Emitter, Session
from compaction_events.facts import Fact
from compaction_events.topics import EVENTS
from compaction_monitor.simulate.sessions import whole
from tests.e2e.malformed import KINDS

SESSIONS: Final = {
    "steady": 40, "sinking": 8, "deaf": 4, "blind": 12, "careless": 4, "reference-keeper": 1, "bulk": 100,
}  # fmt: skip
AGENTS: Final = tuple(SESSIONS)
TOKENS: Final = 100_000
CYCLE: Final = 14  # rounds until a session that sinks comes up again
KEEPER_SEED: Final = 1_001
FACTS_AT_ONCE: Final = 8
BULK_S: Final = 0.2


class Population:
    """All agents but the reference ones, in a thread; one round of every session each `every_s`.

    Attributes:
        danger: Every session that can sink does, and stays down.
        unseen: Nothing with spans is reported by those that can be blind.
        silent: So many of the steady report nothing more.
        busy: The bulk reports too.
    """

    def __init__(self, broker: str, *, every_s: float = 1.0, seed: int = 1) -> None:
        self.danger = self.unseen = self.busy = False
        self.silent = 0
        self._every_s = every_s
        self._chance = random.Random(seed)
        self._emitters = {name: Emitter(broker, agent=name, source="fleet") for name in AGENTS}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="population")
        kinds = {
            "steady": self._steady, "sinking": self._sinking, "deaf": self._deaf, "blind": self._blind,
            "careless": self._careless, "reference-keeper": self._keeper,
        }  # fmt: skip
        self._steps = [kinds[name](number) for name, count in SESSIONS.items() for number in range(count) if name in kinds]
        self._bulk = [self._steadily("bulk", number) for number in range(SESSIONS["bulk"])]

    def __enter__(self) -> Population:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for emitter in self._emitters.values():
            emitter.close()

    @property
    def delivered(self) -> int:
        return sum(emitter.stats.delivered for emitter in self._emitters.values())

    @property
    def lost(self) -> int:
        return sum(emitter.stats.lost for emitter in self._emitters.values())

    def _run(self) -> None:
        while not self._over.is_set():
            until = time.monotonic() + self._every_s
            for step in self._steps:
                next(step)
            while not self._over.wait(min(BULK_S, max(0.0, until - time.monotonic()))) and time.monotonic() < until:
                for step in self._bulk if self.busy else ():
                    next(step)

    def _session(self, agent: str, number: int, **start: Any) -> Session:
        given: dict[str, Any] = {
            "topology": "tree", "source_spans": 200, "max_depth": 3, "eviction": "continuous",
            "scorer": {"name": "cosine", "depth_penalty": 0.0},
        }  # fmt: skip
        return self._emitters[agent].session(f"{agent}-{number}", **given | start)

    def _steady(self, number: int) -> Iterator[None]:
        steadily = self._steadily("steady", number)
        while True:
            if number >= self.silent:
                next(steadily)
            yield

    def _steadily(self, agent: str, number: int) -> Iterator[None]:
        session = self._session(agent, number)
        while True:
            self._healthy(session)
            yield

    def _sinking(self, number: int) -> Iterator[None]:
        yield from self._sinks(self._session("sinking", number), number, lambda: self.danger)

    def _deaf(self, number: int) -> Iterator[None]:
        yield from self._sinks(self._session("deaf", number, controller="expected"), number, lambda: self.danger)

    def _sinks(self, session: Session, number: int, stays: Callable[[], bool]) -> Iterator[None]:
        """Raw share and spans fall while the cosine rises: below a quarter it has inverted."""
        down = number % CYCLE
        while True:
            down = down + 1 if stays() else (down + 1) % CYCLE
            raw = max(0.1, 0.7 - 0.05 * down)
            session.round(
                raw_tokens=round(raw * TOKENS), summary_tokens=TOKENS - round(raw * TOKENS), spans=max(45, 190 - 8 * down),
                cosine=min(0.9, 0.3 + 0.02 * down), depth=min(3, 1 + down // 3),
            )  # fmt: skip
            yield

    def _blind(self, number: int) -> Iterator[None]:
        session = self._session("blind", number)
        while True:
            if self.unseen:
                session.round(raw_tokens=60_000, summary_tokens=40_000, cosine=0.5, depth=2)
            else:
                self._healthy(session)
            yield

    def _keeper(self, number: int) -> Iterator[None]:
        """One session of forty hours after the other, without the loop and with it, a few facts at a time."""
        emitter = self._emitters["reference-keeper"]
        for seed in itertools.count(KEEPER_SEED + number):
            for loop in (False, True):
                facts: list[Fact] = []
                whole(seed, loop=loop, also=facts.append)
                for at, fact in enumerate(facts):
                    emitter.emit(fact)
                    if at % FACTS_AT_ONCE == 0:
                        yield

    def _careless(self, number: int) -> Iterator[None]:
        session = self._session("careless", number)
        while True:
            unread, failed = self._chance.random() < 0.1, self._chance.random() < 0.1
            kind = "error" if failed else "ok"
            self._healthy(session, summary_kind=kind, claimed_records=40, read_records=12 if unread else 40)
            yield

    def _healthy(self, session: Session, **fields: Any) -> None:
        raw = self._chance.randint(55_000, 75_000)
        cosine = round(self._chance.uniform(0.35, 0.4), 3)
        session.round(raw_tokens=raw, summary_tokens=TOKENS - raw, spans=190, cosine=cosine, depth=2, **fields)


class Poison:
    """Records that break the contract, of many kinds."""

    def __init__(self, producer: AIOKafkaProducer, seed: int = 1) -> None:
        self._producer = producer
        self._chance = random.Random(seed)
        self.sent = 0

    async def send(self, count: int) -> None:
        for _ in range(count):
            _, make = self._chance.choice(KINDS)
            key, value, headers = make(f"poisoned-{self._chance.randrange(9)}")
            await self._producer.send_and_wait(EVENTS.name, value, key, headers=headers)
            self.sent += 1
