"""What two versions of a JSON Schema mean for each other: what one lets a sender say that the other does not read.

It knows the keywords that our schemas are made of, and no others: an unknown one fails instead of passing unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from tests.compaction_events.strategies import JSON_VALUES, TIMES

Schema = dict[str, Any]

# For people, or said by something else too.
_NOTES = {"$defs", "$id", "$schema", "title", "description", "discriminator"}
_UNIONS = ("anyOf", "oneOf")
# Below `lower`, above `upper`: what the reader's bound must not cut off.
_LOWER = ("minimum", "exclusiveMinimum", "minLength")
_UPPER = ("maximum", "maxLength", "maxItems")
_KNOWN = {*_NOTES, *_UNIONS, *_LOWER, *_UPPER, "$ref", "type", "format", "const", "enum", "default", "items",
          "properties", "required", "additionalProperties"}  # fmt: skip


def unread(sent: Schema, read: Schema, *, newer: bool) -> list[str]:
    """What a sender may say by `sent` that a reader who has `read` does not take, or takes for something else.

    Args:
        sent: The sender's schema.
        read: The reader's.
        newer: The sender has the newer one. Then fields that the reader does not know are left out, and words that it
            does not know read as `other`, where it has that. A sender who is older has no such field or word.
    """
    return list(_unread(sent, read, sent.get("$defs", {}), read.get("$defs", {}), newer, ""))


def _unread(sent: Schema, read: Schema, sent_defs: Schema, read_defs: Schema, newer: bool, at: str) -> Iterator[str]:
    for node in (sent, read):
        assert node.keys() <= _KNOWN, f"{at}: unknown keywords {node.keys() - _KNOWN}"
    if sent.get("default") != read.get("default"):
        yield f"{at}: default {sent.get('default')!r} is {read.get('default')!r}"
    readers = list(_branches(read, read_defs))
    for branch in _branches(sent, sent_defs):
        found = [list(_of_branch(branch, reader, sent_defs, read_defs, newer, at)) for reader in readers]
        yield from min(found, key=len)


def _branches(node: Schema, defs: Schema) -> Iterator[Schema]:
    """What a node may be: its union's members, references followed."""
    if "$ref" in node:
        yield from _branches(defs[node["$ref"].rpartition("/")[2]], defs)
        return
    unions = [member for keyword in _UNIONS for member in node.get(keyword, ())]
    for member in unions:
        yield from _branches(member, defs)
    if not unions:
        yield node


def _of_branch(sent: Schema, read: Schema, sent_defs: Schema, read_defs: Schema, newer: bool, at: str) -> Iterator[str]:
    widened = (sent.get("type"), read.get("type")) == ("integer", "number")
    if sent.get("type") != read.get("type") and not widened:
        yield f"{at}: type {sent.get('type')} is {read.get('type')}"
        return
    yield from _words(sent, read, newer, at)
    yield from _bounds(sent, read, at)
    if read.get("format") not in (None, sent.get("format")):
        yield f"{at}: format {sent.get('format')} is {read['format']}"
    if "items" in read:
        yield from _unread(sent.get("items", {}), read["items"], sent_defs, read_defs, newer, f"{at}[]")
    if sent.get("type") == "object":
        yield from _object(sent, read, sent_defs, read_defs, newer, at)


def _words(sent: Schema, read: Schema, newer: bool, at: str) -> Iterator[str]:
    allowed = _said(read)
    if allowed is None or (newer and "other" in allowed):
        return
    said = _said(sent)
    if said is None:
        yield f"{at}: any text is one of {sorted(allowed)}"
    elif said - allowed:
        yield f"{at}: {sorted(said - allowed)} not read"


def _said(node: Schema) -> set[str] | None:
    """The words a text is one of; None: any."""
    if "const" in node:
        return {node["const"]}
    return set(node["enum"]) if "enum" in node else None


def _bounds(sent: Schema, read: Schema, at: str) -> Iterator[str]:
    for keyword in (*_LOWER, *_UPPER):
        if keyword in read:
            ours, theirs = sent.get(keyword), read[keyword]
            if ours is None or (ours < theirs if keyword in _LOWER else ours > theirs):
                yield f"{at}: {keyword} {ours} is {theirs}"


def _object(sent: Schema, read: Schema, sent_defs: Schema, read_defs: Schema, newer: bool, at: str) -> Iterator[str]:
    fields, known = sent.get("properties", {}), read.get("properties", {})
    for name in set(read.get("required", ())) - set(sent.get("required", ())):
        yield f"{at}.{name}: required"
    if read.get("additionalProperties", True) is not True:
        yield f"{at}: other fields are refused"
    for name, field in fields.items():
        if name in known:
            yield from _unread(field, known[name], sent_defs, read_defs, newer, f"{at}.{name}")
        elif not newer:
            yield f"{at}.{name}: removed"


def drawn(schema: Schema) -> st.SearchStrategy[Any]:
    """Values by a schema: each optional field there or not, bounds reached."""
    return _drawn(schema, schema.get("$defs", {}))


def _drawn(node: Schema, defs: Schema) -> st.SearchStrategy[Any]:
    assert node.keys() <= _KNOWN, f"unknown keywords {node.keys() - _KNOWN}"
    branches = list(_branches(node, defs))
    if branches != [node]:
        return st.one_of(*(_drawn(branch, defs) for branch in branches))
    words = _said(node)
    if words is not None:
        return st.sampled_from(sorted(words))
    return _BY_TYPE[node.get("type", "any")](node, defs)


def _text(node: Schema, defs: Schema) -> st.SearchStrategy[str]:
    del defs
    if node.get("format") == "date-time":
        return TIMES.map(lambda at: at.isoformat().replace("+00:00", "Z"))
    low, high = node.get("minLength", 0), node.get("maxLength", 40)
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=low, max_size=min(high, low + 12)) | st.just("é" * high)


def _integer(node: Schema, defs: Schema) -> st.SearchStrategy[int]:
    del defs
    return st.integers(node.get("minimum", -(2**53)), node.get("maximum", 2**53))


def _number(node: Schema, defs: Schema) -> st.SearchStrategy[float]:
    del defs
    low, above = node.get("minimum"), node.get("exclusiveMinimum")
    return st.floats(
        low if above is None else above,
        node.get("maximum"),
        exclude_min=above is not None,
        allow_nan=False,
        allow_infinity=False,
    )


def _array(node: Schema, defs: Schema) -> st.SearchStrategy[list[Any]]:
    return st.lists(_drawn(node["items"], defs), max_size=min(node.get("maxItems", 3), 3))


def _fields(node: Schema, defs: Schema) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: _drawn(field, defs) for name, field in node.get("properties", {}).items()}
    if not fields:
        return st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=3)
    always = set(node.get("required", ()))
    optional = {name: field for name, field in fields.items() if name not in always}
    return st.fixed_dictionaries({name: fields[name] for name in fields if name in always}, optional=optional)


_BY_TYPE: dict[str, Callable[[Schema, Schema], st.SearchStrategy[Any]]] = {
    "string": _text,
    "integer": _integer,
    "number": _number,
    "boolean": lambda node, defs: st.booleans(),
    "null": lambda node, defs: st.none(),
    "array": _array,
    "object": _fields,
    "any": lambda node, defs: JSON_VALUES,
}
