"""Times in a session's row: whole microseconds, exactly, there and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from compaction_monitor.state.session import microseconds, moment


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        pytest.param(datetime(1970, 1, 1, tzinfo=UTC), 0, id="the epoch"),
        pytest.param(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=1), 1, id="the smallest step"),
        pytest.param(datetime(2199, 12, 31, 23, 59, 59, 999_999, UTC), 7_258_118_399_999_999, id="the last one allowed"),
        pytest.param(datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0, id="another zone, the same moment"),
    ],
)
def test_microseconds_are_whole_and_exact(at: datetime, expected: int) -> None:
    found = microseconds(at)
    assert (found, type(found)) == (expected, int)
    assert moment(found) == at
