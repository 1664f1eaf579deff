"""The contract as an AsyncAPI 3.0 document, generated from the models and the table of topics.

It describes the monitor: what it receives is what agents and controllers send, and the other way round.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import orjson
from pydantic.json_schema import models_json_schema

from compaction_events import topics
from compaction_events.codec import (
    JSON,
    MAX_RECORD_BYTES,
    MAX_TRACEPARENT_BYTES,
    SPEC_VERSION,
    TYPE_PREFIX,
    TYPES,
    VERSION,
    encode,
)
from compaction_events.errors import Reason
from compaction_events.examples import EXAMPLES
from compaction_events.facts import MAX_ID_CHARS, Fact, RemediationAcknowledged
from compaction_events.findings import Alert, RemediationRequested, RemediationWithdrawn
from compaction_events.schema import CONTRACT_VERSION

BINDING_VERSION = "0.5.0"
_Object = dict[str, Any]
# Dead letters have Kafka Connect's names for where a record came from and what was wrong with it.
CONNECT_ERRORS = "__connect.errors."
_CHANNELS: Final = {"events": topics.EVENTS, "outcomes": topics.OUTCOMES, "findings": topics.FINDINGS}
_DESCRIPTION = f"""\
Watches the context compaction of LLM agents. Agents send facts, the monitor sends alerts and orders, controllers answer.

- Records are CloudEvents 1.0 in binary mode: the value is the event's data as JSON, the attributes are headers. On the
  topics it reads, the monitor also takes structured mode, and plain JSON with a `type` field.
- The key is the session id, partitioned by murmur2 as Kafka's Java client does it (librdkafka: `murmur2_random`).
- Senders that retry are idempotent and ask for all acknowledgements. Readers of findings read committed records only.
- Unknown fields are ignored. In what the monitor reads, an unknown word of an `enum` that has `other` reads as `other`.
  Anything else that breaks the contract, or is larger than {MAX_RECORD_BYTES // 1024} KiB, becomes a dead letter.
- No text of a session is asked for: propositions, spans and nodes are ids or hashes.
"""


def document() -> _Object:
    """The whole document, as JSON values."""
    found = {
        "asyncapi": "3.0.0",
        "id": "urn:io.compaction_monitor",
        "info": {
            "title": "compaction-monitor",
            "version": CONTRACT_VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": JSON.decode(),
        "servers": {"kafka": {"host": "localhost:9092", "protocol": "kafka", "description": "Your cluster."}},
        "channels": {**{name: _channel(topic) for name, topic in _CHANNELS.items()}, "deadLetters": _dead_letters_channel()},
        "operations": _operations(),
        "components": {
            "messages": {**{name: _message(model) for name, model in TYPES.items()}, **_dead_letters()},
            "messageTraits": {"record": _record()},
            "schemas": {"CloudEventHeaders": _headers(), **_schemas()},
        },
    }
    # Through JSON, so that no part of it is another's too: YAML would write such parts as anchors.
    copied: _Object = orjson.loads(orjson.dumps(found))
    return copied


def _ref(*path: str) -> _Object:
    return {"$ref": "#/" + "/".join(path)}


def _channel(topic: topics.Topic) -> _Object:
    names = [model.model_fields["type"].default for model in topic.types]
    return {
        "address": topic.name,
        "title": topic.about.rstrip("."),
        "description": f"{topic.about} Written by {topic.writer}.",
        "messages": {name: _ref("components", "messages", name) for name in names},
        "bindings": {"kafka": _channel_binding(topic)},
    }


def _channel_binding(topic: topics.Topic) -> _Object:
    return {
        "topic": topic.name,
        "partitions": topics.DEFAULT_PARTITIONS,
        "topicConfiguration": {"cleanup.policy": ["delete"], "retention.ms": topic.retention_s * 1_000},
        "bindingVersion": BINDING_VERSION,
    }


def _dead_letters_channel() -> _Object:
    messages = {name: _ref("components", "messages", name) for name in _dead_letters()}
    return {**_channel(topics.DEAD_LETTERS), "messages": messages}


def _operations() -> _Object:
    group = {"kafka": {"groupId": {"type": "string", "default": "compaction-monitor"}, "bindingVersion": BINDING_VERSION}}
    alerts = ("alert.raised", "alert.resolved")
    order, withdrawal = "remediation.requested", "remediation.withdrawn"
    answers = {"channel": _ref("channels", "outcomes"), "messages": _messages("outcomes", "remediation.acknowledged")}
    return {
        "receiveEvents": {
            "action": "receive",
            "summary": "Agents report what they compacted.",
            "channel": _ref("channels", "events"),
            "bindings": group,
        },
        "receiveAnswers": {
            "action": "receive",
            "summary": "Controllers answer orders.",
            "channel": _ref("channels", "outcomes"),
            "bindings": group,
        },
        "sendAlerts": _sends("findings", "An alert opens, gets worse, or is over.", *alerts),
        "requestRemediation": {
            **_sends("findings", "An order to an agent's controller, answered as often as its status changes.", order),
            "reply": answers,
        },
        "withdrawRemediation": _sends("findings", "An order is called back.", withdrawal),
        "refuseRecords": _sends("deadLetters", "A record that breaks the contract.", "deadLetter"),
        "tellWhatBecameOfThem": _sends("deadLetters", "A dead letter was replayed or dropped.", "receipt", "settled"),
    }


def _sends(channel: str, summary: str, *messages: str) -> _Object:
    return {
        "action": "send",
        "summary": summary,
        "channel": _ref("channels", channel),
        "messages": _messages(channel, *messages),
    }


def _messages(channel: str, *names: str) -> list[_Object]:
    return [_ref("channels", channel, "messages", name) for name in names]


def _record() -> _Object:
    """What every record but a dead letter has in common."""
    key = {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS, "description": "The session id, in UTF-8."}
    return {"contentType": JSON.decode(), "bindings": {"kafka": {"key": key, "bindingVersion": BINDING_VERSION}}}


def _headers() -> _Object:
    """The attributes of an event as headers; all are UTF-8 text."""
    text: _Object = {"type": "string", "minLength": 1}
    trace = "W3C trace context. Passed on from a fact to the findings it led to, and from an order to its answers."
    return {
        "type": "object",
        "description": "CloudEvents 1.0, Kafka protocol binding, binary mode.",
        "required": ["ce_specversion", "ce_id", "ce_source", "ce_type"],
        "properties": {
            "ce_specversion": {"const": SPEC_VERSION.decode()},
            "ce_id": {
                **text,
                "maxLength": MAX_ID_CHARS,
                "description": "The same in every repeat; repeats can be dropped by it.",
            },
            "ce_source": {**text, "format": "uri-reference"},
            "ce_type": text,
            "ce_time": {"type": "string", "format": "date-time"},
            "ce_subject": {**text, "maxLength": MAX_ID_CHARS, "description": "The session id."},
            "content-type": {"const": JSON.decode()},
            "traceparent": {**text, "maxLength": MAX_TRACEPARENT_BYTES, "description": trace},
        },
    }


def _message(model: type[Fact]) -> _Object:
    name = model.model_fields["type"].default
    kind = {"type": "object", "properties": {"ce_type": {"const": f"{TYPE_PREFIX}{name}.{VERSION}"}}}
    found = {
        "name": f"{TYPE_PREFIX}{name}.{VERSION}",
        "title": name,
        "summary": inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].replace("\n", " "),
        "headers": {"type": "object", "allOf": [_ref("components", "schemas", "CloudEventHeaders"), kind]},
        "payload": _ref("components", "schemas", model.__name__),
        "traits": [_ref("components", "messageTraits", "record")],
        "examples": [_example(event) for event in EXAMPLES if type(event) is model],
    }
    if model in (RemediationRequested, RemediationWithdrawn):
        found["correlationId"] = {"location": "$message.payload#/id", "description": "The order; the same in every repeat."}
    elif model is RemediationAcknowledged:
        found["correlationId"] = {"location": "$message.payload#/remediation_id", "description": "The order that is answered."}
    elif issubclass(model, Alert):
        found["correlationId"] = {"location": "$message.payload#/id", "description": "The alert, from raised to resolved."}
    return found


def _example(event: Fact) -> _Object:
    _, value, headers = encode(event)
    return {"headers": {name: content.decode() for name, content in headers}, "payload": orjson.loads(value)}


def _dead_letters() -> dict[str, _Object]:
    """The three kinds of records in the topic of dead letters, each known by a header that only it has."""
    text = {"type": "string"}
    place = {f"{CONNECT_ERRORS}{name}": text for name in ("topic", "partition", "offset")}
    wrong = {f"{CONNECT_ERRORS}{name}": text for name in ("stage", "exception.class.name", "exception.message")}
    reason = {"x-reason": {"type": "string", "enum": [reason.value for reason in Reason]}}
    cut = {"x-truncated": {"type": "string", "description": "What was longer, and is cut: key, value, headers."}}
    answer = {"x-receipt": {"type": "string", "description": "The mark it was sent with."}, "x-outcome": text}
    how = {"x-settled": {"type": "string", "enum": ["replayed", "dropped"]}}
    return {
        "deadLetter": _of_headers(
            "Key, value and headers as they came; more headers say where from, and what was wrong.",
            {**place, **wrong, **reason},
            cut,
            payload={"description": "The record's value: any bytes, or none."},
        ),
        "receipt": _of_headers("The worker has read a dead letter that was sent again, and says what became of it.", answer),
        "settled": _of_headers("A dead letter is listed no more: it was replayed or dropped.", {**place, **how}),
    }


def _of_headers(summary: str, required: _Object, optional: _Object | None = None, payload: _Object | None = None) -> _Object:
    return {
        "summary": summary,
        "contentType": "application/octet-stream",
        "headers": {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}},
        "payload": payload or {"type": "null"},
    }


def _schemas() -> _Object:
    template = "#/components/schemas/{model}"
    _, found = models_json_schema([(model, "validation") for model in TYPES.values()], ref_template=template)
    schemas: _Object = _as_draft_7(found["$defs"])
    return schemas


def _as_draft_7(node: Any) -> Any:
    """Pydantic writes draft 2020-12; AsyncAPI reads draft 7, where what stands beside a `$ref` counts for nothing."""
    if isinstance(node, list):
        return [_as_draft_7(item) for item in node]
    if not isinstance(node, dict):
        return node
    # OpenAPI's `discriminator` is another thing than AsyncAPI's; the `const` in each branch says the same.
    found = {name: _as_draft_7(value) for name, value in node.items() if name != "discriminator"}
    if "$ref" in found and len(found) > 1:
        return {"allOf": [{"$ref": found.pop("$ref")}], **found}
    return found
