"""What a client that has given up for good leads to; its real states, without a broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaError, TransactionalIdAuthorizationFailed

from compaction_monitor.shell.ownership import Ownership
from compaction_monitor.shell.transactions import Fenced, Transactor, stop_all

GONE = KafkaError("Unexpected error during batch delivery")


class GivesUp(Transactor):
    """Its client gives up while it sends, as when a broker goes away while the coordinator is looked for."""

    def __init__(self, *, notices: bool) -> None:
        options = {"bootstrap_servers": "127.0.0.1:1"}
        super().__init__(3, "app-3", options, timeout_s=1, request_s=1)
        self._notices = notices
        self._producer._txn_manager.set_pid_and_epoch(1, 0)

    async def _produce(self, *_: Any) -> dict[str, int]:
        self._producer._txn_manager.fatal_error(GONE)
        if self._notices:
            raise GONE
        return {}


@pytest.mark.parametrize(
    ("notices", "words"),
    [(True, "the transaction cannot be aborted"), (False, "committed or not is unknown")],
    ids=["while sending", "at the commit"],
)
async def test_a_client_that_gave_up_ends_the_worker_for_a_restart(notices: bool, words: str) -> None:
    """No fault of the program: the next start fences what was, and knows."""
    transactor = GivesUp(notices=notices)
    with pytest.raises(Fenced, match=f"partition 3: {words}"):
        await transactor.publish({}, {})
    await transactor.stop()


class Starting(Transactor):
    """Its client is refused so often."""

    def __init__(self, *refusals: KafkaError) -> None:
        self._refusals = list(refusals)

    async def start(self) -> None:
        if self._refusals:
            raise self._refusals.pop(0)


async def test_a_claim_goes_on_through_lost_connections() -> None:
    """Also one that the client has wrapped, as it does while it looks for the coordinator."""
    wrapped = KafkaError("KafkaConnectionError()")
    wrapped.__cause__ = KafkaConnectionError()
    transactor = Starting(KafkaConnectionError(), wrapped)
    await Ownership._start(object(), transactor)  # type: ignore[arg-type]  # it asks nothing of its own
    assert transactor._refusals == []


@pytest.mark.parametrize("refusal", [TransactionalIdAuthorizationFailed("app-3"), KafkaError("for good")])
async def test_a_claim_that_is_refused_is_not_made_again(refusal: KafkaError) -> None:
    with pytest.raises(type(refusal)):
        await Ownership._start(object(), Starting(refusal))  # type: ignore[arg-type]  # see above


async def test_each_attempt_to_start_has_a_producer_that_can_be_stopped() -> None:
    """aiokafka's own goes on working when it is started again after a stop, but ignores every later one."""
    transactor = Transactor(3, "app-3", {"bootstrap_servers": "127.0.0.1:1"}, timeout_s=1, request_s=1)
    tried = []
    for _ in range(3):
        with pytest.raises(KafkaConnectionError):
            await transactor.start()
        tried.append(transactor._producer)
    assert len(set(tried)) == 3
    assert all(producer._closed for producer in tried)


class Stops(Transactor):
    """Its `stop` does as it is told."""

    def __init__(self, *, cancelled: bool) -> None:
        self._cancelled = cancelled

    async def stop(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
        await asyncio.Event().wait()


async def test_a_client_whose_own_task_was_cancelled_does_not_cancel_us() -> None:
    await stop_all([Stops(cancelled=True)])


async def test_a_claim_that_is_cancelled_while_it_lets_go_does_not_go_on() -> None:
    """It would fence the claim of the assignment after it."""
    stopping = asyncio.create_task(stop_all([Stops(cancelled=False)]))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
