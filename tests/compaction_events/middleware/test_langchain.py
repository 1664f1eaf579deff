"""LangChain's own middleware in LangChain's own agent, with a model that only repeats."""

from __future__ import annotations

from typing import Any

import pytest

from compaction_events.middleware.langchain import watch, watch_deepagents
from tests.compaction_events.middleware.collected import RULE, Collected

pytest.importorskip("langchain.agents.middleware.summarization", reason="pip install langchain")
pytestmark = pytest.mark.filterwarnings("default")


def model() -> Any:
    """Answers without end, each time with another number."""
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    def replies() -> Any:
        number = 0
        while True:
            number += 1
            yield AIMessage(f"Reply {number}: conf/app.toml")

    return GenericFakeChatModel(messages=replies())


def agent(found: Collected) -> Any:
    from langchain.agents import create_agent
    from langchain.agents.middleware import SummarizationMiddleware
    from langgraph.checkpoint.memory import InMemorySaver

    middleware = SummarizationMiddleware(model(), trigger=("messages", 5), keep=("messages", 2))
    watched = watch(middleware, found.live("langchain"))
    assert watched is middleware
    return create_agent(model(), middleware=[watched], checkpointer=InMemorySaver())


def turn(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


# Five messages set a pass off, two stay: each evicts three, from the second on the last summary among them.
EXPECTED = [("t", 1, 1, 3, "ok", 3, [2]), ("t", 2, 2, 3, "ok", 4, [3]), ("t", 3, 3, 3, "ok", 5, [4])]


def test_an_agent_that_compacts_again_and_again() -> None:
    found = Collected()
    made = agent(found)
    for number in range(5):
        made.invoke(turn(RULE if number == 0 else f"Step {number}"), {"configurable": {"thread_id": "t"}})
    assert found.rounds == EXPECTED
    assert [len(children) for _, children in found.edges] == [0, 1, 1]
    assert found.types.count("proposition.stated") == 1


async def test_the_same_without_waiting() -> None:
    found = Collected()
    made = agent(found)
    for number in range(5):
        await made.ainvoke(turn(RULE if number == 0 else f"Step {number}"), {"configurable": {"thread_id": "t"}})
    assert found.rounds == EXPECTED


def test_threads_are_sessions() -> None:
    found = Collected()
    made = agent(found)
    for number in range(3):
        for thread in ("t", "u"):
            made.invoke(turn(f"Step {number}"), {"configurable": {"thread_id": thread}})
    assert [one[:2] for one in found.rounds] == [("t", 1), ("u", 1)]


def deep_agent(found: Collected) -> Any:
    backends = pytest.importorskip("deepagents.backends", reason="pip install deepagents")
    summarization = pytest.importorskip("deepagents.middleware.summarization")
    from langchain.agents import create_agent
    from langgraph.checkpoint.memory import InMemorySaver

    middleware = summarization.SummarizationMiddleware(
        model(), backend=backends.StateBackend(), trigger=("messages", 5), keep=("messages", 2)
    )
    watched = watch_deepagents(middleware, found.live("deepagents"))
    return create_agent(model(), middleware=[watched], checkpointer=InMemorySaver())


def test_a_deep_agent_that_compacts_again_and_again() -> None:
    found = Collected()
    made = deep_agent(found)
    for number in range(5):
        made.invoke(turn(RULE if number == 0 else f"Step {number}"), {"configurable": {"thread_id": "t"}})
    assert found.rounds == EXPECTED
    assert [len(children) for _, children in found.edges] == [0, 1, 1]


async def test_a_deep_agent_without_waiting() -> None:
    found = Collected()
    made = deep_agent(found)
    for number in range(5):
        await made.ainvoke(turn(RULE if number == 0 else f"Step {number}"), {"configurable": {"thread_id": "t"}})
    assert found.rounds == EXPECTED
