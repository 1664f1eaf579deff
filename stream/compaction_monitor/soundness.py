"""Whether state is of the types and within the bounds in which it is written.

Reading a row looks at its shape only, because it is on the way of every record, and the checksums of Kafka and RocksDB
have told broken bytes before. Where the fold has failed, this tells a broken row from a fault in the program: the first
stops the worker, the second costs one record.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, Final, Union, cast, get_args, get_origin, get_type_hints

from compaction_events.facts import Basis, Controller, Eviction, Topology
from compaction_events.findings import Action, Severity
from compaction_monitor.checks.evidence import WORDS
from compaction_monitor.state.nodes import Ledger, Node, TrackedSet
from compaction_monitor.state.session import NEVER_MS, OpenAlert, OpenOrder, Session

MAX_US: Final = 7_300_000_000_000_000  # in 2201
MAX_COUNT: Final = 2**54  # what follows from a count that is 2**53: a round's validity, tokens of two kinds
MAX_RATIO: Final = 1e18
_WORDS: Final[Mapping[tuple[type[Any], str], Iterable[str]]] = {
    (Session, "topology"): Topology,
    (Session, "eviction"): Eviction,
    (Session, "controller"): Controller,
    (OpenAlert, "check"): WORDS,
    (OpenAlert, "severity"): Severity,
    (OpenAlert, "basis"): Basis,
    (OpenOrder, "action"): Action,
    (OpenOrder, "status"): ("waiting", "sent", "deferred", "accepted", "completed"),
}
_ALLOWED: Final = {place: frozenset(map(str, words)) for place, words in _WORDS.items()}
# Of these an integer is a set, not a number.
_MASKS: Final = frozenset({"retained", "missed_then", "flipped", "flipped_back"})


def unsound(state: Session | Node | Ledger | TrackedSet) -> str:
    """The first field that cannot be right, empty if there is none."""
    if isinstance(state, TrackedSet):
        return next((found for entry in state.entries if (found := _fields(entry))), "")
    return _fields(state)


def _fields(state: Any) -> str:
    hints = _hints(cast(Hashable, type(state)))
    return next((name for name, hint in hints.items() if not _field_fits(type(state), name, getattr(state, name), hint)), "")


def _field_fits(kind: type[Any], name: str, value: Any, hint: Any) -> bool:
    allowed = _ALLOWED.get((kind, name))
    return _fits(value, hint, name) and (allowed is None or value is None or value in allowed)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    names = kind.__dataclass_fields__ if is_dataclass(kind) else kind._fields
    hints = get_type_hints(kind)
    return {name: hints[name] for name in names}


def _fits(value: Any, hint: Any, name: str) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one, name) for one in inner)
    if origin is tuple:
        kinds = (inner[0],) * len(value) if inner[-1:] == (...,) and isinstance(value, tuple) else inner
        return type(value) is tuple and len(value) == len(kinds) and all(map(_fits, value, kinds, [name] * len(kinds)))
    if origin is not None:  # the ledger's mapping of texts to texts
        return isinstance(value, Mapping) and all(type(text) is str for pair in value.items() for text in pair)
    return _is(value, hint, name)


def _is(value: Any, kind: type[Any], name: str) -> bool:
    if hasattr(kind, "_fields"):
        return isinstance(value, kind) and len(value) == len(kind._fields) and not _fields(value)
    if kind is float:
        return type(value) in (float, int) and abs(value) <= MAX_RATIO
    if kind is int:
        return type(value) is int and _in_bounds(value, name)
    if kind is TrackedSet:
        return isinstance(value, TrackedSet) and not unsound(value)
    return type(value) is kind


def _in_bounds(value: int, name: str) -> bool:
    if name in _MASKS:
        return value >= 0
    limit = MAX_US if name.endswith("_us") else NEVER_MS if name.endswith("_ms") else MAX_COUNT
    return 0 <= value <= limit
