"""Facts and findings to Kafka records and back: CloudEvents 1.0 in binary mode.

`decode` also takes structured mode and plain JSON with a `type` field. It raises nothing but `ContractError`, which
carries a reason from the closed set and every fault found. No Kafka client is needed here.

Source: CloudEvents 1.0 and its Kafka protocol binding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

import orjson
from pydantic import ValidationError

from compaction_events.errors import ContractError, Fault, Reason, shown
from compaction_events.facts import EVENT_TYPES, MAX_ID_CHARS, OUTCOME_TYPES, Fact
from compaction_events.findings import FINDING_TYPES, Alert, RemediationRequested, RemediationWithdrawn
from compaction_events.ids import event_id, publication_id

MAX_RECORD_BYTES = 256 * 1024
TYPE_PREFIX = "io.compaction_monitor."
VERSION = "v1"
MAX_TRACEPARENT_BYTES = 256
SPEC_VERSION = b"1.0"
JSON = b"application/json"
STRUCTURED = b"application/cloudevents"
DEFAULT_SOURCE = "compaction-events"

TYPES: Final[Mapping[str, type[Fact]]] = MappingProxyType(
    {model.model_fields["type"].default: model for model in (*EVENT_TYPES, *OUTCOME_TYPES, *FINDING_TYPES)}
)
# The header on the wire to the model, in one look-up: this is the path of every record.
_BY_CE_TYPE: Final = {ce.encode(): model for ce, model in ((f"{TYPE_PREFIX}{t}.{VERSION}", m) for t, m in TYPES.items())}

Headers = Sequence[tuple[str, bytes | None]]


class Decoded(NamedTuple):
    """One decoded record: the event, its `ce_id` (given or derived), and the headers passed through."""

    event: Fact
    ce_id: str
    traceparent: bytes | None


class Encoded(NamedTuple):
    """One record to produce."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


def ce_type(event: Fact) -> str:
    """The CloudEvents type of an event, version included."""
    return f"{TYPE_PREFIX}{event.type}.{VERSION}"


def ce_id(event: Fact) -> str:
    """The derived `ce_id`: of a finding, that of this publication of it; of a fact, that of the fact."""
    if isinstance(event, Alert | RemediationRequested | RemediationWithdrawn):
        return publication_id(event.id, event.type, event.attempt)
    return event_id(event.session_id, event.type, event.occurred_at, event.identity)


def encode(
    event: Fact,
    *,
    source: str = DEFAULT_SOURCE,
    id: str | None = None,  # noqa: A002 - the CloudEvents attribute has this name
    time: datetime | None = None,
    traceparent: bytes | None = None,
) -> Encoded:
    """Encode an event in binary mode, keyed by its session.

    Args:
        event: Any fact or finding.
        source: URI reference of who says it.
        id: `ce_id`; derived from the event where not given.
        time: `ce_time`, aware; the event's own time where not given.
        traceparent: W3C trace context to pass through.
    """
    at = time or event.occurred_at
    headers = [
        ("ce_specversion", SPEC_VERSION),
        ("ce_id", (id or ce_id(event)).encode()),
        ("ce_source", source.encode()),
        ("ce_type", ce_type(event).encode()),
        ("ce_subject", event.session_id.encode()),
        ("content-type", JSON),
    ]
    if at is not None:
        headers.append(("ce_time", at.astimezone(UTC).isoformat().replace("+00:00", "Z").encode()))
    if traceparent is not None:
        headers.append(("traceparent", traceparent))
    value = event.__pydantic_serializer__.to_json(event, exclude_none=True)
    return Encoded(event.session_id.encode(), value, headers)


def decode(value: bytes | None, headers: Headers = (), key: bytes | None = None, *, check_key: bool = True) -> Decoded:
    """Decode one record.

    Args:
        value: The record's value.
        headers: The record's headers, as a Kafka client gives them.
        key: The record's key; must be the session id in UTF-8.
        check_key: False where there is no key (files).

    Raises:
        ContractError: with the reason and all faults.
    """
    if not value:
        raise ContractError(Reason.empty_value, [Fault("value", shown(value), "a JSON object")])
    if len(value) > MAX_RECORD_BYTES:
        raise ContractError(
            Reason.record_too_large, [Fault("value", f"{len(value)} bytes", f"at most {MAX_RECORD_BYTES} bytes")]
        )
    kind: bytes | None = None
    given_id: bytes | None = None
    traceparent: bytes | None = None
    content_type: bytes | None = None
    for name, content in headers:
        if name == "ce_type":
            kind = content or _no_header(name, content)
        elif name == "ce_id":
            given_id = content or _no_header(name, content)
        elif name == "content-type":
            content_type = content
        elif name == "traceparent":
            # Copied into what follows from the event: a wild one must not travel on.
            traceparent = content if content and len(content) <= MAX_TRACEPARENT_BYTES else None
    if content_type is not None and content_type[: len(STRUCTURED)].lower() == STRUCTURED:
        # First: a structured record may carry the headers of binary mode too.
        event, given_id, traceparent = _structured(_object(value), given_id, traceparent)
    elif kind is not None:
        model = _BY_CE_TYPE.get(kind) or _model(_text("ce_type", kind))
        event = _validated(model, value)
    else:
        event, given_id, traceparent = _plain(value, given_id, traceparent)
    if check_key and key != event.session_id.encode():
        raise ContractError(Reason.wrong_key, [Fault("key", shown(key), f"the session_id, {shown(event.session_id)}")])
    return Decoded(event, ce_id(event) if given_id is None else _ce_id(given_id), traceparent)


def _no_header(name: str, content: bytes | None) -> NoReturn:
    raise ContractError(Reason.bad_headers, [Fault(name, shown(content), "non-empty UTF-8 text")])


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ContractError(Reason.bad_headers, [Fault(name, shown(content), "UTF-8 text")]) from None


def _ce_id(content: bytes) -> str:
    text = _text("ce_id", content)
    if len(text) > MAX_ID_CHARS:
        raise ContractError(Reason.bad_headers, [Fault("ce_id", shown(text), f"at most {MAX_ID_CHARS} characters")])
    return text


def _model(kind: object) -> type[Fact]:
    """The model of a type name, `io.compaction_monitor.<type>.v1` or the bare `<type>`."""
    name = kind if isinstance(kind, str) else ""
    if name in TYPES:
        return TYPES[name]
    stem, _, version = name.removeprefix(TYPE_PREFIX).rpartition(".")
    if stem not in TYPES:
        raise ContractError(Reason.unknown_type, [Fault("type", shown(kind), ", ".join(TYPES))])
    if version != VERSION:
        raise ContractError(Reason.unknown_version, [Fault("type", shown(kind), f"{TYPE_PREFIX}{stem}.{VERSION}")])
    return TYPES[stem]


def _object(value: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ContractError(Reason.not_json, [Fault("value", str(error)[:120], "JSON in UTF-8")]) from None
    if not isinstance(found, dict):
        raise ContractError(Reason.not_json, [Fault("value", type(found).__name__, "a JSON object")])
    return found


def _json(found: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(found)
    except orjson.JSONEncodeError as error:  # what orjson reads can be nested deeper than what it writes
        raise ContractError(Reason.not_json, [Fault("value", str(error)[:120], "less nesting")]) from None


_Parts = tuple[Fact, bytes | None, bytes | None]  # the event, its id, its trace


def _structured(envelope: dict[str, Any], given_id: bytes | None, traceparent: bytes | None) -> _Parts:
    model = _model(envelope.get("type"))
    data = envelope.get("data")
    if not isinstance(data, dict):
        raise ContractError(Reason.invalid_field, [Fault("data", shown(data), "a JSON object")])
    found = envelope.get("id")
    if given_id is None and found is not None:
        if not isinstance(found, str) or not found:
            raise ContractError(Reason.invalid_field, [Fault("id", shown(found), "non-empty text")])
        given_id = found.encode()
    trace = envelope.get("traceparent")
    if traceparent is None and isinstance(trace, str) and trace.isascii() and len(trace) <= MAX_TRACEPARENT_BYTES:
        traceparent = trace.encode() or None
    return _validated(model, _json(data)), given_id, traceparent


def _plain(value: bytes, given_id: bytes | None, traceparent: bytes | None) -> _Parts:
    found = _object(value)
    if "specversion" in found and "data" in found:
        return _structured(found, given_id, traceparent)
    model = _model(found.get("type"))
    if found["type"] != model.model_fields["type"].default:  # the long name, in a plain record
        value = _json(found | {"type": model.model_fields["type"].default})
    return _validated(model, value), given_id, traceparent


def _validated(model: type[Fact], value: bytes) -> Fact:
    # Its first letter alone is found ten times faster, and hardly ever there.
    if (b"N" in value and b"NaN" in value) or (b"I" in value and b"Infinity" in value):
        _object(value)  # not JSON unless inside a text; pydantic's parser would let it pass in an unknown field
    try:
        event: Fact = model.__pydantic_validator__.validate_json(value)
    except ValidationError as error:
        raise contract_error(error) from None
    return event


def contract_error(error: ValidationError) -> ContractError:
    """What pydantic found, in this contract's words."""
    faults = error.errors(include_url=False, include_context=False)
    no_object = any(fault["type"] == "json_invalid" or (not fault["loc"] and fault["type"] == "model_type") for fault in faults)
    reason = Reason.not_json if no_object else Reason.invalid_field
    return ContractError(
        reason,
        [
            Fault(
                ".".join(map(str, fault["loc"])) or "value",
                "missing" if fault["type"] == "missing" else shown(fault["input"]),
                fault["msg"],
            )
            for fault in faults
        ],
    )
