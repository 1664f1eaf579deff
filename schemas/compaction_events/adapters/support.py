"""What each adapter gets out of its format: counted by the agent, worked out here, or not to be had.

One table, from which the README's is generated; every cell is held against a session in that format by a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Level(StrEnum):
    """Where a figure comes from."""

    measured = "measured"  # the agent counted it, or says it in so many words
    inferred = "inferred"  # worked out here, from text or structure
    absent = "-"


SIGNALS: Final = (
    "tokens before",
    "tokens after",
    "overhead",
    "raw and summary",
    "window",
    "trigger",
    "spans",
    "cosine",
    "depth",
    "checkpoints",
    "leaves of summaries",
    "entropy",
    "propositions",
    "own messages quoted",
    "records read",
    "summary kind",
)
_KEYS: Final = MappingProxyType({"m": Level.measured, "i": Level.inferred, "-": Level.absent})
# One letter a signal, in the order above.
_TABLE: Final = MappingProxyType(
    {
        "claude-code": "mmiiimiiii--iimi",
        "codex": "mmiim-iii---ii-i",
        "pi": "mmii--iiii--ii-i",
        "openhands": "iiii--iimmm-ii-i",
        "lossless-claw": "mm-m--mimmmiii-i",
        "hermes-lcm": "mm-m--mimmmiii-i",
        "copilot": "mmmimmiiii--ii-i",
        "opencode": "mmii-miiii--ii-i",
    }
)
SUPPORT: Final[Mapping[str, Mapping[str, Level]]] = MappingProxyType(
    {name: MappingProxyType(dict(zip(SIGNALS, (_KEYS[key] for key in row), strict=True))) for name, row in _TABLE.items()}
)


def markdown() -> str:
    """The table as it stands in the README.

    >>> markdown().splitlines()[2]
    '| tokens before | measured | measured | measured | inferred | measured | measured | measured | measured |'
    """
    head = f"| | {' | '.join(SUPPORT)} |"
    rule = f"|---|{'---|' * len(SUPPORT)}"
    rows = [f"| {signal} | {' | '.join(row[signal].value for row in SUPPORT.values())} |" for signal in SIGNALS]
    return "\n".join([head, rule, *rows])
