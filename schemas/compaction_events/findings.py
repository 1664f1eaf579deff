"""What the monitor says: alerts for people and alerting systems, orders for agent controllers.

An alert's top-level fields are those that alert routers read (id, name, status, severity, lastReceived,
fingerprint, service, source, message, description, url), so it can be consumed without glue.
An order's `id` and an alert's `id` name the episode; every publication of it has its own `ce_id`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from compaction_events.facts import At, Basis, Count, Fact, Id, Model, Ratio

MAX_SUBJECTS = 20
MAX_FINDING_BYTES = 64 * 1024


class Severity(StrEnum):
    """How bad: `critical` wants somebody now, `warning` soon, `info` is for the record."""

    critical = "critical"
    warning = "warning"
    info = "info"

    @property
    def rank(self) -> int:
        """0 is worst."""
        return ("critical", "warning", "info").index(self.value)


class Action(StrEnum):
    """What a controller can be asked to do: a closed set."""

    halt_and_rehydrate = "halt_and_rehydrate"
    resume = "resume"
    rehydrate = "rehydrate"
    drop_summary = "drop_summary"
    escalate_to_raw = "escalate_to_raw"
    recompact = "recompact"
    cap_depth = "cap_depth"
    raise_budget = "raise_budget"
    run_trial_regeneration = "run_trial_regeneration"
    regenerate_parent = "regenerate_parent"
    rebalance = "rebalance"
    inspect_children = "inspect_children"
    stop_regenerating = "stop_regenerating"


def _require_action(schema: dict[str, Any]) -> None:
    """A plan is read by its action, so it must be there, although it has but one value in each of them."""
    schema.setdefault("required", []).append("action")


class _Plan(Model):
    """What a controller needs to know to obey, one model for each action."""

    model_config = ConfigDict(json_schema_extra=_require_action)


class ExpandStep(Model):
    """Expand one summary: its raw sources come back in, itself goes out. `projected_raw_ratio` is after this step."""

    summary_id: Id
    depth: Count
    leaf_spans: Count
    adds_raw_tokens: Count
    removes_summary_tokens: Count
    projected_raw_ratio: Ratio


class _Rehydration(_Plan):
    """Steps in order; `complete`: the target is reached by them. Without an inventory only the target is named."""

    steps: tuple[ExpandStep, ...] = ()
    tokens_over_budget: Count | None = None
    complete: bool = False


class HaltAndRehydrate(_Rehydration):
    """Stop compacting, expand summaries until `target_raw_ratio` is reached, wait for `resume`."""

    action: Literal["halt_and_rehydrate"] = "halt_and_rehydrate"
    target_raw_ratio: Ratio


class Rehydrate(_Rehydration):
    """Bring evicted spans back until `target_spans` are reachable."""

    action: Literal["rehydrate"] = "rehydrate"
    target_spans: Count


class Resume(_Plan):
    """A halt is over: compaction may go on."""

    action: Literal["resume"] = "resume"
    halted_by: Id
    because: Literal["resolved", "expired"]


class DropSummary(_Plan):
    """Drop summaries that no reachable source supports; others cover their turns."""

    action: Literal["drop_summary"] = "drop_summary"
    summary_ids: tuple[Id, ...]


class EscalateToRaw(_Plan):
    """Go back to the raw log for what no summary holds any more; `count` of what, where ids are not known.

    Of propositions: `span_ids` say where they were stated, `node_id` where they were missed; `lost_at_level` and
    `nearest_holder`, where on the way up a single one was lost.
    """

    action: Literal["escalate_to_raw"] = "escalate_to_raw"
    what: Literal["summaries", "spans", "records", "propositions", "node"]
    ids: tuple[Id, ...] = ()
    count: Count | None = None
    round: Count | None = None
    span_ids: tuple[Id, ...] = ()
    node_id: Id | None = None
    lost_at_level: Count | None = None
    nearest_holder: Id | None = None


class Recompact(_Plan):
    """Run the failed pass of `round` again."""

    action: Literal["recompact"] = "recompact"
    round: Count


class CapDepth(_Plan):
    """Build no summary deeper than `max_depth`; with `reachability`, keep none without a reachable leaf."""

    action: Literal["cap_depth"] = "cap_depth"
    max_depth: Count
    reachability: bool = False


class RaiseBudget(_Plan):
    """Give the working set more room: the pass frees too little, or comes too often."""

    action: Literal["raise_budget"] = "raise_budget"
    token_budget: Count | None = None
    suggested_token_budget: Count | None = None


class RunTrialRegeneration(_Plan):
    """Generate the node once from its current children, report it with this trial number, commit nothing."""

    action: Literal["run_trial_regeneration"] = "run_trial_regeneration"
    node_id: Id
    trial_number: Annotated[int, Field(ge=1)]
    trials_max: Annotated[int, Field(ge=1)]


class RegenerateParent(_Plan):
    """Generate the node anew and commit it; a kept text of `commit_trial` may be committed instead."""

    action: Literal["regenerate_parent"] = "regenerate_parent"
    node_id: Id
    commit_trial: Count | None = None


class RebalanceOption(Model):
    """One way to give a node the room it needs. `cost_tokens`: what it adds to the hierarchy."""

    method: Literal["raise", "split", "promote"]
    cost_tokens: Count
    budget_tokens: Count | None = None
    parts: Count | None = None
    sibling_id: Id | None = None
    headroom_tokens: Count | None = None


class Rebalance(_Plan):
    """Give the node room; `options` is cheapest first."""

    action: Literal["rebalance"] = "rebalance"
    node_id: Id
    needed_tokens: Count | None = None
    options: tuple[RebalanceOption, ...] = ()
    keep_trial: Count | None = None


class InspectChildren(_Plan):
    """Look at these children, the most suspicious first."""

    action: Literal["inspect_children"] = "inspect_children"
    node_id: Id
    children: tuple[Id, ...] = ()


class StopRegenerating(_Plan):
    """Regenerate this node no more until it was rebalanced; `oscillating`: propositions that flipped in and out."""

    action: Literal["stop_regenerating"] = "stop_regenerating"
    node_id: Id
    oscillating: tuple[Id, ...] = ()


Plan = Annotated[
    HaltAndRehydrate
    | Resume
    | Rehydrate
    | DropSummary
    | EscalateToRaw
    | Recompact
    | CapDepth
    | RaiseBudget
    | RunTrialRegeneration
    | RegenerateParent
    | Rebalance
    | InspectChildren
    | StopRegenerating,
    Field(discriminator="action"),
]


class Alert(Fact):
    """What an alert says, firing or resolved; the same `id` from first to last.

    Attributes:
        name: The check that fired.
        subjects: What it is about beside the session: summaries, nodes, propositions (at most 20).
        startsAt: Event time of the fact that opened it.
        lastReceived: Event time of the fact behind this publication.
        message: What, numbers included. `description`: why it matters and what happens next.
        evidence: Values and thresholds, and `complete` (False: something it rests on was not seen).
        resolved_because: `recovered`, `superseded`, `ended` or `expired`.
    """

    id: Id
    name: Id
    status: Literal["firing", "resolved"]
    severity: Severity
    agent: Id
    subjects: Annotated[tuple[Id, ...], Field(max_length=MAX_SUBJECTS)] = ()
    startsAt: At
    lastReceived: At
    fingerprint: Id
    service: Id
    source: tuple[Id, ...] = ("compaction-monitor",)
    message: str
    description: str
    evidence: dict[str, Any] = Field(default_factory=dict)
    basis: Basis
    attempt: Annotated[int, Field(ge=1)] = 1
    remediation_id: Id | None = None
    superseded_by: Id | None = None
    resolved_because: Literal["recovered", "superseded", "ended", "expired"] | None = None
    url: str
    time_field: ClassVar[str] = "lastReceived"


class AlertRaised(Alert):
    """An alert opened, got worse, or got a new subject (then `attempt` is above 1)."""

    type: Literal["alert.raised"] = "alert.raised"


class AlertResolved(Alert):
    """An alert is over; `resolved_because` says how."""

    type: Literal["alert.resolved"] = "alert.resolved"


class OrderReason(Model):
    """Why an order was given: the alert, its check, and the evidence at that moment."""

    check: Id
    alert_id: Id | None = None
    evidence: dict[str, Any] = Field(default_factory=dict)


class RemediationRequested(Fact):
    """An order to an agent controller.

    A controller drops it when the session has moved past `valid_through_round` or `expires_at` has passed, and
    answers a repeat (same `id`) with the last status it gave. `mode` `advisory`: a person may decide.
    """

    type: Literal["remediation.requested"] = "remediation.requested"
    id: Id
    action: Action
    agent: Id
    subject: str
    plan: Plan
    reason: OrderReason
    requested_at: At
    expires_at: At
    valid_through_round: Count | None = None
    supersedes: tuple[Id, ...] = ()
    mode: Literal["advisory", "enforce"] = "advisory"
    attempt: Annotated[int, Field(ge=1)] = 1
    time_field: ClassVar[str] = "requested_at"

    @model_validator(mode="after")
    def _plan_is_of_the_action(self) -> Self:
        if self.plan.action != self.action:
            raise ValueError(f"plan is of {self.plan.action}, the order of {self.action}")
        return self


class RemediationWithdrawn(Fact):
    """An order is called back; a controller that has not begun drops it."""

    type: Literal["remediation.withdrawn"] = "remediation.withdrawn"
    id: Id
    action: Action
    agent: Id
    subject: str
    attempt: Annotated[int, Field(ge=1)] = 1
    because: Literal["resolved", "superseded", "ended", "expired", "contradicted"]
    withdrawn_at: At
    superseded_by: Id | None = None
    time_field: ClassVar[str] = "withdrawn_at"


FINDING_TYPES: tuple[type[Fact], ...] = (AlertRaised, AlertResolved, RemediationRequested, RemediationWithdrawn)
Finding = AlertRaised | AlertResolved | RemediationRequested | RemediationWithdrawn
