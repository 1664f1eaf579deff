"""Recovery waits for the end of every transaction, and never for one that does not come."""

from __future__ import annotations

import pytest
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError
from faust.types import TP

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
        "app-sessions-v1-changelog partition 3: a transaction is open from 100 on (written up to 140), and 1 more. Nothing "
        "behind it can be read, so there is no going on. If the broker has lost track of it: kafka-transactions.sh abort "
        "--topic app-sessions-v1-changelog --partition 3 --start-offset 100",
        "whether all transactions have ended cannot be asked: KafkaConnectionError('gone')",
        "app-sessions-v1-changelog partition 3: a transaction is open from 100 on (written up to 140). Nothing behind it can "
        "be read, so there is no going on. If the broker has lost track of it: kafka-transactions.sh abort --topic "
        "app-sessions-v1-changelog --partition 3 --start-offset 100",
    ]


async def test_refuses_what_does_not_end() -> None:
    with pytest.raises(Refusal, match=r"partition 3: a transaction is open from 100 on .*, and 1 more"):
        await settle(Broker(OPEN), 0.3, lambda _: None)


async def test_a_broker_that_never_says_is_no_refusal() -> None:
    with pytest.raises(TimeoutError, match="cannot be asked"):
        await settle(Broker(KafkaConnectionError("gone")), 0.3, lambda _: None)


async def test_what_cannot_be_tried_again_is_raised_at_once() -> None:
    broker = Broker(TopicAuthorizationFailedError("app-sessions-v1-changelog"))
    with pytest.raises(TopicAuthorizationFailedError):
        await settle(broker, 60, lambda _: None)
    assert broker.asked == 1
