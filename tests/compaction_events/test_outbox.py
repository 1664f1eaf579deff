"""The books of the emitter: at any moment every event is waiting, in flight, delivered, or dropped for one reason."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from compaction_events.outbox import Drop, Item, Outbox


def nothing() -> None:
    pass


def box(max_events: int = 100, max_bytes: int = 10_000, wake: Callable[[], None] = nothing) -> Outbox:
    return Outbox(max_events, max_bytes, wake)


def put(outbox: Outbox, *values: bytes) -> None:
    for value in values:
        outbox.put("topic", b"key", value, [])


def values(items: list[Item]) -> list[bytes]:
    return [item.value for item in items]


def test_first_in_first_out() -> None:
    outbox = box()
    put(outbox, b"1", b"2", b"3")
    assert values(outbox.take(2, 10)) == [b"1", b"2"]
    assert values(outbox.take(2, 10)) == [b"3"]
    assert outbox.stats.pending == 3


def test_the_oldest_waiting_event_goes_when_it_is_full() -> None:
    outbox = box(max_events=3)
    put(outbox, b"1")
    outbox.take(1, 10)
    put(outbox, b"2", b"3", b"4", b"5")
    assert values(outbox.take(10, 10)) == [b"4", b"5"]
    assert outbox.stats.dropped == {"queue_full": 2}


def test_the_newest_goes_when_all_is_in_flight() -> None:
    outbox = box(max_events=1)
    put(outbox, b"1")
    outbox.take(1, 10)
    assert not outbox.put("topic", b"", b"2", [])
    assert outbox.stats.dropped == {"queue_full": 1}


def test_bytes_are_bounded_too() -> None:
    outbox = box(max_bytes=10)
    put(outbox, b"x" * 6, b"y" * 6)
    assert values(outbox.take(10, 10)) == [b"y" * 6]
    assert not outbox.put("topic", b"", b"z" * 11, [])


def test_in_flight_is_bounded() -> None:
    outbox = box()
    put(outbox, b"1", b"2", b"3")
    assert len(outbox.take(5, 2)) == 2
    assert not outbox.ready(2)
    assert outbox.take(5, 2) == []


def test_what_was_taken_back_comes_first_and_in_order() -> None:
    outbox = box()
    put(outbox, b"1", b"2", b"3", b"4")
    taken = outbox.take(3, 10)
    outbox.confirm(taken[1])
    outbox.take_back()
    assert values(outbox.take(10, 10)) == [b"1", b"3", b"4"]


def test_an_event_is_settled_once() -> None:
    outbox = box()
    put(outbox, b"1")
    (item,) = outbox.take(1, 10)
    outbox.confirm(item)
    outbox.confirm(item)
    outbox.drop(item, Drop.rejected)
    assert outbox.stats == (1, 1, 0, {})


def test_what_waited_too_long_is_dropped_and_what_is_in_flight_is_not() -> None:
    outbox = box()
    put(outbox, b"1", b"2", b"3")
    (first,) = outbox.take(1, 10)
    outbox.expire(born_before=first.born + 1_000)
    assert outbox.stats == (3, 0, 1, {"timed_out": 2})


def test_the_end() -> None:
    outbox = box()
    put(outbox, b"1", b"2", b"3")
    outbox.take(1, 10)
    outbox.close()
    put(outbox, b"4")
    outbox.abandon()
    assert outbox.stats == (4, 0, 0, {"closed": 1, "unsent": 2, "unconfirmed": 1})
    assert outbox.wait_settled(0)


def test_waiting_ends_with_the_last_event_emitted_before() -> None:
    outbox = box()
    put(outbox, b"1", b"2")
    first, second = outbox.take(2, 10)
    assert not outbox.wait_settled(0)
    done: list[bool] = []
    waiter = threading.Thread(target=lambda: done.append(outbox.wait_settled(30)))
    waiter.start()
    outbox.confirm(second)
    outbox.drop(first, Drop.rejected)
    waiter.join()
    put(outbox, b"3")
    assert done == [True]


def test_it_wakes_for_the_first_event_only() -> None:
    woken: list[int] = []
    outbox = box(wake=lambda: woken.append(1))
    put(outbox, b"1", b"2")
    outbox.take(2, 10)
    put(outbox, b"3")
    assert len(woken) == 2


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 6)),
        st.tuples(st.sampled_from(["take", "confirm", "drop", "take_back", "refuse", "close"]), st.integers(0, 3)),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_books_balance(steps: list[tuple[str, int]]) -> None:
    outbox = box(max_events=5, max_bytes=20)
    taken: list[Item] = []
    for step, n in steps:
        actions: dict[str, Callable[[], Any]] = {
            "put": lambda: put(outbox, b"x" * n),  # noqa: B023 - called at once
            "take": lambda: taken.extend(outbox.take(n, 3)),  # noqa: B023
            "confirm": lambda: outbox.confirm(taken[-1]) if taken else None,
            "drop": lambda: outbox.drop(taken[0], Drop.rejected) if taken else None,
            "take_back": outbox.take_back,
            "refuse": lambda: outbox.refuse(Drop.invalid),
            "close": outbox.close,
        }
        actions[step]()
        emitted, delivered, pending, _ = outbox.stats
        assert emitted == delivered + pending + outbox.stats.lost
        assert pending <= 5
    outbox.abandon()
    assert outbox.stats.pending == 0
    assert outbox.stats.emitted == outbox.stats.delivered + outbox.stats.lost
