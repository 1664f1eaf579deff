"""The topics of the contract, in one table: what each carries, who writes it, and how it is kept.

Names and retention are defaults: an operator may set others. What a topic carries is the contract.
"""

from __future__ import annotations

from typing import NamedTuple

from compaction_events.facts import EVENT_TYPES, OUTCOME_TYPES, Fact
from compaction_events.findings import FINDING_TYPES

DEFAULT_PARTITIONS = 8
_DAY_S = 24 * 3600


class Topic(NamedTuple):
    """One topic.

    Attributes:
        name: By default.
        writer: Who writes it.
        about: What is in it.
        types: What its records are; none: records of any kind, as they came.
        retention_s: How long its records are kept.
    """

    name: str
    writer: str
    about: str
    types: tuple[type[Fact], ...]
    retention_s: int


# No log is compacted: a consumer that was away must see each alert raised and resolved, not the last word only.
EVENTS = Topic("compaction.events", "agents", "What agents report.", EVENT_TYPES, 7 * _DAY_S)
OUTCOMES = Topic("compaction.outcomes", "controllers", "Answers to orders.", OUTCOME_TYPES, 7 * _DAY_S)
FINDINGS = Topic("compaction.findings", "the monitor", "Alerts and orders.", FINDING_TYPES, 30 * _DAY_S)
DEAD_LETTERS = Topic(
    "compaction.dead-letters",
    "the monitor",
    "Records that break the contract, as they came, with the reason; what became of those replayed or dropped.",
    (),
    14 * _DAY_S,
)
TOPICS = (EVENTS, OUTCOMES, FINDINGS, DEAD_LETTERS)
