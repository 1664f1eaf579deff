"""An event loop in a thread of its own, for those who do not have one: it goes on while they work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Background:
    """`with Background("name") as loop: loop.run(coroutine)`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def submit(self, what: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine on the loop."""
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
        self.run(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    """Cancel what still runs, and wait until it has cleaned up."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
