"""The job in a stock Faust agent: a table of bytes on RocksDB with its changelog, findings sent and awaited, uvloop."""

from __future__ import annotations

import sys
from typing import Any

import faust

from bench.jobs.job import Job
from bench.jobs.marks import Marks, Task

task = Task.given()
job = Job()
marks = Marks(task.records)
app = faust.App(
    task.app,
    broker=f"kafka://{task.broker}",
    store="rocksdb://",
    datadir=task.folder,
    topic_partitions=task.partitions,
    table_standby_replicas=0,
    topic_replication_factor=1,
    consumer_auto_offset_reset="earliest",
    # At least one commit a second, like everyone here; by itself it commits every 2.8 s.
    broker_commit_interval=0.5,
    stream_wait_empty=False,
    web_enabled=False,
    autodiscover=False,
)
inputs = app.topic(task.topic, key_serializer="raw", value_serializer="raw")
findings = app.topic(task.findings, key_serializer="raw", value_serializer="raw")
sessions = app.Table("sessions", key_type=bytes, value_type=bytes, partitions=task.partitions)


@app.agent(inputs)  # type: ignore[untyped-decorator]  # faust is partly untyped
async def monitor(stream: Any) -> None:
    async for event in stream.events():
        marks.before()
        message = event.message
        key = message.key
        row, found = job.row(sessions.get(key), message.value, message.headers, key, int(message.timestamp * 1000))
        sessions[key] = row
        for finding in found:
            await (await findings.send(key=finding.key, value=finding.value, headers=dict(finding.headers)))
        marks.after()


if __name__ == "__main__":
    sys.argv = ["faust", "-L", "uvloop", "worker", "-l", "warn", "--without-web"]
    app.main()
