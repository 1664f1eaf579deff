"""`demo --scenario`: a reference agent against a real worker, first alone, then with a controller that obeys.

The agent reports through its emitter, the controller takes its orders from the findings and answers on the outcomes:
nothing here is nearer to the worker than any other agent. The same fold runs beside it only to know what to wait for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from compaction_events.codec import Decoded, ce_id
from compaction_events.facts import CheckpointRegenerated, Fact, PropositionMissed, RoundCompleted
from compaction_events.findings import Action, Alert, RemediationRequested, RemediationWithdrawn
from compaction_monitor.report.document import SessionReport
from compaction_monitor.rules import Rules

if TYPE_CHECKING:
    from compaction_events.controller import Controller
    from compaction_events.emitter import Emitter
    from compaction_monitor.shell.settings import Settings
    from compaction_monitor.simulate.answering import Handler

OBEYED_S: Final = 10.0
ORDER_S: Final = 3.0
PAUSE_S: Final = 0.05
SEED: Final = 1_001  # the first held-out one whose trials come to a verdict; in 1,000 all three stay undecided
LOOPS_OWN: Final = "remediation_"


class Role(NamedTuple):
    """One session to play.

    Attributes:
        script: What the agent does, fact by fact; it goes on only when all that follows from a fact is done.
        handlers: How its controller obeys, by action; none: nobody does.
        clock: The session's own time.
        ready: It is not halted.
        held: What to say of it in the end.
    """

    title: str
    session_id: str
    script: Iterator[Fact]
    handlers: dict[str, Handler]
    clock: Callable[[], datetime]
    ready: Callable[[], bool]
    outcome: Callable[[], str]


class Show(Protocol):
    """Where it is seen."""

    def title(self, text: str) -> None: ...
    def fact(self, fact: Fact) -> None: ...
    def finding(self, decoded: Decoded) -> None: ...


class Listener(Protocol):
    """Collects what the worker publishes."""

    heard: list[Decoded]

    async def wait_for(self, ids: list[str]) -> list[Decoded]: ...


class Act:
    """A session as it is played.

    Args:
        rules: The worker's.
    """

    def __init__(self, role: Role, settings: Settings, listener: Listener, show: Show, rules: Rules) -> None:
        self.report = SessionReport(role.session_id, "demo")
        self._role, self._settings, self._listener, self._show, self._rules = role, settings, listener, show, rules
        self._obeyed: set[str] = set()
        self._loop = asyncio.get_running_loop()

    async def play(self) -> None:
        """From the first fact to the last."""
        with self._emitter() as emitter:
            self._emit = emitter
            if not self._role.handlers:
                await self._run()
                return
            controller = self._controller()
            await asyncio.to_thread(controller.__enter__)
            try:
                await self._run()
            finally:
                await asyncio.to_thread(controller.__exit__, None, None, None)

    async def _run(self) -> None:
        for fact in self._role.script:
            await self._reported([fact])
            if self._role.handlers:
                await self._until_obeyed()
            if isinstance(fact, RoundCompleted | PropositionMissed):
                await asyncio.sleep(PAUSE_S)

    async def _reported(self, facts: Iterable[Fact]) -> None:
        """Facts through the emitter; back when the worker has said of each what it has to say."""
        for fact in facts:
            self._show.fact(fact)
            self._emit.emit(fact)
            await asyncio.to_thread(self._emit.flush)
            found = self.report.add(fact, self._rules)
            # Alerts are certain. Whether an order goes out now can depend on answers, which travel on a log of their own.
            alerts = [finding for finding in found if isinstance(finding, Alert) and not finding.name.startswith(LOOPS_OWN)]
            for decoded in await self._listener.wait_for([ce_id(alert) for alert in alerts]):
                self._show.finding(decoded)
            if self._role.handlers:
                orders = {finding.id for finding in found if isinstance(finding, RemediationRequested)}
                await self._until(lambda orders=orders: orders <= self._heard_orders(), ORDER_S)  # type: ignore[misc]

    async def _until_obeyed(self) -> None:
        """What was ordered is done, and the agent may go on; an order that nobody took by then is not waited for again."""
        await self._until(lambda: not self._open_orders() and self._role.ready(), OBEYED_S)
        self._obeyed |= self._open_orders()

    async def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not holds() and time.monotonic() < until:  # noqa: ASYNC110 - what is waited for happens in other threads
            await asyncio.sleep(PAUSE_S / 5)

    def _heard_orders(self) -> set[str]:
        return {event.id for event in self._events() if isinstance(event, RemediationRequested)}

    def _open_orders(self) -> set[str]:
        withdrawn = {event.id for event in self._events() if isinstance(event, RemediationWithdrawn)}
        return self._heard_orders() - self._obeyed - withdrawn

    def _events(self) -> Iterator[Fact]:
        mine = self._role.session_id
        return (decoded.event for decoded in self._listener.heard if decoded.event.session_id == mine)

    def _emitter(self) -> Emitter:
        from compaction_events.emitter import Emitter

        settings = self._settings
        events, outcomes = settings.events_topics[0], settings.outcomes_topic
        return Emitter(*self._brokers(), agent="demo", topic=events, outcomes_topic=outcomes, **self._security())

    def _controller(self) -> Controller:
        from compaction_events.controller import Controller

        settings = self._settings
        controller = Controller(
            *self._brokers(), sessions=[self._role.session_id], clock=self._role.clock, findings_topic=settings.findings_topic,
            outcomes_topic=settings.outcomes_topic, **self._security(),
        )  # fmt: skip
        for action in Action:
            controller.on(action)(partial(self._obey, self._role.handlers.get(action.value)))
        return controller

    def _obey(self, handler: Handler | None, order: RemediationRequested) -> str:
        """In a thread of the controller's: do it, and report what came of it before the order is answered."""
        from compaction_events.controller import OrderRejectedError

        try:
            done = handler(order.plan, order.id) if handler is not None else None
            if done is None:
                raise OrderRejectedError(f"not here: {order.action}")
            asyncio.run_coroutine_threadsafe(self._shown(order, done.facts), self._loop).result()
            return done.detail
        finally:
            self._obeyed.add(order.id)

    async def _shown(self, order: RemediationRequested, facts: Iterable[Fact]) -> None:
        self._show.finding(Decoded(order, order.id, None))
        await self._reported(facts)

    def _brokers(self) -> tuple[str]:
        return (",".join(self._settings.brokers),)

    def _security(self) -> dict[str, Any]:
        return {name: value for name, value in self._settings.client_options().items() if name != "bootstrap_servers"}


def roles(scenario: str) -> Iterator[Role]:
    """A scenario's two sessions: the same world without and with the loop."""
    yield from _inversion() if scenario == "inversion" else _saturation()


def _inversion() -> Iterator[Role]:
    from compaction_monitor.simulate.rehydration import ResearchController
    from compaction_monitor.simulate.researcher import ROUND_LENGTH, Researcher

    for loop in (False, True):
        agent = Researcher(SEED, session_id=f"inversion-{_which(loop)}", start=_start(ROUND_LENGTH * 41), controlled=loop)

        def script(agent: Researcher = agent) -> Iterator[Fact]:
            yield agent.started()
            while not agent.done and not agent.halted:
                yield agent.completed(agent.step())
            yield agent.ended()

        def outcome(agent: Researcher = agent) -> str:
            row = agent.measured()
            return f"raw_ratio {row.raw_ratio:.2f}, {row.spans} spans reachable, {row.orphans} summaries without any"

        yield Role(
            f"A compaction loop, 40 rounds, {_words(loop)}", agent.session_id, script(),
            dict(ResearchController(agent).handlers) if loop else {},
            partial(getattr, agent, "at"), lambda agent=agent: not agent.halted, outcome,  # type: ignore[misc]
        )  # fmt: skip


def _saturation() -> Iterator[Role]:
    from compaction_monitor.simulate.keeper import Keeper
    from compaction_monitor.simulate.rebalancing import KeepController
    from compaction_monitor.simulate.sessions import TURNS

    for loop in (False, True):
        keeper = Keeper(SEED, session_id=f"saturation-{_which(loop)}", start=_start(timedelta(hours=41)), controlled=loop)

        def script(keeper: Keeper = keeper, loop: bool = loop) -> Iterator[Fact]:
            yield keeper.started()
            yield from keeper.stated()
            yield from keeper.build()
            for _ in keeper.asks(0, TURNS):
                if (node := keeper.ask()) is not None:
                    yield keeper.missed(node)
                    if not loop:
                        yield keeper.regenerate(node)
            yield keeper.ended()

        def outcome(keeper: Keeper = keeper) -> str:
            return f"{len(keeper.held)} of 19 constraints held, {keeper.regenerations} regenerations of the root"

        yield Role(
            f"A checkpoint hierarchy, 40 hours, {_words(loop)}", keeper.session_id, script(),
            dict(KeepController(keeper).handlers) if loop else {},
            partial(getattr, keeper, "at"), lambda: True, outcome,
        )  # fmt: skip


def _start(length: timedelta) -> datetime:
    """So that the session ends about now: a monitor would take much later times for a clock gone wrong."""
    return datetime.now(UTC) - length


def _which(loop: bool) -> str:
    return "with-the-loop" if loop else "alone"


def _words(loop: bool) -> str:
    return "with a controller that obeys" if loop else "and nobody obeys"


def said(fact: Fact) -> str | None:
    """A fact of the tree in words, None where a line of its own would say nothing."""
    match fact:
        case PropositionMissed():
            return f"  {fact.at:%a %H:%M}  a constraint is missed at {fact.node_id}"
        case CheckpointRegenerated(trial_number=int()):
            return f"  {fact.at:%a %H:%M}  trial {fact.trial_number} of {fact.node_id}: {len(fact.retained)} constraints"
        case CheckpointRegenerated():
            return f"  {fact.at:%a %H:%M}  {fact.node_id} regenerated: {len(fact.retained)} constraints"
    return None
