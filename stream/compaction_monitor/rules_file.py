"""The checks file: TOML in, `Rules` out. What an operator sets about the checks, for every agent or by pattern.

```toml
expiry_s = 86400                      # a session is closed after this silence
clock_ahead_s = 300                   # a time further ahead of the broker's is taken back to that
runbook_url = "https://wiki/runbook#" # the `url` of an alert, the check's name put after it; else README.md#

[default]                             # every agent
mode = "advisory"                     # or "enforce"
observe = false                       # true: findings without orders
off = ["drift"]                       # checks that do not run
severity = {depth_pinned = "info"}
thresholds = {raw_ratio_floor = 0.2}
loop = {deadline_s = 120}

[agents."coder-*"]                    # shell wildcards; the first table that matches holds
observe = true                        # what is not set here is as in [default]
```

Every fault is named, not only the first: the key, its value, and what is allowed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from compaction_events.findings import Severity
from compaction_monitor.checks.evidence import WORDS
from compaction_monitor.rules import WINDOW_ROUNDS, AgentRules, Rules, Thresholds

YEAR_S: Final = 366 * 86_400


class RulesFileError(ValueError):
    """The checks file is wrong: names every key, its value and what is allowed. The operator's to solve."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(faults))


class Range:
    """Numbers from `low` to `high`, both included; whole ones only where `whole`."""

    def __init__(self, low: float, high: float, *, whole: bool = False) -> None:
        self.low, self.high, self.whole = low, high, whole

    def holds(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and (isinstance(value, int) or not self.whole)

    def __str__(self) -> str:
        return f"a {'whole number' if self.whole else 'number'} from {self.low:g} to {self.high:g}"


_RATIO, _DEPTH, _SECONDS = Range(0, 1), Range(1, 64, whole=True), Range(1, YEAR_S)
# A check sees the rounds that a session's window holds, no more.
_WINDOW = Range(1, WINDOW_ROUNDS, whole=True)
_ROUNDS = Range(0, 10_000, whole=True)

THRESHOLDS: Final[Mapping[str, Range]] = {
    "raw_ratio_floor": _RATIO,
    "raw_ratio_recovered": _RATIO,
    "span_floor_fraction": _RATIO,
    "risk_below_ratio": _RATIO,
    "risk_over_ratio": _RATIO,
    "risk_rounds_min": Range(2, WINDOW_ROUNDS, whole=True),
    "risk_fall_rounds": Range(1, WINDOW_ROUNDS - 1, whole=True),
    "pinned_rounds": _ROUNDS,
    "pinned_depth_min": _DEPTH,
    "cap_depth": _DEPTH,
    "coverage_floor": _RATIO,
    "thrash_full_ratio": Range(0.01, 1),
    "thrash_full_rounds": _WINDOW,
    "thrash_burst_rounds": Range(2, WINDOW_ROUNDS, whole=True),
    "thrash_burst_s": _SECONDS,
    "inferred_spans_margin": _RATIO,
    "inferred_cosine_margin": _RATIO,
    "relapse_rounds": _ROUNDS,
    "composed_loss_ratio": _RATIO,
}
LOOP: Final[Mapping[str, Range]] = {
    "deadline_s": _SECONDS,
    "backoff": Range(1, 10),
    "resends_max": Range(0, 100, whole=True),
    "expires_s": _SECONDS,
    "valid_rounds": _ROUNDS,
    "cooldown_rounds": _ROUNDS,
    "breaker_orders": Range(1, 10_000, whole=True),
    "breaker_s": _SECONDS,
    "ineffective_rounds": Range(1, 10_000, whole=True),
    "trials_max": Range(1, 100, whole=True),
    "loop_regenerations": Range(1, 10_000, whole=True),
}
CHECKS: Final = tuple(name for name in WORDS if not name.startswith("remediation_"))
"""What can be switched and weighed. What the loop with the controllers says of itself is governed by `loop`."""
_TOP: Final[Mapping[str, Range]] = {"expiry_s": Range(60, YEAR_S), "clock_ahead_s": Range(0, 86_400)}
# The second must not be below the first, or what has begun could never end.
_ORDERED: Final = (("raw_ratio_floor", "raw_ratio_recovered"), ("risk_below_ratio", "risk_over_ratio"))
_AGENT_KEYS: Final = ("mode", "observe", "off", "severity", "thresholds", "loop")


def read_rules(text: str, name: str = "checks file") -> Rules:
    r"""Read a checks file.

    Args:
        text: Its content.
        name: How faults call it.

    Raises:
        RulesFileError: It is no TOML, or something in it is not allowed.

    >>> read_rules('[agents."coder-*"]\nobserve = true').of("coder-1").observe
    True
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RulesFileError([f"{name}: not TOML: {error}"]) from None
    reader = _Reader(name)
    rules = reader.rules(found)
    if reader.faults:
        raise RulesFileError(reader.faults)
    return rules


class _Reader:
    """Reads table by table and collects what is wrong."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.faults: list[str] = []

    def rules(self, found: dict[str, Any]) -> Rules:
        self._known(found, "", ("default", "agents", "runbook_url", *_TOP))
        default = self._agent(self._table(found, "", "default"), "default", AgentRules())
        agents = self._table(found, "", "agents")
        by_pattern = [
            (pattern, self._agent(self._table(agents, "agents", pattern), f'agents."{pattern}"', default)) for pattern in agents
        ]
        rules = Rules(by_pattern=tuple(by_pattern), default=default, **self._numbers(found, "", _TOP))
        if "runbook_url" not in found:
            return rules
        url = found["runbook_url"]
        if not isinstance(url, str) or not url.startswith(("https://", "http://")):
            self._fault("runbook_url", url, "an http or https address; the check's name is put after it")
            return rules
        return replace(rules, runbook_url=url)

    def _agent(self, table: dict[str, Any], at: str, base: AgentRules) -> AgentRules:
        self._known(table, at, _AGENT_KEYS)
        thresholds = self._thresholds(self._table(table, at, "thresholds"), f"{at}.thresholds", base.thresholds)
        loop = self._table(table, at, "loop")
        self._known(loop, f"{at}.loop", tuple(LOOP))
        return AgentRules(
            thresholds=thresholds,
            loop=replace(base.loop, **self._numbers(loop, f"{at}.loop", LOOP)),
            off=self._off(table, at, base.off),
            severity={**base.severity, **dict(self._severities(self._table(table, at, "severity"), f"{at}.severity"))},
            observe=self._choice(table, at, "observe", (False, True), base.observe),
            mode=self._choice(table, at, "mode", ("advisory", "enforce"), base.mode),
        )

    def _thresholds(self, table: dict[str, Any], at: str, base: Thresholds) -> Thresholds:
        self._known(table, at, tuple(THRESHOLDS))
        limits = replace(base, **self._numbers(table, at, THRESHOLDS))
        for low, high in _ORDERED:
            if getattr(limits, high) < getattr(limits, low):
                self._fault(f"{at}.{high}", getattr(limits, high), f"at least {low}, {getattr(limits, low)}")
        return limits

    def _numbers(self, table: dict[str, Any], at: str, allowed: Mapping[str, Range]) -> dict[str, Any]:
        """The numbers of a table that are given and allowed."""
        good = {}
        for key in (known for known in table if known in allowed):
            if allowed[key].holds(table[key]):
                good[key] = table[key]
            else:
                self._fault(_join(at, key), table[key], str(allowed[key]))
        return good

    def _off(self, table: dict[str, Any], at: str, base: frozenset[str]) -> frozenset[str]:
        names = table.get("off")
        if names is None:
            return base
        if not isinstance(names, list):
            self._fault(f"{at}.off", names, f"a list of checks: {', '.join(CHECKS)}")
            return base
        for unknown in (name for name in names if not isinstance(name, str) or name not in CHECKS):
            self._fault(f"{at}.off", unknown, f"checks: {', '.join(CHECKS)}")
        return frozenset(name for name in names if isinstance(name, str))

    def _severities(self, table: dict[str, Any], at: str) -> Iterator[tuple[str, Severity]]:
        self._known(table, at, CHECKS)
        for check, word in table.items():
            if check in CHECKS and isinstance(word, str) and word in set(Severity):
                yield check, Severity(word)
            elif check in CHECKS:
                self._fault(f"{at}.{check}", word, ", ".join(Severity))

    def _choice(self, table: dict[str, Any], at: str, key: str, allowed: tuple[Any, ...], base: Any) -> Any:
        value = table.get(key, base)
        # 1 == True, but 1 is no switch.
        if any(value == one and type(value) is type(one) for one in allowed):
            return value
        self._fault(f"{at}.{key}", value, " or ".join(map(_toml, allowed)))
        return base

    def _table(self, table: dict[str, Any], at: str, key: str) -> dict[str, Any]:
        value = table.get(key, {})
        if isinstance(value, dict):
            return value
        self._fault(_join(at, key), value, "a table")
        return {}

    def _known(self, table: dict[str, Any], at: str, allowed: tuple[str, ...]) -> None:
        for key in table:
            if key not in allowed:
                self._fault(_join(at, key), table[key], f"no such key; known here: {', '.join(allowed)}")

    def _fault(self, key: str, value: Any, allowed: str) -> None:
        self.faults.append(f"{self.name}: {key} = {_toml(value)}: {allowed if 'no such' in allowed else 'allowed: ' + allowed}")


def _join(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _toml(value: object) -> str:
    """A value as TOML writes it, shortened."""
    text = str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
