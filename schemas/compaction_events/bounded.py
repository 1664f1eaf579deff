"""A memory that does not grow: the last so many keys, the oldest forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(OrderedDict[K, V]):
    """A dictionary of at most `limit` keys. Setting a key makes it the newest.

    >>> last = Bounded(2)
    >>> for key in "aba", "b", "c", "b", "d":
    ...     last[key] = None
    >>> list(last)
    ['b', 'd']
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.limit:
            self.popitem(last=False)
