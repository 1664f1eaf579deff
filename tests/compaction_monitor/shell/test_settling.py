"""Recovery waits for the end of every transaction, and never for one that does not come."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError
from faust.types import TP

from compaction_monitor.shell import settling
from compaction_monitor.shell.settling import Reach, Refusal, settle

CHANGELOG = TP("app-sessions-v1-changelog", 3)
OPEN = {CHANGELOG: (100, 140), TP("app-sessions-v1-changelog", 5): (7, 9)}


class Broker:
    """Answers in turn; the last answer stays."""

    def __init__(self, *answers: dict[TP, Reach] | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self) -> dict[TP, Reach]:
        self.asked += 1
        answer = self._answers[min(self.asked, len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_waits_until_every_transaction_has_ended() -> None:
    told: list[str] = []
    broker = Broker(OPEN, KafkaConnectionError("gone"), {CHANGELOG: (100, 140)}, {})
    await settle(broker, 60, told.append)
    assert broker.asked == 4
    assert told == [
        "app-sessions-v1-changelog partition 3: a transaction is open from 100 on (written up to 140), and 1 more. "
        "Nothing behind it can be read, so there is no going on. Whether it was committed says kafka-transactions.sh "
        "find-hanging and describe-producers --topic app-sessions-v1-changelog --partition 3",
        "whether all transactions have ended cannot be asked: KafkaConnectionError('gone')",
        "app-sessions-v1-changelog partition 3: a transaction is open from 100 on (written up to 140). "
        "Nothing behind it can be read, so there is no going on. Whether it was committed says kafka-transactions.sh "
        "find-hanging and describe-producers --topic app-sessions-v1-changelog --partition 3",
    ]


async def test_refuses_what_does_not_end() -> None:
    with pytest.raises(Refusal, match=r"partition 3: a transaction is open from 100 on .*, and 1 more"):
        await settle(Broker(OPEN), 0.3, lambda _: None)


async def test_what_begins_later_is_not_waited_for() -> None:
    """Another monitor that shares the findings has a transaction open whenever one looks."""
    broker = Broker({CHANGELOG: (100, 140)}, {CHANGELOG: (120, 160)}, {CHANGELOG: (150, 180)})
    await settle(broker, 1, lambda _: None)
    assert broker.asked == 3


async def test_an_answer_that_never_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "ANSWER_S", 0.1)
    never: asyncio.Future[dict[TP, Reach]] = asyncio.get_running_loop().create_future()
    async with asyncio.timeout(30):
        with pytest.raises(TimeoutError, match="cannot be asked"):
            await settle(lambda: never, 0.1, lambda _: None)


async def test_a_broker_that_never_says_is_no_refusal() -> None:
    with pytest.raises(TimeoutError, match="cannot be asked"):
        await settle(Broker(KafkaConnectionError("gone")), 0.3, lambda _: None)


async def test_what_cannot_be_tried_again_is_raised_at_once() -> None:
    broker = Broker(TopicAuthorizationFailedError("app-sessions-v1-changelog"))
    with pytest.raises(TopicAuthorizationFailedError):
        await settle(broker, 60, lambda _: None)
    assert broker.asked == 1
