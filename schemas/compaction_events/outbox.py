"""What the emitter still owes: a bounded queue with exact books, between agents' threads and the one that delivers.

Every event handed in is at any time exactly one of: waiting, in flight, delivered, or dropped for a named reason.
When it is full the oldest waiting event goes: the newest says most about the state of a session, and what is missing
shows as a gap in the round numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

log = logging.getLogger("compaction_events.emitter")

THREAD = "compaction-emitter"
# The interpreter runs one thread at a time: a long turn of the delivering thread is a wait in the agent.
CHUNK = 25
BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0


class Drop(StrEnum):
    """Why an event was not delivered: the closed set of `Stats.dropped`."""

    invalid = "invalid"  # breaks the contract: the agent's code is wrong
    too_large = "too_large"  # over what a record may hold
    queue_full = "queue_full"  # too much waited; the oldest went
    timed_out = "timed_out"  # waited longer than `delivery_timeout_s`
    rejected = "rejected"  # the broker took none of its kind, ever
    unsent = "unsent"  # still waiting when the emitter was closed
    unconfirmed = "unconfirmed"  # sent, but not confirmed when the emitter was closed: perhaps it arrived
    closed = "closed"  # emitted after the emitter was closed
    failed = "failed"  # the emitter's own fault


class Stats(NamedTuple):
    """The books: `emitted == delivered + pending + lost`, always.

    Attributes:
        emitted: Events handed to the emitter, the sound and the invalid ones.
        delivered: Confirmed by the broker, or written to the file.
        pending: Waiting or in flight.
        dropped: Not delivered, by reason (`Drop`).
    """

    emitted: int
    delivered: int
    pending: int
    dropped: Mapping[str, int]

    @property
    def lost(self) -> int:
        """All that was dropped."""
        return sum(self.dropped.values())


class Item(NamedTuple):
    """One event on its way. `born` is by the monotonic clock.

    Headers are tuples of text and bytes: those the garbage collector forgets, so that ten thousand waiting events are
    no pause in the agent.
    """

    serial: int
    born: float
    topic: str
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]

    @property
    def size(self) -> int:
        return len(self.value)


class Outbox:
    """The queue and its books. Every method may be called from any thread, and holds the lock for microseconds.

    Args:
        max_events: How many events may wait or be in flight.
        max_bytes: How many bytes of values may.
        wake: Called when an event comes into an empty queue.
    """

    def __init__(self, max_events: int, max_bytes: int, wake: Callable[[], None]) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._wake = wake
        self._settled = threading.Condition(threading.Lock())
        self._waiting: deque[Item] = deque()
        self._in_flight: dict[int, Item] = {}
        self._bytes = 0
        self._serial = 0
        self._delivered = 0
        self._dropped: Counter[str] = Counter()
        self._closed = False

    def put(self, topic: str, key: bytes, value: bytes, headers: Iterable[tuple[str, bytes]]) -> bool:
        """Take an event in; False when it was dropped at once."""
        with self._settled:
            self._serial += 1
            if self._closed:
                self._dropped[Drop.closed] += 1
                return False
            item = Item(self._serial, time.monotonic(), topic, key, value, tuple(headers))
            was_empty = not self._waiting
            if not self._make_room(item):
                self._dropped[Drop.queue_full] += 1
                return False
            self._waiting.append(item)
            self._bytes += item.size
        if was_empty:
            self._wake()
        return True

    def refuse(self, reason: Drop) -> None:
        """Count an event that never came to be an item."""
        with self._settled:
            self._serial += 1
            self._dropped[reason] += 1

    def take(self, limit: int, max_in_flight: int) -> list[Item]:
        """The oldest waiting events, which are in flight from now on."""
        with self._settled:
            limit = min(limit, max_in_flight - len(self._in_flight), len(self._waiting))
            taken = [self._waiting.popleft() for _ in range(limit)]
            self._in_flight.update((item.serial, item) for item in taken)
            return taken

    def confirm(self, item: Item) -> None:
        """An event in flight was delivered."""
        with self._settled:
            if self._land(item):
                self._delivered += 1

    def drop(self, item: Item, reason: Drop) -> None:
        """An event in flight is given up."""
        with self._settled:
            if self._land(item):
                self._dropped[reason] += 1

    def take_back(self) -> None:
        """All that is in flight waits again, in its old order, before everything that waited."""
        with self._settled:
            self._waiting.extendleft(sorted(self._in_flight.values(), reverse=True))
            self._in_flight.clear()

    def expire(self, born_before: float) -> None:
        """Drop what has waited too long."""
        with self._settled:
            while self._waiting and self._waiting[0].born < born_before:
                self._forget_oldest(Drop.timed_out)

    def wait_settled(self, timeout_s: float) -> bool:
        """Wait until everything emitted so far is delivered or dropped; False at the time-out."""
        with self._settled:
            last = self._serial
            return self._settled.wait_for(lambda: self._oldest() > last, timeout_s)

    def close(self) -> None:
        """Take nothing in any more."""
        with self._settled:
            self._closed = True

    def abandon(self) -> None:
        """Drop everything that is left."""
        with self._settled:
            while self._waiting:
                self._forget_oldest(Drop.unsent)
            self._dropped[Drop.unconfirmed] += len(self._in_flight)
            self._bytes -= sum(item.size for item in self._in_flight.values())
            self._in_flight.clear()
            self._settled.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def ready(self, max_in_flight: int) -> bool:
        """Whether `take` would give something."""
        return bool(self._waiting) and len(self._in_flight) < max_in_flight

    @property
    def stats(self) -> Stats:
        """The books at this moment."""
        with self._settled:
            pending = len(self._waiting) + len(self._in_flight)
            dropped = {str(reason): count for reason, count in self._dropped.items() if count}
            return Stats(self._serial, self._delivered, pending, dropped)

    def _oldest(self) -> int:
        """The serial of the oldest event that is not settled; one beyond the last when there is none."""
        waiting = self._waiting[0].serial if self._waiting else self._serial + 1
        return min(waiting, next(iter(self._in_flight), waiting))

    def _make_room(self, item: Item) -> bool:
        while len(self._waiting) + len(self._in_flight) >= self._max_events or self._bytes + item.size > self._max_bytes:
            if not self._waiting:
                return False
            self._forget_oldest(Drop.queue_full)
        return True

    def _forget_oldest(self, reason: Drop) -> None:
        item = self._waiting.popleft()
        self._bytes -= item.size
        self._dropped[reason] += 1
        self._settled.notify_all()

    def _land(self, item: Item) -> bool:
        if self._in_flight.pop(item.serial, None) is None:
            return False
        self._bytes -= item.size
        self._settled.notify_all()
        return True


class Delivery(Protocol):
    """What takes events out of the outbox, in a thread of its own.

    Every event it took it confirms, drops with a reason, or gives back. Nothing it meets may reach the agent.
    """

    def start(self, outbox: Outbox) -> None:
        """Start the thread."""

    def wake(self) -> None:
        """There is work. Never blocks."""

    def hurry(self) -> None:
        """The end is near: no long back-off from now on."""

    def stop(self, timeout_s: float) -> None:
        """End the thread, finished or not."""
