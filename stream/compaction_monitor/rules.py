"""What the operator can set about the checks: thresholds, switches, severities, per agent.

Pure values; `settings` reads them from a file. The defaults are the figures of the two documents the checks come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from compaction_events.findings import Severity

WINDOW_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Every number a check compares with. Ratios are 0..1; equality is on the healthy side unless said.

    Attributes:
        raw_ratio_floor: Below it the set is mostly summary (inversion, drift).
        raw_ratio_recovered: At or above it an inversion or a drift is over; also the rehydration target.
        span_floor_fraction: Of the spans at session start (tree) or before the pass (chain) that must stay reachable.
        risk_below_ratio, risk_over_ratio: Where the risk of inversion begins and ends.
        risk_rounds_min: Rounds that must be known before a slope means anything.
        risk_fall_rounds: The last rounds of which at least one must have lost spans.
        pinned_rounds: More consecutive rounds than this at the deepest level are one too many.
        pinned_depth_min: From this depth on; capping at 2 means nothing at 2.
        cap_depth: What the hierarchy is capped to.
        coverage_floor: Read records per claimed record.
        thrash_full_ratio, thrash_full_rounds: So many rounds in a row that leave more of the budget than this.
        thrash_burst_rounds, thrash_burst_s: So many rounds within so many seconds.
        inferred_spans_margin: A fall of inferred spans counts only beyond this share of the previous spans.
        inferred_cosine_margin: A rise of an inferred cosine counts only beyond this.
        relapse_rounds: An inversion that returns within so many rounds of resolving gets another remedy.
        composed_loss_ratio: Share of a composed entropy that descendants may lose unseen.
    """

    raw_ratio_floor: float = 0.25
    raw_ratio_recovered: float = 0.30
    span_floor_fraction: float = 0.20
    risk_below_ratio: float = 0.50
    risk_over_ratio: float = 0.55
    risk_rounds_min: int = 4
    risk_fall_rounds: int = 3
    pinned_rounds: int = 5
    pinned_depth_min: int = 3
    cap_depth: int = 2
    coverage_floor: float = 0.5
    thrash_full_ratio: float = 0.9
    thrash_full_rounds: int = 3
    thrash_burst_rounds: int = 4
    thrash_burst_s: float = 1_200.0
    inferred_spans_margin: float = 0.05
    inferred_cosine_margin: float = 0.02
    relapse_rounds: int = 8
    composed_loss_ratio: float = 0.05


@dataclass(frozen=True, slots=True)
class LoopRules:
    """How the loop with the controllers behaves; times in seconds.

    Attributes:
        deadline_s: An order wants an answer within this time; each re-send waits `backoff` times longer.
        resends_max: Re-sends before `remediation_unacknowledged`.
        expires_s: An order's life.
        valid_rounds: An order about a round is void when the session is further on than this.
        cooldown_rounds: Between two orders for one check of a session.
        breaker_orders, breaker_s: At most so many orders for a session within that time.
        ineffective_rounds: Compaction rounds after `completed` within which the alert must resolve.
        trials_max: Trial regenerations that are judged together; 1 is the reference.
        loop_regenerations: So many committed regenerations of a node without recovery are a loop.
    """

    deadline_s: float = 300.0
    backoff: float = 1.5
    resends_max: int = 3
    expires_s: float = 3_600.0
    valid_rounds: int = 2
    cooldown_rounds: int = 3
    breaker_orders: int = 5
    breaker_s: float = 3_600.0
    ineffective_rounds: int = 2
    trials_max: int = 3
    loop_regenerations: int = 2


@dataclass(frozen=True, slots=True)
class AgentRules:
    """The rules that hold for one agent. `observe`: findings without orders."""

    thresholds: Thresholds = Thresholds()
    loop: LoopRules = LoopRules()
    off: frozenset[str] = frozenset()
    severity: Mapping[str, Severity] = field(default_factory=dict)
    observe: bool = False
    mode: Literal["advisory", "enforce"] = "advisory"


DEFAULT_RULES = AgentRules()


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules by agent pattern (shell wildcards); the first pattern that matches holds, else the default.

    Attributes:
        runbook_url: What an alert's `url` begins with; the check's name is put after it. The default leads to the
            check's heading in this project's README, from the root of the repository.
    """

    by_pattern: tuple[tuple[str, AgentRules], ...] = ()
    default: AgentRules = DEFAULT_RULES
    expiry_s: float = 86_400.0
    clock_ahead_s: float = 300.0
    runbook_url: str = "README.md#"
    _known: dict[str, AgentRules] = field(default_factory=dict, repr=False, compare=False)

    def of(self, agent: str) -> AgentRules:
        """The rules of an agent.

        >>> Rules(by_pattern=(("coder-*", AgentRules(observe=True)),)).of("coder-1").observe
        True
        """
        found = self._known.get(agent)
        if found is None:
            found = next((rules for pattern, rules in self.by_pattern if fnmatchcase(agent, pattern)), self.default)
            if len(self._known) < 10_000:  # agents are few; a hostile sender is not
                self._known[agent] = found
        return found
