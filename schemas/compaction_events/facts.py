"""What agents report: the input half of the contract. A fact is a past participle; all times are aware UTC.

Unknown fields are ignored and an unknown enum value reads as `other`, so that an older reader survives a newer
sender. Everything else that is out of range is the sender's fault and makes the record a dead letter.
No text is asked for anywhere: propositions, spans and nodes are ids or hashes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

MAX_ID_CHARS = 256
MAX_PROPOSITIONS = 1_000
MAX_SUMMARIES = 512
MAX_COUNT = 2**53  # the largest integer that every JSON reader keeps exactly

Id = Annotated[str, Field(strict=True, min_length=1, max_length=MAX_ID_CHARS)]
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT)]
Ratio = Annotated[float, Field(strict=True, ge=0, le=1)]
Cosine = Annotated[float, Field(strict=True, ge=-1, le=1)]
Amount = Annotated[float, Field(strict=True, ge=0, le=MAX_COUNT)]
At = Annotated[AwareDatetime, Field(strict=True, ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(2200, 1, 1, tzinfo=UTC))]
Flag = Annotated[bool, Field(strict=True)]
# here and below: one fault for a bad list; a record of a hundred thousand bad items is no work and no novel.
Propositions = Annotated[tuple[Id, ...], Field(fail_fast=True, max_length=MAX_PROPOSITIONS)]


class OpenEnum(StrEnum):
    """A set of words that later versions may extend: a word not known here reads as `other`."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls("other") if isinstance(value, str) else None


class Topology(OpenEnum):
    """How summaries relate: a hierarchy, each rewritten from the one before, or none at all."""

    tree = "tree"
    chain = "chain"
    flat = "flat"
    other = "other"


class Eviction(OpenEnum):
    """When the agent evicts: after every round, or only at hard overflow."""

    continuous = "continuous"
    overflow = "overflow"
    other = "other"


class Cause(OpenEnum):
    """What made the working set change."""

    compaction = "compaction"
    rehydration = "rehydration"
    other = "other"


class Trigger(OpenEnum):
    """What set the pass off."""

    budget = "budget"
    turns = "turns"
    events = "events"
    manual = "manual"
    other = "other"


class SummaryKind(OpenEnum):
    """What the summariser returned in this pass; `none`: the pass wrote no summary."""

    ok = "ok"
    fallback = "fallback"
    error = "error"
    empty = "empty"
    none = "none"
    other = "other"


class SpansMethod(OpenEnum):
    """How reachable spans were counted: by following pointers, or by words that still stand."""

    pointer = "pointer"
    lexical = "lexical"
    other = "other"


class Basis(OpenEnum):
    """Whether the numbers were measured by the agent or inferred from what it left on disk."""

    measured = "measured"
    inferred = "inferred"
    other = "other"


class Controller(OpenEnum):
    """Whether somebody answers remediation orders in this session."""

    expected = "expected"
    none = "none"
    other = "other"


class Sources(OpenEnum):
    """What a checkpoint was written from."""

    children = "children"
    raw = "raw"
    other = "other"


class Symptom(OpenEnum):
    """How a missing proposition was noticed."""

    constraint = "constraint"
    question = "question"
    attribute = "attribute"
    other = "other"


class AckStatus(OpenEnum):
    """What a controller says of an order."""

    accepted = "accepted"
    rejected = "rejected"
    deferred = "deferred"
    completed = "completed"
    failed = "failed"
    other = "other"


class Model(BaseModel):
    """Frozen; unknown fields ignored; no NaN, no infinity."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Fact(Model):
    """One event about one session. `occurred_at` is the event's own time."""

    type: str
    session_id: Id
    time_field: ClassVar[str] = "at"

    @property
    def occurred_at(self) -> datetime | None:
        """The event's own time, or None for a fact that has none."""
        at: datetime | None = getattr(self, self.time_field, None)
        return at

    @property
    def identity(self) -> tuple[str, ...]:
        """What beside session, type and time tells this fact from another (for the derived `ce_id`)."""
        return ()


class Scorer(Model):
    """The salience scorer. `name` `none`: nothing is scored. `depth_penalty` is per summary level, 0 = none."""

    name: Id
    depth_penalty: Amount | None = None
    recency_decay: Amount | None = None


class Composition(Model):
    """A working set by what it is made of, in tokens. `overhead_tokens` (system prompt, tools) is in no ratio.

    `distinct_source_spans`: leaf spans in the set raw, or pointed to by a retained summary, whose text the agent
    can still fetch. `query_cosine_retained`: unweighted mean over retained items of the cosine to the session's
    fixed query, without recency. `summary_depth_max`: 1 = a summary of raw spans.
    """

    raw_tokens: Count
    summary_tokens: Count
    overhead_tokens: Count | None = None
    distinct_source_spans: Count | None = None
    query_cosine_retained: Cosine | None = None
    summary_depth_max: Count | None = None


class SummaryItem(Model):
    """One retained summary. `leaf_spans`: still reachable, 0 = orphaned; `expanded_tokens`: raw size if expanded."""

    summary_id: Id
    depth: Count
    tokens: Count
    leaf_spans: Count
    expanded_tokens: Count


class SessionStarted(Fact):
    """A session begins, or repeats what it is (the same `started_at`)."""

    type: Literal["session.started"] = "session.started"
    agent: Id
    agent_version: Id | None = None
    started_at: At
    token_budget: Count | None = None
    source_spans: Count | None = None
    max_depth: Count | None = None
    topology: Topology | None = None
    scorer: Scorer | None = None
    eviction: Eviction | None = None
    source: Id | None = None
    controller: Controller | None = None
    time_field: ClassVar[str] = "started_at"


class RoundCompleted(Fact):
    """One compaction or rehydration pass ended: the working set after it. Round 0 is the state before any pass.

    `claimed_records` and `read_records`: what the pass evicted as covered, and what the summariser really read,
    now or earlier. `summaries` is in plan order, at most 512 of `summaries_total`. `propositions_retained`: tracked
    ids still stated by anything in the set. `remediation_id`: the order this round answers.
    """

    type: Literal["round.completed"] = "round.completed"
    agent: Id
    round: Count
    at: At
    cause: Cause = Cause.compaction
    trigger: Trigger | None = None
    before: Composition | None = None
    after: Composition
    topology: Topology | None = None
    max_depth: Count | None = None
    token_budget: Count | None = None
    source_spans_seen: Count | None = None
    spans_method: SpansMethod | None = None
    summaries: Annotated[tuple[SummaryItem, ...], Field(fail_fast=True, max_length=MAX_SUMMARIES)] | None = None
    summaries_total: Count | None = None
    claimed_records: Count | None = None
    read_records: Count | None = None
    summary_kind: SummaryKind | None = None
    propositions_retained: Propositions | None = None
    token_method: Id | None = None
    remediation_id: Id | None = None
    basis: Basis = Basis.measured

    @property
    def identity(self) -> tuple[str, ...]:
        return (str(self.round),)


class SessionEnded(Fact):
    """A session ends. What is open is resolved as `ended`."""

    type: Literal["session.ended"] = "session.ended"
    agent: Id | None = None
    ended_at: At
    time_field: ClassVar[str] = "ended_at"


class ChildVersion(Model):
    """A child node and the version of it that was read (absent: not known)."""

    node_id: Id
    version: Count | None = None


class Turns(Model):
    """The turns a node covers, both ends included."""

    first: Count
    last: Count


class _Checkpoint(Fact):
    """What a written and a regenerated checkpoint share."""

    node_id: Id
    level: Count
    parent_id: Id | None = None
    children: Annotated[tuple[ChildVersion, ...], Field(fail_fast=True, max_length=4_096)] = ()
    retained: Propositions
    sources: Sources = Sources.children
    budget_tokens: Count | None = None
    child_joint_entropy_bits: Amount | None = None
    child_redundancy: Ratio | None = None
    bits_per_token: Annotated[float, Field(strict=True, gt=0, le=1_000)] | None = None
    turns: Turns | None = None
    basis: Basis = Basis.measured

    @model_validator(mode="after")
    def _entropy_has_its_unit(self) -> Self:
        if self.child_joint_entropy_bits is not None and self.bits_per_token is None:
            raise ValueError("bits_per_token is required with child_joint_entropy_bits")
        return self


class CheckpointWritten(_Checkpoint):
    """A checkpoint was written and committed."""

    type: Literal["checkpoint.written"] = "checkpoint.written"
    version: Count
    written_at: At
    time_field: ClassVar[str] = "written_at"

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.node_id, str(self.version))


class CheckpointRegenerated(_Checkpoint):
    """A checkpoint was generated anew: committed (it has a `version`) or as a trial (it has a `trial_number`)."""

    type: Literal["checkpoint.regenerated"] = "checkpoint.regenerated"
    at: At
    version: Count | None = None
    remediation_id: Id | None = None
    trial_number: Annotated[int, Field(strict=True, ge=1, le=100)] | None = None
    before_retained: Propositions | None = None

    @model_validator(mode="after")
    def _committed_or_trial(self) -> Self:
        if (self.version is None) == (self.trial_number is None):
            raise ValueError("exactly one of version (committed) and trial_number (a trial) is required")
        if self.trial_number is not None and self.remediation_id is None:
            raise ValueError("remediation_id is required with trial_number")
        return self

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.node_id, str(self.version), str(self.trial_number))


class PropositionStated(Fact):
    """A proposition joins the tracked set: what must not get lost. The id comes from what survives paraphrase."""

    type: Literal["proposition.stated"] = "proposition.stated"
    proposition: Id
    turn: Count
    span_id: Id
    pinned: Flag = False

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.proposition, str(self.turn))


class PropositionMissed(Fact):
    """Somebody looked for a proposition at a node and did not find it."""

    type: Literal["proposition.missed"] = "proposition.missed"
    node_id: Id
    proposition: Id
    at: At
    by: Id
    symptom: Symptom | None = None

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.node_id, self.proposition)


class RemediationAcknowledged(Fact):
    """A controller answers an order. Travels on the outcomes topic."""

    type: Literal["remediation.acknowledged"] = "remediation.acknowledged"
    remediation_id: Id
    status: AckStatus
    detail: Annotated[str, Field(strict=True, max_length=1_024)] | None = None
    at: At

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.remediation_id, self.status.value)


SessionFact = (
    SessionStarted
    | RoundCompleted
    | SessionEnded
    | CheckpointWritten
    | CheckpointRegenerated
    | PropositionStated
    | PropositionMissed
)
EVENT_TYPES: tuple[type[Fact], ...] = (
    SessionStarted,
    RoundCompleted,
    SessionEnded,
    CheckpointWritten,
    CheckpointRegenerated,
    PropositionStated,
    PropositionMissed,
)
OUTCOME_TYPES: tuple[type[Fact], ...] = (RemediationAcknowledged,)
