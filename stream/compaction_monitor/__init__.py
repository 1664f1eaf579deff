"""The monitor of agents' context compaction, and the guard for an agent's own process.

>>> from compaction_monitor import CompactionGuard
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compaction_monitor.guard.errors import CompactionInvariantError, SalienceInversionError
    from compaction_monitor.guard.guard import CompactionGuard

__all__ = ["CompactionGuard", "CompactionInvariantError", "SalienceInversionError"]

_FROM = {"CompactionGuard": "guard.guard", "CompactionInvariantError": "guard.errors", "SalienceInversionError": "guard.errors"}


def __getattr__(name: str) -> Any:
    """Load the guard when it is first asked for: who imports another module here does not pay for it."""
    if name in _FROM:
        return getattr(import_module(f"{__name__}.{_FROM[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
