"""What goes wrong in a run, when, and which rules it must lead to."""

from __future__ import annotations

import asyncio
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import RecordsToDelete

from compaction_events.topics import EVENTS
from compaction_monitor.shell import topics
from tests.fleet import quotas
from tests.fleet.plan import Fault, Plan
from tests.fleet.run import Run
from tests.fleet.services import AGENT, WORKERS

ONE, OTHER = WORKERS
RESTARTS: Final = 5
SLOW_BYTES_PER_S: Final = 60_000.0  # a sixth of what is reported then
CUT: Final = 3  # the partition that retention empties


def _down(run: Run) -> None:
    run.kill(OTHER)


async def _up(run: Run) -> None:
    await run.restart(OTHER)


def _all_sink(run: Run) -> None:
    run.population.danger = True


def _some_sink(run: Run) -> None:
    run.population.danger = False


def _see_nothing(run: Run) -> None:
    run.population.unseen = True


def _see(run: Run) -> None:
    run.population.unseen = False


async def _slow(run: Run) -> None:
    """The cluster slows who reads, while another fleet reports too."""
    run.population.busy = True
    await asyncio.to_thread(quotas.reading, run.services.kafka.address, SLOW_BYTES_PER_S)


async def _fast(run: Run) -> None:
    run.population.busy = False
    await asyncio.to_thread(quotas.reading, run.services.kafka.address, None)


async def _nobody(run: Run) -> None:
    await run.poison_is_read()
    for name in WORKERS:
        run.kill(name)


async def _everybody(run: Run) -> None:
    """Retention has been faster in one partition."""
    here = TopicPartition(EVENTS.name, CUT)
    consumer = AIOKafkaConsumer(bootstrap_servers=run.services.kafka.address)
    await consumer.start()
    try:
        end = (await consumer.end_offsets([here]))[here]
    finally:
        await consumer.stop()
    async with topics.connect(bootstrap_servers=run.services.kafka.address) as admin:
        await admin.delete_records({here: RecordsToDelete(end)})
    for name in WORKERS:
        await run.restart(name)
    run.poisoning = True


async def _again_and_again(run: Run) -> None:
    for _ in range(RESTARTS):
        run.kill(ONE)
        await run.restart(ONE)
        await asyncio.sleep(2 * run.plan.scrape_s)  # the fault's own pace: each start is seen by Prometheus


def _agents_stop(run: Run) -> None:
    run.population.silent = 20
    run.kill(AGENT)


def _agents_return(run: Run) -> None:
    run.population.silent = 0
    run.start(AGENT)


def _broker_hangs(run: Run) -> None:
    run.poisoning = False
    run.stop_broker()


def _broker_returns(run: Run) -> None:
    run.continue_broker()
    run.poisoning = True


def _nothing(_: Run) -> None:
    """It is over by itself."""


_WORKER_DOWN = "one of the workers is killed, and stays down"
_DANGER = "every session that can sinks into an inversion, and stays there"
# Something of these is wrong all the time: 2 records a second that break the contract, agents that answer no order.
_ALWAYS = ("CompactionWatchdog", "CompactionDeadLetters", "CompactionFindingsOpen")
_NEVER = ("CompactionInternalErrors", "CompactionRecoveryStuck")


def long(minutes: float) -> Plan:
    """Every fault, one after the other. In ten minutes the rules' ten are half a minute."""
    return Plan(
        minutes=minutes,
        divide=max(1.0, 200 / minutes),
        scrape_s=2,
        # Its partitions are nobody's until the group gives it up: longer than the rule for that waits.
        session_timeout_s=40.0,
        faults=(
            Fault(0.02, 0.13, _WORKER_DOWN, ("CompactionWorkerDown", "CompactionMonitorBlind"), _down, _up),
            Fault(0.15, 0.31, _DANGER, ("CompactionFleetInDanger",), _all_sink, _some_sink),
            Fault(0.15, 0.36, "an agent reports no spans", ("CompactionChecksBlind",), _see_nothing, _see, beside=True),
            Fault(
                0.37, 0.57, "the workers may read little, while more agents report",
                ("CompactionLagGrowing", "CompactionDetectionSlow"), _slow, _fast,
            ),
            Fault(
                0.60, 0.67, "both workers are killed, and retention deletes what was not read",
                ("CompactionMonitorDown", "CompactionRecordsLost"), _nobody, _everybody,
            ),
            Fault(0.69, 0.79, "a worker is killed again and again", ("CompactionRestartsOften",), _again_and_again, _nothing),
            Fault(0.70, 0.84, "agents fall silent, and one is killed", (), _agents_stop, _agents_return, beside=True),
            Fault(0.86, 0.95, "the broker hangs", ("CompactionWorkerNotReady",), _broker_hangs, _broker_returns),
        ),
        always=(*_ALWAYS, "CompactionOrdersUnacknowledged"),
        never=_NEVER,
    )  # fmt: skip


def short(minutes: float) -> Plan:
    """Two faults, in a minute or two: a rule's times are ten seconds then."""
    return Plan(
        minutes=minutes,
        divide=200 / minutes,
        scrape_s=2,
        session_timeout_s=6.0,
        faults=(
            Fault(0.05, 0.35, _WORKER_DOWN, ("CompactionWorkerDown",), _down, _up),
            Fault(0.40, 0.90, _DANGER, ("CompactionFleetInDanger",), _all_sink, _some_sink),
        ),
        always=_ALWAYS,
        never=(*_NEVER, "CompactionRecordsLost", "CompactionMonitorDown", "CompactionChecksBlind"),
    )
