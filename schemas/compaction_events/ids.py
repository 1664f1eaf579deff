"""Ids that are derived, never drawn: the same fact from any path has the same id, and so does what follows from it."""

from __future__ import annotations

import hashlib
import uuid
from datetime import UTC, datetime

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "io.compaction_monitor")
_NAMESPACE = NAMESPACE.bytes


def derived(*parts: str) -> str:
    """UUIDv5 over the parts, each with its length, so that no two different lists of parts meet.

    >>> derived("a", "bc") == derived("ab", "c")
    False
    """
    # What `str(uuid.uuid5(NAMESPACE, text))` says, without an object in between: two of these go into every finding.
    text = "".join([f"{len(part)}:{part}" for part in parts])
    digest = bytearray(hashlib.sha1(_NAMESPACE + text.encode(), usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50  # version 5
    digest[8] = digest[8] & 0x3F | 0x80  # the variant of RFC 9562
    found = digest.hex()
    return f"{found[:8]}-{found[8:12]}-{found[12:16]}-{found[16:20]}-{found[20:]}"


def event_id(session_id: str, event_type: str, at: datetime | None, identity: tuple[str, ...]) -> str:
    """The `ce_id` of a fact: session, type, its own time in UTC, and round or node, proposition and version."""
    time = "" if at is None else at.astimezone(UTC).isoformat(timespec="microseconds")
    return derived(session_id, event_type, time, *identity)


def finding_id(session_id: str, kind: str, subject: str, opened_by: str, trial: int = 0) -> str:
    """The `id` of an alert or order: session, check or action, subject, the `ce_id` that opened it, trial number."""
    return derived(session_id, kind, subject, opened_by, str(trial))


def publication_id(finding: str, event_type: str, attempt: int) -> str:
    """The `ce_id` of one publication of a finding."""
    return derived(finding, event_type, str(attempt))


def text_hash(text: str) -> str:
    """64 bits of SHA-256 as 16 hex digits: how a proposition or a span is named without its text."""
    # Half an emoji, as a cut text leaves it, has no UTF-8; it must not stop whoever names it.
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
