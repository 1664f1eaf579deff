"""LangChain's and deepagents' summarisation middlewares, watched: each pass is reported as it is made.

The middleware stays the user's own; only its two hooks are wrapped, on this one object. A pass replaces the older messages
by one summary, which the next pass swallows: a chain. deepagents keeps all messages in its state, and says beside them
from which one on the model sees them, and the summary of those before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from uuid import uuid4

from compaction_events.adapters.fields import joined, said, strings
from compaction_events.middleware import Live, guarded
from compaction_events.recorder import Message

_Middleware = TypeVar("_Middleware")
_SUMMARY = "summarization"
_EVENT = "_summarization_event"


def watch(middleware: _Middleware, live: Live, session_of: Callable[[Any, Any], str] | None = None) -> _Middleware:
    """Wrap the hooks of a `SummarizationMiddleware`; returns the same object.

    Args:
        middleware: It must not be shared with an agent that is not to be watched.
        live: Where passes go.
        session_of: The session of (state, runtime); by default the thread of the run.
    """
    target: Any = middleware
    before_model, abefore_model = target.before_model, target.abefore_model
    session = session_of or _thread

    def watched(state: Any, runtime: Any) -> Any:
        found = list(state["messages"])
        update = before_model(state, runtime)
        _report(live, session, state, runtime, found, update)
        return update

    async def awatched(state: Any, runtime: Any) -> Any:
        found = list(state["messages"])
        update = await abefore_model(state, runtime)
        _report(live, session, state, runtime, found, update)
        return update

    target.before_model, target.abefore_model = watched, awatched
    return middleware


def watch_deepagents(middleware: _Middleware, live: Live, session_of: Callable[[Any, Any], str] | None = None) -> _Middleware:
    """Wrap the hooks of deepagents' `SummarizationMiddleware`; returns the same object. Arguments as for `watch`."""
    target: Any = middleware
    wrap, awrap = target.wrap_model_call, target.awrap_model_call
    session = session_of or _thread

    def watched(request: Any, handler: Any) -> Any:
        response = wrap(request, handler)
        _report_event(live, session, request, response)
        return response

    async def awatched(request: Any, handler: Any) -> Any:
        response = await awrap(request, handler)
        _report_event(live, session, request, response)
        return response

    target.wrap_model_call, target.awrap_model_call = watched, awatched
    return middleware


def _report_event(live: Live, session: Callable[[Any, Any], str], request: Any, response: Any) -> None:
    with guarded():
        command = getattr(response, "command", None)
        event = (getattr(command, "update", None) or {}).get(_EVENT)
        if event:
            before, after = _seen(request.messages, request.state.get(_EVENT)), _seen(request.messages, event)
            live.passed(session(request.state, request.runtime), before, after)


def _seen(messages: list[Any], event: Any) -> list[Message]:
    """What the model sees of a state: all of it, or a summary and the messages after it."""
    if not event:
        return _messages(messages)
    # The summary is in no state, and has no id there; where it cuts, only one does.
    summary = Message(f"summary-{event['cutoff_index']}", said(event["summary_message"].content), depth=1)
    return [summary, *_messages(messages[event["cutoff_index"] :])]


def _report(live: Live, session: Callable[[Any, Any], str], state: Any, runtime: Any, found: list[Any], update: Any) -> None:
    with guarded():
        if update and update.get("messages"):
            left = [message for message in update["messages"] if getattr(message, "type", None) != "remove"]
            for message in left:
                # The state would give it one on the way in; only so is the summary known again in the next pass.
                message.id = message.id or str(uuid4())
            live.passed(session(state, runtime), _messages(found), _messages(left))


def _messages(found: Iterable[Any]) -> list[Message]:
    return [message for one in found if (message := _message(one)) is not None]


def _message(found: Any) -> Message | None:
    name, kind, text = str(found.id), found.type, said(found.content)
    if kind == "human":
        if (found.additional_kwargs or {}).get("lc_source") == _SUMMARY:
            return Message(name, text, depth=1)
        return Message(name, text, typed=True)
    if kind == "ai":
        calls = [string for call in found.tool_calls for string in strings(call.get("args"))]
        return Message(name, joined(text, *calls))
    return Message(name, "", text) if text else None


def _thread(state: Any, runtime: Any) -> str:
    """The thread of the run that is under way; outside of one, all is one session."""
    config = sys.modules.get("langgraph.config")
    try:
        thread = config.get_config()["configurable"]["thread_id"] if config else None
    except (RuntimeError, KeyError):
        thread = None
    return str(thread) if thread else "default"
