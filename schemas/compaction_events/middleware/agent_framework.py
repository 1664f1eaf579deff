"""Microsoft Agent Framework's compaction strategies, watched: a strategy around a strategy.

Strategies exclude messages in place and link each summary to what it was written from; nothing is lost from the list, so
the sets before and after are what is not excluded then and now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from compaction_events.adapters.fields import joined, strings
from compaction_events.middleware import Live, guarded
from compaction_events.recorder import Message

Strategy = Callable[[list[Any]], Awaitable[bool]]


class WatchedStrategy:
    """Runs a strategy, and reports the pass if it changed the set.

    Args:
        strategy: The strategy to watch.
        live: Where passes go.
        session_id: The session, or how to tell it from the messages.
    """

    def __init__(self, strategy: Strategy, live: Live, session_id: str | Callable[[list[Any]], str]) -> None:
        self.strategy = strategy
        self._live = live
        self._session_id = session_id

    async def __call__(self, messages: list[Any]) -> bool:
        found: list[Message] = []
        with guarded():
            found = _included(messages)
        changed = await self.strategy(messages)
        with guarded():
            if changed:
                named = self._session_id if isinstance(self._session_id, str) else self._session_id(messages)
                self._live.passed(named, found, _included(messages))
        return changed

    def __getattr__(self, name: str) -> Any:
        # The framework looks for a strategy's tokenizer, among others.
        return getattr(self.strategy, name)


def _included(messages: list[Any]) -> list[Message]:
    kept = [one for one in messages if not one.additional_properties.get("_excluded")]
    return [message for place, one in enumerate(kept) if (message := _message(one, place)) is not None]


def _message(found: Any, place: int) -> Message | None:
    name, text = found.message_id or f"message-{place}", found.text or ""
    role = getattr(found.role, "value", found.role)
    if (found.additional_properties.get("_group") or {}).get("_summary_of_message_ids"):
        return Message(name, text, depth=1)
    if role == "user":
        return Message(name, text, typed=True)
    if role == "assistant":
        calls = [string for part in found.contents for string in strings(getattr(part, "arguments", None))]
        return Message(name, joined(text, *calls))
    bulk = joined(text, *(string for part in found.contents for string in strings(_plain(getattr(part, "result", None)))))
    return Message(name, "", bulk) if bulk and role == "tool" else None


def _plain(result: Any) -> Any:
    return result if isinstance(result, str | list | dict) else None
