"""One session as its agent reports it: rounds number themselves, and what need not be said is filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from numbers import Integral, Real
from types import TracebackType
from typing import Any, Protocol, Required, Self, TypedDict, Unpack

from compaction_events.facts import (
    Basis,
    Cause,
    CheckpointRegenerated,
    CheckpointWritten,
    ChildVersion,
    Composition,
    Controller,
    Eviction,
    Fact,
    PropositionMissed,
    PropositionStated,
    RoundCompleted,
    Scorer,
    SessionEnded,
    SessionStarted,
    Sources,
    SpansMethod,
    SummaryItem,
    SummaryKind,
    Symptom,
    Topology,
    Trigger,
    Turns,
)

REPEAT_START_EVERY = 20
# Short names for the three numbers that every agent of a tree should report.
SHORT = {"spans": "distinct_source_spans", "cosine": "query_cosine_retained", "depth": "summary_depth_max"}
# Repeated in every round, so that a lost start costs little.
_CARRIED = ("topology", "max_depth", "token_budget")
_ROUNDING = 1e-6
_Dict = Mapping[str, Any]


class StartFields(TypedDict, total=False):
    """What may be said of a session when it starts: the fields of `SessionStarted`."""

    started_at: datetime
    token_budget: int
    source_spans: int
    max_depth: int
    topology: Topology | str
    scorer: Scorer | _Dict
    eviction: Eviction | str
    source: str
    controller: Controller | str


class RoundFields(TypedDict, total=False):
    """What may be said of a round: the fields of `RoundCompleted`, those of its `after` beside them.

    `spans`, `cosine` and `depth` are `distinct_source_spans`, `query_cosine_retained` and `summary_depth_max`.
    """

    raw_tokens: Required[int]
    summary_tokens: Required[int]
    overhead_tokens: int
    spans: int
    cosine: float
    depth: int
    round: int
    at: datetime
    cause: Cause | str
    trigger: Trigger | str
    before: Composition | _Dict
    source_spans_seen: int
    spans_method: SpansMethod | str
    summaries: Sequence[SummaryItem | _Dict]
    summaries_total: int
    claimed_records: int
    read_records: int
    summary_kind: SummaryKind | str
    propositions_retained: Sequence[str]
    token_method: str
    remediation_id: str
    basis: Basis | str
    topology: Topology | str
    max_depth: int
    token_budget: int


class _NodeFields(TypedDict, total=False):
    level: Required[int]
    retained: Required[Sequence[str]]
    parent_id: str
    children: Sequence[ChildVersion | _Dict]
    sources: Sources | str
    budget_tokens: int
    child_joint_entropy_bits: float
    child_redundancy: float
    bits_per_token: float
    turns: Turns | _Dict
    basis: Basis | str


class CheckpointFields(_NodeFields, total=False):
    """What may be said of a checkpoint written: the fields of `CheckpointWritten`."""

    version: Required[int]
    written_at: datetime


class RegeneratedFields(_NodeFields, total=False):
    """What may be said of a checkpoint generated anew: the fields of `CheckpointRegenerated`."""

    version: int
    at: datetime
    remediation_id: str
    trial_number: int
    before_retained: Sequence[str]


class Reporter(Protocol):
    """What a session reports to; an `Emitter` is one."""

    @property
    def agent(self) -> str: ...
    @property
    def agent_version(self) -> str | None: ...
    @property
    def lock(self) -> AbstractContextManager[Any]: ...
    def clock(self) -> datetime: ...
    def report(self, model: type[Fact], fields: Mapping[str, Any]) -> bool: ...
    def forget(self, session_id: str) -> None: ...


class Session:
    """A handle on one session; made by `Emitter.session`. Its methods are safe in any thread, and never raise
    unless the emitter is strict.

    A round that cannot be reported keeps its number, so that the gap shows.
    """  # noqa: D205 - one sentence

    def __init__(self, emitter: Reporter, session_id: str, start: _Dict) -> None:
        self.session_id = session_id
        self._emitter = emitter
        self._next_round = 1
        self._last_at = datetime.min.replace(tzinfo=UTC)
        self._start = {"agent": emitter.agent, "agent_version": emitter.agent_version, "started_at": self._at(), **start}
        self._rounds_since_start = 0
        self._report(SessionStarted, self._start)

    @property
    def last_round(self) -> int:
        """The number of the last round; 0 before the first."""
        return self._next_round - 1

    def round(self, **fields: Unpack[RoundFields]) -> None:
        """A compaction (or, with `cause="rehydration"`, a rehydration) is over: what the working set holds now."""
        rest: dict[str, Any] = dict(fields)
        after = {name: rest.pop(name) for name in AFTER if name in rest}
        if isinstance(rest.get("before"), Mapping):
            rest["before"] = composition(rest["before"])
        with self._emitter.lock:
            if self._rounds_since_start == REPEAT_START_EVERY:
                self._rounds_since_start = 0
                self._report(SessionStarted, self._start)
            number = native(rest.pop("round", self._next_round))
            if isinstance(number, int):
                self._next_round = number + 1
            self._rounds_since_start += 1
            carried = {name: self._start[name] for name in _CARRIED if name in self._start}
            known = {"agent": self._emitter.agent, "round": number, "after": composition(after)}
            self._report(RoundCompleted, carried | known | self._timed("at", rest))

    def checkpoint(self, node_id: str, **fields: Unpack[CheckpointFields]) -> None:
        """A checkpoint was written and committed."""
        self._report(CheckpointWritten, {"node_id": node_id, **self._timed("written_at", fields)})

    def regenerated(self, node_id: str, **fields: Unpack[RegeneratedFields]) -> None:
        """A checkpoint was generated anew: with `version` when committed, with `trial_number` when tried."""
        self._report(CheckpointRegenerated, {"node_id": node_id, **self._timed("at", fields)})

    def stated(self, proposition: str, *, turn: int, span_id: str, pinned: bool = False) -> None:
        """Something that must not get lost was said; `proposition` and `span_id` are ids or hashes, never text."""
        fields = {"proposition": proposition, "turn": turn, "span_id": span_id, "pinned": pinned}
        self._report(PropositionStated, fields)

    def missed(self, node_id: str, proposition: str, *, by: str, symptom: Symptom | str | None = None) -> None:
        """Somebody looked for a proposition at a node and did not find it."""
        fields = {"node_id": node_id, "proposition": proposition, "by": by, "symptom": symptom, "at": self._at()}
        self._report(PropositionMissed, fields)

    def ended(self) -> None:
        """The session is over."""
        self._report(SessionEnded, {"agent": self._emitter.agent, "ended_at": self._at()})
        self._emitter.forget(self.session_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.ended()

    def _report(self, model: type[Fact], fields: _Dict) -> None:
        self._emitter.report(model, {"session_id": self.session_id} | {name: native(v) for name, v in fields.items()})

    def _timed(self, name: str, fields: _Dict) -> dict[str, Any]:
        return {**fields} if name in fields else {name: self._at(), **fields}

    def _at(self) -> datetime:
        """Now, but later than ever before: a clock set back would make every round a late one."""
        with self._emitter.lock:
            self._last_at = max(self._emitter.clock(), self._last_at + timedelta(microseconds=1))
            return self._last_at


AFTER = (*SHORT, *Composition.model_fields)


def composition(fields: _Dict) -> dict[str, Any]:
    """Short names made long; a cosine that rounding put outside [-1, 1] put back."""
    found = {SHORT.get(name, name): native(value) for name, value in fields.items()}
    cosine = found.get("query_cosine_retained")
    if isinstance(cosine, float) and 1 < abs(cosine) <= 1 + _ROUNDING:
        found["query_cosine_retained"] = max(-1.0, min(1.0, cosine))
    return found


def native(value: Any) -> Any:
    """A number of an array library as Python's own, which the contract wants."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value
