"""What the pure middle may count: each metric's name without prefix, its labels, and the closed sets these are from.

Nothing of one session (its id, its nodes) is ever a label, and an agent is one only where it is expected: the number of
series does not grow with what is watched. What is counted is a tuple in `Effects.counts`: the name, then the labels.
One name counts a time: `answer_delay`, with the order's action, and how many milliseconds its controller took.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final, NamedTuple

from compaction_events.errors import Reason
from compaction_events.facts import AckStatus
from compaction_events.findings import Action, Severity
from compaction_monitor.checks.evidence import WORDS

CHECKS: Final = tuple(WORDS)
SEVERITIES: Final = tuple(severity.value for severity in Severity)
ACTIONS: Final = tuple(action.value for action in Action)
_RULED_OUT = ("late", "duplicate")
_FACTS = {
    "session.started": ("new", "repeat"),
    "round.completed": ("new", "gap", *_RULED_OUT),
    "session.ended": ("new", "late"),
    "proposition.stated": ("new", "repeat", "no_room"),
    "checkpoint.written": ("new", "forgotten", *_RULED_OUT),
    "checkpoint.regenerated": ("new", "forgotten", "trial", "unknown_node", *_RULED_OUT),
}


class Counted(NamedTuple):
    """A counter that the pure middle may add to.

    Attributes:
        series: Those that are there from the start, without their first label where that is the agent or the topic.
    """

    text: str
    labels: tuple[str, ...] = ()
    series: Sequence[tuple[str, ...]] = ()


DOMAIN: Final[dict[str, Counted]] = {
    "facts": Counted(
        "Input facts by what became of them; of misses and answers `missed` and `answers` say it.",
        ("type", "outcome"),
        [(fact, outcome) for fact, outcomes in _FACTS.items() for outcome in outcomes],
    ),
    "findings": Counted(
        "Alerts published: raised, raised again (worse, or about more), resolved.",
        ("agent", "check", "severity", "status"),
        list(product(CHECKS, SEVERITIES, ("raised", "raised_again", "resolved"))),
    ),
    "findings_dropped": Counted(
        "Alerts that were not opened because a session may hold only so many.", ("check",), [(check,) for check in CHECKS]
    ),
    "checks_skipped": Counted("Checks that an absent input skipped.", ("check", "reason")),
    "orders": Counted(
        "Remediation orders published, or dropped because a session may hold only so many.",
        ("agent", "action", "status"),
        list(product(ACTIONS, ("sent", "sent_again", "dropped"))),
    ),
    "orders_held": Counted(
        "Remediation orders held back.", ("action", "reason"), list(product(ACTIONS, ("cooldown", "breaker", "contradiction")))
    ),
    "orders_ended": Counted(
        "Remediation orders that came to an end.",
        ("action", "outcome"),
        list(product(ACTIONS, ("completed", "rejected", "failed", "expired", "withdrawn", "dropped"))),
    ),
    "answers": Counted(
        "Acknowledgements of controllers; too_late: the order had ended.",
        ("action", "status"),
        [
            *product(ACTIONS, (*(status.value for status in AckStatus), "too_late")),
            ("none", "too_late"),
            ("none", "unknown_session"),
        ],
    ),
    "verdicts": Counted("Verdicts over the trial regenerations of a checkpoint.", ("verdict", "reason")),
    "missed": Counted("Propositions that were missed, by what that means.", ("decision",)),
    "trials_held": Counted("Trial regenerations that were not asked for.", ("reason",)),
    "nodes_forgotten": Counted("Checkpoints forgotten because a session may hold only so many."),
    "propositions_dropped": Counted("Facts with propositions that a session had no room to track."),
    "sessions_expired": Counted("Sessions closed because they were silent for too long."),
    "dead_letters": Counted("Records that could not be used.", ("topic", "reason"), [(reason.value,) for reason in Reason]),
}
