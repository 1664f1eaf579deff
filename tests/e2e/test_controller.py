"""The controller client: which orders it obeys, what it answers, and that it does each once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from compaction_events.codec import decode, encode
from compaction_events.controller import Controller, Handler, OrderDeferredError, OrderRejectedError
from compaction_events.facts import AckStatus, Fact, RemediationAcknowledged
from compaction_events.findings import Action, CapDepth, OrderReason, RemediationRequested, RemediationWithdrawn
from compaction_monitor.shell import topics
from tests.e2e.brokers import Broker, free_ports

MakeTopics = Callable[..., Awaitable[Sequence[topics.Topic]]]
DEADLINE_S = 30
NOW = datetime.now(UTC)


def order(identity: str = "order", **fields: Any) -> RemediationRequested:
    defaults: dict[str, Any] = {
        "session_id": "s",
        "agent": "coder",
        "action": Action.cap_depth,
        "subject": "",
        "plan": CapDepth(max_depth=2),
        "reason": OrderReason(check="depth_pinned"),
        "requested_at": NOW,
        "expires_at": NOW + timedelta(hours=1),
        "valid_through_round": 14,
    }
    return RemediationRequested(id=identity, **(defaults | fields))


def withdrawal(identity: str) -> RemediationWithdrawn:
    return RemediationWithdrawn(
        id=identity,
        session_id="s",
        agent="coder",
        action=Action.cap_depth,
        subject="",
        because="resolved",
        withdrawn_at=NOW,
    )


class Desk:
    """Gives orders and reads answers."""

    def __init__(self, app_id: str, address: str, producer: AIOKafkaProducer, answers: AIOKafkaConsumer) -> None:
        self.app_id, self.address, self.producer, self.consumer = app_id, address, producer, answers
        self.obeyed: list[str] = []

    async def give(self, *findings: Fact) -> None:
        for finding in findings:
            record = encode(finding)
            topic = f"{self.app_id}.findings"
            await self.producer.send_and_wait(topic, record.value, record.key, headers=record.headers)

    async def answers(self, count: int) -> list[tuple[str, str]]:
        """The next answers: order and status."""
        return [(one.remediation_id, one.status.value) for one in await self.whole_answers(count)]

    async def whole_answers(self, count: int) -> list[RemediationAcknowledged]:
        found = []
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(count):
                record = await self.consumer.getone()
                event = decode(record.value, record.headers, record.key).event
                assert isinstance(event, RemediationAcknowledged)
                found.append(event)
        return found

    def controller(self, handler: Handler | None = None, **options: Any) -> Controller:
        topics = {"findings_topic": f"{self.app_id}.findings", "outcomes_topic": f"{self.app_id}.outcomes"}
        group = {"group_id": self.app_id, "consumer": {"group_instance_id": self.app_id, "auto_offset_reset": "earliest"}}
        made = Controller(self.address, **({"agent": "coder"} | topics | group | options))
        made.on("cap_depth")(handler or self.obey)
        return made

    def obey(self, order: RemediationRequested) -> str:
        self.obeyed.append(order.id)
        return "capped"

    @asynccontextmanager
    async def running(self, controller: Controller) -> AsyncIterator[Controller]:
        task = asyncio.create_task(controller.run())
        try:
            yield controller
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()


@pytest.fixture
async def desk(any_broker: Broker, app_id: str, make_topics: MakeTopics) -> AsyncIterator[Desk]:
    await make_topics(any_broker, app_id, partitions=1)
    producer = AIOKafkaProducer(bootstrap_servers=any_broker.address)
    answers = AIOKafkaConsumer(f"{app_id}.outcomes", bootstrap_servers=any_broker.address, auto_offset_reset="earliest")
    await producer.start()
    await answers.start()
    try:
        yield Desk(app_id, any_broker.address, producer, answers)
    finally:
        await answers.stop()
        await producer.stop()


async def test_obeyed_and_answered(desk: Desk) -> None:
    await desk.give(order("one"))
    async with desk.running(desk.controller()) as controller:
        accepted, completed = await desk.whole_answers(2)
    assert (accepted.status, completed.status) == (AckStatus.accepted, AckStatus.completed)
    assert (completed.remediation_id, completed.session_id, completed.detail) == ("one", "s", "capped")
    assert controller.stats == {"accepted": 1, "completed": 1}


async def test_how_a_handler_can_end(desk: Desk) -> None:
    ends: dict[str, Exception] = {
        "no": OrderRejectedError("not here"),
        "later": OrderDeferredError("busy"),
        "broken": ValueError("a text of the session"),
    }

    async def handler(order: RemediationRequested) -> None:
        raise ends[order.id]

    await desk.give(*(order(identity) for identity in ends))
    async with desk.running(desk.controller(handler)):
        answers = [(one.remediation_id, one.status, one.detail) for one in await desk.whole_answers(6)]
    assert answers[1::2] == [("no", "rejected", "not here"), ("later", "deferred", "busy"), ("broken", "failed", "ValueError")]


async def test_dropped_without_an_answer(desk: Desk) -> None:
    await desk.give(
        order("others", agent="writer"),
        order("late", expires_at=NOW),
        order("old", valid_through_round=6),
        order("for people", mode="advisory"),
        order("taken back", mode="enforce"),
        withdrawal("taken back"),
        order("replaced", mode="enforce"),
        order("last", mode="enforce", supersedes=("replaced",)),
    )
    controller = desk.controller(current_round={"s": 7}.get, modes=["enforce"])
    # One read brings them all, so that what takes an order back is known before it is obeyed.
    async with desk.running(controller):
        assert await desk.answers(2) == [("last", "accepted"), ("last", "completed")]
    assert desk.obeyed == ["last"]
    dropped = {name: count for name, count in controller.stats.items() if name not in ("accepted", "completed")}
    assert dropped == {"withdrawn": 2}


async def test_what_had_to_give_way_is_obeyed_when_it_comes_again(desk: Desk) -> None:
    await desk.give(order("waits"), withdrawal("waits"))
    async with desk.running(desk.controller()) as controller:
        await desk.give(order("other"))
        assert await desk.answers(2) == [("other", "accepted"), ("other", "completed")]
        assert controller.stats["withdrawn"] == 1
        await desk.give(order("waits", attempt=2))
        assert await desk.answers(2) == [("waits", "accepted"), ("waits", "completed")]


async def test_expired_and_moved_on(desk: Desk) -> None:
    await desk.give(order("late", expires_at=NOW), order("old", valid_through_round=6), order("unknown", session_id="t"))
    controller = desk.controller(current_round={"s": 7}.get)
    async with desk.running(controller):
        assert await desk.answers(2) == [("unknown", "accepted"), ("unknown", "completed")]
    assert (controller.stats["expired"], controller.stats["moved_on"]) == (1, 1)


async def test_rejected_before_it_is_begun(desk: Desk) -> None:
    await desk.give(
        order("one"), order("two", action=Action.resume, plan={"action": "resume", "halted_by": "h", "because": "expired"})
    )
    async with desk.running(desk.controller(precondition=lambda order: "no such session")):
        answers = [(one.status, one.detail) for one in await desk.whole_answers(2)]
    assert answers == [("rejected", "no such session"), ("rejected", "no handler for resume")]
    assert desk.obeyed == []


async def test_sent_again_it_is_answered_as_before_and_not_obeyed_again(desk: Desk) -> None:
    await desk.give(order("one"))
    async with desk.running(desk.controller()):
        first = (await desk.whole_answers(2))[1]
        await desk.give(order("one", attempt=2))
        assert await desk.whole_answers(1) == [first]
    # Another run has it from the outcomes.
    await desk.give(order("one", attempt=3))
    async with desk.running(desk.controller()):
        assert await desk.whole_answers(1) == [first]
    assert desk.obeyed == ["one"]


async def test_deferred_it_is_obeyed_when_it_is_sent_again(desk: Desk) -> None:
    def handler(order: RemediationRequested) -> str:
        if order.attempt == 1:
            raise OrderDeferredError("busy")
        return desk.obey(order)

    await desk.give(order("one"), order("one", attempt=2))
    async with desk.running(desk.controller(handler)):
        statuses = [status for _, status in await desk.answers(4)]
    assert statuses == ["accepted", "deferred", "accepted", "completed"]


async def test_a_run_that_dies_in_the_middle_is_run_again(desk: Desk) -> None:
    begun = asyncio.Event()

    async def hangs(order: RemediationRequested) -> None:
        begun.set()
        await asyncio.Event().wait()

    await desk.give(order("one"))
    async with desk.running(desk.controller(hangs)):
        async with asyncio.timeout(DEADLINE_S):
            await begun.wait()
    async with desk.running(desk.controller()):
        assert [status for _, status in await desk.answers(3)] == ["accepted", "accepted", "completed"]
    assert desk.obeyed == ["one"]


async def test_by_session_in_an_agents_own_process(desk: Desk) -> None:
    options: dict[str, Any] = {"group_id": None, "consumer": {}, "agent": None, "sessions": {"s"}}

    def work() -> None:
        with desk.controller(**options):
            asyncio.run_coroutine_threadsafe(desk.give(order("other", session_id="t"), order("mine")), loop).result(DEADLINE_S)
            answers = asyncio.run_coroutine_threadsafe(desk.answers(2), loop).result(DEADLINE_S)
            assert answers == [("mine", "accepted"), ("mine", "completed")]

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(work)
    assert desk.obeyed == ["mine"]


def test_it_cannot_begin() -> None:
    controller = Controller(f"127.0.0.1:{free_ports(1)[0]}", agent="coder")
    with pytest.raises(Exception, match="bootstrap"), controller:
        pytest.fail("it began")


def test_a_group_shares_what_each_session_has_to_see() -> None:
    with pytest.raises(ValueError, match="give one of them"):
        Controller("127.0.0.1:1", group_id="g", sessions={"s"})
