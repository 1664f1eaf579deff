"""Short ways to build facts, for tests and examples: sensible defaults, fixed times, everything can be overridden.

>>> completed(3, raw_tokens=900, summary_tokens=100).after.raw_tokens
900
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from compaction_events.facts import (
    AckStatus,
    CheckpointRegenerated,
    CheckpointWritten,
    Composition,
    PropositionMissed,
    PropositionStated,
    RemediationAcknowledged,
    RoundCompleted,
    SessionEnded,
    SessionStarted,
)

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SESSION = "session-1"
AGENT = "agent"
ROUND_MINUTES = 30
_COMPOSITION = frozenset(Composition.model_fields)


def at(minutes: float) -> datetime:
    """`minutes` after the fixed start of all built sessions."""
    return EPOCH + timedelta(minutes=minutes)


def started(session_id: str = SESSION, **fields: Any) -> SessionStarted:
    """A session that starts at `EPOCH`; a tree unless told otherwise."""
    return SessionStarted(**{"session_id": session_id, "agent": AGENT, "started_at": EPOCH, "topology": "tree", **fields})


def completed(number: int, session_id: str = SESSION, **fields: Any) -> RoundCompleted:
    """Round `number`, half an hour after the one before. Fields of `Composition` go into `after`."""
    after = {"raw_tokens": 1_000, "summary_tokens": 0} | {k: v for k, v in fields.items() if k in _COMPOSITION}
    rest = {k: v for k, v in fields.items() if k not in _COMPOSITION}
    times = {"at": at(ROUND_MINUTES * (number + 1))}
    return RoundCompleted(**{"session_id": session_id, "agent": AGENT, "round": number, **times, "after": after, **rest})


def ended(minutes: float, session_id: str = SESSION, **fields: Any) -> SessionEnded:
    """The session's end."""
    return SessionEnded(**{"session_id": session_id, "agent": AGENT, "ended_at": at(minutes), **fields})


def written(node_id: str, version: int, minutes: float, session_id: str = SESSION, **fields: Any) -> CheckpointWritten:
    """A committed checkpoint; retains nothing unless told."""
    defaults = {"session_id": session_id, "node_id": node_id, "level": 1, "retained": (), "written_at": at(minutes)}
    return CheckpointWritten(**{**defaults, "version": version, **fields})


def regenerated(node_id: str, minutes: float, session_id: str = SESSION, **fields: Any) -> CheckpointRegenerated:
    """A regenerated checkpoint: give `version` (committed), or `trial_number` and `remediation_id` (a trial)."""
    defaults = {"session_id": session_id, "node_id": node_id, "level": 1, "retained": (), "at": at(minutes)}
    return CheckpointRegenerated(**{**defaults, **fields})


def stated(proposition: str, turn: int, session_id: str = SESSION, **fields: Any) -> PropositionStated:
    """A proposition joins the tracked set."""
    return PropositionStated(
        **{"session_id": session_id, "proposition": proposition, "turn": turn, "span_id": f"span-{turn}", **fields}
    )


def missed(node_id: str, proposition: str, minutes: float, session_id: str = SESSION, **fields: Any) -> PropositionMissed:
    """A proposition was looked for at a node and not found."""
    defaults = {"session_id": session_id, "node_id": node_id, "proposition": proposition, "at": at(minutes)}
    return PropositionMissed(**{**defaults, "by": "operator", **fields})


def acknowledged(remediation_id: str, status: str, minutes: float, session_id: str = SESSION) -> RemediationAcknowledged:
    """A controller's answer to an order."""
    return RemediationAcknowledged(
        session_id=session_id, remediation_id=remediation_id, status=AckStatus(status), at=at(minutes)
    )
