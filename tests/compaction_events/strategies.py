"""Every type of the contract, generated from its own annotations, so that a new field is tested the day it is added."""

from __future__ import annotations

import types
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from hypothesis import strategies as st
from pydantic import AwareDatetime, BaseModel
from pydantic.fields import FieldInfo

from compaction_events.facts import CheckpointRegenerated, Fact, _Checkpoint
from compaction_events.findings import RemediationRequested

FIRST = datetime(2000, 1, 2)  # noqa: DTZ001 - hypothesis wants naive bounds beside a zone
LAST = datetime(2199, 12, 30)  # noqa: DTZ001
# Whole minutes: ISO 8601 has no smaller offset.
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))) | st.just(UTC)
TIMES = st.datetimes(FIRST, LAST, timezones=ZONES)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def _text(bounds: dict[str, Any]) -> st.SearchStrategy[str]:
    limits = {"min_size": bounds.get("min_length", 0), "max_size": min(bounds.get("max_length", 12), 12)}
    whole = st.text(st.characters(exclude_categories=["Cs"]), **limits)
    longest = st.just("é" * bounds["max_length"]) if "max_length" in bounds else st.nothing()
    return whole | longest


def _bounds(metadata: tuple[Any, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in metadata:
        parts = item.metadata if isinstance(item, FieldInfo) else [item]
        for part in parts:
            for kind, name in ((Ge, "ge"), (Gt, "gt"), (Le, "le"), (MinLen, "min_length"), (MaxLen, "max_length")):
                if isinstance(part, kind):
                    found[name] = getattr(part, name)
    return found


def _of(annotation: Any, bounds: dict[str, Any] | None = None) -> st.SearchStrategy[Any]:
    bounds = bounds or {}
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _of(args[0], bounds | _bounds(args[1:]))
    if origin in (Union, types.UnionType):
        return st.one_of(*(_of(arg) for arg in args))
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(_of(args[0]), max_size=4).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=3)
    return _plain(annotation, bounds)


def _plain(annotation: Any, bounds: dict[str, Any]) -> st.SearchStrategy[Any]:
    if annotation is type(None):
        return st.none()
    if annotation is str:
        return _text(bounds)
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        return st.integers(bounds.get("ge", 0), bounds.get("le", 2**53))
    if annotation is float:
        low = bounds.get("ge", bounds.get("gt"))
        return st.floats(low, bounds["le"], exclude_min="gt" in bounds)
    if annotation is AwareDatetime:
        return TIMES
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return st.sampled_from(annotation)
    assert isinstance(annotation, type) and issubclass(annotation, BaseModel), annotation
    return st.deferred(lambda: instances(annotation))


def _coherent(model: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """The rules between fields."""
    if issubclass(model, _Checkpoint) and values.get("child_joint_entropy_bits") is not None:
        values["bits_per_token"] = values["bits_per_token"] or 1.0
    if model is CheckpointRegenerated and (values["version"] is None) == (values["trial_number"] is None):
        values["trial_number"] = 1 if values["version"] is None else None
    if model is CheckpointRegenerated and values["trial_number"] is not None:
        values["remediation_id"] = values["remediation_id"] or "order"
    if model is RemediationRequested:
        values["action"] = values["plan"].action
    return values


@cache
def instances(model: type[BaseModel]) -> st.SearchStrategy[Any]:
    """Valid instances of a model, optional fields both there and not."""
    hints = get_type_hints(model, include_extras=True)
    fields = {
        name: st.just(info.default) if name in ("type", "action") and not info.is_required() else _of(hints[name])
        for name, info in model.model_fields.items()
        if not (name == "action" and model is RemediationRequested)
    }
    return st.fixed_dictionaries(fields).map(lambda values: model(**_coherent(model, values)))


def events(models: tuple[type[Fact], ...]) -> st.SearchStrategy[Fact]:
    """An instance of any of the models."""
    return st.one_of(*(instances(model) for model in models))
