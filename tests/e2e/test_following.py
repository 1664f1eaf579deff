"""`ingest --follow` to a broker: what grows on disk arrives, and a second run goes on where the first one stopped."""

from __future__ import annotations

import json
import signal

from compaction_events.codec import decode
from tests.compaction_events.adapters.test_following import transcript, whole
from tests.e2e.test_cli import PARTITIONS, Eventually, Tool, tool
from tests.e2e.workers import read_all

__all__ = ["tool"]


async def sent(tool: Tool) -> list[str]:
    records = await read_all(tool.broker, f"{tool.app_id}.events", PARTITIONS)
    return [decode(record.value, record.headers, record.key).ce_id for record in records]


async def test_a_session_is_followed_over_two_runs(tool: Tool, eventually: Eventually) -> None:
    lines, path = transcript(passes=4), tool.folder / "a.jsonl"
    options = ("ingest", "a.jsonl", "--follow", "--interval", "0.05", "--cursor", "cursor", "--json")
    counts = []
    for number in (10, len(lines)):
        path.write_bytes(b"".join(lines[:number]))
        process = tool.start(*options)

        async def arrived() -> bool:
            assert process.poll() is None, tool.log  # noqa: B023 - it is waited for in this turn
            return await sent(tool) == whole(path)

        try:
            await eventually(arrived, 60, what="every event", every_s=0.2)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        # The report is the last thing in the log, after what goes to stderr.
        document = json.loads(tool.log[tool.log.index("{") :])
        counts.append(document["sent"])
        assert (process.returncode, document["sessions"]) == (0, ["session-a"])
    assert sum(counts) == len(whole(path))
