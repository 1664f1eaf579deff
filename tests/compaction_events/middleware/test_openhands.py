"""OpenHands' own events, as its conversation hands them to a callback: the same facts as from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from compaction_events import adapters
from compaction_events.middleware.openhands import Watch
from tests.compaction_events.middleware.collected import RULE, Collected

event_types = pytest.importorskip("openhands.sdk.event", reason="pip install openhands-sdk (Python 3.12)")
pytestmark = pytest.mark.filterwarnings("default")


def events() -> list[Any]:
    from openhands.sdk import Message, TextContent
    from openhands.sdk.event.condenser import Condensation

    def said(source: str, text: str) -> Any:
        role = "user" if source == "user" else "assistant"
        return event_types.MessageEvent(source=source, llm_message=Message(role=role, content=[TextContent(text=text)]))

    def forgot(*gone: str) -> Any:
        return Condensation(forgotten_event_ids=set(gone), summary="port 8417", summary_offset=0, llm_response_id="r")

    rule, reply, more = said("user", RULE), said("agent", "On"), said("user", "Step 1")
    first = forgot(rule.id, reply.id)
    return [rule, reply, first, more, forgot(f"{first.id}-summary", more.id)]


def test_events_of_the_sdk_are_told_as_its_files_are(tmp_path: Path) -> None:
    found = Collected()
    watch = Watch(found.append, "conversation-a")
    folder = tmp_path / "conversation-a" / "events"
    folder.mkdir(parents=True)
    for number, event in enumerate(events()):
        watch(event)
        (folder / f"event-{number:05d}-{event.id}.json").write_bytes(orjson.dumps(event.model_dump(mode="json")))
    watch.ended()
    assert found.rounds == [("conversation-a", 1, 1, 2, "ok", 1, [1]), ("conversation-a", 2, 2, 2, "ok", 2, [2])]
    assert list(found) == list(adapters.read([folder]))


def test_the_view_is_the_sdk_s_own(tmp_path: Path) -> None:
    """What is left after each condensation is what the SDK sends to the model."""
    from openhands.sdk.context.view import View

    watch = Watch(lambda _: None, "c")
    made = events()
    for number, event in enumerate(made, 1):
        watch(event)
        view = View.from_events(made[:number])
        assert [message.id for message in watch._view._messages] == [one.id for one in view.events]
