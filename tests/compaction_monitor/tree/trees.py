"""Sessions with checkpoints for tests, and what the monitor says of them in short lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from compaction_events.builders import at, regenerated, started, stated, written
from compaction_events.facts import CheckpointRegenerated, Fact
from compaction_events.findings import AlertRaised, AlertResolved, RemediationRequested
from compaction_monitor.harness import Offline, Published
from compaction_monitor.rules import AgentRules, LoopRules, Rules

ROOMY: Mapping[str, Any] = {
    "budget_tokens": 100,
    "child_joint_entropy_bits": 100.0,
    "child_redundancy": 0.0,
    "bits_per_token": 1.0,
}
SHORT: Mapping[str, Any] = {**ROOMY, "budget_tokens": 50}
UNKNOWN: Mapping[str, Any] = {}


def reads(*children: str | tuple[str, int | None]) -> list[dict[str, Any]]:
    """Children as a checkpoint names them; version 1 unless told."""
    pairs = [(child, 1) if isinstance(child, str) else child for child in children]
    return [{"node_id": name, **({} if version is None else {"version": version})} for name, version in pairs]


def props(first: int, last: int) -> list[str]:
    """Propositions `first` to `last`, both included."""
    return [f"p{number}" for number in range(first, last + 1)]


def tracked(*propositions: str, pinned: Iterable[str] = ()) -> list[Fact]:
    """A session that starts, and what is stated in it, at turns 1, 2, …"""
    pins = set(pinned)
    return [started(), *(stated(p, turn, pinned=p in pins) for turn, p in enumerate(propositions, 1))]


def trial(node_id: str, minutes: float, number: int, retained: Iterable[str], **fields: Any) -> CheckpointRegenerated:
    """A trial regeneration; of no particular order unless told."""
    more = {"level": 3, "remediation_id": "any", **fields}
    return regenerated(node_id, minutes, trial_number=number, retained=list(retained), **more)


def in_short(published: Sequence[Published]) -> list[str]:
    """One line a finding: what is raised, resolved, ordered and withdrawn, with subjects, severities and plans."""
    return [_line(one.finding) for one in published]


def _line(finding: Any) -> str:
    if isinstance(finding, AlertRaised):
        return f"raised {finding.name} {finding.severity} {' '.join(finding.subjects)}"
    if isinstance(finding, AlertResolved):
        return f"resolved {finding.name} {finding.resolved_because} {' '.join(finding.subjects)}"
    if isinstance(finding, RemediationRequested):
        plan = finding.plan.model_dump(exclude={"action"}, exclude_none=True, exclude_defaults=True)
        return f"ordered {finding.action} {finding.subject}: " + " ".join(f"{key}={_plain(plan[key])}" for key in sorted(plan))
    return f"withdrawn {finding.action} {finding.subject}: {finding.because}"


def _plain(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ",".join(_plain(item) for item in value) + "]"
    if isinstance(value, dict):
        return "(" + " ".join(str(item) for item in value.values() if item is not None) + ")"
    return str(value)


def evidence(published: Sequence[Published], check: str) -> dict[str, Any]:
    """The evidence of the last alert of a check."""
    found = [one.finding for one in published if isinstance(one.finding, AlertRaised) and one.finding.name == check]
    return found[-1].evidence


def order_id(published: Sequence[Published], action: str) -> str:
    """The id of the last order for an action."""
    found = [one.finding for one in published if isinstance(one.finding, RemediationRequested) and one.finding.action == action]
    return found[-1].id


def under(**loop: Any) -> Rules:
    """Rules with other figures for the loop."""
    return Rules(default=AgentRules(loop=LoopRules(**loop)))


def counted(monitor: Offline, name: str) -> dict[tuple[str, ...], int]:
    """What was counted under one name, by its labels."""
    return {labels[1:]: number for labels, number in monitor.counts.items() if labels[0] == name}


__all__ = [
    "ROOMY",
    "SHORT",
    "UNKNOWN",
    "at",
    "counted",
    "evidence",
    "in_short",
    "order_id",
    "props",
    "reads",
    "tracked",
    "trial",
    "under",
    "written",
]
