"""An event loop in a thread of its own, for those who do not have one: it goes on while they work."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
CLEAN_UP_S = 5.0


class Background:
    """`with Background("name") as loop: loop.run(coroutine)`.

    At the end what was begun here is cancelled first, and has `CLEAN_UP_S` to clean up; only then the tasks that it
    rests on: a Kafka client whose own tasks end before it is stopped leaves its connections open.
    """

    def __init__(self, name: str) -> None:
        self._begun: weakref.WeakSet[Coroutine[Any, Any, Any]] = weakref.WeakSet()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def submit(self, what: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine on the loop."""
        self._begun.add(what)
        return asyncio.run_coroutine_threadsafe(what, self._loop)

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; cut short, by Ctrl-C say, it is cancelled there."""
        future = self.submit(what)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.run(_end(frozenset(self._begun)))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end(begun: frozenset[Coroutine[Any, Any, Any]]) -> None:
    await _cancel(lambda task: task.get_coro() in begun, CLEAN_UP_S)
    await _cancel(lambda _: True)
    await asyncio.get_running_loop().shutdown_default_executor()


async def _cancel(which: Callable[[asyncio.Task[Any]], bool], timeout_s: float | None = None) -> None:
    """Cancel what still runs, and wait until it has cleaned up."""
    tasks = [task for task in asyncio.all_tasks() - {asyncio.current_task()} if which(task)]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_s)
