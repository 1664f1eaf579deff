"""A fleet of made-up sessions, from a seed: sessions in which most checks fire, with gaps, repeats, late facts, lives.

Its agents differ in what may change beside the log. `steady`: nothing, so everything that is published is the log's.
`hurried`: orders are due within seconds, so ticks send again, expire and resume. `answered`: a controller answers too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from compaction_events.builders import at, completed, ended, missed, regenerated, started, stated, written
from compaction_events.facts import AckStatus, Controller, Fact, RemediationAcknowledged, SessionStarted
from compaction_events.findings import RemediationRequested
from compaction_monitor import golden
from compaction_monitor.harness import Offline
from compaction_monitor.rules import Rules
from compaction_monitor.rules_file import read_rules

STEADY: Final = "steady"
HURRIED: Final = "hurried"
ANSWERED: Final = "answered"
AGENTS: Final = (STEADY, STEADY, HURRIED, STEADY, ANSWERED)
CHECKS: Final = """\
[default]
loop = {deadline_s = 86400, expires_s = 86400}

[agents."hurried"]
loop = {deadline_s = 1, backoff = 1, resends_max = 2, expires_s = 4}

[agents."answered"]
loop = {deadline_s = 2, backoff = 1, resends_max = 1, expires_s = 6}
"""
LATER: Final = timedelta(hours=25)
PROPOSITIONS: Final = tuple(f"p{number}" for number in range(8))


def rules() -> Rules:
    """What the checks file says."""
    return read_rules(CHECKS, "checks.toml")


def agent_of(session_id: str) -> str:
    return session_id.partition("-")[0]


def fleet(count: int, sessions: int, seed: int = 1) -> list[Fact]:
    """So many facts of so many sessions, each in its own order, and the answers of those that have a controller."""
    chosen = random.Random(seed)
    running = [_session(number, random.Random(f"{seed}-{number}")) for number in range(sessions)]
    facts: list[Fact] = []
    while len(facts) < count:
        one = chosen.choice(running)
        facts += [fact for fact in [next(one, None)] if fact is not None]
    return _answered(facts, chosen)[:count]


def _answered(facts: list[Fact], chosen: random.Random) -> list[Fact]:
    """With an answer to each order of the answered sessions, soon after the fact that leads to it."""
    offline = Offline(rules())
    log: list[Fact] = []
    for fact in facts:
        log.append(fact)
        if agent_of(fact.session_id) == ANSWERED:
            orders = [one.finding for one in offline.feed([fact]) if isinstance(one.finding, RemediationRequested)]
            log += [_answer(order, chosen) for order in orders]
    return log


def _answer(order: RemediationRequested, chosen: random.Random) -> Fact:
    status = chosen.choice([status for status in AckStatus if status is not AckStatus.other])
    return RemediationAcknowledged(session_id=order.session_id, remediation_id=order.id, status=status, at=order.requested_at)


def _session(number: int, chosen: random.Random) -> Iterator[Fact]:
    agent = AGENTS[number % len(AGENTS)]
    kind = (_golden, _wandering, _tree)[number % 3]
    for fact in kind(f"{agent}-{number}", chosen):
        changed: dict[str, Any] = {"agent": agent} if "agent" in type(fact).model_fields else {}
        if isinstance(fact, SessionStarted) and agent != STEADY:
            changed["controller"] = Controller.expected
        told = fact.model_copy(update=changed)
        yield from [told] * (2 if chosen.random() < 0.02 else 1)


def _lasts(name: str) -> bool:
    """A controller's answer must not come a day before what it answers: those sessions are short."""
    return agent_of(name) != ANSWERED


def _golden(name: str, chosen: random.Random) -> Iterator[Fact]:
    """The golden series, life after life."""
    start = golden.START + timedelta(minutes=chosen.randrange(600))
    while True:
        rounds = chosen.randrange(10, 41)
        yield from golden.series(name, start, rounds)
        if not _lasts(name):
            return
        start += golden.ROUND_LENGTH * (rounds + 2)
        if chosen.random() < 0.5:
            yield golden.ending(name, start - 2 * golden.ROUND_LENGTH, 0)
        if chosen.random() < 0.3:
            start += LATER


def _wandering(name: str, chosen: random.Random) -> Iterator[Fact]:
    """Rounds that sink, drift and recover; late ones, gaps, numbering that begins anew."""
    yield started(name, source_spans=60, max_depth=3, topology=chosen.choice(["tree", "chain", "flat"]), token_budget=1_050)
    minutes, number, spans, cosine = 0.0, 0, 50, 40
    while _lasts(name) or minutes < 20 * 60:
        sinks = chosen.random() < 0.7
        spans = min(60, max(0, spans + (chosen.randint(-9, 0) if sinks else chosen.randint(0, 30))))
        cosine = min(99, max(0, cosine + (chosen.randint(0, 6) if sinks else chosen.randint(-20, 0))))
        number = max(0, number + chosen.choice([1] * 20 + [2, 0, -99]))
        minutes += chosen.choice([20.0] * 12 + [1.0, 0.0, -10.0] + [26 * 60.0] * (_lasts(name) and chosen.random() < 0.05))
        raw = chosen.choice([150, 200, 240]) if sinks else chosen.choice([300, 550, 900])
        yield completed(
            number, name, at=at(max(0.0, minutes)), raw_tokens=raw, summary_tokens=1_000 - raw,
            distinct_source_spans=spans, query_cosine_retained=cosine / 100, summary_depth_max=chosen.choice([2, 3, 3, 3]),
            cause="compaction" if chosen.random() < 0.85 else "rehydration",
            summary_kind=chosen.choice(["ok"] * 19 + ["error"]),
            claimed_records=10, read_records=chosen.choice([10] * 19 + [2]),
        )  # fmt: skip
        if chosen.random() < 0.03:
            yield ended(max(0.0, minutes), name)


def _tree(name: str, chosen: random.Random) -> Iterator[Fact]:
    """Checkpoints that lose, are missed at, tried again and rewritten, between rounds."""
    yield started(name, source_spans=60, max_depth=3)
    yield from (stated(p, turn, name, pinned=turn % 2 == 0) for turn, p in enumerate(PROPOSITIONS))
    minutes, version = 0.0, 0
    while _lasts(name) or minutes < 20 * 60:
        minutes += 7.0
        version += 1
        leaf = chosen.choice(["leaf-1", "leaf-2"])
        yield written(leaf, version, minutes, name, retained=_some(chosen), budget_tokens=100)
        yield written("root", version, minutes + 1, name, **_root(chosen))
        for number in range(1, chosen.randrange(1, 4)):
            yield missed("root", chosen.choice(PROPOSITIONS), minutes + 1 + number / 10, name)
            trial = {"trial_number": number, "remediation_id": "any"}
            yield regenerated("root", minutes + 2 + number / 10, name, **trial, **_root(chosen))
        if chosen.random() < 0.4:
            version += 1
            yield regenerated("root", minutes + 3, name, version=version, **_root(chosen))
        kept = _some(chosen)
        yield completed(version, name, at=at(minutes + 4), propositions_retained=kept, distinct_source_spans=40)


def _some(chosen: random.Random) -> list[str]:
    return sorted(chosen.sample(PROPOSITIONS, chosen.randrange(2, len(PROPOSITIONS))))


def _root(chosen: random.Random) -> dict[str, Any]:
    children = [{"node_id": "leaf-1", "version": None}, {"node_id": "leaf-2", "version": None}]
    entropy = {"child_joint_entropy_bits": chosen.choice([40.0, 90.0, 200.0]), "child_redundancy": 0.1, "bits_per_token": 1.0}
    return {"level": 2, "children": children, "retained": _some(chosen), "budget_tokens": 100, **entropy}
