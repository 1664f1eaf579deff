"""What becomes of a record that breaks the contract, and what the dead-letter topic says of it later.

Three kinds of records are in that topic, each with a header that only it has:

- `x-reason`: a dead letter: key, value and headers as they came, then where it came from and what was wrong.
- `x-receipt`: the worker has read a dead letter that was sent again; `x-outcome` says what became of it.
- `x-settled`: somebody has `replayed` or `dropped` a dead letter: it is listed no more. Kafka deletes no single record,
  so the letter itself stays until the topic's retention takes it.

A dead letter's name is where its record stood: topic, partition, offset. The last record of a name counts.
Our headers come last, so that no header of the sender's can pass for one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from compaction_events.codec import decode, encode
from compaction_events.errors import ContractError, Fault, Reason
from compaction_events.facts import MAX_ID_CHARS, Fact
from compaction_monitor.effects import Headers, Outgoing, Record

# Together well below what a broker takes (1 MiB): a dead letter that it refused would stop its partition for good.
MAX_VALUE_BYTES: Final = 512 * 1024
MAX_KEY_BYTES: Final = 4 * 1024
MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 64 * 1024
MAX_MARK_BYTES: Final = 64
REPLAY: Final = "x-replay"
RECEIPT, OUTCOME, SETTLED, REASON, TRUNCATED = "x-receipt", "x-outcome", "x-settled", "x-reason", "x-truncated"
REPLAYED, DROPPED = "replayed", "dropped"
# What a fact's outcome is counted as when it changed nothing, because its session has moved on.
NO_EFFECT: Final = frozenset({"late", "duplicate", "forgotten", "unknown_node", "unknown_session", "too_late"})
_CONNECT = "__connect.errors."
_COUNTED = ("facts", "answers", "missed")


def dead_letter(record: Record, error: ContractError) -> Outgoing:
    """The record for the dead-letter topic.

    Headers of the original come first, then Kafka Connect's names for where it came from and what was wrong, then
    `x-reason`. What is longer than its place (above) is cut, and `x-truncated` names it: key, value, headers.
    The message names fields and what is allowed; values are shortened, the whole record is there.
    """
    key, value = record.key, record.value
    headers = _within(record.headers)
    cut = [
        name
        for name, is_cut in (
            ("key", key is not None and len(key) > MAX_KEY_BYTES),
            ("value", value is not None and len(value) > MAX_VALUE_BYTES),
            ("headers", len(headers) < len(record.headers)),
        )
        if is_cut
    ]
    told = {
        **_place(Name(record.topic, record.partition, record.offset)),
        f"{_CONNECT}stage": "VALUE_CONVERTER",
        f"{_CONNECT}exception.class.name": f"{type(error).__module__}.{type(error).__qualname__}",
        f"{_CONNECT}exception.message": str(error)[:2_000],
        REASON: error.reason.value,
    }
    if cut:
        told[TRUNCATED] = ",".join(cut)
    headers += [(name, text.encode(errors="backslashreplace")) for name, text in told.items()]
    return Outgoing(key and key[:MAX_KEY_BYTES], value and value[:MAX_VALUE_BYTES], headers)


def _within(headers: Headers) -> list[tuple[str, bytes | None]]:
    """The first headers, as far as there is room."""
    kept: list[tuple[str, bytes | None]] = []
    room = MAX_HEADER_BYTES
    for name, content in headers[:MAX_HEADERS]:
        room -= len(name.encode(errors="backslashreplace")) + len(content or b"")
        if room < 0:
            break
        kept.append((name, content))
    return kept


def fault(reason: Reason, field: str, value: str, allowed: str) -> ContractError:
    """A `ContractError` with one fault."""
    return ContractError(reason, [Fault(field, value, allowed)])


class Name(NamedTuple):
    """Which record it is about: where it stood in its log.

    >>> Name.parse("compaction.events/3/17")
    Name(topic='compaction.events', partition=3, offset=17)
    >>> str(Name("compaction.events", 3, 17))
    'compaction.events/3/17'
    """

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`.

        Raises:
            ValueError: It is no such name.
        """
        topic, partition, offset = text.rsplit("/", 2)
        return cls(topic, int(partition), int(offset))


class Letter(NamedTuple):
    """A dead letter as the topic has it.

    Attributes:
        key: As it came, like `value`, unless it is named in `truncated`.
        headers: Those of the original, the mark of a replay apart.
        message: What the worker that refused it wrote: at most ten faults, with shortened values.
        replay: The mark, if it had been sent again.
    """

    name: Name
    reason: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    message: str
    truncated: tuple[str, ...]
    replay: str | None

    @property
    def faults(self) -> tuple[Fault, ...] | None:
        """Every fault, by reading it again; None where this release, or this place, does not see what was wrong."""
        try:
            decode(self.value, self.headers, self.key)
        except ContractError as error:
            return error.faults if error.reason == self.reason and not self.truncated else None
        return None


class Receipt(NamedTuple):
    """The worker has read a record that was sent again; `outcome` is the word by which the fold counted it."""

    replay: str
    outcome: str


class Settled(NamedTuple):
    """A dead letter that was `replayed` or `dropped`."""

    name: Name
    how: str


def read(key: bytes | None, value: bytes | None, headers: Headers) -> Letter | Receipt | Settled | None:
    """What a record of the dead-letter topic says; None if it is none of ours."""
    # The last of a name is ours.
    told = {name: (content or b"").decode(errors="backslashreplace") for name, content in headers}
    if value is None and RECEIPT in told and REASON not in told:
        return Receipt(told[RECEIPT], told.get(OUTCOME, ""))
    try:
        name = Name(told[f"{_CONNECT}topic"], int(told[f"{_CONNECT}partition"]), int(told[f"{_CONNECT}offset"]))
    except (KeyError, ValueError):
        return None
    if REASON not in told:
        return Settled(name, told[SETTLED]) if told.get(SETTLED) in (REPLAYED, DROPPED) else None
    ours = max(at for at, (header, _) in enumerate(headers) if header == f"{_CONNECT}topic")
    after = {header for header, _ in headers[ours:]}
    truncated = tuple(told[TRUNCATED].split(",")) if TRUNCATED in after else ()
    original = headers[:ours]
    marked = original[-1][1] if original and original[-1][0] == REPLAY else None
    return Letter(
        name,
        told[REASON],
        key,
        value,
        original if marked is None else original[:-1],
        told.get(f"{_CONNECT}exception.message", ""),
        truncated,
        None if marked is None else marked.decode(errors="backslashreplace"),
    )


def receipt(record: Record, counted: Iterable[tuple[str, ...]]) -> Outgoing | None:
    """What the worker says of a record that was sent again, None for any other one.

    Args:
        record: It has been folded.
        counted: What the fold counted for it.
    """
    name, mark = record.headers[-1] if record.headers else ("", None)
    if name != REPLAY or not mark or len(mark) > MAX_MARK_BYTES:
        return None
    words = [count[-1] for count in counted if count[0] in _COUNTED and count[-1] != "gap"]
    return Outgoing(record.key, None, [(RECEIPT, mark), (OUTCOME, (words[-1] if words else "taken").encode())])


def settled(name: Name, how: str) -> Outgoing:
    """The record that takes a dead letter off the list."""
    headers = [(header, text.encode()) for header, text in {**_place(name), SETTLED: how}.items()]
    return Outgoing(str(name).encode(), None, headers)


def _place(name: Name) -> dict[str, str]:
    return {f"{_CONNECT}{field}": str(value) for field, value in name._asdict().items()}


class Again(NamedTuple):
    """A dead letter as it is sent again."""

    event: Fact
    key: bytes
    value: bytes
    headers: Headers


def sent_again(letter: Letter, mark: str, source: str, fixed: bytes | None = None, *, rekey: bool = False) -> Again:
    """The record that replays a dead letter: as it came, or with a value that was put right.

    Args:
        letter: The dead letter.
        mark: By which its receipt, or its next dead letter, is known.
        source: Who says it, where headers are made anew.
        fixed: A JSON event with its `type`, in place of the value; headers are made anew, a readable `ce_id` stays.
        rekey: Key it by its session, whatever its key was.

    Raises:
        ContractError: It would break the contract again.
    """
    if fixed is None:
        value, headers = letter.value, letter.headers
    else:
        event = decode(fixed, check_key=False).event
        kept = dict(letter.headers)
        trace = kept.get("traceparent") or None
        _, value, headers = encode(event, source=source, id=_readable(kept.get("ce_id")), traceparent=trace)
    event = decode(value, headers, check_key=False).event
    session = event.session_id.encode()
    decode(value, headers, session if rekey else letter.key)
    assert value is not None
    return Again(event, session, value, [*headers, (REPLAY, mark.encode())])


def _readable(ce_id: bytes | None) -> str | None:
    text = (ce_id or b"").decode(errors="ignore")
    return text if text and text.encode() == ce_id and len(text) <= MAX_ID_CHARS else None
