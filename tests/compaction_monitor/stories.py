"""Sessions as hypothesis draws them: plausible enough that checks fire, with gaps, repeats, late facts and answers.

A story is a list of moves; a move is a fact, an answer to an order given so far, or a tick. `tell` plays it once and
says which facts came of it, so that the same log can be played again in another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from compaction_events.builders import acknowledged, at, completed, ended, missed, regenerated, started, stated, written
from compaction_events.facts import AckStatus, Fact
from compaction_events.findings import RemediationRequested
from compaction_monitor.harness import Offline

SESSIONS = ("session-1", "session-2", "session-3")
PROPOSITIONS = ("p1", "p2", "p3", "p4", "p5", "p6")
NODES = ("leaf-1", "leaf-2", "root")


class Answer(NamedTuple):
    """An answer to the `back`-th last order given so far, by minutes since the start."""

    back: int
    status: str
    minutes: float


class Tick(NamedTuple):
    minutes: float


Move = Fact | Answer | Tick


LEAVES = st.dictionaries(st.sampled_from(["s1", "s2", "s3"]), st.integers(0, 2), max_size=3)
# How a set is left: raw tokens of a thousand, and by how much spans and cosine (in hundredths) change.
MOODS = {
    "sinks": (st.sampled_from([0, 150, 200, 240, 249]), st.integers(-9, -1), st.integers(1, 9)),
    "drifts": (st.sampled_from([150, 240, 249, 250, 299]), st.integers(-1, 3), st.integers(-5, 0)),
    "leans": (st.sampled_from([480, 400, 350, 300]), st.integers(-5, 0), st.integers(-3, 5)),
    "recovers": (st.sampled_from([300, 350, 500, 550, 900]), st.integers(0, 20), st.integers(-20, 0)),
}
ROUNDS = st.fixed_dictionaries(
    {},
    optional={
        "basis": st.sampled_from(["measured", "inferred"]),
        "cause": st.sampled_from(["compaction", "compaction", "rehydration"]),
        "trigger": st.sampled_from(["budget", "manual"]),
        "summary_kind": st.sampled_from(["ok", "error", "fallback", "none"]),
        "read_records": st.integers(0, 4),
        "claimed_records": st.integers(0, 4),
        "spans_method": st.sampled_from(["pointer", "lexical"]),
        "propositions_retained": st.lists(st.sampled_from(PROPOSITIONS), unique=True).map(tuple),
        "before_spans": st.integers(0, 60),
        "leaves": LEAVES,
    },
)
STARTS = st.fixed_dictionaries(
    {},
    optional={
        "source_spans": st.integers(0, 100),
        "max_depth": st.sampled_from([2, 3]),
        "topology": st.sampled_from(["tree", "tree", "chain", "flat", None]),
        "eviction": st.sampled_from(["continuous", "overflow"]),
        "token_budget": st.just(1_050),
        "controller": st.sampled_from(["expected", "expected", "none"]),
        "scorer": st.sampled_from([{"name": "cosine"}, {"name": "cosine", "depth_penalty": 0.5}, {"name": "none"}]),
    },
)
NODE = st.fixed_dictionaries(
    {"node_id": st.sampled_from(NODES), "retained": st.lists(st.sampled_from(PROPOSITIONS), unique=True).map(tuple)},
    optional={
        "budget_tokens": st.sampled_from([50, 100]),
        "child_joint_entropy_bits": st.sampled_from([40.0, 90.0, 200.0]),
        "child_redundancy": st.just(0.1),
        "basis": st.sampled_from(["measured", "inferred"]),
    },
)
KINDS = st.sampled_from(
    ["round"] * 6 + ["answer"] * 3 + ["stated", "written", "regenerated", "trial", "missed", "start", "end"]
)
STEPS = st.sampled_from([30.0, 20.0, 10.0, 7.0, 1.0, 5.0, 4.0, 90.0, 0.0, -10.0])


class _Clock:
    """Where a session is while its story is drawn."""

    def __init__(self) -> None:
        self.minutes = 0.0
        self.round = 0
        self.version = 0
        self.spans = 50
        self.cosine = 40


@st.composite
def stories(draw: st.DrawFn, sessions: int = 1, ticks: bool = False, trees: bool = True, moves: int = 25) -> list[Move]:
    """A story of some sessions; in a log in which time can stand still or step back a little."""
    clocks = {name: _Clock() for name in SESSIONS[:sessions]}
    found: list[Move] = [started(name, **draw(STARTS)) for name in clocks if draw(st.booleans())]
    for _ in range(draw(st.integers(1, moves))):
        name = draw(st.sampled_from(SESSIONS[:sessions]))
        clock = clocks[name]
        clock.minutes = max(0.0, clock.minutes + draw(STEPS))
        kind = draw(KINDS | st.just("tick") if ticks else KINDS)
        if trees or kind not in ("stated", "written", "regenerated", "trial", "missed"):
            found.append(_move(draw, kind, name, clock))
    return found


def _move(draw: st.DrawFn, kind: str, name: str, clock: _Clock) -> Move:
    now = clock.minutes
    match kind:
        case "round":
            return _round(draw, name, clock)
        case "answer":
            return Answer(draw(st.sampled_from([1, 1, 1, 2, 3])), draw(st.sampled_from([*AckStatus])).value, now)
        case "tick":
            return Tick(now + draw(st.sampled_from([0.0, 5.0, 8.0, 61.0, 300.0])))
        case "stated":
            return stated(draw(st.sampled_from(PROPOSITIONS)), draw(st.integers(0, 9)), name, pinned=draw(st.booleans()))
        case "missed":
            return missed(draw(st.sampled_from(NODES)), draw(st.sampled_from(PROPOSITIONS)), now, name)
        case "start":
            later = draw(st.booleans())
            return started(name, **draw(STARTS), started_at=at(now if later else 0))
        case "end":
            return ended(now, name)
        case _:
            return _node(draw, kind, name, clock)


def _round(draw: st.DrawFn, name: str, clock: _Clock) -> Fact:
    clock.round = max(0, clock.round + draw(st.sampled_from([1] * 12 + [2, 0, -99])))
    raw, spans, cosine = (draw(part) for part in MOODS[draw(st.sampled_from([*MOODS, "sinks"]))])
    clock.spans = min(60, max(0, clock.spans + spans))
    clock.cosine = min(100, max(0, clock.cosine + cosine))
    told: dict[str, Any] = draw(ROUNDS)
    before, leaves = told.pop("before_spans", None), told.pop("leaves", {})
    if before is not None:
        told["before"] = {"raw_tokens": 900, "summary_tokens": 100, "distinct_source_spans": before}
    items = [
        {"summary_id": s, "depth": 1, "tokens": 50, "leaf_spans": n, "expanded_tokens": 100 * n} for s, n in leaves.items()
    ]
    if leaves:
        told["summaries"] = items
    blind = draw(st.sampled_from(["", "", "", "", "", "spans", "cosine", "depth"]))
    return completed(
        clock.round,
        name,
        at=at(clock.minutes),
        raw_tokens=raw,
        summary_tokens=1_000 - raw,
        distinct_source_spans=None if blind == "spans" else clock.spans,
        query_cosine_retained=None if blind == "cosine" else clock.cosine / 100,
        summary_depth_max=None if blind == "depth" else draw(st.sampled_from([2, 2, 3, 3, 3, 3, 1, 4])),
        **told,
    )


def _node(draw: st.DrawFn, kind: str, name: str, clock: _Clock) -> Fact:
    fields: dict[str, Any] = draw(NODE)
    node = fields.pop("node_id")
    root = node == "root"
    fields["level"] = 2 if root else 1
    fields["parent_id"] = None if root else "root"
    if root:
        fields["children"] = [{"node_id": child, "version": draw(st.none() | st.integers(1, 3))} for child in NODES[:2]]
    if "child_joint_entropy_bits" in fields:
        fields["bits_per_token"] = 1.0
    if kind == "trial":
        return regenerated(node, clock.minutes, name, trial_number=draw(st.integers(1, 3)), remediation_id="x", **fields)
    clock.version += 1
    if kind == "written":
        return written(node, clock.version, clock.minutes, name, **fields)
    return regenerated(node, clock.minutes, name, version=clock.version, **fields)


def play_move(monitor: Offline, move: Move) -> Fact | None:
    """Make one move; the fact it was, or None for a tick."""
    if isinstance(move, Tick):
        monitor.tick(at(move.minutes))
        return None
    if isinstance(move, Answer):
        given = [found.finding for found in monitor.published if isinstance(found.finding, RemediationRequested)]
        order = given[-move.back] if len(given) >= move.back else None
        session = order.session_id if order else SESSIONS[0]
        move = acknowledged(order.id if order else "unheard-of", move.status, move.minutes, session)
    monitor.feed([move])
    return move


def tell(moves: Sequence[Move], monitor: Offline | None = None) -> tuple[Offline, list[Fact]]:
    """Play a story once; the monitor after it, and its log."""
    monitor = monitor or Offline(partitions=2)
    played = [play_move(monitor, move) for move in moves]
    return monitor, [fact for fact in played if fact is not None]
