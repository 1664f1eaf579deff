"""Microsoft Agent Framework's own strategy, run by the framework, with a client that only repeats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from compaction_events.middleware.agent_framework import WatchedStrategy
from tests.compaction_events.middleware.collected import RULE, Collected

framework = pytest.importorskip("agent_framework", reason="pip install agent-framework-core")
pytestmark = pytest.mark.filterwarnings("default")


class Client:
    """Summarises by repeating; fails where told."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    async def get_response(self, messages: Any, **options: Any) -> Any:
        if self.fails:
            raise RuntimeError("no summary")
        return SimpleNamespace(text="port 8417, conf/app.toml")


def strategy(found: Collected, client: Client) -> WatchedStrategy:
    from agent_framework._compaction import SummarizationStrategy

    inner: Any = SummarizationStrategy(client=client, target_count=2, threshold=0)
    return WatchedStrategy(inner, found.live("agent-framework"), "s")


def message(role: str, text: str) -> Any:
    return framework.Message(role, [text])


async def compact(messages: list[Any], watched: WatchedStrategy) -> list[Any]:
    from agent_framework._compaction import apply_compaction

    kept: list[Any] = await apply_compaction(messages, strategy=watched)
    return kept


async def test_a_strategy_that_compacts_twice() -> None:
    found = Collected()
    watched = strategy(found, Client())
    messages = [message("system", "Be kind"), message("user", RULE), message("assistant", "On"), message("user", "Step 1")]
    messages += [message("assistant", "On"), message("user", "Step 2")]
    first = await compact(messages, watched)
    messages += [message("assistant", "On"), message("user", "Step 3")]
    second = await compact(messages, watched)
    assert [one.text for one in (*first, *second)].count("port 8417, conf/app.toml") == 2
    assert [one[:3] + one[4:] for one in found.rounds] == [("s", 1, 1, "ok", 3, [2]), ("s", 2, 2, "ok", 4, [3])]
    assert [len(children) for _, children in found.edges] == [0, 1]


async def test_what_did_not_change_is_no_pass() -> None:
    found = Collected()
    messages = [message("user", RULE), message("assistant", "On"), message("user", "Step 1")]
    await compact(messages, strategy(found, Client(fails=True)))
    await compact(messages[:1], strategy(found, Client()))
    assert found == []


def test_what_the_framework_asks_of_a_strategy_it_gets_from_the_one_inside() -> None:
    watched = strategy(Collected(), Client())
    assert watched.tokenizer is watched.strategy.tokenizer  # type: ignore[attr-defined]
