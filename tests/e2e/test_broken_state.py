"""What the worker does with state that it cannot use, and with the first version's: its exit code and its last line."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from compaction_events.builders import completed, started
from compaction_events.codec import encode
from compaction_monitor.effects import SESSIONS
from compaction_monitor.harness import Offline
from compaction_monitor.shell.embedded import EmbeddedBroker
from compaction_monitor.state.session import Round
from tests.compaction_monitor.state.test_first_version import FROZEN, frozen_row
from tests.e2e.workers import Monitor, producer, read_all

SUNK: dict[str, Any] = {
    "distinct_source_spans": 10,
    "query_cosine_retained": 0.6,
    "summary_depth_max": 3,
    "summary_tokens": 9_000,
}
Eventually = Callable[..., Awaitable[Any]]
SESSION = next(
    frozen_row(entry) for entry in FROZEN["rows"] if entry["table"] == "sessions" and b"session-1" in frozen_row(entry)[1]
)


@pytest.fixture
def monitor(embedded_broker: EmbeddedBroker, app_id: str, tmp_path: Path) -> Iterator[Monitor]:
    made = Monitor(embedded_broker.address, app_id, tmp_path, partitions=1, tick_s=0.2)
    yield made
    made.kill()


async def write(broker: str, topic: str, *rows: tuple[bytes, bytes]) -> None:
    async with producer(broker) as out:
        for key, value in rows:
            await out.send_and_wait(topic, value, key=key, partition=0)


async def ends(monitor: Monitor, code: int, words: str) -> None:
    """It ends by itself, with this code, and its last line says why."""
    assert await monitor.ended(60) == code, monitor.tail()
    last = monitor.tail(1)
    assert f"exit {code}: " in last
    assert words in last
    assert "Traceback" not in monitor.tail(400)


@pytest.mark.parametrize(
    ("table", "row", "words"),
    [
        pytest.param("sessions", b"[2", "a session's state cannot be read", id="cut"),
        pytest.param("sessions", b'[1,1,"now"' + SESSION[2][40:], "a session's state cannot be read", id="another type"),
        pytest.param(
            "sessions", SESSION[2].replace(b"[1,", b"[2,", 1), "a session's state has version 2, this code knows 1", id="newer"
        ),
        pytest.param("progress", b"[1,-7]", "progress cannot be read", id="progress"),
        pytest.param("progress", b"[2,7,0]", "progress has version 2, this release knows 1", id="newer progress"),
    ],
)
async def test_state_that_it_cannot_use_is_the_operators_to_settle(
    embedded_broker: EmbeddedBroker, app_id: str, make_topics: Any, monitor: Monitor, table: str, row: bytes, words: str
) -> None:
    """Found at once, without a record of that session: by the sweep, or before work begins."""
    await make_topics(embedded_broker, app_id, partitions=1)
    key = f"{app_id}.events".encode() if table == "progress" else SESSION[1]
    await write(embedded_broker.address, f"{app_id}-{table}-v1-changelog", (key, row))
    monitor.start()
    await ends(monitor, 78, words)
    assert await read_all(embedded_broker.address, f"{app_id}.dead-letters", 1) == []


async def test_no_record_pays_for_a_broken_row(
    embedded_broker: EmbeddedBroker, app_id: str, make_topics: Any, monitor: Monitor
) -> None:
    """It is read well, and wrong: the record that meets it stays in the log for whoever mends the row."""
    await make_topics(embedded_broker, app_id, partitions=1)
    now = datetime.now(UTC)
    before = Offline()
    before.feed([started(started_at=now - timedelta(hours=1)), completed(1, at=now - timedelta(minutes=9), **SUNK)])
    ((session, good),) = before.rows[0].tables[SESSIONS].items()
    row = orjson.loads(good)
    window = row.index(next(value for value in row if isinstance(value, list) and value and isinstance(value[0], list)))
    row[window][-1][Round._fields.index("spans")] = "many"
    await write(embedded_broker.address, f"{app_id}-sessions-v1-changelog", (session, orjson.dumps(row)))
    key, value, headers = encode(completed(2, at=now, **SUNK))
    async with producer(embedded_broker.address) as out:
        await out.send_and_wait(f"{app_id}.events", value, key=key, headers=headers)
    monitor.start()
    await ends(monitor, 78, "the state of session 'session-1' is broken: window")
    for topic in (f"{app_id}.dead-letters", f"{app_id}.findings", f"{app_id}-progress-v1-changelog"):
        assert await read_all(embedded_broker.address, topic, 1) == []


async def test_a_damaged_store_is_built_again_by_the_next_start(
    embedded_broker: EmbeddedBroker, app_id: str, make_topics: Any, monitor: Monitor, eventually: Eventually
) -> None:
    await make_topics(embedded_broker, app_id, partitions=1)
    monitor.start()
    async with producer(embedded_broker.address) as out:
        for number in range(300):
            key, value, headers = encode(completed(1, f"session-{number}"))
            await out.send(f"{app_id}.events", value, key=key, headers=headers)

    async def processed() -> bool:
        return len(await read_all(embedded_broker.address, f"{app_id}-sessions-v1-changelog", 1)) >= 300

    await eventually(processed, 60, what="every session's row", every_s=0.2)
    monitor.signal(signal.SIGTERM)
    assert await monitor.ended(20) == 0
    (table, *_) = sorted((monitor.folder / "data").rglob("*.sst"), key=lambda path: -path.stat().st_size)
    data = bytearray(await asyncio.to_thread(table.read_bytes))
    data[len(data) // 3] ^= 1
    await asyncio.to_thread(table.write_bytes, bytes(data))
    monitor.start()
    await ends(monitor, 75, "is damaged, the next start builds it again")
    monitor.start()
    await eventually(monitor.ready, 60, what="/ready", every_s=0.1)
