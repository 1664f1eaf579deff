"""OpenHands conversations, watched: a callback for events, which sees every condensation whatever condenser made it.

```python
conversation = Conversation(agent, callbacks=[Watch(emitter.emit, "session-1")])
```
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from compaction_events.adapters.lines import Warnings
from compaction_events.adapters.openhands import View
from compaction_events.facts import Fact, Topology
from compaction_events.middleware import guarded


class Watch:
    """Takes every event of one conversation, and reports each condensation.

    Args:
        emit: Takes each fact: `Emitter.emit`, or what a test collects with.
        session_id: The conversation's id.
        topology: `tree` where the condenser lets summaries stand side by side.
    """

    def __init__(self, emit: Callable[[Fact], object], session_id: str, topology: Topology = Topology.chain) -> None:
        self._emit = emit
        self._view = View(session_id, topology, Warnings(), Path())

    def __call__(self, event: Any) -> None:
        with guarded():
            for fact in self._view.take(event.model_dump(mode="json")):
                self._emit(fact)

    def ended(self) -> None:
        """The conversation is over."""
        with guarded():
            for fact in self._view.ended():
                self._emit(fact)
