"""What the in-process guard raises, and nothing else does: the monitor's checks return values.

```
RuntimeError
├── SalienceInversionError     a pass left a working set that its own scorer cannot judge any more
└── CompactionInvariantError   a regenerated checkpoint must not be committed as it is
```
Both carry what was found, the numbers behind it, and what to do now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from compaction_events.findings import AlertRaised, AlertResolved, Plan
from compaction_monitor.checks.regeneration import Judgement


class GuardFinding(NamedTuple):
    """An alert as the worker would publish it, and what to do about it now; None where nothing is asked for."""

    alert: AlertRaised | AlertResolved
    plan: Plan | None = None

    @property
    def check(self) -> str:
        """The check it is of."""
        return self.alert.name


class Fall(NamedTuple):
    """What was lost since the last pass, and what of it in this pass; negative: gained. None: not known."""

    raw_ratio: float | None
    raw_ratio_in_pass: float
    spans: int | None
    spans_in_pass: int | None


class SalienceInversionError(RuntimeError):
    """A pass crossed the boundary. Undo it, or keep it with `guard.accept()`; then carry out the `plan`.

    Attributes:
        check: The check that fired; `verdict` is the same word.
        evidence: Its values and thresholds.
        plan: What to do now; None where the check asks for nothing.
        fall: How much of the loss this pass caused, where the state before it was given.
        findings: Everything found in this pass, this one included.
    """

    def __init__(self, finding: GuardFinding, findings: tuple[GuardFinding, ...], fall: Fall | None) -> None:
        super().__init__(f"{finding.check}: {finding.alert.message}")
        self.check = self.verdict = finding.check
        self.evidence: Mapping[str, Any] = finding.alert.evidence
        self.plan: Plan | None = finding.plan
        self.fall = fall
        self.findings = findings


class CompactionInvariantError(RuntimeError):
    """A regenerated checkpoint is saturated, unstable or beyond judgement: committing it loses something.

    Attributes:
        verdict: The verdict; `judgement` has its row and its reason.
        evidence: What was counted.
        plan: What to do instead.
    """

    def __init__(self, message: str, judgement: Judgement, plan: Plan | None) -> None:
        super().__init__(message)
        self.verdict = judgement.verdict
        self.judgement = judgement
        self.evidence: Mapping[str, Any] = judgement.measures.evidence() if judgement.measures else {}
        self.plan = plan
