"""Which partition numbers this worker owns, from claim to revocation.

An assignment goes through: `assigned` → `claim` (fence earlier owners, every transaction ends) → recovery (`tables`) → `open`
(where to go on, or a refusal to) → lanes at work → `close` (the transaction under way ends, the rest is dropped).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Hashable
from typing import Any

from aiokafka.errors import KafkaError
from faust.types import TP

from compaction_monitor.effects import PROGRESS, Core
from compaction_monitor.shell.lanes import EX_CONFIG, EX_FENCED, SILENT_S, Lane, Outlets, Turns, decode_progress
from compaction_monitor.shell.metrics import Metrics
from compaction_monitor.shell.settings import Settings
from compaction_monitor.shell.settling import GRACE_S, Refusal, settle, unsettled
from compaction_monitor.shell.store import StoreError, Stores
from compaction_monitor.shell.transactions import Transactor, stop_all
from compaction_monitor.state.session import StateError

log = logging.getLogger(__name__)

PHASES = ("starting", "recovering", "working", "rebalancing", "stopping")


class Ownership:
    """The owned partition numbers and what they need.

    Attributes:
        lanes: One for each partition number at work; empty while recovering.
        phase: What the worker is doing, one of `PHASES`.
    """

    def __init__(
        self,
        settings: Settings,
        core: Core,
        stores: Stores,
        metrics: Metrics,
        outlets: Outlets,
        consumer: Callable[[], Any],
        end_process: Callable[[int, str], None],
    ) -> None:
        self.lanes: dict[int, Lane] = {}
        self.phase = "starting"
        self._settings, self._core, self._stores, self._metrics = settings, core, stores, metrics
        self._outlets, self._consumer, self._end_process = outlets, consumer, end_process
        self._transactors: dict[int, Transactor] = {}
        self._turns = Turns()
        self._epoch = self._assigned = self._claimed = 0
        self._held = ""
        self._close_timeout_s = min(3.0, settings.shutdown_timeout_s / 2)

    def assigned(self) -> None:
        """There is an assignment; what is claimed and opened from now on is for this one, until the next `close`."""
        self._assigned = self._epoch

    async def claim(self, changelogs: Collection[TP]) -> None:
        """Fence whoever owned the partitions of these changelogs before, ourselves included; every transaction has ended.

        Raises:
            Refusal: A transaction in a changelog, or in the findings, does not end.
            TimeoutError: The brokers do not let us claim them.
            KafkaError: They refuse.
        """
        self.phase = "recovering"
        self._claimed = self._assigned
        self._metrics.recovery_started()
        await self._release()
        wanted = {partition: self._transactor(partition) for partition in {tp.partition for tp in changelogs}}
        self._transactors = wanted
        limit_s = self._settings.transaction_timeout_s + GRACE_S
        self._held = "the last transaction of the partitions' earlier owners has not ended, or no broker answers"
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*(self._start(transactor) for transactor in wanted.values()))
        except TimeoutError as exc:
            raise TimeoutError(f"partitions not claimed within {limit_s:g} s: {self._held}") from exc
        if changelogs:
            options = self._settings.client_options()
            published = {TP(self._outlets.findings, partition) for partition in wanted}
            await settle(lambda: unsettled(self._consumer(), options, published.union(changelogs)), limit_s, self._hold)
        self._held = ""

    def _hold(self, reason: str) -> None:
        if reason.partition(":")[0] != self._held.partition(":")[0]:
            log.info("not recovering yet: %s", reason)
        self._held = reason

    def _transactor(self, partition: int) -> Transactor:
        settings = self._settings
        return Transactor(
            partition,
            f"{settings.app_id}-{partition}",
            settings.client_options(),
            timeout_s=settings.transaction_timeout_s,
            request_s=settings.request_timeout_s,
        )

    async def _start(self, transactor: Transactor) -> None:
        while True:
            try:
                return await transactor.start()
            except KafkaError as exc:
                # A connection that is lost while the coordinator is looked for comes wrapped.
                if not (exc.retriable or getattr(exc.__cause__, "retriable", False)):
                    raise
                log.warning("transactional producer not started, trying again: %r", exc)
                await asyncio.sleep(0.5)

    async def open(self) -> bool:
        """Put the recovered partitions to work.

        Returns:
            False when the assignment has changed meanwhile, or the worker refuses to go on.
        """
        if self._claimed != self._epoch:
            # Closed since then, for a rebalance whose assignment is not there yet: until it is the consumer still says the
            # old one, and lanes that are opened for it would never be closed.
            return False
        assigned = self._consumer().assignment()
        partitions = sorted({tp.partition for tp in assigned})
        inputs = [TP(topic, partition) for partition in partitions for topic in self._settings.input_topics]
        if set(partitions) != set(self._transactors) or not assigned.issuperset(inputs):
            # The leader of the group saw only some of the topics, ours or its own.
            log.warning("assigned only some topics of the partitions %s; asking for another assignment", partitions)
            await self._consumer().rejoin()
            return False
        starts = await self._consumer().earliest_offsets(*inputs) if inputs else {}
        ends = await self._consumer().highwaters(*inputs) if inputs else {}
        if self._claimed != self._epoch:
            return False
        try:
            for partition in partitions:
                self.lanes[partition] = self._lane(partition, starts, ends)
        except StoreError as exc:
            self._end_process(EX_FENCED, str(exc))
            return False
        except (Refusal, StateError) as exc:
            self._end_process(EX_CONFIG, str(exc))
            return False
        self.phase = "working"
        self._metrics.recovery_ended()
        return True

    def _lane(self, partition: int, starts: dict[TP, int], ends: dict[TP, int]) -> Lane:
        topics = self._settings.input_topics
        expected = {topic: self._go_on_from(TP(topic, partition), starts, ends) for topic in topics}
        store = self._stores[partition]
        return Lane(
            partition,
            core=self._core.open(partition, store),
            store=store,
            transactor=self._transactors[partition],
            consumer=self._consumer(),
            outlets=self._outlets,
            settings=self._settings,
            metrics=self._metrics,
            expected=expected,
            ticks_from={topic: ends[TP(topic, partition)] for topic in topics},
            turns=self._turns,
            end_process=self._end_process,
        )

    def _go_on_from(self, tp: TP, starts: dict[TP, int], ends: dict[TP, int]) -> int:
        """The position to read an input from: what the progress row says, if the log still has it."""
        row = self._stores[tp.partition].get(PROGRESS, tp.topic.encode())
        start, end = starts[tp], ends[tp]
        if row is None:
            return start
        progress = decode_progress(row)
        if progress > end:
            return self._new_log(tp, progress, start, end)
        if progress < start:
            lost = start - progress
            log.error("%s: %d records were deleted by retention before they were read; going on at %d", tp, lost, start)
            self._metrics.lost(tp.topic, lost)
        return max(progress, start)

    def _new_log(self, tp: TP, progress: int, start: int, end: int) -> int:
        if tp.topic not in self._settings.accept_new_log:
            raise Refusal(
                f"{tp.topic} partition {tp.partition} ends at {end}, but was read up to {progress}: the topic was recreated "
                f"or lost data. To read the new one from its start: worker --accept-new-log {tp.topic}"
            )
        log.warning("%s: a new log is accepted: from %d instead of %d", tp, start, progress)
        return start

    def deliver(self, message: Any) -> None:
        """Hand a message of the transport to its lane; without one it belongs to a partition that was revoked."""
        lane = self.lanes.get(message.partition)
        if lane is not None:
            lane.deliver(message)

    def positions(self) -> dict[TP, int]:
        """Where every input of every lane is to be read from."""
        return {TP(topic, lane.partition): at for lane in self.lanes.values() for topic, at in lane.expected.items()}

    def unready(self) -> list[str]:
        if self.phase != "working":
            held = f": {self._held}" if self._held and self.phase == "recovering" else ""
            return [self.phase + held]
        reasons = [reason for lane in self.lanes.values() if (reason := lane.unready())]
        silent_s = self._consumer().silent_s() if self.lanes else 0.0
        if silent_s > SILENT_S:
            reasons.append(f"no broker has answered a fetch for {silent_s:.0f} s")
        return reasons

    def marks(self) -> dict[str, Hashable]:
        """What is to be done at the moment, for the watchdog."""
        if self.phase != "working":
            # While it claims there is a limit of its own, which ends with the reason. A claim that the next rebalance has
            # cancelled leaves its reason behind.
            claiming = self._held and self.phase == "recovering"
            return {} if claiming else {f"the worker is {self.phase}": (self._epoch, self._metrics.recovered_records)}
        marks: dict[str, Hashable] = {
            f"partition {lane.partition}": mark for lane in self.lanes.values() if (mark := lane.mark()) is not None
        }
        if self.lanes and self._consumer().silent_s() > SILENT_S:
            marks["no fetch is answered"] = self._epoch
        return marks

    async def close(self) -> None:
        """Stop all lanes; bounded."""
        self._epoch += 1
        self.phase = "rebalancing"
        lanes, self.lanes = self.lanes, {}
        await asyncio.gather(*(lane.close(self._close_timeout_s) for lane in lanes.values()))

    async def stop(self) -> None:
        """Stop for good."""
        await self.close()
        self.phase = "stopping"
        try:
            await self._release()
        finally:
            self._stores.close()

    async def _release(self) -> None:
        transactors, self._transactors = self._transactors, {}
        await stop_all(transactors.values())
