"""What is logged of a fetch that cannot be read, and what one weighs."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from compaction_monitor.shell.fetching import Batch, ConsumerThread


class Unreadable:
    """A fetch result whose reader fails on the bytes of a header key."""

    def getall(self) -> list[Any]:
        b"secret \xff".decode()
        return []


class Reader(ConsumerThread):
    def __init__(self) -> None:
        self.consumer = SimpleNamespace(lineage=lambda tp: 1)

    def _state(self, tp: Any) -> Any:
        return SimpleNamespace(has_valid_position=True, position=7)

    async def _reread(self, tp: Any, start: int, lineage: int) -> Batch | None:
        return Batch([], start, start + 1, lineage)


async def test_what_cannot_be_read_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        batch = await Reader()._read(TP("events", 0), Unreadable())
    assert batch is not None and batch.start == 7
    assert "UnicodeDecodeError" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("sizes", "weight"),
    [
        pytest.param([], 0, id="nothing"),
        pytest.param([400] * 1_000, 1_000, id="small records count"),
        pytest.param([256 * 1024] * 4, 1_024, id="large ones weigh: 5,000 of them would be more than 1 GB"),
        pytest.param([None] * 3, 3, id="tombstones count too"),
    ],
)
def test_a_batch_weighs_its_records_or_its_kib(sizes: list[int | None], weight: int) -> None:
    records = [SimpleNamespace(value=None if size is None else bytes(size)) for size in sizes]
    assert Batch(records, 0, len(records), 0).weight == weight
