"""One example of every type on the wire, each with most of its fields filled: for the published contract, and for tests."""

from __future__ import annotations

from compaction_events import builders
from compaction_events.builders import AGENT, SESSION, at
from compaction_events.facts import Basis, Fact
from compaction_events.findings import (
    Action,
    AlertRaised,
    AlertResolved,
    ExpandStep,
    HaltAndRehydrate,
    OrderReason,
    RemediationRequested,
    RemediationWithdrawn,
    Severity,
)

_ALERT = {
    "session_id": SESSION,
    "id": "6c1f7f0e-0000-5000-8000-000000000001",
    "name": "salience_inversion",
    "severity": Severity.critical,
    "agent": AGENT,
    "startsAt": at(360),
    "fingerprint": "f0",
    "service": AGENT,
    "message": "raw_ratio 0.24 < 0.25",
    "description": "The scorer prefers summaries to the evidence under them.",
    "evidence": {"raw_ratio": 0.24, "complete": True, "recency_decay": None},
    "basis": Basis.measured,
    "remediation_id": "6c1f7f0e-0000-5000-8000-000000000002",
    "url": "https://example.org/runbook#salience_inversion",
}
_ORDER = {
    "session_id": SESSION,
    "id": "6c1f7f0e-0000-5000-8000-000000000002",
    "action": Action.halt_and_rehydrate,
    "agent": AGENT,
    "subject": "",
}

EXAMPLES: tuple[Fact, ...] = (
    builders.started(source_spans=214, scorer={"name": "cosine", "depth_penalty": 0.0}, eviction="continuous"),
    builders.completed(
        12,
        raw_tokens=24_000,
        summary_tokens=76_000,
        distinct_source_spans=160,
        query_cosine_retained=0.52,
        summary_depth_max=3,
        summaries=[{"summary_id": "m1", "depth": 2, "tokens": 900, "leaf_spans": 4, "expanded_tokens": 5_000}],
        propositions_retained=["p1", "p2"],
    ),
    builders.ended(2_000),
    builders.written(
        "root", 1, 40, children=[{"node_id": "m1", "version": 2}], retained=["p1"], turns={"first": 1, "last": 64}
    ),
    builders.regenerated("root", 50, version=2, child_joint_entropy_bits=900.5, bits_per_token=2.5, budget_tokens=400),
    builders.stated("p1", 30, pinned=True),
    builders.missed("root", "p1", 55, symptom="constraint"),
    builders.acknowledged("6c1f7f0e-0000-5000-8000-000000000002", "accepted", 61),
    AlertRaised.model_validate(_ALERT | {"status": "firing", "lastReceived": at(360), "attempt": 2}),
    AlertResolved.model_validate(
        _ALERT | {"status": "resolved", "lastReceived": at(420), "resolved_because": "recovered", "subjects": ["m1"]}
    ),
    RemediationRequested(
        **_ORDER,
        plan=HaltAndRehydrate(
            target_raw_ratio=0.3,
            steps=(
                ExpandStep(
                    summary_id="m1",
                    depth=2,
                    leaf_spans=4,
                    adds_raw_tokens=5_000,
                    removes_summary_tokens=900,
                    projected_raw_ratio=0.31,
                ),
            ),
            complete=True,
        ),
        reason=OrderReason(check="salience_inversion", alert_id=str(_ALERT["id"])),
        requested_at=at(360),
        expires_at=at(420),
        valid_through_round=14,
    ),
    RemediationWithdrawn.model_validate(_ORDER | {"because": "resolved", "withdrawn_at": at(380)}),
)
