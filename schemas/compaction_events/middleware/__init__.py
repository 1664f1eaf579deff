"""Agents' own compaction, watched in process: what adapters read from disk, told while it happens.

```python
from compaction_events.emitter import Emitter
from compaction_events.middleware import Live
from compaction_events.middleware.langchain import watch

emitter = Emitter("localhost:9092", agent="coder")
live = Live(emitter.emit, agent="coder", source="langchain")
agent = create_agent(model, middleware=[watch(SummarizationMiddleware(model, trigger=("tokens", 4000)), live)])
```

Nothing in here imports a framework, and nothing raises into the agent. Needs the extra `[adapters]`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from threading import RLock
from typing import Final

from compaction_events.adapters.chain import kind_of
from compaction_events.facts import Eviction, Fact, SpansMethod, Topology
from compaction_events.recorder import Message, Pass, Recorder

__all__ = ["Live", "guarded"]

log = logging.getLogger(__name__)
MAX_SESSIONS: Final = 1_000
_METHOD: Final = "utf8_bytes/4"


@dataclass
class _Session:
    recorder: Recorder
    passes: int = 0
    depth: dict[str, int] = field(default_factory=dict)


class Live:
    """The recorders of all sessions of an agent in this process. Safe in any thread.

    Args:
        emit: Takes each fact: `Emitter.emit`, or what a test collects with.
        agent: Which agent.
        source: Which middleware.
        topology: How its summaries relate.
        eviction: When it evicts.
        clock: The time; by default the machine's.
    """

    def __init__(
        self,
        emit: Callable[[Fact], object],
        *,
        agent: str,
        source: str,
        topology: Topology = Topology.chain,
        eviction: Eviction = Eviction.overflow,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.emit = emit
        self.agent = agent
        self.source = source
        self.topology = topology
        self.eviction = eviction
        self.clock = clock or partial(datetime.now, UTC)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._lock = RLock()

    def passed(self, session_id: str, before: Sequence[Message], after: Sequence[Message]) -> None:
        """One pass: the set as it found it, and as it left it.

        Messages with a depth of 1 or more are summaries; a new one covers what left the set. Its depth, children and leaves
        are worked out here.
        """
        with guarded(), self._lock:
            session = self._session(session_id)
            session.passes += 1
            found = [self._known(session, message) for message in before]
            stay = {message.id for message in after}
            gone = [message for message in found if message.id not in stay]
            left = [self._covering(session, message, gone) for message in after]
            new = [message for message in left if message.depth and message.id not in {known.id for known in found}]
            session.recorder.before(found)
            kind = kind_of("\n".join(message.text for message in new) if new else None)
            this = Pass(session.passes, self.clock(), claimed=len(gone), summary_kind=kind, token_method=_METHOD)
            for fact in session.recorder.passed(left, this):
                self.emit(fact)

    def ended(self, session_id: str) -> None:
        """The session is over."""
        with guarded(), self._lock:
            session = self._sessions.pop(session_id, None)
            if session is not None:
                self.emit(session.recorder.ended(self.clock()))

    def _session(self, session_id: str) -> _Session:
        if session_id not in self._sessions:
            recorder = Recorder(
                session_id,
                self.agent,
                source=self.source,
                topology=self.topology,
                eviction=self.eviction,
                leaves=True,
                reachable=SpansMethod.lexical,
            )
            self._sessions[session_id] = _Session(recorder)
            self.emit(recorder.started(self.clock()))
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(session_id)
        return self._sessions[session_id]

    @staticmethod
    def _known(session: _Session, message: Message) -> Message:
        return message._replace(depth=session.depth.setdefault(message.id, message.depth)) if message.depth else message

    @staticmethod
    def _covering(session: _Session, message: Message, gone: Sequence[Message]) -> Message:
        """A new summary with what it was written from."""
        if not message.depth or message.id in session.depth:
            return Live._known(session, message)
        session.depth[message.id] = 1 + max((one.depth for one in gone), default=0)
        return message._replace(
            depth=session.depth[message.id],
            children=tuple(one.id for one in gone if one.depth),
            leaves=tuple(one.id for one in gone if not one.depth),
        )


@contextmanager
def guarded() -> Iterator[None]:
    """Whatever fails inside is logged by its type, without the session's text, and goes no further."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - an observer must never break the agent
        log.warning("a compaction pass was not reported: %s", type(error).__name__)
